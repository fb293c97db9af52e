"""Tables that one task of a DAG replaces as a whole, and that other tasks of it write to.

The runs of the task that replaces them are ordered by time, so that the table is the newest run's. What the other tasks
of an older run write belongs to a table that is gone: had the runs come one after the other, the newest would have
replaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.recorded import find_txn_commit
from delta_orch.pipeline.run_identity import MAX_CLEAR_NUMBER, airflow_version, airflow_writer

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot


def newer_rebuilds(context: Context, run: TaskRun, table: DeltaTable, before: TableSnapshot) -> tuple[TxnId, ...]:
    """Identifiers that keep a write out of a table which a newer run of the DAG has replaced, or does meanwhile. They
    are those of the tasks that replace it, and the write does not record them.

    Args:
        run: Of the context.
        table: The table that is written.
        before: The table as it is.
    """
    until = airflow_version(run.data_interval[1] if run.data_interval else run.ordered_at, MAX_CLEAR_NUMBER)
    rebuilds = []
    for task in context["dag"].task_dict.values():
        # A mapped task has its class and its arguments in hand.
        replaces_tables = getattr(getattr(task, "operator_class", task), "replaces_tables", None)
        if replaces_tables is None or not replaces_tables(getattr(task, "partial_kwargs", None) or vars(task)):
            continue
        app_id = f"{airflow_writer(run.dag_id, task.task_id)}:"
        recorded = before.txn_version(app_id)
        if recorded is None:
            continue
        is_own = (
            # The task of this very run is ordered later, once it was cleared.
            recorded > until
            and run.data_interval is None
            and run.is_of_run(find_txn_commit(table, app_id).commit_info or {})
        )
        rebuilds.append(TxnId(app_id, recorded if is_own else until, ordered=True, looks_only=True))
    return tuple(rebuilds)
