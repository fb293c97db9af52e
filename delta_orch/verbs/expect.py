"""Expectations: rules for the rows of a write, and actions for rows that break a rule.

The engine evaluates the source and the rules once, while the rows are written (`Engine.divided`). Each row goes to the
table, to its quarantine, or is dropped. This holds even if the source returns different rows at each read.

A quarantine is an ordinary table with `QUARANTINE_SCHEMA`. `verbs.quarantine` describes how rows get there.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked_constructor
from delta_orch.engines.base import ComputedColumn, Division, as_they_are
from delta_orch.errors import (
    ConstraintViolationError,
    ExpectationFailedError,
    InvalidRequestError,
)
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import is_not_true
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.types import STRING
from delta_orch.redaction import public
from delta_orch.writing.plan import UnitColumn

if TYPE_CHECKING:
    from delta_orch.engines.base import Divided, Engine, Relation

Action = OneOf["quarantine", "fail", "warn", "drop"]
ACTIONS: tuple[Action, ...] = ("quarantine", "fail", "warn", "drop")
MOST_SHOWN = 20
"""The number of rows that a result shows for each rule."""
SUFFIX = "_quarantine"
BROKEN_ROWS = "numBrokenRows."
"""The prefix of the metric of a rule. The name of the rule follows."""

QUARANTINE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("rules", pa.list_(pa.string())),
        ("row", pa.string()),
        ("source_file", pa.string()),
        ("unit", pa.string()),
        ("run", pa.string()),
        ("quarantined_at", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a quarantine. They do not depend on the columns of the table.

`id`: a unique id of the row. `rules`: the names of all rules that the row breaks. `row`: the row as JSON, see
`row_texts`. `source_file`: the value of the row's column of this name, or of its field `path`. `unit`, `run`: the unit
and the run that wrote the row.
"""


@checked_constructor
@dataclass(frozen=True, slots=True)
class Expect:
    """A rule for each row, and the action for a row that breaks it. A row for which the rule is null breaks it.

    Attributes:
        rule: A predicate in Spark SQL over the columns of the rows.
        action: `quarantine` writes the row to the quarantine instead of the table. `drop` skips the row. `warn` writes
            the row to the table. `fail` fails the step, and neither table changes. All four actions count the rows and
            show some.

    Raises:
        InvalidRequestError: The action is unknown.
        InvalidExpressionError: `rule` is not a predicate.
    """

    rule: str
    action: Action = "quarantine"

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise InvalidRequestError(
                f"{self.action!r:.60} is not an action of a rule", remedy=f"Use one of {', '.join(ACTIONS)}"
            )
        parse_expression(self.rule)


@dataclass(frozen=True, slots=True)
class Expectations:
    """The rules of a write.

    Attributes:
        rules: The rules by name. The quarantine stores the names.
        max_quarantined: How many rows may go to the quarantine: a number of rows (int), or a share of all (float).
    """

    rules: Mapping[str, Expect]
    max_quarantined: int | float | None = None

    @classmethod
    def of(cls, expect: object, max_quarantined: object = None) -> Expectations | None:
        """Return the rules that a user wrote, each as an `Expect` or as its arguments by name. None if there are no
        rules.

        Raises:
            InvalidRequestError: The rules have another form. `max_quarantined` is neither a number of rows nor a share.
                Or `max_quarantined` is set, but no rule writes rows to a quarantine.
            InvalidExpressionError: A rule is not a predicate.
        """
        if not isinstance(expect, Mapping | None) or not all(isinstance(name, str) and name for name in expect or ()):
            raise InvalidRequestError(
                f"expect={expect!r:.100} is not a dict of rules by name",
                remedy='Write expect={"amount is positive": Expect("amount > 0")}',
            )
        rules = {name: _as_expect(name, rule) for name, rule in (expect or {}).items()}
        made = cls(rules, max_quarantined) if rules else None  # type: ignore[arg-type]  # The code below checks the type.
        if max_quarantined is None:
            return made
        is_share = isinstance(max_quarantined, float) and 0 <= max_quarantined <= 1
        is_count = isinstance(max_quarantined, int) and not isinstance(max_quarantined, bool) and max_quarantined >= 0
        if not (is_share or is_count):
            raise InvalidRequestError(
                f"max_quarantined={max_quarantined!r:.60} is neither a number of rows nor a share",
                remedy="Pass an int of at least 0 for rows, or a float from 0.0 to 1.0 for a share of all rows",
            )
        if made is None or not made.quarantines:
            raise InvalidRequestError(
                "max_quarantined is set, but no rule puts rows into a quarantine",
                remedy='Pass expect={"amount is positive": Expect("amount > 0", "quarantine")}, or leave it out',
            )
        return made

    @property
    def quarantines(self) -> bool:
        """Whether a rule puts rows into a quarantine."""
        return any(rule.action == "quarantine" for rule in self.rules.values())

    @property
    def loses_rows(self) -> bool:
        """Whether a rule can keep rows out of the table."""
        return any(rule.action in ("quarantine", "drop") for rule in self.rules.values())


def _as_expect(name: str, rule: object) -> Expect:
    if isinstance(rule, Expect):
        return rule
    if isinstance(rule, Mapping) and "rule" in rule and set(rule) <= {"rule", "action"}:
        return Expect(**rule)
    raise InvalidRequestError(
        f"The rule {name!r} is not an Expect, but {rule!r:.100}",
        remedy='Write Expect("amount > 0", "quarantine"), or {"rule": "amount > 0", "action": "quarantine"}',
    )


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule in a write.

    Attributes:
        name, rule, action: The rule, as the user wrote it.
        num_broken: How many rows break it.
        rows: At most 20 of these rows.
    """

    name: str
    rule: str
    action: Action
    num_broken: int
    rows: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True, slots=True)
class ExpectationReport:
    """The results of the rules of a write.

    Attributes:
        num_rows: The number of rows of the source.
        num_quarantined, num_dropped: The number of rows that were not written to the table. A row that breaks rules of
            both actions is quarantined.
        results: The result of each rule.
    """

    num_rows: int = 0
    num_quarantined: int = 0
    num_dropped: int = 0
    results: tuple[RuleResult, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows break each rule, by its name."""
        return {result.name: result.num_broken for result in self.results}

    def __add__(self, other: ExpectationReport) -> ExpectationReport:
        """Add the counts of two batches of a step."""
        if not (self.results and other.results):
            return other if other.results else self
        results = tuple(
            RuleResult(a.name, a.rule, a.action, a.num_broken + b.num_broken, (*a.rows, *b.rows)[:MOST_SHOWN])
            for a, b in zip(self.results, other.results, strict=True)
        )
        return ExpectationReport(
            self.num_rows + other.num_rows,
            self.num_quarantined + other.num_quarantined,
            self.num_dropped + other.num_dropped,
            results,
        )


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows that are evaluated once, together with their rules.

    Attributes:
        kept: The rows that go to the table, as a relation of the engine. It can be read once.
    """

    kept: Relation
    _expectations: Expectations
    _engine: Engine
    _divided: Divided
    _flags: Mapping[str, str]
    _columns: tuple[str, ...]
    _unit: ComputedColumn

    def ended(self) -> ExpectationReport | None:
        """Return the results of the rules. None if the rows were not read to their end.

        Raises:
            ExpectationFailedError: A row breaks a rule with the action `fail`, or more rows than `max_quarantined`
                allows go to the quarantine.
        """
        counts = self._divided.counts()
        if counts is None:
            return None
        results = []
        for name, flag in self._flags.items():
            rule, count = self._expectations.rules[name], counts.by_flag[flag]
            shown = [public(row) for row in python_rows(self._divided.some(flag))] if count else []
            results.append(RuleResult(name, rule.rule, rule.action, count, shown))
        report = ExpectationReport(counts.num_rows, counts.num_aside, counts.num_left_out, tuple(results))
        ensure_expected(self._expectations, report)
        return report

    def metrics(self) -> dict[str, int]:
        """Return the metrics for `commitInfo.operationMetrics`: the rows that were not written to the table, and the
        rows that break each rule. Raises as `ended`."""
        report = self.ended()
        if report is None:
            return {}
        broken = {f"{BROKEN_ROWS}{name}": count for name, count in report.counts.items()}
        return {"numQuarantinedRows": report.num_quarantined, "numDroppedRows": report.num_dropped, **broken}

    def quarantined(self, run: str | None) -> Iterator[pa.RecordBatch]:
        """Return the rows for the quarantine (`QUARANTINE_SCHEMA`). Each call reads them again.

        Raises ConstraintViolationError: The write has several units, and a row belongs to no unit.
        """
        now = datetime.now().astimezone()
        columns = [*as_they_are([*self._columns, *self._flags.values()]), self._unit]
        for rows in self._engine.to_reader(self._engine.project(self._divided.aside(), columns)):
            yield self._as_quarantined(rows, run, now)

    def _as_quarantined(self, rows: pa.RecordBatch, run: str | None, now: datetime) -> pa.RecordBatch:
        # Only rows of the quarantine become Python objects.
        count = rows.num_rows
        units = rows.column(self._unit.name)
        if units.null_count and not isinstance(self._unit.value, Literal):
            row = python_rows(pc.filter(rows.select(self._columns), pc.is_null(units)).slice(0, 1))[0]
            raise ConstraintViolationError(
                f"A row for the quarantine is outside the partitions of this write: {row}",
                cause="The write has several units, so a redo could not find the row again",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or correct the row's partition",
                constraint="unit",
            )
        broken = list(zip(*(rows.column(flag).to_pylist() for flag in self._flags.values()), strict=True))
        # Only few combinations of rules occur, so each list of names is made once.
        rules = {flags: list(compress(self._flags, flags)) for flags in set(broken)}
        files = pa.nulls(count, pa.string())
        if "source_file" in self._columns:
            files = pa.array(map(_path_of, rows.column("source_file").to_pylist()), pa.string())
        numbered = uuid.uuid4().hex
        columns = {
            "id": [f"{numbered}-{row}" for row in range(count)],
            "rules": [rules[flags] for flags in broken],
            "row": row_texts(rows.select(self._columns)),
            "source_file": files,
            "unit": units,
            "run": pa.repeat(pa.scalar(run, pa.string()), count),
            "quarantined_at": pa.repeat(pa.scalar(now, QUARANTINE_SCHEMA.field("quarantined_at").type), count),
        }
        return pa.RecordBatch.from_pydict(columns, QUARANTINE_SCHEMA)


def row_texts(rows: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object without loss. Decimals, dates, times (ISO 8601), NaN and infinity are texts.
    Bytes are base64, and a map is a list of pairs. Nulls are written."""
    found = python_rows(rows)
    if any(map(_may_hold_infinite, rows.columns)):
        found = [_finite(row) for row in found]
    # `FarDate` and `FarMoment` are data classes.
    return [orjson.dumps(row, _text, orjson.OPT_PASSTHROUGH_DATACLASS).decode() for row in found]


def _may_hold_infinite(column: pa.Array) -> bool:
    """Whether a column may hold NaN or infinity, which JSON cannot express as numbers."""
    if pa.types.is_floating(column.type):
        return pc.all(pc.is_finite(column)).as_py() is False
    return pa.types.is_nested(column.type) and any(word in str(column.type) for word in ("float", "double"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _path_of(value: object) -> str | None:
    path = value.get("path") if isinstance(value, Mapping) else value
    return path if isinstance(path, str) else None


@contextmanager
def checked_rows(
    engine: Engine, rows: Relation, expectations: Expectations, units: Mapping[str, Expression | None]
) -> Iterator[CheckedRows]:
    """Evaluate rows and rules once. The result is available inside the context.

    Args:
        units: The predicate of each unit's rows, by the unit's name. No row belongs to two units. None selects all
            rows. The mapping is empty if there are no units.

    Raises:
        ColumnNotFoundError, InvalidExpressionError: A rule does not fit the rows. The source was not read.
        DeltaError: The rows cannot be read.
    """
    schema = engine.schema(rows)
    names = schema.names
    flags: dict[str, str] = {}
    for rule in expectations.rules:
        # The flag gets the name of the rule, because errors about the expression show it.
        flags[rule] = free_name(rule, [*names, *flags.values()])
    unit = UnitColumn(free_name("_delta_orch_unit", [*names, *flags.values()]), units)
    computed = [
        ComputedColumn(flag, is_not_true(resolve_predicate(expectations.rules[rule].rule, schema)))
        for rule, flag in flags.items()
    ]
    aside, left_out = (
        [flag for rule, flag in flags.items() if expectations.rules[rule].action == action]
        for action in ("quarantine", "drop")
    )
    with engine.divided(rows, Division(computed, aside, left_out, MOST_SHOWN)) as divided:
        value = unit.value(schema) if units else Literal(None, STRING)
        unit_column = ComputedColumn(unit.name, value)
        yield CheckedRows(divided.kept, expectations, engine, divided, flags, tuple(names), unit_column)


def ensure_expected(expectations: Expectations, report: ExpectationReport) -> None:
    """Raise ExpectationFailedError if a rule with the action `fail` is broken, or if too many rows are for the
    quarantine."""
    failed = [result for result in report.results if result.action == "fail" and result.num_broken]
    most = expectations.max_quarantined
    allowed = most * report.num_rows if isinstance(most, float) else most
    if failed:
        names = ", ".join(f"{result.name!r} ({result.num_broken:,} rows)" for result in failed)
        problem = f"Rows of the step break {names}, of {report.num_rows:,} rows"
        remedy = "Neither table has changed. Correct the rows, or use Expect(…, 'quarantine') for the rule"
    elif allowed is not None and report.num_quarantined > allowed:
        failed = [result for result in report.results if result.action == "quarantine" and result.num_broken]
        limit = f"{most:.1%}" if isinstance(most, float) else f"{most:,} rows"
        problem = (
            f"{report.num_quarantined:,} of {report.num_rows:,} rows are for the quarantine, "
            f"but max_quarantined allows {limit}"
        )
        remedy = "Neither table has changed. Correct the source, or raise max_quarantined"
    else:
        return
    first = failed[0]
    raise ExpectationFailedError(
        problem,
        cause=f"{first.rule} is false or null for {first.num_broken:,} rows, such as {first.rows[0]}",
        remedy=remedy,
        report=report,
    )
