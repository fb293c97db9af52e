"""Tasks of one run that write one table: none removes what another has written in this run, unless it comes after that
one. Mapped tasks have no order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.airflow.taken import has_merged
from delta_orch.errors import InvalidRequestError, MissingFileError, VersionNotFoundError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit, is_older, said_by
from delta_orch.pipeline.run_identity import ONCE_PER_PARTITION, airflow_writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delta_orch.airflow.neighbors import Neighbors
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.pipeline.recorded import RecordedCommit
    from delta_orch.staged_write import StagedWrite

_UNDER_WAY = ("scheduled", "queued", "running", "restarting", "deferred", "up_for_reschedule")
"""States of a task instance whose attempt has not ended, or whose next one is to come."""


def ensure_own_name(tasks: Neighbors, table: DeltaTable, app_id: str, name: str) -> None:
    """Mapped tasks of one run that have one identity would take each other's rows for older ones of their own.

    The identity is another one's for as long as the table's transaction is, and no longer than that one has it: a list
    that has changed gives it to another index, and clears the one that had it.

    Args:
        tasks: Beside the one that writes.
        table: The table that is written.
        app_id: The transaction's.
        name: The identity.

    Raises:
        InvalidRequestError: The commit that has recorded the identity is another one's.
    """
    run = tasks.run
    made = find_commit_after(table, -1, lambda _: True, app_id=app_id, since_ms=run.since_ms)
    if made is None or not run.is_of_sibling(made.commit_info or {}) or not _is_still_its(tasks, table, made):
        return
    raise InvalidRequestError(
        f"Another mapped task of this run has written under the identity {name!r}",
        cause="An identity names the rows of one of them; the other's would be replaced",
        remedy="Give each its own: identity='{{ task.op_kwargs['region'] }}'. Where the list has changed, clear the "
        "task that had this identity, too, or this one once more when that one has ended",
    )


def _is_still_its(tasks: Neighbors, table: DeltaTable, made: RecordedCommit) -> bool:
    """Whether the identity under which another mapped task has made a commit in this run is still that one's."""
    info = made.commit_info or {}
    state = tasks.state_of(info)
    if state in (None, "removed"):
        return False  # It was cleared, and has not begun; or the list has become shorter.
    if state in _UNDER_WAY:
        # Of this life of the run. In one that was started again, it has not come to its commit.
        at = info.get("timestamp")
        return isinstance(at, int) and at >= tasks.run.started_ms
    # It has ended. If it wrote under another name since, it has made a newer commit.
    assert made.version is not None
    sibling = replace(tasks.run, map_index=tasks.run.map_index_of(info))
    return find_commit_after(table, made.version, sibling.is_of_task) is None


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


def has_to_spare(tasks: Neighbors, known: Mapping[str, int], *, is_merge: bool) -> bool:
    """Whether a task that replaces or deletes rows may find some that another task has written in this run, now or when
    it commits. What comes after this task does not run beside it: the table has its transactions now, or never.

    Args:
        known: The transactions of the table.
        is_merge: Mapped merges are not held apart (`ensure_spared`).
    """
    run = tasks.run
    if (run.map_index >= 0 and not is_merge) or tasks.all.keys() - tasks.before - tasks.after:
        return True
    if any(tasks.all[name][1].get("idempotency") == "off" for name in tasks.after):
        return True
    starts = tuple(airflow_writer(run.dag_id, name) + mark for name in tasks.after for mark in ":[")
    ends = (f":{run.identity().partition or ''}", f":run:{run.run_id}")
    return any(at >= 0 and name.startswith(starts) and name.endswith(ends) for name, at in known.items())


def ensure_spared(
    tasks: Neighbors,
    table: DeltaTable,
    unit: TxnId | None,
    staged: StagedWrite,
    *,
    replaces_table: bool,
    where: str | Expression | None,
) -> None:
    """Look at what a task is about to replace or delete. Of a merge that deletes rows the log does not tell which: it
    is refused where it changes files that another task has written. What a merge without an order to it, or a sibling,
    has rewritten holds rows of others, too, and is left out.

    Args:
        unit: The transaction of the write; None for one without. What another index has written under it was this one's
            name then (`ensure_own_name`).
        staged: The write, before it is published. What comes between is a conflict.
        replaces_table: It replaces every row: of two such mapped tasks the table has the rows of the last.
        where: Which rows it replaces or deletes; None for all of the files it removes.

    Raises:
        InvalidRequestError: Rows that another mapped task, or a task that this one does not wait for, has written in
            this run, and does not write again; or rows of a newer run, but for those of a task that this one waits for:
            that run's own does with them what this one would. The table is unchanged.
    """
    import delta_orch.arrow_compute as pc

    # A DAG file is parsed without pyarrow.
    from delta_orch.pipeline.shared_target import added_by, places, replaced_files

    run, is_merge = tasks.run, staged.operation == "MERGE"
    if staged.read_version is None or (
        is_merge and not has_merged(staged.operation, staged.operation_metrics, "Deleted")
    ):
        return
    known = table.snapshot(staged.read_version).txns
    # A write that replaces the table has an order of its own. Of a merge, files do not tell whose rows it replaces.
    may_be_late = unit is not None and not (is_merge or replaces_table) and run.is_behind(unit, known.items())
    if not may_be_late and not has_to_spare(tasks, known, is_merge=is_merge):
        return
    is_mapped = run.map_index >= 0 and not is_merge and (unit is None or _has_others(run, table, unit))

    def by_another_name(commit: Commit) -> bool:
        return unit is None or all(txn.app_id != unit.app_id for txn in commit.txns)

    def is_to_be_spared(commit: Commit, info: Mapping[str, object], name: str) -> bool:
        if not run.is_of_another_task(info):
            return False
        if is_merge and name not in tasks.after and info.get("operation") == "MERGE" and commit.removes.num_rows:
            return False
        if name == run.task_id:
            return is_mapped and by_another_name(commit)
        return name in tasks.all and name not in tasks.before and not tasks.is_to_come(info)

    if (
        is_mapped
        and replaces_table
        and find_commit_after(table, -1, run.is_of_sibling, since_ms=run.since_ms, also=by_another_name)
    ):
        raise _replaced(run, "Each mapped task of one run replaces the whole table")
    replaced = replaced_files(table, staged)
    recent = pc.greater_equal(replaced.modification_time, int(run.since_ms))
    wanted = places(pc.filter(replaced.table, recent))
    paths = frozenset(wanted)
    are_changed = False
    for commit, found in added_by(table, staged.read_version, wanted):
        info = commit.commit_info or {}
        are_changed |= bool(found) and info.get("operation") in ("UPDATE", "MERGE")
        if is_older(commit, run.since_ms):
            return
        # A DELETE adds no rows: its files hold those that it has left.
        if not found or info.get("operation") == "DELETE":
            continue
        name = str(said_by(info).get("task_id"))
        is_newer = (
            may_be_late
            and unit is not None
            and name not in tasks.before
            and not run.is_of_run(info)
            and run.is_behind(unit, ((txn.app_id, txn.version) for txn in commit.txns))
        )
        if not is_newer and not is_to_be_spared(commit, info, name):
            continue
        # A compaction has left the rows as they were written.
        as_of = staged.read_version if found <= paths else None if are_changed else commit.version
        if where is not None and as_of is not None and not _may_have(table, as_of, found, where):
            continue  # Its files have rows of the predicate's columns, and none of its rows.
        if is_newer:
            raise _late(run, commit.version)
        if name == run.task_id:
            raise _replaced(run, "Mapped tasks of one run select the same rows, or rows of the same partitions")
        raise InvalidRequestError(
            f"Task {run.task_id} would remove rows that task {name} has written in this run, in version "
            f"{commit.version}",
            cause=f"Task {name} does not come before this one, and does not write them again: they would be lost",
            remedy=f"Clear {name} with it ('downstream'); or let this task wait for {name}, if it is to remove its "
            "rows; or give each rows of its own",
        )


def _may_have(table: DeltaTable, version: int, paths: set[str], where: str | Expression) -> bool:
    from delta_orch.pipeline.shared_target import have

    try:
        return have(table.snapshot(version=version), paths, where)
    except (MissingFileError, VersionNotFoundError):
        return True  # Vacuum, or a cleanup of the log, has deleted what would tell.


def _late(run: TaskRun, version: int) -> InvalidRequestError:
    # Airflow before 3.3 does not tell a clearing from a retry.
    again = "clear it" if run.keeps_state else "trigger a new run"
    return InvalidRequestError(
        f"Task {run.task_id} would replace rows that a newer run has written, in version {version}",
        cause="This run comes late: had the runs come in their order, the newer one would have replaced its rows",
        remedy=f"Mark the task as a success, to leave the newer rows; or {again}, to replace them",
    )


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
