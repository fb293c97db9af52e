"""How many records files have, from their statistics (PROTOCOL, "Per-file Statistics")."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from delta_orch.log.files.arrow_building import int32_array, int64_array, string_scalar
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.actions import JsonValue

_SCHEMA = pa.schema([("numRecords", pa.int64())])
_MIN_BLOCK_BYTES = 1 << 20
_FEW = 64


def record_counts(files: pa.Table) -> pa.Array:
    """`numRecords` of each file (columns of `file_columns.ADD_SCHEMA`): of the data file, deleted rows counted; null
    where the statistics do not say."""
    if "stats" not in files.column_names:
        return pa.nulls(files.num_rows, pa.int64())
    column = FileTable(files).stats
    counts = [_counts(chunk) for chunk in column.chunks if len(chunk)]
    return pa.concat_arrays(counts) if counts else int64_array([])


def _counts(stats: pa.StringArray) -> pa.Array:
    if len(stats) <= _FEW:
        return _one_by_one(stats)
    try:
        return _all_at_once(stats)
    except pa.ArrowInvalid:
        return _one_by_one(stats)


def _all_at_once(stats: pa.StringArray) -> pa.Array:
    text = pc.coalesce(pc.replace_substring(stats, "\n", " "), string_scalar("{}"))
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    joined = pc.binary_join(pa.ListArray.from_arrays(int32_array([0, len(text)]), text), string_scalar("\n"))
    table = pj.read_json(
        pa.BufferReader(joined[0].as_buffer()),
        read_options=pj.ReadOptions(block_size=max(_MIN_BLOCK_BYTES, 2 * longest + 2)),
        parse_options=pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(stats):
        raise pa.ArrowInvalid("a line is more or less than one object")
    return table.combine_chunks().column(0).combine_chunks()


def _one_by_one(stats: pa.StringArray) -> pa.Array:
    return int64_array([_count(text) for text in stats.to_pylist()])


def _count(text: str | None) -> int | None:
    count = _parse(text).get("numRecords")
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 62 else None


def with_record_count(stats: str | None, count: int) -> str:
    """Statistics that say how many records the file has, and what they said before; none at all if that was no JSON."""
    return orjson.dumps({**_parse(stats), "numRecords": count}).decode()


def with_wide_bounds(stats: str | None) -> str | None:
    """Statistics of a file whose deletion vector has changed: what they say of single columns is not exact any more."""
    return None if stats is None else orjson.dumps({**_parse(stats), "tightBounds": False}).decode()


def _parse(text: str | None) -> dict[str, JsonValue]:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
