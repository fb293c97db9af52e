"""Taking the ids from the rows: what must be done before row tracking can leave a table.

Ids that stayed behind would be given out a second time if the feature came back. So the table first stops giving them
(`delta.rowTrackingSuspended`), then the files are added again in batches, without ids and without changing any row
(PROTOCOL, "Row Tracking"). Any of these commits may be the last: the next attempt goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.table.property_rules import find_property
from delta_orch.writing.request import CommitOptions
from delta_orch.writing.row_id_commits import FILES_PER_COMMIT, add_again, commit_until_done

_ENABLED, _SUSPENDED = "delta.enableRowTracking", "delta.rowTrackingSuspended"


def holds_row_ids(snapshot: Snapshot) -> bool:
    """Whether rows have ids, or get some when they are written."""
    return snapshot.configuration.assigns_row_ids or bool(_with_ids(snapshot).num_rows)


def take_row_ids(
    table_log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    *,
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Suspend row tracking, then take the ids from all files.

    Other writers go on meanwhile. Where one of them removes a file of a batch, the batch is put together anew.

    Args:
        read_snapshot: Gives the newest version.
        options: `user_metadata` and `commit_info` of the commits; the rest is not looked at.

    Returns: How many commits that took.

    Raises:
        ConflictError: Others changed the table's metadata, or were faster time and again. Row tracking may be
            suspended, and some of the ids gone.
    """
    return commit_until_done(lambda told: _take_step(table_log, read_snapshot(), told, files_per_commit), options)


def _take_step(table_log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. False where nothing is left to do."""
    if snapshot.configuration.assigns_row_ids:
        _suspend(table_log, snapshot, options)
        return True
    files = _with_ids(snapshot).slice(0, files_per_commit)
    if not files.num_rows:
        return False
    for name in ("base_row_id", "default_row_commit_version"):
        index = files.schema.get_field_index(name)
        files = files.set_column(index, files.schema.field(index), pa.nulls(files.num_rows, pa.int64()))
    add_again(table_log, snapshot, files, "ROW TRACKING UNBACKFILL", options)
    return True


def _suspend(table_log: TableLog, snapshot: Snapshot, options: CommitOptions) -> None:
    configuration = dict(snapshot.metadata.configuration)
    for key in (_ENABLED, _SUSPENDED):
        configuration.pop(find_property(configuration, key) or key, None)
    asked = {_ENABLED: "false", _SUSPENDED: "true"}
    parameters = {"properties": orjson.dumps(asked).decode()}
    transaction = options.begin(table_log, snapshot, "SET TBLPROPERTIES", parameters)
    transaction.update_metadata(replace(snapshot.metadata, configuration={**configuration, **asked}))
    transaction.commit()


def _with_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    return files.filter(
        pc.or_(files["base_row_id"].is_valid(), files["default_row_commit_version"].is_valid())
    ).combine_chunks()
