"""`DeltaWriteOperator`: rows from a function or a query, written exactly once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_orch.airflow.spark_session import running_spark_session, task_spark_session
from delta_orch.airflow.table_operator import DeltaTableOperator, StepReport
from delta_orch.airflow.user_code import call_user_function, ensure_callable, ensure_data, run_user_sql
from delta_orch.errors import InvalidRequestError, TableExistsError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.txn import TxnId

MODES = ("append", "overwrite", "error", "ignore")
IDEMPOTENCY = ("run", "partition", "off")
ENGINES = ("auto", "spark", "local")
PARTITION_OVERWRITE_MODES = ("static", "dynamic")
SCHEMA_MODES = (None, "merge", "overwrite")


class DeltaWriteOperator(DeltaTableOperator):
    """Write the rows that a function returns, or that a query yields, in one commit.

    **Exactly once.** The commit carries a transaction id made of the DAG, the task, its map index and the run's
    partition key or data interval. A retry finds it recorded and ends without calling the function. Clearing the task,
    or a later run for the same interval, writes again. An attempt of an older run that finishes late is fenced off.

    The function is called with `op_args`, and with those of `op_kwargs` and of the task context its parameters name;
    a parameter `spark` receives the session that `spark_conf` describes. It returns a Spark DataFrame, an Arrow table
    or reader, or a pandas or Polars frame.

    Args:
        python_callable: Yields the rows. Give this or `sql`.
        sql: A query in Spark SQL over `tables`; a name ending in `.sql` is read from file. (templated)
        tables: Names used in `sql` → table URIs, opened with the same connection. (templated)
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        mode: `append`; `overwrite`; `error` or `ignore` where the table exists (looked at before the function runs).
        replace_where: With `overwrite`: replace the rows this predicate holds for, and refuse others. (templated)
        partition_overwrite_mode: With `overwrite`: `dynamic` replaces the partitions that the rows belong to.
        schema_mode: `merge` adds the columns that the table does not have; `overwrite` takes those of the rows, where
            every row is replaced. By default the rows must have the table's columns.
        partition_by: Partition columns, if this write creates the table.
        table_properties: `delta.*` and other properties, if this write creates the table. (templated)
        idempotency: `run` as described; `partition`: once for the run's partition key or data interval, whichever run
            or clearing does it (what a table needs that is only ever appended to); or `off`: every attempt writes.
        engine: `spark`, `local`, or `auto`: by the data; for `sql` Spark if `spark_conf` is given or a session runs.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
    """

    template_fields: Sequence[str] = (
        *DeltaTableOperator.template_fields,
        "sql",
        "tables",
        "op_args",
        "op_kwargs",
        "replace_where",
        "table_properties",
        "spark_conf",
    )
    template_fields_renderers = {  # noqa: RUF012 (Airflow's own spelling of a class attribute)
        "sql": "sql",
        "replace_where": "sql",
        "op_args": "py",
        "op_kwargs": "py",
    }
    template_ext: Sequence[str] = (".sql",)
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any] | None = None,
        sql: str | None = None,
        tables: Mapping[str, str] | None = None,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        mode: str = "append",
        replace_where: str | None = None,
        partition_overwrite_mode: str = "static",
        schema_mode: str | None = None,
        partition_by: Sequence[str] | None = None,
        table_properties: Mapping[str, str] | None = None,
        idempotency: str = "run",
        engine: str = "auto",
        spark_conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.sql = sql
        self.tables = tables
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.mode = mode
        self.replace_where = replace_where
        self.partition_overwrite_mode = partition_overwrite_mode
        self.schema_mode = schema_mode
        self.partition_by = partition_by
        self.table_properties = table_properties
        self.idempotency = idempotency
        self.engine = engine
        self.spark_conf = spark_conf
        self._ensure_valid()

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> StepReport:
        txn = self._txn(run)
        found = self._nothing_to_do(table, txn)
        if found is not None:
            return found
        with task_spark_session(self.spark_conf, f"{run.dag_id}.{run.task_id}") as spark:
            data = self._rows(context, spark)
            return self._write(table, data, txn, run)

    def _txn(self, run: TaskRun) -> TxnId | None:
        if self.idempotency == "off":
            return None
        if self.idempotency == "partition":
            return run.once_per_partition_txn()
        replaces_table = (
            self.mode == "overwrite" and self.replace_where is None and self.partition_overwrite_mode == "static"
        )
        return run.txn(replaces_table=replaces_table)

    def _nothing_to_do(self, table: DeltaTable, txn: TxnId | None) -> StepReport | None:
        """The report of a task that needs not compute anything; the commit looks at the transaction id once more."""
        if not table.exists():
            return None
        snapshot = table.snapshot()
        recorded = None if txn is None else snapshot.txn_version(txn.app_id)
        if txn is not None and recorded is not None and recorded >= txn.version:
            self.log.info("The table has recorded %s for %s: nothing is computed", recorded, txn)
            return StepReport(table.uri, snapshot.version, skipped=True)
        if self.mode == "ignore":
            return StepReport(table.uri, snapshot.version, skipped=True)
        if self.mode == "error":
            raise TableExistsError(
                f"There is a Delta table at {table.uri}",
                cause="The task's mode is 'error': it only creates",
                remedy="Use mode 'append', 'overwrite' or 'ignore'",
                uri=table.uri,
            )
        return None

    def _rows(self, context: Context, spark: Any) -> Any:
        if self.python_callable is not None:
            data = call_user_function(self.python_callable, self.op_args, self.op_kwargs, context, spark=spark)
            return ensure_data(data, f"The function of task {self.task_id}")
        assert self.sql is not None
        return run_user_sql(self.sql, self.tables or {}, self.hook, self._sql_engine(spark))

    def _sql_engine(self, spark: Any) -> Any:
        if spark is None and self.engine != "local":
            spark = running_spark_session()
            if spark is None and self.engine == "spark":
                raise _bad(self.task_id, "has engine='spark', but neither spark_conf nor a running Spark session")
        from delta_orch.engines.select import local_engine, spark_engine

        return local_engine() if spark is None else spark_engine(spark)

    def _write(self, table: DeltaTable, data: Any, txn: TxnId | None, run: TaskRun) -> StepReport:
        options: dict[str, Any] = {
            "partition_by": self.partition_by,
            "properties": self.table_properties,
            "engine": self.engine,
            "user_metadata": run.user_metadata(),
        }
        if self.mode != "overwrite":
            result = table.append(data, txn=txn, schema_mode=self.schema_mode, **options)
            return StepReport.of_commit(table.uri, result)
        from delta_orch.pipeline.first_write import ensure_table_for

        ensure_table_for(table, data, **options)
        result = table.overwrite(
            data,
            replace_where=self.replace_where,
            partition_overwrite_mode=self.partition_overwrite_mode,
            schema_mode=self.schema_mode,
            txn=txn,
            **options,
        )
        return StepReport.of_commit(table.uri, result)

    def _ensure_valid(self) -> None:
        if (self.python_callable is None) == (self.sql is None):
            raise _bad(self.task_id, "takes python_callable or sql, exactly one of them")
        if self.python_callable is not None:
            ensure_callable(self.python_callable, self.task_id)
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("idempotency", self.idempotency, IDEMPOTENCY),
            ("engine", self.engine, ENGINES),
            ("partition_overwrite_mode", self.partition_overwrite_mode, PARTITION_OVERWRITE_MODES),
            ("schema_mode", self.schema_mode, SCHEMA_MODES),
        ):
            if value not in allowed:
                named = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise _bad(self.task_id, f"has {name}={value!r}; possible are {named}")
        if self.mode != "overwrite" and self.replace_where is not None:
            raise _bad(self.task_id, f"has replace_where, which mode {self.mode!r} does not use")
        if self.mode != "overwrite" and self.partition_overwrite_mode != "static":
            raise _bad(self.task_id, f"has partition_overwrite_mode, which mode {self.mode!r} does not use")
        replaces_all = self.mode == "overwrite" and self.replace_where is None
        if self.schema_mode == "overwrite" and not (replaces_all and self.partition_overwrite_mode == "static"):
            raise _bad(self.task_id, "has schema_mode='overwrite', which needs mode 'overwrite' of the whole table")
        if self.replace_where is not None and self.partition_overwrite_mode == "dynamic":
            raise _bad(self.task_id, "has replace_where and dynamic partition overwrite, which exclude each other")
        if self.tables is not None and self.sql is None:
            raise _bad(self.task_id, "has tables, which only sql uses")
        if self.spark_conf is not None and self.engine == "local":
            raise _bad(self.task_id, "has spark_conf, which the local engine does not use")


def _bad(task_id: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"Task {task_id} {what}", remedy="Correct the operator's arguments", task_id=task_id)
