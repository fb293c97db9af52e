"""`DeltaWriteOperator`: rows from a function or a query, written exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.hook import opened_by_hooks
from delta_orch.airflow.neighbors import Neighbors
from delta_orch.airflow.once import DeltaOnceOperator, OnceWriter
from delta_orch.airflow.rebuilds import ensure_not_newer
from delta_orch.airflow.run_context import TaskRun
from delta_orch.airflow.spark_session import running_spark_session
from delta_orch.airflow.step_operator import DeltaStepOperator
from delta_orch.airflow.table_operator import OperatorArgument, XCom, xcom_of
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.target_table import snapshot_or_none

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.hook import TableReference
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.base import Engine

MODES = ("append", "overwrite", "error", "ignore")
PARTITION_OVERWRITE_MODES = ("static", "dynamic")


class DeltaRowsOperator(DeltaOnceOperator, DeltaStepOperator):
    """Base of the operators whose rows a function returns, or a query yields. `DeltaWriteOperator` describes the
    arguments."""

    template_fields: Sequence[str] = (*DeltaStepOperator.template_fields, "sql", "tables", "identity")
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        **DeltaStepOperator.template_fields_renderers,
        "sql": "sql",
    }
    template_ext: Sequence[str] = (".sql",)
    choices = MappingProxyType({**DeltaStepOperator.choices, **DeltaOnceOperator.choices})
    _replaces_all = False

    def __init__(
        self,
        *,
        sql: str | None = None,
        tables: Mapping[str, TableReference] | None = None,
        stage: bool = False,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.sql = sql
        self.tables = tables
        if (self.python_callable is None) == (sql is None):
            raise self.refusal("takes python_callable or sql, exactly one of them")
        self.ensure_text("sql", sql)
        if tables is not None and sql is None:
            raise self.refusal("has tables, which only sql uses")
        for name, table in tables.items() if isinstance(tables, Mapping) else ():
            self.ensure_text("a name in tables", name)
            self.ensure_reference(table)
        self.reads_from(*(tables.values() if isinstance(tables, Mapping) else ()))

    def once(self, context: Context, run: TaskRun, table: DeltaTable, **kind: Any) -> OnceWriter:
        is_told = partial(self._is_told, context, table) if self.stage else None
        return super().once(context, run, table, is_told=is_told, **kind)

    def _is_told(self, context: Context, table: DeltaTable, version: int | None) -> bool:
        """Whether a task that publishes has returned, and told of this version. Yes, if the DAG has no such task."""
        after = [task.task_id for task in self.get_flat_relatives(upstream=False) if "staged" in task.template_fields]
        told: list[object] = []
        for name in after:
            # Of each map index: which of them publishes what this one stages, the DAG does not say.
            found = context["ti"].xcom_pull(task_ids=name)
            told.extend([found] if isinstance(found, Mapping) else found or ())
        own = (table.uri, version)
        return not after or any(
            isinstance(xcom, Mapping) and (xcom.get("table_uri"), xcom.get("version")) == own for xcom in told
        )

    def rows(self, context: Context, spark: SparkSession | None) -> object:
        """What is to be written."""
        if self.sql is None:
            with opened_by_hooks() as opened:
                for reference in _references([*self.op_args, self.op_kwargs]):
                    self.hook.snapshot(reference)
                found = self.call_user_function(context, spark)
            self._ensure_own(context, [(table.uri, table, snapshot) for table, snapshot in opened])
            return found
        engine = self._sql_engine(spark)
        snapshots = {name: self.hook.snapshot(table) for name, table in (self.tables or {}).items()}
        self.has_read = {
            name: (self.hook.table_of(table), snapshots[name].version) for name, table in (self.tables or {}).items()
        }
        self._ensure_own(context, [(name, table, snapshots[name]) for name, (table, _) in self.has_read.items()])
        relations = {name: engine.scan(snapshot.scan().plan()) for name, snapshot in snapshots.items()}
        rows = engine.sql(self.sql, relations)
        return rows if engine.name == "spark" else engine.to_reader(rows)

    def _ensure_own(self, context: Context, read: Sequence[tuple[str, DeltaTable, TableSnapshot | None]]) -> None:
        """Check that what is read is of this run. A task that replaces the whole table has an order of its own."""
        tasks = Neighbors(context, TaskRun.from_context(context))
        for name, table, snapshot in read if tasks.before and not self._replaces_all else ():
            if (found := snapshot or snapshot_or_none(table)) is not None:
                ensure_not_newer(tasks, name, table, found)

    def _sql_engine(self, spark: SparkSession | None) -> Engine:
        if spark is None and self.engine != "local":
            spark = running_spark_session()
            if spark is None and self.engine == "spark":
                raise self.refusal(
                    "has engine='spark', but no spark_conf, no spark_conn_id and no running Spark session"
                )
        from delta_orch.engines.local.engine import LocalEngine
        from delta_orch.engines.select import spark_engine

        return LocalEngine() if spark is None else spark_engine(spark)


class DeltaWriteOperator(DeltaRowsOperator):
    """Write the rows that a function returns, or that a query yields, in one commit.

    **Exactly once.** The commit carries a transaction id made of the DAG, the task, its map index and the run's
    partition key or data interval. A retry finds it recorded and ends without calling the function. Clearing the task,
    or a later run for the same interval, writes again. A late attempt of an older run commits nothing.

    The function is called with `op_args`, and with those of `op_kwargs` and of the task context its parameters name;
    a parameter `spark` receives the session that `spark_conn_id` and `spark_conf` describe. It returns a Spark
    DataFrame, an Arrow table or reader, or a pandas or Polars frame.

    Args:
        python_callable: Returns the rows. Give this or `sql`.
        sql: A query over `tables`, in the SQL of the engine: Spark's, or DuckDB's; a name ending in `.sql` is read from
            file. (templated)
        tables: Names used in `sql` → tables of the same connection; the XCom of a task is the version it committed.
            (templated)
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        mode: `append`; `overwrite`; `error` or `ignore` where the table exists (looked at before the function runs).
        replace_where: With `overwrite`: replace the rows this predicate holds for, and refuse others. (templated)
        partition_overwrite_mode: With `overwrite`: `dynamic` replaces the partitions that the rows belong to.
        schema_mode: `merge` adds the columns that the table does not have; `overwrite` takes those of the rows, where
            every row is replaced. By default the rows must have the table's columns.
        partition_by: Partition columns, if this write creates the table.
        table_properties: `delta.*` and other properties, if this write creates the table. (templated)
        idempotency: `run` as described; `partition`: once for the run's partition key or data interval, in whichever
            run or clearing (for a table that only grows); or `off`: every attempt writes.
        identity: A name for what this task writes, in place of the map index. A mapped task with a name keeps its
            identity when the list changes. If a write replaces the whole table, each identity has its own order of
            runs. (templated)
        stage: Write everything but the commit; `DeltaPublishOperator` makes it. The XCom holds a reference, `staged`,
            with which `DeltaHook.snapshot` opens what was written, and no version.
        engine: `spark`, `local`, or `auto`: by the data; for `sql` Spark if the task has a session or one runs.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
        spark_conn_id: The connection that says where: of type `spark` (a master) or `spark_connect` (a server). It
            starts a session, too; `spark_conf` adds settings. (templated)
    """

    template_fields: Sequence[str] = (*DeltaRowsOperator.template_fields, "replace_where")
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        **DeltaRowsOperator.template_fields_renderers,
        "replace_where": "sql",
    }
    choices = MappingProxyType(
        {**DeltaRowsOperator.choices, "mode": MODES, "partition_overwrite_mode": PARTITION_OVERWRITE_MODES}
    )

    def __init__(
        self,
        *,
        mode: str = "append",
        replace_where: str | None = None,
        partition_overwrite_mode: str = "static",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.replace_where = replace_where
        self.partition_overwrite_mode = partition_overwrite_mode
        self._replaces_all = mode == "overwrite" and replace_where is None and partition_overwrite_mode == "static"
        self._ensure_valid()
        self.ensure_exact({"task_id": self.task_id, "mode": mode, "idempotency": self.idempotency})

    @classmethod
    def adds_rows(cls, arguments: Mapping[str, object]) -> bool:
        return arguments.get("mode", "append") == "append" and arguments.get("idempotency", "run") == "run"

    @classmethod
    def replaces_tables(cls, arguments: Mapping[str, object]) -> bool:
        """Whether a task with these arguments replaces every row, and its runs are ordered by time."""
        is_static = arguments.get("partition_overwrite_mode", "static") == "static"
        is_whole = is_static and arguments.get("replace_where") is None
        is_ordered = arguments.get("identity") is None and arguments.get("idempotency") != "off"
        return arguments.get("mode") == "overwrite" and is_whole and is_ordered

    @classmethod
    def removes_rows(cls, arguments: Mapping[str, object]) -> bool:
        """Whether a task with these arguments replaces rows of its run's interval."""
        return arguments.get("mode") == "overwrite" and not cls.replaces_tables(arguments)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        mode = "overwrite_partitions" if self.partition_overwrite_mode == "dynamic" else self.mode
        step = replace(self.step(run, table, cast("Mode", mode)), where=self.replace_where)
        if self.stage:
            step = replace(step, options={**step.options, "stage": True})
        once = self.once(
            context,
            run,
            table,
            # What adds rows doubles them when it is done twice.
            adds=mode not in ("overwrite", "overwrite_partitions"),
            replaces_table=self._replaces_all,
        )
        with self.lazy_session(run) as session:
            report = once.run(step, lambda: self.rows(context, session()))
        if report.commit is None:
            self.log.info("Nothing is computed: %s", report.reason)
        return xcom_of(report)

    def _ensure_valid(self) -> None:
        self.ensure_text("replace_where", self.replace_where)
        if self.mode != "overwrite" and self.replace_where is not None:
            raise self.refusal(f"has replace_where, which mode {self.mode!r} does not use")
        if self.mode != "overwrite" and self.partition_overwrite_mode != "static":
            raise self.refusal(f"has partition_overwrite_mode, which mode {self.mode!r} does not use")
        if self.schema_mode == "overwrite" and not self._replaces_all:
            raise self.refusal("has schema_mode='overwrite', which needs mode 'overwrite' of the whole table")
        if self.replace_where is not None and self.partition_overwrite_mode == "dynamic":
            raise self.refusal("has replace_where and dynamic partition overwrite, which exclude each other")


def _references(given: object) -> Iterator[Mapping[str, object]]:
    """The XComs of tasks among arguments that have committed nothing: the versions that they have found."""
    if isinstance(given, Mapping) and {"table_uri", "version", "skipped"} <= given.keys():
        if given["skipped"] and given["version"] is not None:
            yield given
    elif isinstance(given, Mapping | list | tuple):
        for one in given.values() if isinstance(given, Mapping) else given:
            yield from _references(one)
