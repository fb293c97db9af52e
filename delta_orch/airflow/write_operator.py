"""Operators that write rows: `DeltaWriteOperator`, `DeltaMergeOperator`, `DeltaUpdateOperator`, `DeltaDeleteOperator`.

`DeltaUnitOperator` names the unit, `TaskRun.relation_to` compares the attempt with the one that the table has recorded,
the guards of `run_context` say which rows must stay, and `pipeline.step.Step.run` writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.arguments import (
    ensure_list,
    ensure_locations,
    ensure_predicate,
    ensure_properties,
    ensure_switches,
    ensure_write,
)
from delta_orch.airflow.hook import pinned_versions
from delta_orch.airflow.locations import TableLocation, checked_location, is_output, is_template
from delta_orch.airflow.run_context import OtherTasks, after_overwrites, in_interval_order, leaves_rows
from delta_orch.airflow.spark_session import connection_conf, running_spark_session, task_spark_session
from delta_orch.airflow.table_operator import DeltaUnitOperator, OperatorArgument, XCom
from delta_orch.airflow.versions import determine_kwargs
from delta_orch.engines.select import spark_engine
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.write_settings import SETTINGS, WriteSettings, ensure_choice

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.hook import TableReference
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.engines.base import Engine
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.verbs.change_events import Envelope


ENGINES = ("auto", "spark", "local")
UserFunction = Callable[..., object]
OpenSession = Callable[[], "SparkSession | None"]


class DeltaStepOperator(DeltaUnitOperator):
    """Base of the operators that commit the rows of a function. `DeltaWriteOperator` describes the arguments."""

    template_fields: Sequence[str] = (
        # First: the others may refer to them, and Airflow renders in this order.
        "op_args",
        "op_kwargs",
        *DeltaUnitOperator.template_fields,
        "properties",
        "quarantine",
        "spark_conf",
        "spark_conn_id",
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 (Airflow's class attribute)
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: UserFunction | None = None,
        op_args: Collection[OperatorArgument] | None = None,
        op_kwargs: Mapping[str, OperatorArgument] | None = None,
        write: str | None,
        merge_keys: Sequence[str] | None = None,
        sequence_by: str | Sequence[str] | None = None,
        delete_when: str | None = None,
        except_columns: Sequence[str] | None = None,
        scd: int | None = None,
        full_snapshot: bool = False,
        envelope: Envelope | None = None,
        tombstone_retention: str | None = None,
        partition_by: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        unit_column: str | None = None,
        expect: Mapping[str, object] | None = None,
        max_quarantined: float | None = None,
        quarantine: TableLocation | None = None,
        schema_mode: str | None = None,
        engine: str = "auto",
        spark_conf: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name in SETTINGS}
        super().__init__(**kwargs)
        # Attributes: Airflow renders those that are templates, and other tasks look at them.
        for name, value in settings.items():
            setattr(self, name, value)
        self.quarantine = None if quarantine is None else checked_location(quarantine)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.engine = engine
        self.spark_conf = spark_conf
        self.spark_conn_id = spark_conn_id
        if not (is_output(op_args) or is_output(op_kwargs)):
            self._ensure_parameters(python_callable)
        ensure_list("merge_keys", merge_keys)
        ensure_choice("schema_mode", schema_mode, (None, "merge", "overwrite"))
        checked = replace(self.settings, max_quarantined=None) if is_template(max_quarantined) else self.settings
        checked.ensure_sound((write,))
        ensure_switches(full_snapshot=full_snapshot)
        if write == "cdc" and schema_mode is not None:
            raise self.refusal("has write='cdc' and schema_mode: change events have the columns of the table")
        ensure_choice("engine", engine, ENGINES)
        ensure_list("partition_by", partition_by)
        ensure_properties(properties)
        if quarantine is not None and not (checked.rules and checked.rules.quarantines):
            raise self.refusal("has a quarantine, and no rule in expect puts rows there")
        for name in ("spark_conf", "spark_conn_id"):
            if getattr(self, name) is not None and engine == "local":
                raise self.refusal(f"has {name}, which the local engine does not use")
        if spark_conn_id is not None and {"spark.master", "spark.remote"} & set(spark_conf or ()):
            raise self.refusal("has spark_conn_id, and a master or server in spark_conf")
        if unit_column is not None and not self.exactly_once:
            raise self.refusal("has unit_column, which exactly_once=False does not fill")

    @property
    def settings(self) -> WriteSettings:
        """The settings of the write, as they are rendered by now."""
        return WriteSettings.of(vars(self))

    def step(self, context: Context, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this attempt."""
        settings = self.settings
        quarantine = None if settings.quarantine is None else self.hook.table(settings.quarantine)
        step = replace(self.unit_step(context, run, table, mode), creates_only=True, engine=self.engine)
        return settings.apply(step, quarantine)

    @contextmanager
    def lazy_session(self, run: TaskRun) -> Iterator[OpenSession]:
        """Gives a function that starts the task's Spark session when it is first called; it is stopped at the end."""
        with ExitStack() as stack:
            name = f"{run.dag_id}.{run.task_id}"
            yield cache(lambda: stack.enter_context(task_spark_session(self._session_conf(), name)))

    def _session_conf(self) -> Mapping[str, str] | None:
        if self.spark_conn_id is None:
            return self.spark_conf
        return {**connection_conf(self.hook.get_connection(self.spark_conn_id)), **(self.spark_conf or {})}

    def call_user_function(self, context: Context, spark: SparkSession | None, *args: object) -> object:
        """Call it with `args` and `op_args`, and with those of `op_kwargs`, `spark` and the task context that its
        signature asks for."""
        assert self.python_callable is not None
        self._ensure_parameters(self.python_callable)
        offered = {} if spark is None else {"spark": spark}
        positional = (*args, *self.op_args)
        named = determine_kwargs(self.python_callable, positional, {**context, **offered, **self.op_kwargs})
        rows = self.python_callable(*positional, **named)
        self.ensure_alive()
        return rows

    def _ensure_parameters(self, function: UserFunction | None) -> None:
        """Refuse arguments that the function has no parameters for: it would go on without them."""
        if function is None:
            return
        try:
            inspect.signature(function).bind_partial(*self.op_args, **self.op_kwargs)
        except TypeError as error:
            raise self.refusal(f"has op_args or op_kwargs that its function does not take: {error}") from None


WRITES = ("append", "merge", "cdc", "overwrite", "overwrite_partitions", "error", "ignore")


class DeltaWriteOperator(DeltaStepOperator):
    """Write the rows that a function returns, or that a query yields, in one commit.

    **Exactly once.** Each run of the task is a unit of work, see `DeltaUnitOperator`. A crash never doubles: a retry
    that finds the commit of the attempt before it ends without calling the function (`recovered`). Doing it again
    replaces: a clear or a backfill replaces exactly the rows that the unit wrote before
    (`replaced`). Late never wins: an attempt that began before the newest one of its unit changes nothing (`fenced`).

    Overwrites of a whole table are ordered by data interval, over all runs of the task: a late run of an older interval
    is fenced. Where a later task of the DAG takes the table or this task's XCom, the overwrite always writes, and those
    tasks read the version that their run wrote.

    The function is called with `op_args`, and with those of `op_kwargs` and of the task context its parameters name;
    a parameter `spark` receives the session that `spark_conn_id` and `spark_conf` describe. It returns a Spark
    DataFrame, an Arrow table or reader, or a pandas or Polars frame.

    Args:
        python_callable: Returns the rows. Give this or `sql`.
        sql: A query over `tables`, in the SQL of the engine (Spark's or DuckDB's); `.sql` files are read. (templated)
        tables: Names used in `sql` → tables of the same connection; the XCom of a task is the version it committed.
            (templated)
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        write: What becomes of the rows that are there. `append` keeps them. `merge` updates those with the same
            `merge_keys` and inserts the others. `cdc` applies them as change events, in any order. `overwrite` replaces
            all, or those of `replace_where`; `overwrite_partitions` those of the partitions that the rows belong to.
            `error` and `ignore` write only where there is no table (checked before the function runs).
        replace_where: With `overwrite`: replace the rows this predicate holds for, and refuse others. (templated)
        merge_keys: With `merge` and `cdc`: the columns that identify a row. (templated)
        sequence_by, delete_when, except_columns, scd, full_snapshot, envelope, tombstone_retention: With `cdc`, as of
            `DeltaTable.apply_changes` (docs/late-rows.md).
        schema_mode: `merge` adds the columns that the table does not have; `overwrite` takes those of the rows, where
            every row is replaced. By default the rows must have the table's columns.
        partition_by: Partition columns, if this write creates the table.
        properties: `delta.*` and other properties, if this write creates the table. (templated)
        unit_column: A text column that the task fills with the name of its unit. A redo finds its rows by it, whatever
            compactions and updates have done to the files.
        expect: Rules for each row, `Expect` by name, checked while the rows are written.
        max_quarantined: How many rows may go to the quarantine (int), or which share (float). With more, the task
            fails, and neither table changes.
        quarantine: Where these rows go: a table of the same connection; by default `<table>_quarantine`. (templated)
        identity, writer, on_redo, exactly_once: See `DeltaUnitOperator`.
        stage: Write everything but the commit; `DeltaPublishOperator` makes it. The XCom holds a reference, `staged`,
            with which `DeltaHook.snapshot` opens what was written, and no version.
        engine: `spark`, `local`, or `auto`: by the data; for `sql` Spark if the task has a session or one runs.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
        spark_conn_id: The connection that says where: of type `spark` (a master) or `spark_connect` (a server). It
            starts a session, too; `spark_conf` adds settings. (templated)
    """

    template_fields: Sequence[str] = (
        *DeltaStepOperator.template_fields,
        "sql",
        "tables",
        "replace_where",
        "merge_keys",
    )
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        **DeltaStepOperator.template_fields_renderers,
        "sql": "sql",
        "replace_where": "sql",
    }
    template_ext: Sequence[str] = (".sql",)

    def __init__(
        self,
        *,
        write: str = "append",
        sql: str | None = None,
        tables: Mapping[str, TableReference] | None = None,
        replace_where: str | None = None,
        stage: bool = False,
        **kwargs: OperatorArgument,
    ) -> None:
        ensure_write(write, WRITES)
        super().__init__(write=write, **kwargs)
        self.sql = sql
        self.tables = tables
        self.replace_where = replace_where
        self.stage = stage
        if (self.python_callable is None) == (sql is None):
            raise self.refusal("takes python_callable or sql, exactly one of them")
        ensure_switches(stage=stage)
        ensure_predicate(replace_where)
        ensure_locations({"tables": tables})
        self.reads_from(*(tables.values() if isinstance(tables, Mapping) else ()))
        if write != "overwrite" and replace_where is not None:
            raise self.refusal(f"has replace_where, which write={write!r} does not use")
        if self.schema_mode == "overwrite" and not self._is_whole:
            raise self.refusal("has schema_mode='overwrite', which needs write='overwrite' of the whole table")
        if self.settings.full_snapshot and stage:
            raise self.refusal("has full_snapshot, which deletes keys that others add before the rows are published")

    @property
    def _is_whole(self) -> bool:
        return self.write == "overwrite" and self.replace_where is None

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        tasks = OtherTasks(context, run)
        step = self.guarded(tasks, self.step(context, run, table, cast("Mode", self.write)))
        if self.stage:
            step = replace(step, options={**step.options, "stage": True})
        with self.lazy_session(run) as session, pinned_versions(tasks.versions_written()):
            return self.xcom_and_log(step.run(lambda: self.rows(context, session())))

    def guarded(self, tasks: OtherTasks, step: Step) -> Step:
        """The step, which loses no rows of others, and no newer ones."""
        if not self._is_whole:
            step = after_overwrites(tasks, step, self.table_uri)
        elif self.stage or not tasks.is_read_later(self.table_uri):
            step = in_interval_order(tasks, step)
        if not step.mode.startswith("overwrite"):
            return step
        return leaves_rows(tasks, replace(step, where=self.replace_where), replaces=True, whole=self._is_whole)

    def rows(self, context: Context, spark: SparkSession | None) -> object:
        """The rows to write."""
        if self.sql is None:
            return self.call_user_function(context, spark)
        engine = self._sql_engine(spark)
        snapshots = {name: self.hook.snapshot(table) for name, table in (self.tables or {}).items()}
        self.has_read = {
            name: (self.hook.table_of(table), snapshots[name].version) for name, table in (self.tables or {}).items()
        }
        relations = {name: engine.scan(snapshot.scan().plan()) for name, snapshot in snapshots.items()}
        rows = engine.sql(self.sql, relations)
        return rows if engine.name == "spark" else engine.to_reader(rows)

    def _sql_engine(self, spark: SparkSession | None) -> Engine:
        if spark is None and self.engine != "local":
            spark = running_spark_session()
            if spark is None and self.engine == "spark":
                raise self.refusal(
                    "has engine='spark', but no spark_conf, no spark_conn_id and no running Spark session"
                )
        from delta_orch.engines.local.engine import LocalEngine

        return LocalEngine() if spark is None else spark_engine(spark)


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
