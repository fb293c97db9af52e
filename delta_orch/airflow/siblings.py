"""Mapped tasks of one run that write one table: none of them replaces what another has written in this run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.recorded import find_commit_after
from delta_orch.pipeline.run_identity import airflow_writer

if TYPE_CHECKING:
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.staged_write import StagedWrite


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


def ensure_spared(
    run: TaskRun, table: DeltaTable, unit: TxnId | None, replaces_table: bool, staged: StagedWrite
) -> None:
    """Look at what a mapped task is about to replace.

    Args:
        unit: The transaction of the write; None for one without.
        replaces_table: It replaces every row: of two such tasks the table has the rows of the last.
        staged: The write, before it is published. What comes between is a conflict.

    Raises:
        InvalidRequestError: Rows that another one has written in this run. The table is unchanged.
    """
    import pyarrow.compute as pc

    # A DAG file is parsed without pyarrow.
    from delta_orch.log.files.file_columns import FileTable
    from delta_orch.pipeline.shared_target import replaced_files

    if staged.read_version is None or (unit is not None and not _has_others(run, table, unit)):
        return
    if replaces_table:
        if find_commit_after(table, -1, run.is_of_sibling, since_ms=run.since_ms):
            raise _replaced(run, "Each mapped task of one run replaces the whole table")
        return
    replaced = replaced_files(table, staged)
    recent = pc.greater_equal(replaced.modification_time, int(run.since_ms))
    paths = replaced.path.filter(recent).combine_chunks()
    if not len(paths):
        return

    def added_one(commit: Commit) -> bool:
        return bool(pc.any(pc.is_in(FileTable(commit.adds).path, paths)).as_py())

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
