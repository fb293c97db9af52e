"""Base of the operators that write units of work: who writes, and what doing it again means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.arguments import ensure_choice, ensure_switches
from delta_orch.airflow.guards import OtherTasks, ensure_same_instances
from delta_orch.airflow.locations import is_template
from delta_orch.airflow.mapped_tasks import mapped_arguments, unnamed_instance
from delta_orch.airflow.run_context import TaskRun, mapped_name
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom, xcom_of
from delta_orch.pipeline.audit import rule_findings
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.step_report import StepReport
from delta_orch.pipeline.table_owner import AIRFLOW
from delta_orch.pipeline.unit import ON_REDO, OnRedo

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.delta_table import DeltaTable

NO_VALUE = ("", "None", "null", "undefined")
"""Texts that a template without a value renders to."""


class DeltaUnitOperator(DeltaTableOperator):
    """Base of the operators that change rows of a table, exactly once.

    Each run of the task is one unit of work, named `airflow:{dag_id}.{task_id}:{logical date}` (`run:{run id}` for runs
    without logical date) and recorded in the commit of its rows. A retry that finds the commit of the attempt before it
    changes nothing. A clear, a backfill, and a run that was deleted and created again replace the rows of the unit. An
    attempt that began before the newest one changes nothing. `outcome` in the XCom says which it was.

    Args:
        identity: What a mapped instance writes, in your words, in place of its mapped arguments. Needed where those are
            not JSON values. (templated)
        writer: `{dag_id}.{task_id}`, in place of the task's own. A task that was renamed, or moved into a group, goes
            on with its units. `table.units()` shows it. (templated)
        on_redo: What a unit does that is done again: `replace` its rows, `keep` them, or `add` the new ones to them.
        exactly_once: False: every attempt writes, and records no unit.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "identity", "writer")
    has_units = True

    def __init__(
        self,
        *,
        identity: str | None = None,
        writer: str | None = None,
        on_redo: str = "replace",
        exactly_once: bool = True,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.identity = identity
        self.writer = writer
        self.on_redo = on_redo
        self.exactly_once = exactly_once
        ensure_switches(exactly_once=exactly_once)
        ensure_choice("on_redo", on_redo, ON_REDO)
        if not exactly_once and (identity, writer, on_redo) != (None, None, "replace"):
            raise self.refusal("has exactly_once=False, which uses no identity, writer or on_redo")
        if writer is not None and not is_template(writer):
            self._ensure_writer(writer)

    def _ensure_writer(self, writer: str) -> None:
        if not all(writer.partition(".")) or set(":[]") & set(writer):
            raise self.refusal(
                f"has writer={writer!r}, which is no writer of units",
                remedy="Write the DAG and the task, as table.units() shows them: writer='my_dag.my_task'",
            )

    def unit_writer(self, context: Context, run: TaskRun) -> str:
        """The writer: the task, and which of its mapped instances."""
        if self.writer is not None:
            self._ensure_writer(self.writer)
        if self.identity is not None:
            if self.identity.strip() in NO_VALUE:
                raise self.refusal(
                    f"has identity={self.identity!r}, which names nothing",
                    cause="Its template has no value in this run, so all such instances would be one unit",
                    remedy="Use a value that every instance has: identity='{{ task.op_kwargs[\"region\"] }}'",
                )
            return run.writer(self.writer, f"={self.identity}")
        if run.map_index < 0:
            return run.writer(self.writer)
        arguments = mapped_arguments(context)
        name = mapped_name(arguments)
        if name is None:
            raise unnamed_instance(self.task_id, arguments)
        return run.writer(self.writer, name)

    def unit_step(self, context: Context, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this attempt."""
        writer = self.unit_writer(context, run) if self.exactly_once else ""
        step = Step(
            f"Task {self.task_id}",
            table,
            mode,
            attempt=run.attempt(writer) if self.exactly_once else None,
            on_redo=cast("OnRedo", self.on_redo),
            owner=AIRFLOW,
            options={"user_metadata": run.user_metadata()},
        )
        ensure_same_instances(OtherTasks(context, run), step)
        return step

    def xcom_and_log(self, report: StepReport, **details: object) -> XCom:
        """The XCom of a report, and its one line in the log."""
        self.log.info("%s", report.sentence())
        for finding in [] if report.expected is None else rule_findings(report.expected):
            if not finding.passed:
                self.log.warning("%s", finding.description)
                for row in finding.rows:
                    self.log.warning("  %s", dict(row))
        return xcom_of(report, **details)
