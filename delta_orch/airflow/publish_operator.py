"""Write, audit, publish: rows that nobody sees before they are checked. `DeltaPublishOperator` and the task group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow.sdk import TaskGroup

from delta_orch.airflow.arguments import ensure_switches
from delta_orch.airflow.check_operator import DeltaCheckOperator
from delta_orch.airflow.hook import DEFAULT_CONN_ID
from delta_orch.airflow.row_operators import DeltaMergeOperator
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom
from delta_orch.airflow.write_operator import DeltaWriteOperator
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import is_unit_name
from delta_orch.pipeline.unit import recorded_order

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.staged_write import StagedWrite

STAGE, PUBLISH = "stage", "publish"
"""The tasks of the group beside its checks."""


class DeltaPublishOperator(DeltaTableOperator):
    """Commit what a task with `stage=True` has written. However often it runs, it is one commit.

    The XCom and the asset events describe that commit. Where the staging task found its work done, so does this one.
    A commit by another writer that what was staged relies on fails the task, and so does vacuum, which removes what is
    older than the table's retention: clear the staging task to write anew. So does an undo, or a restore, of what was
    published.

    Args:
        staged: The XCom of the staging task, or the reference in it. (templated)
        if_unchanged: Refuse to publish where others have changed rows anywhere in the table since it was staged: what
            was checked about the whole table, such as unique keys, held for the version that is published.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "staged")

    def __init__(
        self, *, staged: Mapping[str, object] | str, if_unchanged: bool = False, **kwargs: OperatorArgument
    ) -> None:
        super().__init__(**kwargs)
        self.staged = staged
        self.if_unchanged = if_unchanged
        ensure_switches(if_unchanged=if_unchanged)
        if isinstance(staged, Mapping) and not {"table_uri", "staged"} <= staged.keys():
            raise self.refusal("has in staged what is not the XCom of a task with stage=True")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        report = self.staged if isinstance(self.staged, Mapping) else {"table_uri": table.uri, "staged": self.staged}
        if report.get("table_uri") != table.uri:
            raise self.refusal(f"publishes to {table.uri} what was staged for {report.get('table_uri')}")
        reference = report.get("staged")
        if reference is None:
            # The staging task found its work done: its XCom describes what there is.
            return dict(report)
        if not isinstance(reference, str):
            raise self.refusal(f"has staged={self.staged!r:.100}, which is not an XCom of a task with stage=True")
        write = table.staged(reference)
        earlier = write.published_version()
        result = write.publish(if_unchanged=self.if_unchanged)
        if earlier is not None:
            self._ensure_not_undone(table, write, earlier)
            return {"table_uri": table.uri, "version": earlier, "outcome": "recovered"}
        if result.skipped:
            return {"table_uri": table.uri, "version": result.version, "outcome": "fenced"}
        xcom: XCom = {
            "table_uri": table.uri,
            "version": result.version,
            "outcome": report.get("outcome", "written"),
        }
        return {**xcom, "operation_metrics": dict(result.operation_metrics)}

    def _ensure_not_undone(self, table: DeltaTable, write: StagedWrite[TableSnapshot], version: int) -> None:
        """Check that the table still has the units that were published."""
        snapshot = table.snapshot()
        for txn in write.txns:
            if is_unit_name(txn.app_id) and recorded_order(snapshot, txn.app_id) is None:
                raise self.refusal(
                    f"published version {version} of {table.uri}, which was undone since",
                    cause="A staged write is committed once",
                    remedy="Clear the staging task with downstream: it writes anew",
                )


def delta_write_audit_publish(
    group_id: str,
    *,
    table_uri: TableLocation,
    audit: Mapping[str, Mapping[str, OperatorArgument]],
    delta_conn_id: str = DEFAULT_CONN_ID,
    if_unchanged: bool | None = None,
    outlets: Sequence[object] | None = None,
    default_args: Mapping[str, OperatorArgument] | None = None,
    **write: OperatorArgument,
) -> TaskGroup:
    """A task group `stage` → one task a check → `publish`: rows are committed if every check passes, else nobody sees
    them.

    What passes from task to task is a reference. A run whose check fails leaves the staged files to vacuum; clear its
    `stage`, with downstream, to write anew. What is published is exactly what was checked, or the publishing fails.

    Args:
        group_id: The group's.
        table_uri: The table.
        audit: Name → arguments of `DeltaCheckOperator`, at least one.
        delta_conn_id: The connection with the storage options.
        if_unchanged: As `DeltaPublishOperator`. By default true where a check is about the whole table: one with
            `python_callable`, or with `min_rows` and no `where`. What holds for each row needs it not.
        outlets: Assets that are told of the commit; filled in as for every task.
        default_args: Of all tasks of the group: `retries`, …
        **write: Arguments of `DeltaWriteOperator`; with `merge_keys` or `on`, of `DeltaMergeOperator`.

    Raises:
        InvalidRequestError: There is no check, one is called as the other tasks are, or an argument is wrong.
    """
    if own := {"task_id", "stage", "staged"} & write.keys():
        raise InvalidRequestError(f"Task group {group_id} has {min(own)}, which is its own to say")
    if not audit or {STAGE, PUBLISH} & set(audit) or not all(isinstance(one, Mapping) for one in audit.values()):
        raise InvalidRequestError(
            f"Task group {group_id} takes audits by name, at least one, none called {STAGE} or {PUBLISH}",
            remedy='Pass audit={"amounts": {"rows": {"positive": "amount >= 0"}}}',
        )
    for name, check in audit.items():
        if own := {"task_id", "table_uri", "delta_conn_id", "version", "reference", "max_age"} & check.keys():
            raise InvalidRequestError(
                f"Check {name} of task group {group_id} has {min(own)}",
                cause="It looks at the version that the group has staged, which has no time yet",
                remedy="Leave it out",
            )
    kind = DeltaMergeOperator if {"merge_keys", "on"} & set(write) and "write" not in write else DeltaWriteOperator
    place: dict[str, OperatorArgument] = {"table_uri": table_uri, "delta_conn_id": delta_conn_id}
    events: dict[str, OperatorArgument] = {} if outlets is None else {"outlets": outlets}
    if if_unchanged is None:
        if_unchanged = any(
            "python_callable" in check or ("min_rows" in check and "where" not in check) for check in audit.values()
        )
    with TaskGroup(group_id, default_args=dict(default_args or {})) as group:
        stage = kind(task_id=STAGE, stage=True, outlets=[], **place, **write)
        publish = DeltaPublishOperator(
            task_id=PUBLISH, staged=stage.output, if_unchanged=if_unchanged, **place, **events
        )
        for name, arguments in audit.items():
            check = DeltaCheckOperator(task_id=name, reference=stage.output, inlets=[], **place, **arguments)
            stage >> check >> publish
    return group
