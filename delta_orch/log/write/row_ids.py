"""Fresh row ids for the files of a commit (PROTOCOL, "Writer Requirements for Row Tracking"). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.log.files.arrow_building import int64_array
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.read.skipping.record_counts import record_counts

_LARGEST = (1 << 63) - 2


def assign_row_ids(adds: Sequence[pa.Table], high_water_mark: int, version: int) -> tuple[list[pa.Table], int]:
    """Give every file a base row id and the version its rows are from; files that have theirs (added again with another
    deletion vector, say) keep them.

    Args:
        adds: Columns of `file_columns.ADD_SCHEMA`.
        high_water_mark: The highest id given out before this commit, -1 for none.
        version: The version the commit becomes.

    Returns: The files, and the highest id given out now.

    Raises:
        InvalidRequestError: A file without an id does not say how many records it has.
        ProtocolViolationError: There are no more ids.
    """
    assigned = []
    for files in adds:
        with_ids, high_water_mark = _assign(files, high_water_mark, version)
        assigned.append(with_ids)
    return assigned, high_water_mark


def _assign(files: pa.Table, mark: int, version: int) -> tuple[pa.Table, int]:
    base_ids = _column(files, "base_row_id")
    is_new = base_ids.is_null()
    if pc.any(is_new).as_py():
        counts = pc.if_else(is_new, record_counts(files), _long(0))
        if counts.null_count:
            raise InvalidRequestError(
                "A new file does not say how many records it has",
                cause="The table tracks rows: their ids are counted on from file to file",
                remedy="Give numRecords in the statistics of every file",
                path=files.column("path").filter(counts.is_null())[0].as_py(),
            )
        total = pc.sum(counts).as_py()
        if mark + total > _LARGEST:
            raise ProtocolViolationError("The row ids of the table are used up", cause=f"The last one given is {mark}")
        ends = pc.cumulative_sum(counts)
        fresh = pc.add(pc.subtract(ends, counts), _long(mark + 1))
        base_ids = pc.if_else(is_new, fresh, base_ids)
        mark += total
    versions = pc.coalesce(_column(files, "default_row_commit_version"), _long(version))
    return _with(_with(files, "base_row_id", base_ids), "default_row_commit_version", versions), mark


def _column(files: pa.Table, name: str) -> pa.Array:
    if name not in files.column_names:
        return pa.nulls(files.num_rows, pa.int64())
    column = files.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _with(files: pa.Table, name: str, values: pa.Array) -> pa.Table:
    index = files.schema.get_field_index(name)
    if index < 0:
        return files.append_column(ADD_SCHEMA.field(name), values)
    return files.set_column(index, ADD_SCHEMA.field(name), values)


def _long(value: int) -> pa.Scalar:
    return int64_array([value])[0]
