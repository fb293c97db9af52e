"""`DeltaCheckOperator`, `DeltaPublishOperator`, and the task group that checks rows before anybody sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import TaskGroup

from delta_orch.airflow.arguments import ensure_locations, ensure_predicate, ensure_switches
from delta_orch.airflow.hook import DEFAULT_CONN_ID
from delta_orch.airflow.locations import is_template
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom
from delta_orch.airflow.write_operator import DeltaMergeOperator, DeltaWriteOperator
from delta_orch.errors import ConstraintViolationError, InvalidRequestError
from delta_orch.expressions.nodes import Column
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import conjunction, is_not_true
from delta_orch.log.files.txn import is_unit_name
from delta_orch.pipeline.audit import column_drift, count_and_show, declared_columns
from delta_orch.pipeline.conditions import FreshnessCondition, RowCondition, has_rows, whole_number
from delta_orch.pipeline.unit import recorded_order
from delta_orch.pipeline.write_settings import ensure_choice

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.hook import TableReference
    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.staged_write import StagedWrite


HEALTH = (
    "num_files",
    "size_bytes",
    "num_small_files",
    "num_compactable_files",
    "commits_since_checkpoint",
    "num_expired_tombstones",
    "deleted_rows_ratio",
)
"""The fields of `TableHealth` that may be too large."""


class DeltaCheckOperator(DeltaTableOperator):
    """Check a version of a table, and fail the task with everything that does not hold. It commits nothing.

    Args:
        version: The version to check, by default the newest: `{{ ti.xcom_pull('load')['version'] }}` is what a task has
            written. (templated)
        reference: Instead of `version`: the XCom of a task. Of one with `stage=True`, the version that it would make is
            checked. (templated)
        columns: Column → its type as Spark SQL or Delta spells it (`bigint` or `long`, `decimal(10,2)`); None for any.
            (templated)
        exact_columns: No other columns are allowed.
        rows: Name of the check → a predicate in Spark SQL that every row must satisfy. A null counts as a violation.
            (templated)
        where: `rows` and `min_rows` check only these rows. (templated)
        min_rows: The smallest number of rows. (templated)
        max_age: Data has changed within this time: a `timedelta`, or seconds.
        max_health: Field of `TableHealth` → the largest number that passes: `{"num_small_files": 100}`.
        constraints: Every row satisfies the table's own constraints, and columns that are not nullable hold no null,
            whoever wrote them.
        python_callable: Called with the snapshot. Any result other than True fails the task.
    """

    template_fields: Sequence[str] = (
        *DeltaTableOperator.template_fields,
        "version",
        "reference",
        "columns",
        "rows",
        "where",
        "min_rows",
    )
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)
    writes = False

    def __init__(
        self,
        *,
        version: int | str | None = None,
        reference: TableReference | None = None,
        columns: Mapping[str, str | None] | None = None,
        exact_columns: bool = False,
        rows: Mapping[str, str] | None = None,
        where: str | None = None,
        min_rows: int | str | None = None,
        max_age: timedelta | float | None = None,
        max_health: Mapping[str, float] | None = None,
        constraints: bool = False,
        python_callable: Callable[[TableSnapshot], object] | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.reference = reference
        self.constraints = constraints
        self.python_callable = python_callable
        self.columns = columns
        self.exact_columns = exact_columns
        self.rows = rows
        self.where = where
        self.min_rows = min_rows
        self.max_age = max_age
        self.max_health = max_health
        self.reads_from(kwargs.get("table_uri"))
        self._ensure_checks()
        ensure_locations({"reference": reference})
        ensure_switches(exact_columns=exact_columns, constraints=constraints)
        if columns is not None and not is_template(columns):
            declared_columns(columns)
        for predicate in (where, *(rows.values() if isinstance(rows, Mapping) else ())):
            ensure_predicate(predicate)
        for name in max_health or {}:
            ensure_choice("A name in max_health", name, HEALTH)
        if max_age is not None:
            FreshnessCondition(_seconds(max_age))
        has_check = any(check is not None for check in (columns, rows, min_rows, max_age, max_health, python_callable))
        if not has_check and not constraints:
            raise self.refusal("checks nothing")
        if version is not None and reference is not None:
            raise self.refusal("has a version and a reference; give one of them")
        if exact_columns and columns is None:
            raise self.refusal("has exact_columns, which needs columns")
        if where is not None and rows is None and min_rows is None:
            raise self.refusal("has where, which only rows and min_rows use")
        if version is not None and not is_template(version):
            whole_number("version", version, 0)

    def _ensure_checks(self) -> None:
        """Refuse a check that every table passes."""
        for name in ("columns", "rows", "max_health"):
            if getattr(self, name) == {}:
                raise self.refusal(f"has {name}={{}}, which checks nothing")
        if self.min_rows is not None and not is_template(self.min_rows):
            whole_number("min_rows", self.min_rows, 1)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        self._ensure_checks()
        staged = isinstance(self.reference, Mapping) and self.reference.get("staged") is not None
        if staged and self.max_age is not None:
            raise self.refusal("has max_age, but what is staged has no time yet")
        if self.reference is None:
            snapshot = table.snapshot(None if self.version is None else whole_number("version", self.version, 0))
        elif (referred := self.hook.table_of(self.reference).uri) != table.uri:
            raise self.refusal(f"checks {table.uri} by a reference to {referred}")
        else:
            snapshot = self.hook.snapshot(self.reference)
        problems = [*self._schema(snapshot), *self._state(table, snapshot), *self._rows(snapshot)]
        if self.python_callable is not None and _plain(answer := self.python_callable(snapshot)) is not True:
            problems.append(f"{getattr(self.python_callable, '__name__', 'the function')} returned {answer!r:.100}")
        if problems:
            subject = f"What is staged for {table.uri}" if staged else f"Version {snapshot.version} of {table.uri}"
            raise ConstraintViolationError(
                f"{subject} does not pass: {'; '.join(problems)}",
                remedy="Correct what is written, and clear the staging task with downstream: nobody sees what is staged"
                if staged
                else "Correct what was written, or restore an older version",
                version=snapshot.version,
                problems=problems,
            )
        version = None if staged else snapshot.version
        return {"table_uri": table.uri, "version": version, "outcome": "nothing new", "passed": True}

    def _schema(self, snapshot: TableSnapshot) -> list[str]:
        if self.columns is None:
            return []
        drift = column_drift(snapshot.schema, declared_columns(self.columns), exact=self.exact_columns)
        return [f"column {difference}" for difference in drift]

    def _state(self, table: DeltaTable, snapshot: TableSnapshot) -> list[str]:
        from delta_orch.pipeline.maintenance import read_table_health

        problems = []
        if self.max_age is not None:
            age = _seconds(self.max_age)
            if FreshnessCondition(age).met_by(table, snapshot) is None:
                problems.append(f"its data has not changed for more than {age:g} s")
        if self.max_health:
            health = read_table_health(snapshot).as_metadata()
            for name, limit in self.max_health.items():
                if health[name] > limit:
                    problems.append(f"{name} is {health[name]}, above {limit}")
        return problems

    def _rows(self, snapshot: TableSnapshot) -> list[str]:

        problems = []
        least = 0 if self.min_rows is None else whole_number("min_rows", self.min_rows, 1)
        only = RowCondition(self.where).predicate(snapshot)
        if least and not has_rows(snapshot, only, least):
            problems.append(f"there are {snapshot.scan(where=only).count():,} rows, and not {least:,}")
        for name, predicate in {**(self.rows or {}), **(_own_rules(snapshot) if self.constraints else {})}.items():
            broken = is_not_true(resolve_predicate(predicate, snapshot.schema))
            count, shown = count_and_show(snapshot, conjunction(only, broken))
            if count:
                rows = ", ".join(map(str, shown))
                problems.append(f"{name}: there are {count:,} rows for which {predicate} is not true, such as {rows}")
        return problems


def _plain(value: object) -> object:
    """The Python value of an Arrow or NumPy scalar. Other values stay."""
    module = type(value).__module__.partition(".")[0]
    read = getattr(value, {"pyarrow": "as_py", "numpy": "tolist"}.get(module, ""), None)
    return value if read is None else read()


def _seconds(age: timedelta | float) -> float:
    return age.total_seconds() if isinstance(age, timedelta) else age


def _own_rules(snapshot: TableSnapshot) -> dict[str, str]:
    """The rules of the table for its rows, by name."""
    from delta_orch.expressions.to_sql import to_spark_sql
    from delta_orch.table.column_definitions import constraints_of

    columns = [field.name for field in snapshot.schema.fields if not field.nullable]
    not_null = {f"{name} is not nullable": f"{to_spark_sql(Column((name,)))} IS NOT NULL" for name in columns}
    named = constraints_of(snapshot.metadata.configuration).items()
    return {**not_null, **{f"constraint {name}": f"({text})" for name, text in named}}


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
    """Build a task group: `stage`, one task for each check, `publish`. Readers see the rows only if every check passes.

    The tasks pass a reference to the staged write. `publish` commits exactly the checked files, or fails. If a check
    fails, vacuum deletes the staged files later. Clear `stage`, with downstream, to write again.

    Args:
        group_id: The group's.
        table_uri: The table.
        audit: Name → arguments of `DeltaCheckOperator`, at least one.
        delta_conn_id: The connection with the storage options.
        if_unchanged: As `DeltaPublishOperator`. By default true where a check is about the whole table: one with
            `python_callable`, or with `min_rows` and no `where`. What holds for each row needs it not.
        outlets: Assets that get an event of the commit; filled in as for every task.
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
