"""Operators that change single rows: `DeltaMergeOperator`, `DeltaDeleteOperator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.checked import ensure_predicate
from delta_orch.airflow.locations import is_output, is_template
from delta_orch.airflow.once import DeltaOnceOperator
from delta_orch.airflow.step_operator import ENGINES
from delta_orch.airflow.table_operator import OperatorArgument, XCom, xcom_of
from delta_orch.airflow.write_operator import DeltaRowsOperator
from delta_orch.expressions.nodes import Expression
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.target_table import publish_now

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.staged_write import StagedWrite
    from delta_orch.verbs.merge.clauses import Merge

_LATER = {"set": {"x": "1"}, "values": {"x": "1"}, "condition": "true", "except_columns": ()}
"""In place of the output of a task, when the DAG is parsed."""


def looked_at(
    table: DeltaTable,
    look: Callable[[StagedWrite], object] | None,
    write: Callable[..., CommitResult],
    *,
    stage: bool = False,
) -> CommitResult:
    """A write that is looked at before it is published, or staged for others."""
    result = write(stage=stage or look is not None)
    if look is None or result.staged is None:
        return result
    staged = table.staged(result.staged)
    look(staged)
    return result if stage else publish_now(staged)


class DeltaMergeOperator(DeltaRowsOperator):
    """Update, insert and delete rows by the rows that a function returns, or that a query yields, in one commit. Or
    keep a version of each row that a key has had (`sequence_by`).

    **Exactly once**, as `DeltaWriteOperator`. An upsert (`keys`) that is cleared is done again, which changes nothing
    twice. Of clauses nobody can tell, so a merge by clauses counts as one that adds rows: a clearing after an attempt
    that was never acknowledged leaves it, and a run of a DAG that was created anew is refused.

    An upsert creates the table if there is none, from its rows, whose keys must be unique then as always. A merge by
    clauses needs one. Source rows come as for `DeltaWriteOperator`.

    Args:
        keys: Upsert by these columns: rows with equal keys are replaced, others inserted. (templated)
        on: Instead of `keys`: when a row of the table (`target`) and one of the source (`source`) belong together.
            (templated)
        clauses: With `on`: the clauses in their order, each `{"when_matched_update": {"set": {…}, "condition": "…"}}`,
            by the names and arguments of `DeltaTable.merge`. (templated)
        partition_by: With `keys`: partition columns, if the first commit creates the table.
        table_properties: With `keys`: properties, if the first commit creates the table. (templated)
        sequence_by: With `keys`: update nothing, and keep each version of a key (`pipeline.scd2`); the column that says
            since when a row is valid.
        delete_marker: With `sequence_by`: a boolean column of the rows, which the table does not keep: true where a key
            ends.
        full_snapshot: With `sequence_by`: keys that are missing from the rows end.
        source_alias: What `on` and `clauses` call the source.
        target_alias: What they call the table.
        idempotency: `run`, `partition` or `off`, as `DeltaWriteOperator`.
        identity: As `DeltaWriteOperator`. (templated)
        stage: As `DeltaWriteOperator`.
    """

    template_fields: Sequence[str] = (*DeltaRowsOperator.template_fields, "keys", "on", "clauses")
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        **DeltaRowsOperator.template_fields_renderers,
        "on": "sql",
    }

    def __init__(
        self,
        *,
        keys: Sequence[str] | None = None,
        on: str | None = None,
        clauses: Sequence[Mapping[str, Mapping[str, object]]] = (),
        sequence_by: str | None = None,
        delete_marker: str | None = None,
        full_snapshot: bool = False,
        source_alias: str = "source",
        target_alias: str = "target",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.keys = keys
        self.on = on
        self.clauses = clauses
        self.sequence_by = sequence_by
        self.delete_marker = delete_marker
        self.full_snapshot = full_snapshot
        self.source_alias = source_alias
        self.target_alias = target_alias
        self.ensure_text("on", on)
        self.ensure_columns("keys", keys)
        if (keys is None) == (on is None):
            raise self.refusal("takes keys or on, exactly one of them")
        if keys is not None and not is_template(keys) and not keys:
            raise self.refusal(f"has keys={keys!r}, which is not a list of columns")
        if keys is not None and clauses:
            raise self.refusal("has clauses, which only on uses")
        if on is not None and not clauses:
            raise self.refusal("has on, but no clauses")
        if on is not None and sequence_by is not None:
            raise self.refusal("has sequence_by, which only keys uses")
        self.ensure_versions(is_kept=sequence_by is not None)
        if full_snapshot and self.stage:
            raise self.refusal("has full_snapshot, which ends keys that others add before the rows are published")
        self._ensure_clauses()
        self._ensure_aliases()
        if self.schema_mode == "overwrite":
            raise self.refusal("has schema_mode='overwrite', which a merge does not have")
        for name in ("partition_by", "table_properties"):
            if on is not None and getattr(self, name) is not None:
                raise self.refusal(f"has {name}, but a merge by clauses creates no table")
        self.ensure_exact({"task_id": self.task_id, "on": on, "idempotency": self.idempotency})

    @classmethod
    def adds_rows(cls, arguments: Mapping[str, object]) -> bool:
        return arguments.get("on") is not None and arguments.get("idempotency", "run") == "run"

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        names = [name for clause in self.clauses for name in clause]
        once = self.once(context, run, table, adds=self.keys is None, clauses=names)
        with self.lazy_session(run) as session:
            if self.keys is not None:
                mode: Mode = "merge" if self.sequence_by is None else "scd2"
                step = self.versions(replace(self.step(run, table, mode), merge_keys=tuple(self.keys)))
                if self.stage:
                    step = replace(step, options={**step.options, "stage": True})
                report = once.run(step, lambda: self.rows(context, session()))
            else:

                def merge(txns: tuple[TxnId, ...]) -> CommitResult:
                    rows = self.rows(context, session())
                    look = once.look(txns, None)
                    return looked_at(table, look, partial(self._merge, run, table, rows, txns), stage=self.stage)

                report = once.commit(f"Task {self.task_id}", merge)
        return xcom_of(report)

    def _merge(
        self, run: TaskRun, table: DeltaTable, rows: object, txns: tuple[TxnId, ...], *, stage: bool
    ) -> CommitResult:
        if rows is None:
            raise self.refusal("has a function that returned None instead of rows")
        options: dict[str, Any] = {"txn": txns, "user_metadata": run.user_metadata(), "stage": stage}
        merge: Any = table.merge(
            rows,
            cast("str", self.on),
            source_alias=self.source_alias,
            target_alias=self.target_alias,
            engine=self.engine,
            schema_mode=self.schema_mode,
            **options,
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
        if self.keys is not None and (self.source_alias, self.target_alias) != ("source", "target"):
            raise self.refusal("has an alias, which only on uses")


class DeltaDeleteOperator(DeltaOnceOperator):
    """Delete rows, in one commit. Where no row matches, nothing is committed.

    Args:
        where: Which rows, in Spark SQL. (templated)
        all_rows: Instead of `where`: delete every row.
        engine: `auto`, `spark` or `local`.
        idempotency: `run`, `partition` or `off`, as `DeltaWriteOperator`.
        identity: As `DeltaWriteOperator`. (templated)
    """

    template_fields: Sequence[str] = (*DeltaOnceOperator.template_fields, "where")
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)
    choices = MappingProxyType({**DeltaOnceOperator.choices, "engine": ENGINES})

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

    @classmethod
    def removes_rows(cls, arguments: Mapping[str, object]) -> bool:
        """A task removes rows of its run's interval, whatever its arguments are."""
        return True

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        once = self.once(context, run, table, adds=False, is_said=True)

        def delete(txns: tuple[TxnId, ...]) -> CommitResult:
            look = once.look(txns, self.where)
            said: dict[str, Any] = {"engine": self.engine, "txn": txns, "user_metadata": run.user_metadata()}
            return looked_at(table, look, partial(table.delete, self.where, **said))

        return xcom_of(once.commit(f"Task {self.task_id}", delete))
