"""Rows that are moved into files together with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.expressions.nodes import Column
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts
from delta_orch.scan.scan import scan_of_files
from delta_orch.storage.prefetch import FAR_THREADS, FAR_WAIT_BYTES, map_ahead
from delta_orch.writing.moved_rows import RowCopies, stage_moved
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write

if TYPE_CHECKING:
    from delta_orch.engines.space_curve import Curve


def move_along_curve(
    write: Write,
    groups: Sequence[pa.Table],
    columns: Sequence[Column],
    curve: Curve,
    file_size_bytes: int,
    marks: dict[str, pa.Array] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Write the rows of each group of files, in the order of a curve through some columns, into new files; what readers
    see does not change.

    Args:
        groups: Files of one partition each, `REMOVED_FILE_COLUMNS` and `stats`.
        marks: Columns of `ADD_SCHEMA` that new files get, with one value.

    Returns: The files that were added and those that were removed.
    """
    snapshot = write.snapshot
    assert snapshot is not None
    copies = RowCopies(snapshot)
    spec = replace(copies.spec(write.target.write_spec()), keeps_order=True, target_file_size_bytes=file_size_bytes)

    def rewrite(files: pa.Table) -> pa.Table:
        counts = record_counts(files)
        rows = write.engine.scan(copies.plan(scan_of_files(snapshot, files.select(REMOVED_FILE_COLUMNS))))
        ordered = write.engine.along_curve(
            rows,
            columns,
            curve,
            num_rows=None if counts.null_count else pc.sum(counts).as_py(),
            num_files=max(1, -(-FileTable(files).size_bytes // file_size_bytes)),
        )
        return write.engine.write(ordered, spec)

    is_small = all(FileTable(files).size_bytes < FAR_WAIT_BYTES for files in groups)
    is_waiting = is_small and not snapshot.store.is_near and write.engine.name == "local"
    adds = pa.concat_tables(map_ahead(rewrite, groups, FAR_THREADS) if is_waiting else map(rewrite, groups))
    for name, value in (marks or {}).items():
        index = adds.schema.get_field_index(name)
        repeated = pc.take(value, pa.array([0] * adds.num_rows, pa.int64()))
        adds = adds.set_column(index, ADD_SCHEMA.field(name), repeated)
    removed = pa.concat_tables(groups).select(REMOVED_FILE_COLUMNS)
    stage_moved(write.transaction, adds, removed)
    copies.note_in(write.transaction)
    return adds, removed
