"""Mapped tasks of one run that write one table: none of them replaces what another has written in this run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit
from delta_orch.pipeline.run_identity import ONCE_PER_PARTITION, airflow_writer

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.pipeline.recorded import RecordedCommit
    from delta_orch.staged_write import StagedWrite

_UNDER_WAY = ("scheduled", "queued", "running", "restarting", "deferred", "up_for_reschedule")
"""States of a task instance whose attempt has not ended, or whose next one is to come."""


def ensure_own_name(context: Context, run: TaskRun, table: DeltaTable, app_id: str, name: str) -> None:
    """Mapped tasks of one run that have one identity would take each other's rows for older ones of their own.

    The identity is another one's for as long as the table's transaction is, and no longer than that one has it: a list
    that has changed gives it to another index, and clears the one that had it.

    Args:
        context: Airflow's.
        run: Of the context.
        table: The table that is written.
        app_id: The transaction's.
        name: The identity.

    Raises:
        InvalidRequestError: The commit that has recorded the identity is another one's.
    """
    made = find_commit_after(table, -1, lambda _: True, app_id=app_id, since_ms=run.since_ms)
    if made is None or not run.is_of_sibling(made.commit_info or {}) or not _is_still_its(context, run, table, made):
        return
    raise InvalidRequestError(
        f"Another mapped task of this run has written under the identity {name!r}",
        cause="An identity names the rows of one of them; the other's would be replaced",
        remedy="Give each its own: identity='{{ task.op_kwargs['region'] }}'. Where the list has changed, clear the "
        "task that had this identity, too, or this one once more when that one has ended",
    )


def _is_still_its(context: Context, run: TaskRun, table: DeltaTable, made: RecordedCommit) -> bool:
    """Whether the identity under which another mapped task has made a commit in this run is still that one's."""
    info = made.commit_info or {}
    sibling = replace(run, map_index=run.map_index_of(info))
    state = _state_of(context, sibling)
    if state in (None, "removed"):
        return False  # It was cleared, and has not begun; or the list has become shorter.
    if state in _UNDER_WAY:
        # Of this life of the run. In one that was started again, it has not come to its commit.
        at = info.get("timestamp")
        return isinstance(at, int) and at >= run.started_ms
    # It has ended. If it wrote under another name since, it has made a newer commit.
    assert made.version is not None
    return find_commit_after(table, made.version, sibling.is_of_task) is None


def _state_of(context: Context, of: TaskRun) -> str | None:
    """The state of a mapped task of this run, as Airflow has it now; None also for one that there is not."""
    found = context["ti"].get_task_states(
        dag_id=of.dag_id, map_index=of.map_index, task_ids=[of.task_id], run_ids=[of.run_id]
    )
    return next(iter(found.get(of.run_id, {}).values()), None)


def ensure_not_taken(table: DeltaTable, staged: StagedWrite) -> None:
    """Of two staged writes that have one identity the second is left out, when it is published.

    Args:
        table: The table that is written.
        staged: A write that was left out, because its transactions are recorded.

    Raises:
        InvalidRequestError: It is another mapped task of its run that has recorded them. With
            `idempotency="partition"` one of them writes, and that is how it was asked.
    """
    from delta_orch.airflow.run_context import are_siblings

    own = {"userMetadata": staged.user_metadata}
    for txn in staged.txns:
        if txn.version != ONCE_PER_PARTITION:
            made = find_txn_commit(table, txn.app_id)
            if are_siblings(own, made.commit_info or {}):
                raise InvalidRequestError(
                    "Another mapped task of the run has published under the identity of this write",
                    cause="An identity names the rows of one of them; those of this one are not in the table",
                    remedy="Give each its own: identity='{{ task.op_kwargs['region'] }}'; then clear both",
                )


def ensure_spared(
    run: TaskRun, table: DeltaTable, unit: TxnId | None, replaces_table: bool, staged: StagedWrite
) -> None:
    """Look at what a mapped task is about to replace.

    Args:
        unit: The transaction of the write; None for one without. What another index has written under it was this one's
            name then (`ensure_own_name`).
        replaces_table: It replaces every row: of two such tasks the table has the rows of the last.
        staged: The write, before it is published. What comes between is a conflict.

    Raises:
        InvalidRequestError: Rows that another one has written in this run. The table is unchanged.
    """
    import delta_orch.arrow_compute as pc

    # A DAG file is parsed without pyarrow.
    from delta_orch.log.files.file_columns import FileTable
    from delta_orch.pipeline.shared_target import replaced_files

    if staged.read_version is None or (unit is not None and not _has_others(run, table, unit)):
        return

    def by_another_name(commit: Commit) -> bool:
        return unit is None or all(txn.app_id != unit.app_id for txn in commit.txns)

    if replaces_table:
        if find_commit_after(table, -1, run.is_of_sibling, since_ms=run.since_ms, also=by_another_name):
            raise _replaced(run, "Each mapped task of one run replaces the whole table")
        return
    replaced = replaced_files(table, staged)
    recent = pc.greater_equal(replaced.modification_time, int(run.since_ms))
    paths = replaced.path.filter(recent).combine_chunks()
    if not len(paths):
        return

    def added_one(commit: Commit) -> bool:
        return by_another_name(commit) and bool(pc.any(pc.is_in(FileTable(commit.adds).path, paths)).as_py())

    if find_commit_after(table, -1, run.is_of_sibling, since_ms=run.since_ms, also=added_one):
        raise _replaced(run, "Mapped tasks of one run select the same rows, or rows of the same partitions")


def _has_others(run: TaskRun, table: DeltaTable, unit: TxnId) -> bool:
    """Whether the table has transactions of other mapped tasks, of the same partition, interval or run."""
    step = airflow_writer(run.dag_id, run.task_id) + "["
    end = "]:" + unit.app_id.partition("]:")[2]
    known = table.snapshot().txns
    return any(name.startswith(step) and name.endswith(end) and name != unit.app_id for name in known)


def _replaced(run: TaskRun, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Map index {run.map_index} of task {run.task_id} would replace the rows of another one",
        cause=cause,
        remedy="Give each rows of its own to replace (replace_where, partitions), or add them with mode='append'",
    )
