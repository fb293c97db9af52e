"""Rows that one task of a DAG removes, of a table or of an interval, and other tasks of it add.

The runs of the task that replaces them are ordered by time, so that the table is the newest run's. What the other tasks
of an older run write belongs to a table that is gone: had the runs come one after the other, the newest would have
replaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.airflow.taken import before
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.recorded import find_txn_commit
from delta_orch.pipeline.run_identity import MAX_CLEAR_NUMBER, airflow_version, airflow_writer

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot


def newer_rebuilds(context: Context, run: TaskRun, table: DeltaTable, known: TableSnapshot) -> tuple[TxnId, ...]:
    """Identifiers that keep a write out of a table which a newer run of the DAG has replaced, or does meanwhile. They
    are those of the tasks that replace it, and the write does not record them.

    Args:
        run: Of the context.
        table: The table that is written.
        known: The table as it is.
    """
    until = airflow_version(run.data_interval[1] if run.data_interval else run.ordered_at, MAX_CLEAR_NUMBER)
    rebuilds = []
    for task in context["dag"].task_dict.values():
        # A mapped task has its class and its arguments in hand.
        replaces_tables = getattr(getattr(task, "operator_class", task), "replaces_tables", None)
        if replaces_tables is None or not replaces_tables(getattr(task, "partial_kwargs", None) or vars(task)):
            continue
        app_id = f"{airflow_writer(run.dag_id, task.task_id)}:"
        recorded = known.txn_version(app_id)
        if recorded is None:
            continue
        rebuilds.append(_not_newer(run, table, app_id, recorded, until, may_be_own=run.data_interval is None))
    return tuple(rebuilds)


def newer_removals(context: Context, run: TaskRun, table: DeltaTable, known: TableSnapshot) -> tuple[TxnId, ...]:
    """As `newer_rebuilds`, of the tasks before this one that remove rows of the run's interval: where a newer run of it
    has removed them, those of this run did nothing, and what this task adds would stand beside what that run adds.

    Args:
        known: The table as it is.
    """
    partition = run.identity().partition
    removals = []
    for name in () if partition is None else before(context):
        task = context["dag"].task_dict[name]
        arguments = getattr(task, "partial_kwargs", None) or vars(task)
        removes = getattr(getattr(task, "operator_class", task), "removes_rows", None)
        is_by_run = arguments.get("idempotency", "run") == "run" and arguments.get("identity") is None
        if removes is not None and is_by_run and removes(arguments):
            until = airflow_version(run.ordered_at, MAX_CLEAR_NUMBER)
            writer = airflow_writer(run.dag_id, name)
            # Of a mapped task, how many the newer run has is known by what they have recorded. Meanwhile others may
            # record theirs: as many as this run has.
            here = context["ti"].get_task_states(dag_id=run.dag_id, task_ids=[name], run_ids=[run.run_id])
            indexes = {f"{writer}[{index}]:{partition}" for index in range(len(here.get(run.run_id, {})) or 1)}
            mapped = {app for app in known.txns if app.startswith(f"{writer}[") and app.endswith(f"]:{partition}")}
            for app_id in sorted({f"{writer}:{partition}", *indexes, *mapped}):
                recorded = known.txn_version(app_id) or 0
                removals.append(_not_newer(run, table, app_id, recorded, until, may_be_own=True))
    return tuple(removals)


def _not_newer(run: TaskRun, table: DeltaTable, app_id: str, recorded: int, until: int, *, may_be_own: bool) -> TxnId:
    # The task of this very run is ordered later, once it was cleared.
    is_own = may_be_own and recorded > until and run.is_of_run(find_txn_commit(table, app_id).commit_info or {})
    return TxnId(app_id, recorded if is_own else until, ordered=True, looks_only=True)


def overtaken(name: str, by: str) -> InvalidRequestError:
    """The error for rows that would stand beside those of a newer run of the interval."""
    task = by.partition(".")[2].partition(":")[0].partition("[")[0]
    return InvalidRequestError(
        f"{name} would add rows beside those of a newer run of the same data interval",
        cause=f"Task {task} of the newer run has removed the rows that were there, and that of this run left its rows",
        remedy=f"Clear {task} together with this task to put this run's rows in their place, or mark this task as a "
        "success to leave them",
    )
