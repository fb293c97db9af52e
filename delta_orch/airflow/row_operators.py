"""Operators that change single rows: `DeltaMergeOperator`, `DeltaUpdateOperator`, `DeltaDeleteOperator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.checked import ensure_predicate
from delta_orch.airflow.guards import Neighbors, row_guard
from delta_orch.airflow.locations import is_output, is_template
from delta_orch.airflow.step_operator import ENGINES
from delta_orch.airflow.table_operator import OperatorArgument, XCom
from delta_orch.airflow.unit_operator import DeltaUnitOperator
from delta_orch.airflow.write_operator import DeltaWriteOperator
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.verbs.merge.clauses import Merge

_LATER = {"set": {"x": "1"}, "values": {"x": "1"}, "condition": "true", "except_columns": ()}
"""In place of the output of a task, when the DAG is parsed."""


class DeltaMergeOperator(DeltaWriteOperator):
    """Update, insert and delete rows by the rows that a function returns, or that a query yields, in one commit.

    With `merge_keys` it is `DeltaWriteOperator(write="merge")`, or `write="scd2"` with `sequence_by`: doing it again
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
        merges = "scd2" if kwargs.get("sequence_by") is not None else "merge"
        super().__init__(write=merges if on is None else "append", **kwargs)
        self.on = on
        self.clauses = clauses
        self.source_alias = source_alias
        self.target_alias = target_alias
        self.ensure_text("on", on)
        if on is None and clauses:
            raise self.refusal("has clauses, which only on uses")
        if on is not None and not clauses:
            raise self.refusal("has on, but no clauses")
        self._ensure_clauses()
        self._ensure_aliases()
        if self.schema_mode == "overwrite":
            raise self.refusal("has schema_mode='overwrite', which a merge does not have")
        for name in ("partition_by", "properties", "unit_column", "replace_where"):
            if on is not None and getattr(self, name) is not None:
                raise self.refusal(f"has {name}, which a merge by clauses does not use")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        if self.on is None:
            return super().execute_on_table(context, run, table)
        step = self.unit_step(context, run, table, "merge_clauses")
        if self.stage:
            step = replace(step, options={**step.options, "stage": True})
        if step.attempt is not None and any("delete" in name for clause in self.clauses for name in clause):
            writer = step.attempt.units[0].writer
            guard = row_guard(Neighbors(context, run), table, writer, replaces=False, whole=False)
            step = replace(step, guard=guard)
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
        """Refuse clauses that no merge has, or that it would never come to."""
        if not self.clauses:
            return
        from delta_orch.expressions.parse import parse_row_value
        from delta_orch.verbs.merge.clauses import Merge, ensure_reachable

        merge: Any = Merge(cast("Any", ensure_reachable), cast("Any", ensure_reachable))
        for clause in self.clauses:
            name, given = self._parts(clause, Merge)
            arguments: dict[str, Any] = {key: _LATER[key] if is_output(one) else one for key, one in given.items()}
            getattr(merge, name)(**arguments)
            self.ensure_text(f"a condition in {name}", arguments.get("condition"))
            ensure_predicate(arguments.get("condition"))
            for value in (arguments.get("set") or arguments.get("values") or {}).values():
                if not isinstance(value, str | Expression | list | tuple | dict) and not is_output(value):
                    raise self.refusal(f"has in {name} the value {value!r:.60}", remedy="Write it as text in Spark SQL")
                if isinstance(value, str) and not is_template(value):
                    parse_row_value(value)
        merge.execute()

    def _parts(self, clause: object, kind: type[Merge]) -> tuple[str, Mapping[str, object]]:
        if not isinstance(clause, Mapping) or len(clause) != 1:
            raise self.refusal('has a clause that is not {"when_…": {…}}')
        ((name, arguments),) = clause.items()
        possible = {clause: signature(verb) for clause, verb in vars(kind).items() if clause.startswith("when_")}
        if name not in possible:
            raise self.refusal(f"has a clause {name!r}; possible are {', '.join(possible)}")
        try:
            possible[name].bind(None, **arguments)
        except TypeError:
            known = ", ".join(sorted({*possible[name].parameters} - {"self"}))
            raise self.refusal(f"has a clause {name} whose arguments are not {known}") from None
        return name, arguments

    def _ensure_aliases(self) -> None:
        for name in ("source_alias", "target_alias"):
            self.ensure_text(name, getattr(self, name))
        if self.source_alias.lower() == self.target_alias.lower():
            raise self.refusal(f"calls source and table {self.source_alias!r}; give each a name of its own")
        if self.on is None and (self.source_alias, self.target_alias) != ("source", "target"):
            raise self.refusal("has an alias, which only on uses")


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
    choices = MappingProxyType({**DeltaUnitOperator.choices, "engine": ENGINES})

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
        self.ensure_text("where", where)
        if not is_template(set):
            from delta_orch.expressions.parse import parse_row_value

            if not set:
                raise self.refusal("sets nothing")
            for column, value in set.items():
                if not isinstance(value, str) or not value.strip():
                    raise self.refusal(f"sets {column!r} to {value!r:.60}", remedy="Write the value in Spark SQL")
                parse_row_value(value)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        step = self.unit_step(context, run, table, "update")
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
    choices = MappingProxyType({**DeltaUnitOperator.choices, "engine": ENGINES})

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
        self.ensure_text("where", where)
        if (where is None) != all_rows or (isinstance(where, str) and not where.strip()):
            raise self.refusal("takes a predicate in where, or all_rows=True, exactly one of them")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        step = replace(self.unit_step(context, run, table, "delete"), where=self.where)
        if step.attempt is not None:
            writer = step.attempt.units[0].writer
            guard = row_guard(Neighbors(context, run), table, writer, replaces=False, whole=self.all_rows)
            step = replace(step, guard=guard)
        return self.xcom_and_log(step.commit(lambda options: table.delete(self.where, engine=self._engine, **options)))

    @property
    def _engine(self) -> Any:
        return self.engine
