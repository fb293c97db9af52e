"""Operators that change single rows: `DeltaMergeOperator`, `DeltaUpdateOperator`, `DeltaDeleteOperator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.arguments import ensure_choice, ensure_predicate, ensure_switches
from delta_orch.airflow.guards import OtherTasks, after_overwrites, leaves_rows
from delta_orch.airflow.locations import is_template
from delta_orch.airflow.step_operator import ENGINES
from delta_orch.airflow.table_operator import OperatorArgument, XCom
from delta_orch.airflow.unit_operator import DeltaUnitOperator
from delta_orch.airflow.write_operator import DeltaWriteOperator
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult


class DeltaMergeOperator(DeltaWriteOperator):
    """Update, insert and delete rows by the rows that a function returns, or that a query yields, in one commit.

    With `merge_keys` it is `DeltaWriteOperator(write="merge")`, or `write="cdc"` with `sequence_by`: doing it again
    merges the rows once more. Keys that the new rows lack stay. With `on` and `clauses` a crash is recovered, but doing
    it again is refused (`RedoNotPossibleError`), because applying clauses twice may count twice.

    An upsert creates the table if there is none, from its rows, whose keys must be unique then as always. A merge by
    clauses needs one.

    Args:
        merge_keys: Upsert by these columns: rows with equal keys are replaced, others inserted. (templated)
        on: Instead of `merge_keys`: when a row of the table (`target`) and one of the source (`source`) belong
            together. (templated)
        clauses: With `on`: the clauses in their order, each `{"when_matched_update": {"set": {…}, "condition": "…"}}`,
            by the names and arguments of `DeltaTable.merge`. (templated)
        source_alias: What `on` and `clauses` call the source.
        target_alias: What they call the table.
        kwargs: As `DeltaWriteOperator`, without `write`.
    """

    template_fields: Sequence[str] = (*DeltaWriteOperator.template_fields, "on", "clauses")
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        **DeltaWriteOperator.template_fields_renderers,
        "on": "sql",
    }

    def __init__(
        self,
        *,
        on: str | None = None,
        clauses: Sequence[Mapping[str, Mapping[str, object]]] = (),
        source_alias: str = "source",
        target_alias: str = "target",
        **kwargs: OperatorArgument,
    ) -> None:
        name = kwargs.get("task_id")
        if "write" in kwargs:
            raise InvalidRequestError(f"Task {name} has write, and merges", remedy="Use DeltaWriteOperator(write=…)")
        if (kwargs.get("merge_keys") is None) == (on is None):
            raise InvalidRequestError(f"Task {name} takes merge_keys or on", remedy="Give exactly one of them")
        merges = "cdc" if kwargs.get("sequence_by") is not None else "merge"
        super().__init__(write=merges if on is None else "append", **kwargs)
        self.on = on
        self.clauses = clauses
        self.source_alias = source_alias
        self.target_alias = target_alias
        ensure_predicate(on)
        if (on is None) == bool(clauses):
            raise self.refusal("takes on and clauses together")
        self._ensure_clauses()
        for name in ("partition_by", "properties", "unit_column", "replace_where", "expect"):
            if on is not None and getattr(self, name) is not None:
                raise self.refusal(f"has {name}, which a merge by clauses does not use")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        if self.on is None:
            return super().execute_on_table(context, run, table)
        tasks = OtherTasks(context, run)
        step = after_overwrites(tasks, self.unit_step(context, run, table, "merge_clauses"), self.table_uri)
        if self.stage:
            step = replace(step, options={**step.options, "stage": True})
        if any("delete" in name for clause in self.clauses for name in clause):
            step = leaves_rows(tasks, step, replaces=False, whole=False)
        with self.lazy_session(run) as session:

            def merge(options: CommitOptions) -> CommitResult:
                return self._merge(table, self.rows(context, session()), options)

            return self.xcom_and_log(step.commit(merge))

    def _merge(self, table: DeltaTable, rows: object, options: CommitOptions) -> CommitResult:
        if rows is None:
            raise self.refusal("has a function that returned None instead of rows")
        merge: Any = table.merge(
            rows,
            cast("str", self.on),
            source_alias=self.source_alias,
            target_alias=self.target_alias,
            engine=self.engine,
            schema_mode=self.schema_mode,
            **cast("dict[str, Any]", options),
        )
        for clause in self.clauses:
            for name, arguments in clause.items():
                merge = getattr(merge, name)(**arguments)
        result: CommitResult = merge.execute()
        return result

    def _ensure_clauses(self) -> None:
        """Check that the clauses are some of a merge. What they say is checked when they run."""
        from delta_orch.verbs.merge.clauses import Merge

        for clause in self.clauses if not is_template(self.clauses) else ():
            names = list(clause) if isinstance(clause, Mapping) else []
            possible = [name for name in vars(Merge) if name.startswith("when_")]
            if len(names) != 1 or names[0] not in possible:
                raise self.refusal(
                    f"has the clause {clause!r:.100}",
                    remedy=f'Write {{"when_…": {{…}}}}; possible are {", ".join(possible)}',
                )


class DeltaUpdateOperator(DeltaUnitOperator):
    """Update rows, in one commit. A crash is recovered; doing it again is refused, because it may count twice.

    Args:
        set: Column → its new value in Spark SQL. (templated)
        where: Which rows, in Spark SQL; all by default. (templated)
        engine: `auto`, `spark` or `local`.
        identity, writer, on_redo, exactly_once: See `DeltaUnitOperator`.
    """

    template_fields: Sequence[str] = (*DeltaUnitOperator.template_fields, "set", "where")
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)

    def __init__(
        self,
        *,
        set: Mapping[str, str],
        where: str | None = None,
        engine: str = "auto",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.set = set
        self.where = where
        self.engine = engine
        ensure_predicate(where)
        ensure_choice("engine", engine, ENGINES)
        if not set:
            raise self.refusal("sets nothing")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        step = after_overwrites(OtherTasks(context, run), self.unit_step(context, run, table, "update"), self.table_uri)
        where: Any = self.where
        return self.xcom_and_log(
            step.commit(lambda options: table.update(self.set, where, engine=cast("Any", self.engine), **options))
        )


class DeltaDeleteOperator(DeltaUnitOperator):
    """Delete rows, in one commit. Doing it again deletes again. Where no row matches, nothing is committed.

    Args:
        where: Which rows, in Spark SQL. (templated)
        all_rows: Instead of `where`: delete every row.
        engine: `auto`, `spark` or `local`.
        identity, writer, on_redo, exactly_once: See `DeltaUnitOperator`.
    """

    template_fields: Sequence[str] = (*DeltaUnitOperator.template_fields, "where")
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)

    def __init__(
        self,
        *,
        where: str | None = None,
        all_rows: bool = False,
        engine: str = "auto",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.all_rows = all_rows
        self.engine = engine
        ensure_switches(all_rows=all_rows)
        ensure_predicate(where)
        ensure_choice("engine", engine, ENGINES)
        if (where is None) != all_rows:
            raise self.refusal("takes a predicate in where, or all_rows=True, exactly one of them")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        tasks = OtherTasks(context, run)
        step = replace(self.unit_step(context, run, table, "delete"), where=self.where)
        if not self.all_rows:
            step = after_overwrites(tasks, step, self.table_uri)
        step = leaves_rows(tasks, step, replaces=False, whole=self.all_rows)
        return self.xcom_and_log(step.commit(lambda options: table.delete(self.where, engine=self._engine, **options)))

    @property
    def _engine(self) -> Any:
        return self.engine
