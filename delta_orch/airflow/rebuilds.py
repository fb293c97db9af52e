"""Rows that one task of a DAG removes, of a table or of an interval, and other tasks of it add.

The runs of the task that replaces them are ordered by time, so that the table is the newest run's. What the other tasks
of an older run write belongs to a table that is gone: had the runs come one after the other, the newest would have
replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from delta_orch.airflow.taken import predicate_of
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.recorded import find_txn_commit, is_older, newest_first, said_by
from delta_orch.pipeline.run_identity import MAX_CLEAR_NUMBER, airflow_version, airflow_writer

if TYPE_CHECKING:
    from delta_orch.airflow.neighbors import Neighbors
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.staged_write import StagedWrite


def newer_rebuilds(tasks: Neighbors, table: DeltaTable, known: TableSnapshot) -> tuple[TxnId, ...]:
    """Identifiers that keep a write out of a table which a newer run of the DAG has replaced, or does meanwhile. They
    are those of the tasks that replace it, and the write does not record them.

    Args:
        tasks: Beside the one that writes.
        table: The table that is written.
        known: The table as it is.
    """
    run = tasks.run
    until = airflow_version(run.data_interval[1] if run.data_interval else run.run_after, MAX_CLEAR_NUMBER)
    apps = (f"{airflow_writer(run.dag_id, name)}:" for name in tasks.told("replaces_tables"))
    found = ((app_id, recorded) for app_id in apps if (recorded := known.txn_version(app_id)) is not None)
    is_ordered_anew = run.data_interval is None
    return tuple(_not_newer(run, table, *one, until, may_be_own=is_ordered_anew) for one in found)


def ensure_not_newer(tasks: Neighbors, name: str, table: DeltaTable, read: TableSnapshot) -> None:
    """Check that rows which a task reads, to add them to others, are not another run's: each run would add those.

    Args:
        tasks: Beside the one that reads.
        name: What the task calls the table.
        read: The version of it that is read.

    Raises:
        InvalidRequestError: A task before this one replaces the table in each run, and a newer run has; or another run
            has since this one had.
    """
    writers = {f"{airflow_writer(tasks.run.dag_id, task)}:": task for task in tasks.before}
    for order in newer_rebuilds(tasks, table, read) if writers else ():
        recorded = read.txn_version(order.app_id)
        if order.app_id in writers and recorded is not None and order.is_recorded_by(recorded):
            raise _of_another_run(tasks.run, name, writers[order.app_id])
    if (own := tasks.version_before(table.uri)) is not None:
        for commit in newest_first(table, read.version, own + 1):
            info = commit.commit_info or {}
            said = said_by(info)
            is_other = said.get("dag_id") == tasks.run.dag_id and not tasks.run.is_of_run(info)
            if is_other and said.get("task_id") in tasks.before and _replaces_all(info):
                raise _of_another_run(tasks.run, name, str(said["task_id"]))


def _replaces_all(info: Mapping[str, Any]) -> bool:
    said: Any = info.get("operationParameters") or {}
    is_static = said.get("mode") == "Overwrite" and said.get("isDynamicPartitionOverwrite") != "true"
    return predicate_of(info) is None and (info.get("operation") == "DELETE" or is_static)


def _of_another_run(run: TaskRun, name: str, task: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Task {run.task_id} would read rows of a newer run in {name}",
        cause=f"Task {task} replaces that table in each run, and another run has come between",
        remedy=f"Let {task} write in each run, by idempotency='off', and read the version that it has written: "
        f"tables={{'…': {task}.output}}, or DeltaHook().snapshot() of its XCom. Then clear both. If it is the newest "
        "rows that are wanted, open the table in a python_callable by DeltaTable(…)",
    )


def newer_removals(tasks: Neighbors, table: DeltaTable, known: TableSnapshot) -> tuple[TxnId, ...]:
    """As `newer_rebuilds`, of the tasks before this one that remove rows of the run's interval: where a newer run of it
    has removed them, those of this run did nothing, and what this task adds would stand beside what that run adds.

    Args:
        known: The table as it is.
    """
    run, removals = tasks.run, []
    partition, until = run.identity().partition, airflow_version(run.run_after, MAX_CLEAR_NUMBER)
    for name, arguments in {} if partition is None else tasks.removing().items():
        if arguments.get("idempotency", "run") == "run" and arguments.get("identity") is None:
            writer = airflow_writer(run.dag_id, name)
            # Of a mapped task, how many the newer run has is known by what they have recorded. Meanwhile others may
            # record theirs: as many as this run has.
            indexes = {f"{writer}[{index}]:{partition}" for index in range(len(tasks.states(name)) or 1)}
            mapped = {app for app in known.txns if app.startswith(f"{writer}[") and app.endswith(f"]:{partition}")}
            for app_id in sorted({f"{writer}:{partition}", *indexes, *mapped}):
                recorded = known.txn_version(app_id) or 0
                removals.append(_not_newer(run, table, app_id, recorded, until, may_be_own=True))
    return tuple(removals)


def ensure_in_time(tasks: Neighbors, table: DeltaTable, staged: StagedWrite) -> Callable[[Commit], None]:
    """Look at the rows that a task is about to add behind one that removes rows, for runs of whichever interval, or
    without one (`newer_removals` is for those of one interval).

    Args:
        staged: The write, before it is published.

    Returns: The same look at a commit that comes between, for `StagedWrite.publish`.

    Raises:
        InvalidRequestError: Such a task of a newer run has removed rows of this kind: what is added would stand beside
            what that run adds. The table is unchanged.
    """
    run, removing = tasks.run, tasks.removing()
    # A clearing moves this run on only if it has moved a task that removes rows.
    own = airflow_version(run.run_after)

    def version_of(commit: Commit) -> int:
        is_removal = str(said_by(commit.commit_info or {}).get("task_id")) in removing
        return run.newest((txn.app_id, txn.version) for txn in commit.txns) if is_removal else 0

    def look(commit: Commit) -> None:
        info = commit.commit_info or {}
        if version_of(commit) > own and not run.is_of_run(info) and _removes(table, staged, commit):
            raise overtaken(f"Task {run.task_id}", str(said_by(info)["task_id"]))

    if staged.read_version is None:
        return look
    newest, others = run.newest(table.snapshot(staged.read_version).txns.items()), []
    for commit in newest_first(table, staged.read_version) if own < newest else ():
        if own >= newest or is_older(commit, run.since_ms):
            break
        if run.is_of_run(commit.commit_info or {}):
            own = max(own, version_of(commit))
        elif version_of(commit) > own:
            others.append(commit)
    for commit in others:
        look(commit)
    return look


def _removes(table: DeltaTable, staged: StagedWrite, commit: Commit) -> bool:
    """Whether a commit would have removed rows that a staged write adds."""
    # A DAG file is parsed without pyarrow.
    from delta_orch.pipeline.shared_target import have, new_files, places

    added = places(new_files(table, staged).table)
    info = commit.commit_info or {}
    where, said = predicate_of(info), info.get("operationParameters")
    if where is not None:
        return have(staged.snapshot(), set(added), where)
    if isinstance(said, Mapping) and said.get("isDynamicPartitionOverwrite") == "true":
        return not {*places(commit.adds).values()}.isdisjoint(added.values())
    return info.get("operation") == "DELETE"  # What replaces the table has an order of its own.


def _not_newer(run: TaskRun, table: DeltaTable, app_id: str, recorded: int, until: int, *, may_be_own: bool) -> TxnId:
    # The task of this very run is ordered later, once it was cleared.
    is_own = may_be_own and recorded > until and run.is_of_run(find_txn_commit(table, app_id).commit_info or {})
    return TxnId(app_id, recorded if is_own else until, ordered=True, looks_only=True)


def overtaken(name: str, task: str) -> InvalidRequestError:
    """The error for rows that would stand beside those of a newer run, of which a task has removed the others."""
    return InvalidRequestError(
        f"{name} would add rows beside those of a newer run",
        cause=f"Task {task} of the newer run has removed the rows that were there, and would have removed these",
        remedy=f"Clear {task} together with this task to put this run's rows in their place, or mark this task as a "
        "success to leave them",
    )
