"""`DeltaWriteOperator`: rows from a function or a query, written exactly once.

`unit_operator` names the unit, `run_context.TaskRun.relation_to` compares the attempt with the one that the table has
recorded, `guards` says which rows must stay, and `pipeline.step.Step.run` carries the write out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.arguments import ensure_locations, ensure_predicate, ensure_switches, ensure_write
from delta_orch.airflow.guards import OtherTasks, after_overwrites, in_interval_order, leaves_rows
from delta_orch.airflow.hook import pinned_versions
from delta_orch.airflow.spark_session import running_spark_session
from delta_orch.airflow.step_operator import DeltaStepOperator
from delta_orch.airflow.table_operator import OperatorArgument, XCom
from delta_orch.pipeline.step import Mode, Step

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.hook import TableReference
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.engines.base import Engine

WRITES = ("append", "merge", "cdc", "overwrite", "overwrite_partitions", "error", "ignore")


class DeltaWriteOperator(DeltaStepOperator):
    """Write the rows that a function returns, or that a query yields, in one commit.

    **Exactly once.** Each run of the task is a unit of work, see `DeltaUnitOperator`. A crash never doubles: a retry
    that finds the commit of the attempt before it ends without calling the function (`recovered`). Doing it again
    replaces: a clear or a backfill puts the new rows in the place of exactly those that the unit wrote before
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
            `error` and `ignore` write only where there is no table (looked at before the function runs).
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
        if self.changes is not None and self.changes.full_snapshot and stage:
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
        """What is to be written."""
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
        from delta_orch.engines.select import spark_engine

        return LocalEngine() if spark is None else spark_engine(spark)
