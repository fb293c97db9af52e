"""Mapped tasks of one run that write one table: none of them replaces what another has written in this run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.pipeline.recorded import find_commit_after
from delta_orch.pipeline.run_identity import airflow_writer

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.file_columns import FileTable
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.write.commit_result import CommitResult
    from delta_orch.pipeline.step import Step, StepReport
    from delta_orch.staged_write import StagedWrite


def ensure_alone(run: TaskRun, table: DeltaTable, before: TableSnapshot, unit: TxnId) -> None:
    """Mapped tasks that each replace the whole of one table leave the rows of the last.

    Raises:
        InvalidRequestError: Another one has written it in this run.
    """
    for app_id in _others(run, before, unit):
        if find_commit_after(table, -1, run.is_of_sibling, app_id=app_id, since_ms=run.since_ms):
            raise _replaced(run, "Each mapped task of one run replaces the whole table")


def ensure_own_name(run: TaskRun, name: str | None, commit_info: Mapping[str, object]) -> None:
    """Mapped tasks of one run that have one identity would take each other's rows for older ones of their own.

    Raises:
        InvalidRequestError: The commit that has recorded the identity is another one's, made since the run started.
    """
    made = commit_info.get("timestamp")
    if run.is_of_sibling(commit_info) and isinstance(made, int) and made >= run.started_ms:
        raise InvalidRequestError(
            f"Another mapped task of this run has written under the identity {name!r}",
            cause="An identity names the rows of one of them; the other's would be replaced",
            remedy="Give each its own: identity='{{ task.op_kwargs['region'] }}'",
        )


def run_beside_others(
    run: TaskRun,
    before: TableSnapshot | None,
    step: Step,
    rows: Callable[[], object],
    report_of: Callable[[DeltaTable, CommitResult], StepReport],
) -> StepReport:
    """Run a step of a mapped task that replaces rows. Where others of its run have written the table, look at what it
    would replace before it does.

    Raises:
        InvalidRequestError: Rows that another one has written in this run. The table is unchanged.
        DeltaError: As `Step.run`.
    """
    if before is None or not any(_others(run, before, step.txns[-1])):
        return step.run(rows)
    report = replace(step, options={**step.options, "stage": True}).run(rows)
    if report.commit is None or report.commit.staged is None:
        return report
    staged = step.table.staged(report.commit.staged)
    _ensure_spared(run, step.table, staged)
    if step.options.get("stage"):
        return report
    try:
        return report_of(step.table, replace(staged.publish(), measured=report.commit.measured))
    except ConflictError as error:
        # What was staged cannot be published any more, but the task can run again.
        raise error.__cause__ or error from None


def _others(run: TaskRun, before: TableSnapshot, unit: TxnId) -> list[str]:
    """The transactions of other mapped tasks, of the same partition, interval or run."""
    step = airflow_writer(run.dag_id, run.task_id) + "["
    end = "]:" + unit.app_id.partition("]:")[2]
    return [name for name in before.txns if name.startswith(step) and name.endswith(end) and name != unit.app_id]


def _ensure_spared(run: TaskRun, table: DeltaTable, staged: StagedWrite) -> None:
    import pyarrow.compute as pc

    # A DAG file is parsed without pyarrow.
    from delta_orch.log.files.file_columns import FileTable

    if staged.read_version is None:
        return
    base = FileTable(table.snapshot(staged.read_version).files(["path", "dv_id", "modification_time"]))
    kept = pc.is_in(_identities(base), _identities(FileTable(staged.snapshot().files(["path", "dv_id"]))))
    recent = pc.greater_equal(base.modification_time, int(run.since_ms))
    paths = base.path.filter(pc.and_(pc.invert(kept), recent)).combine_chunks()
    if not len(paths):
        return

    def added_one(commit: Commit) -> bool:
        return bool(pc.any(pc.is_in(FileTable(commit.adds).path, paths)).as_py())

    if find_commit_after(table, -1, run.is_of_sibling, since_ms=run.since_ms, also=added_one):
        raise _replaced(run, "Mapped tasks of one run select the same rows, or rows of the same partitions")


def _identities(files: FileTable) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(files.path, pc.fill_null(files.dv_id, ""), " ")


def _replaced(run: TaskRun, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Map index {run.map_index} of task {run.task_id} would replace the rows of another one",
        cause=cause,
        remedy="Give each rows of its own to replace (replace_where, partitions), or add them with mode='append'",
    )
