"""`DeltaCheckOperator`: what must hold for a version of a table, checked before others read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from delta_orch.airflow.arguments import ensure_choice, ensure_locations, ensure_predicate, ensure_switches
from delta_orch.airflow.locations import is_template
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.nodes import Column
from delta_orch.pipeline.audit import column_drift, count_and_show, declared_columns
from delta_orch.pipeline.conditions import FreshnessCondition, RowCondition, has_rows, whole_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.hook import TableReference
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot

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
        where: Only these rows are looked at by `rows` and `min_rows`. (templated)
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
        from delta_orch.expressions.resolve import resolve_predicate
        from delta_orch.expressions.tree import conjunction, is_not_true

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
    """What a scalar of Arrow or NumPy holds; anything else as it is."""
    module = type(value).__module__.partition(".")[0]
    read = getattr(value, {"pyarrow": "as_py", "numpy": "tolist"}.get(module, ""), None)
    return value if read is None else read()


def _seconds(age: timedelta | float) -> float:
    return age.total_seconds() if isinstance(age, timedelta) else age


def _own_rules(snapshot: TableSnapshot) -> dict[str, str]:
    """What the table itself says of its rows, by name."""
    from delta_orch.expressions.to_sql import to_spark_sql
    from delta_orch.table.column_definitions import constraints_of

    columns = [field.name for field in snapshot.schema.fields if not field.nullable]
    not_null = {f"{name} is not nullable": f"{to_spark_sql(Column((name,)))} IS NOT NULL" for name in columns}
    named = constraints_of(snapshot.metadata.configuration).items()
    return {**not_null, **{f"constraint {name}": f"({text})" for name, text in named}}
