"""Selects the files from which a write removes rows, and checks files for rows of a predicate."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import Engine
from delta_orch.engines.scan_plan import with_row_addresses
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.snapshot import Snapshot


class Selection(NamedTuple):
    """Files of a snapshot from which rows are removed, with `plan.REMOVED_FILE_COLUMNS`.

    Attributes:
        leaving_files: Files whose rows are all removed.
        partial: Files that may also hold other rows.
        leaving: A predicate for the removed rows, over the table after the write. None means all rows.
    """

    leaving_files: pa.Table
    partial: pa.Table
    leaving: Expression | None

    @property
    def files(self) -> pa.Table:
        return pa.concat_tables([self.leaving_files, self.partial])


def first_file_with(engine: Engine, snapshot: Snapshot, files: pa.Table, where: Expression) -> str | None:
    """Return the path, as in the log, of a file that has a row for which a predicate is true. None if there is no such
    file.

    Args:
        snapshot: The table whose schema is used to read the files. It need not have these files.
        files: Files as `file_columns.ADD_SCHEMA`.
        where: A predicate, resolved against the snapshot's schema.

    Raises as `Engine.scan`.
    """
    from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files
    from delta_orch.writing.row_address import ADDRESS

    plan = scan_of_files(snapshot, files.select(SCAN_COLUMNS).combine_chunks(), columns=(), where=where)
    addresses = engine.to_arrow(
        engine.scan(with_row_addresses(plan, ADDRESS.file_number, ADDRESS.row_position)), limit=1
    )
    return (
        FileTable(files).path[addresses.column(ADDRESS.file_number)[0].as_py()].as_py() if addresses.num_rows else None
    )


def files_with(engine: Engine, snapshot: Snapshot, files: pa.Table, where: Expression) -> pa.Table:
    """Return the files that have a row for which a predicate is true. The predicate's columns are read.

    Args:
        snapshot, where: As in `first_file_with`. It raises the same errors.
        files: Files with `plan.REMOVED_FILE_COLUMNS`.
    """
    from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files
    from delta_orch.writing.row_address import ADDRESS

    if files.num_rows == 0:
        return files
    plan = scan_of_files(snapshot, files.select(SCAN_COLUMNS).combine_chunks(), columns=(), where=where)
    addresses = engine.to_arrow(engine.scan(with_row_addresses(plan, ADDRESS.file_number, ADDRESS.row_position)))
    return files.take(pc.unique(addresses.column(ADDRESS.file_number)))
