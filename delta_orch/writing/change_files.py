"""Change data files: what a commit changed row by row, where whole files would tell it wrong (PROTOCOL, "Change Data
Files", "Writer Requirements for AddCDCFile").

A commit that only adds files, or removes whole ones, needs none: its rows are inserted and deleted as they stand. One
that writes rows again which it does not change needs all its changes told, the others with them.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from delta_orch.expressions.nodes import Expression
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.scan.scan import scan_of_files
from delta_orch.writing.target import WriteTarget
from delta_orch.writing.write_session import WriteSession

CHANGE_DATA_DIRECTORY = "_change_data"
INSERT = "insert"
DELETE = "delete"


def tells_changes(target: WriteTarget) -> bool:
    """Whether the table has a change data feed: the property counts where the protocol supports the feature."""
    return target.table.enables("changeDataFeed")


def write_deleted_rows(session: WriteSession, snapshot: Snapshot, files: pa.Table, where: Expression) -> pa.Table:
    """Write the rows of some files that a commit removes as change data, and stage the files.

    Args:
        files: Of the snapshot, `file_columns.ADD_SCHEMA`.
        where: Which of their rows are removed, resolved against the table as this write leaves it.

    Returns: The change files; none where no row is removed.
    """
    plan = replace(scan_of_files(snapshot, files, where=where), schema=session.target.schema)
    spec = replace(session.target.write_spec(), change_type=DELETE, directory=CHANGE_DATA_DIRECTORY)
    written = session.engine.write(session.engine.scan(plan), spec)
    session.transaction.add_change_files(written, just_written=True)
    return written
