"""How many rows a table has, told by its log alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from delta_orch.log.files.arrow_building import int32_array

ROW_COUNT_COLUMNS = ("stats", "deletion_vector")
"""What `count_rows` needs of a file table."""

_NUM_RECORDS = pa_json.ParseOptions(
    explicit_schema=pa.schema([("numRecords", pa.int64())]), unexpected_field_behavior="ignore"
)


def count_rows(files: pa.Table) -> int | None:
    """The rows in live files: `numRecords` without those that deletion vectors mark.

    Args:
        files: At least the columns `ROW_COUNT_COLUMNS` of `log.files.file_columns.ADD_SCHEMA`.

    Returns: None where a file carries no statistics: then nobody knows without reading it.
    """
    if files.num_rows == 0:
        return 0
    stats = files.column("stats")
    if stats.null_count:
        return None
    total = 0
    for chunk in stats.chunks:
        counts = _num_records(chunk)
        if counts is None or len(counts) != len(chunk) or counts.null_count:
            return None
        total += pc.sum(counts).as_py() or 0
    deleted = pc.sum(pc.struct_field(files.column("deletion_vector"), "cardinality")).as_py() or 0
    return total - int(deleted)


def _num_records(stats: pa.StringArray) -> pa.ChunkedArray | None:
    if len(stats) == 0:
        return pa.chunked_array([], pa.int64())
    # One JSON document a line, all in one buffer: no Python object a file.
    whole = pa.ListArray.from_arrays(int32_array([0, len(stats)]), stats)
    lines = pc.binary_join(whole, "\n")[0].as_buffer()
    options = pa_json.ReadOptions(block_size=lines.size + 1)
    try:
        return pa_json.read_json(pa.BufferReader(lines), options, _NUM_RECORDS).column("numRecords")
    except pa.ArrowInvalid:
        return None
