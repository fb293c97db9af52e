"""Rows that a task has written and that another one has removed since, in this run: it has to write them again.

A task that deletes the rows of a day, and one after it that adds them: what the second has recorded says that it is
done, and its rows are gone. So is it where the first was cleared and the second finds the commit of an attempt that was
never acknowledged, or writes once a partition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delta_orch.airflow.table_operator import DeltaTableOperator
from delta_orch.errors import InvalidRequestError, MissingFileError, VersionNotFoundError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit, newest_first, said_by

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit

_REMOVING = ("WRITE", "DELETE")
"""Operations that remove the rows of a predicate, or all."""

_AHEAD = (None, "removed", "up_for_retry", "skipped")
"""States of a task instance that begins again: it was cleared, or it is retried; or was cleared and then skipped, as by
a branch that goes another way now. What it has written before does not stand."""


def writers(context: Context) -> frozenset[str]:
    """The tasks of the DAG that change rows of tables."""
    tasks = context["dag"].task_dict.items()
    kinds = {name: getattr(task, "operator_class", type(task)) for name, task in tasks}
    return frozenset(name for name, kind in kinds.items() if issubclass(kind, DeltaTableOperator) and kind.writes)


def before(context: Context) -> frozenset[str]:
    """Of the `writers` those that this task waits for."""
    known = writers(context)
    return known and known & set(context["ti"].task.get_flat_relative_ids(upstream=True))


def forget(run: TaskRun, table: DeltaTable, app_id: str) -> None:
    """Take back what says that a write is done. Raises ConflictError: Others have changed the table meanwhile."""
    from delta_orch.log.write.commit_options import SERIALIZABLE
    from delta_orch.log.write.transaction import Transaction

    said = run.user_metadata()
    transaction = Transaction(
        table.log, table.snapshot(), operation="WRITE", user_metadata=said, isolation_level=SERIALIZABLE
    )
    transaction.read_whole_table()
    transaction.take_back({app_id: -1})
    transaction.commit()


def state_of(context: Context, of: TaskRun) -> str | None:
    """The state of a task instance of this run, as Airflow has it now; None also for one that there is not."""
    found = context["ti"].get_task_states(
        dag_id=of.dag_id, map_index=of.map_index, task_ids=[of.task_id], run_ids=[of.run_id]
    )
    return next(iter(found.get(of.run_id, {}).values()), None)


def is_to_come(context: Context, run: TaskRun, task_id: str, info: Mapping[str, object]) -> bool:
    """Whether a task that has made a commit in this run begins again, and makes it again."""
    return state_of(context, replace(run, task_id=task_id, map_index=run.map_index_of(info))) in _AHEAD


def ensure_last(context: Context, run: TaskRun, table: DeltaTable, app_id: str, recorded: int) -> None:
    """Check that a merge which an attempt has committed stands for the one that this attempt would do. It takes what
    `are_taken` does.

    Raises:
        InvalidRequestError: A task before this one has written to the table since, in this run.
    """
    earlier, own = before(context), find_txn_commit(table, app_id, recorded).version
    if not earlier or own is None:
        return

    def is_earlier(info: Mapping[str, object]) -> bool:
        return run.is_of_run(info) and said_by(info).get("task_id") in earlier

    if (newer := find_commit_after(table, own, is_earlier)) is not None:
        raise InvalidRequestError(
            f"Task {run.task_id} has merged its rows in version {own}, and a task before it has written others in "
            f"version {newer.version}",
            cause="An attempt that was never acknowledged has made that merge, and doing it again could double rows",
            remedy="Restore what the table had before that version, and clear the task; or merge by keys",
        )


def deletes_rows(operation: object, metrics: object) -> bool:
    """Whether a commit is a merge that has deleted rows."""
    return operation == "MERGE" and isinstance(metrics, Mapping) and int(metrics.get("numTargetRowsDeleted", 0)) > 0


def are_taken(
    context: Context,
    run: TaskRun,
    table: DeltaTable,
    app_id: str,
    recorded: int,
    *,
    stands: bool = True,
    again: bool = False,
) -> bool:
    """Whether the rows of a recorded transaction are gone, as another task has removed them in this run. One that comes
    after this one has to, unless it begins again: what lies between the two reads the rows. Where the task was cleared,
    whoever has removed them: the user asks for them.

    Args:
        context: Airflow's.
        run: Of the context.
        table: The table that is written.
        app_id: The transaction's.
        recorded: The version of it that the table has.
        stands: What is recorded may be all that this attempt does. Of a merge the log tells only at times what it has
            deleted, and where the rows are added again anyway, nobody has to know.
        again: The task was cleared, to write once more. What a task after it has removed counts then also where that
            one does not begin again: it may have cleaned up after the failure of this one.

    Raises:
        InvalidRequestError: Some of the rows are gone, or it cannot be told.
    """
    others, is_asked = writers(context) - {run.task_id}, again and stands
    if not others and not is_asked:
        return False
    after = others and others & set(context["ti"].task.get_flat_relative_ids(upstream=False))
    is_refused = False

    def removes(commit: Commit) -> bool:
        nonlocal is_refused
        info = commit.commit_info or {}
        operation, name = info.get("operation"), said_by(info).get("task_id")
        if not run.is_of_run(info) or name not in others or not commit.removes.num_rows:
            return False
        if operation not in _REMOVING and not (stands and deletes_rows(operation, info.get("operationMetrics"))):
            return False
        if name in after and not (again or is_to_come(context, run, name, info)):
            return False
        is_refused |= name not in after
        return True

    newest = table.snapshot().version
    oldest, found = newest + 1, set[int]()
    own: Commit | None = None
    for commit in newest_first(table, newest):
        if any(txn.app_id == app_id and txn.version == recorded for txn in commit.txns):
            own = commit
            break
        told = (commit.commit_info or {}).get("timestamp")
        if isinstance(told, int) and told < run.since_ms and not found:
            return False
        oldest = commit.version
        if removes(commit):
            found.add(commit.version)
    if not found and (own is None or not is_asked):
        return False
    if own is None:
        raise _in_part(run, f"The log begins with version {oldest}, which is newer than what this task has written")
    try:
        return _are_removed(run, table, own, found, newest)
    except InvalidRequestError:
        if is_refused:
            raise
        return False  # It removes what it is to remove of what this task writes.


def _are_removed(run: TaskRun, table: DeltaTable, own: Commit, removing: set[int], newest: int) -> bool:
    # A DAG file is parsed without pyarrow.
    from delta_orch.log.files.file_columns import FileTable
    from delta_orch.pipeline.shared_target import left_by, places
    from delta_orch.pipeline.tail import changes_data

    paths = set(FileTable(own.adds).path.to_pylist())
    paths -= left_by(table, own, paths)[0]
    written, are_changed = frozenset(paths), False
    is_removed = not own.adds.num_rows and not own.removes.num_rows  # There was nothing, and nothing can be doubled.
    known = {written: is_removed}
    for version in range(own.version + 1, newest + 1):
        commit = table.log.read_commit(version)
        gone = paths & set(FileTable(commit.removes).path.to_pylist())
        info = commit.commit_info or {}
        if info.get("operation") == "RESTORE":
            paths = paths - gone | set(FileTable(commit.adds).path.to_pylist()) & set().union(*known)
            is_removed = known.get(frozenset(paths), not paths)
            continue
        if not gone:
            continue
        paths -= gone
        are_changed |= info.get("operation") in ("UPDATE", "MERGE")
        # Whoever has removed them all: a newer run or a user may have, before this one was cleared.
        may_remove = version in removing or (info.get("operation") in _REMOVING and changes_data(commit))
        leave, stay = _split(table, commit, version - 1, gone) if may_remove else (False, True)
        if leave and predicate_of(info) is not None and not are_changed:
            # Of the rows as they were written: a compaction puts those of others into their file.
            as_written = _split(table, commit, own.version, written)
            if as_written == (True, False):
                stay, paths = False, set()
            leave &= as_written[0]
        if leave and stay and version in removing:
            raise _in_part(run, f"Version {version} has removed some rows of its files, and left others")
        if leave and not stay:
            is_removed = True
        else:
            # Its files hold the rows now, as those of a compaction do, and so does a file that is marked.
            there = {place for path, place in places(commit.removes).items() if path in gone}
            paths |= {path for path, place in places(commit.adds).items() if path in gone or {place, None} & there}
        known[frozenset(paths)] = is_removed
    if is_removed and paths:
        raise _in_part(run, "Of several files that it has written, some were removed")
    return is_removed


def _split(table: DeltaTable, commit: Commit, version: int, paths: Set[str]) -> tuple[bool, bool]:
    """Whether a commit that removes rows removes some that these files of a version hold, and leaves some."""
    from delta_orch.expressions.tree import is_not_true
    from delta_orch.log.files.file_columns import FileTable
    from delta_orch.pipeline.shared_target import have

    info: Any = commit.commit_info or {}
    if info.get("operation") == "MERGE":
        # Which rows it has deleted, updated and copied is not told of each file.
        others = (int(info["operationMetrics"].get(f"numTargetRows{what}", 0)) for what in ("Updated", "Copied"))
        return True, any(others) or bool(paths & set(FileTable(commit.adds).path.to_pylist()))
    said = predicate_of(info)
    if said is None:
        return True, False
    try:
        before = table.snapshot(version=version)
        return have(before, paths, said), have(before, paths, said, is_not_true)
    except (InvalidRequestError, MissingFileError, VersionNotFoundError):
        return True, True  # It was too long for the log, columns have other names now, or what would tell is deleted.


def predicate_of(info: Mapping[str, Any]) -> str | None:
    """Which rows a commit has removed, as it tells; None for all, and for those of the partitions that it writes."""
    said = (info.get("operationParameters") or {}).get("predicate")
    return next(iter(json.loads(said)), None) if isinstance(said, str) and said.startswith("[") else said


def _in_part(run: TaskRun, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Task {run.task_id} has written rows, of which another task has removed some in this run, or may have",
        cause=cause,
        remedy="Let that task remove all of its rows, or none: by where or replace_where, or from a table of its own. "
        "To go on, delete what this one has written and clear it",
    )
