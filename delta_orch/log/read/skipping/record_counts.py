"""How many records files have, from their statistics (PROTOCOL, "Per-file Statistics")."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.arrow_building import int64_array, one_chunk
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.stats_json import read_stats_json
from delta_orch.protocol.actions import JsonValue

_SCHEMA = pa.schema([("numRecords", pa.int64())])
_FEW = 64


def record_counts(files: pa.Table) -> pa.Array:
    """`numRecords` of each file (columns of `file_columns.ADD_SCHEMA`): of the data file, deleted rows counted; null
    where the statistics do not say."""
    if "stats" not in files.column_names:
        return pa.nulls(files.num_rows, pa.int64())
    column = FileTable(files).stats
    counts = [_counts(chunk) for chunk in column.chunks if len(chunk)]
    return pa.concat_arrays(counts) if counts else int64_array([])


ROW_COUNT_COLUMNS = ("stats", "deletion_vector")
"""What `live_row_counts` needs of a file table."""


def live_row_counts(files: pa.Table) -> pa.Array:
    """The rows of each file without those that its deletion vector marks; null where statistics do not say."""
    marked = pc.struct_field(one_chunk(FileTable(files).deletion_vector), "cardinality")
    counts = pc.subtract(record_counts(files), pc.coalesce(marked, int64_array([0])[0]))
    return pc.if_else(pc.greater_equal(counts, int64_array([0])[0]), counts, pa.nulls(1, pa.int64())[0])


def _counts(stats: pa.StringArray) -> pa.Array:
    if len(stats) <= _FEW:
        return _one_by_one(stats)
    try:
        return read_stats_json(stats, _SCHEMA).column(0).combine_chunks()
    except pa.ArrowInvalid:
        return _one_by_one(stats)


def _one_by_one(stats: pa.StringArray) -> pa.Array:
    return int64_array([_count(text) for text in stats.to_pylist()])


def _count(text: str | None) -> int | None:
    count = parse_object(text).get("numRecords")
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 62 else None


def with_record_count(stats: str | None, count: int) -> str:
    """Statistics that say how many records the file has, and what they said before; none at all if that was no JSON."""
    return orjson.dumps({**parse_object(stats), "numRecords": count}).decode()


def with_wide_bounds(stats: str | None) -> str | None:
    """Statistics of a file whose deletion vector has changed: what they say of single columns is not exact any more."""
    return None if stats is None else orjson.dumps({**parse_object(stats), "tightBounds": False}).decode()


def parse_object(text: str | None) -> dict[str, JsonValue]:
    """The JSON object that a text is; an empty one for any other."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
