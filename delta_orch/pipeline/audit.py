"""Audits, which check a version before others can see it; and the comparison of declared columns with a table's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delta_orch.arguments import checked_constructor
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, StructField, StructType, not_null_places
from delta_orch.redaction import public

if TYPE_CHECKING:
    from delta_orch.delta_table import TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.verbs.expect import ExpectationReport


Look = Callable[["TableSnapshot"], object]
MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of an audit.

    Attributes:
        name: The audit's.
        passed: Whether the version may be published.
        description: One sentence.
        where: The rows that fail, as a predicate on the staged version; None where it is not about single rows.
        num_failed: How many rows, or keys, fail.
        rows: Some of them.
        fails_step: Whether a step fails that did not pass.
    """

    name: str
    passed: bool
    description: str
    where: str | None = None
    num_failed: int = 0
    rows: Sequence[Mapping[str, object]] = ()
    fails_step: bool = True


@checked_constructor
@dataclass(frozen=True, slots=True)
class Audit:
    """A condition on a version. Exactly one of `rows`, `unique`, `min_rows` and `look` is given.

    Attributes:
        name: Letters, digits and underscores: an orchestrator makes a check of it.
        rows: A predicate in Spark SQL that every row that the step may write satisfies; null is no yes. A step over
            partitions looks at those, any other at the whole table.
        unique: Columns in which no two rows of the whole table have the same values; nulls equal each other.
        min_rows: The step leaves at least so many rows in its partitions, or in the whole table.
        look: A function of the staged snapshot: False, or what has a false attribute `passed`, fails. True, or what has
            a true one, passes. Everything else is an error.

    Raises:
        InvalidRequestError: None of them is given, or several.
        InvalidExpressionError: `rows` is not a predicate.
    """

    name: str
    rows: str | None = None
    unique: Sequence[str] = ()
    min_rows: int | None = None
    look: Look | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise InvalidRequestError(
                f"{self.name!r} is not a valid name of an audit", remedy="Use letters, digits and underscores"
            )
        if isinstance(self.unique, str):
            object.__setattr__(self, "unique", (self.unique,))
        rules = [self.rows is not None, bool(self.unique), self.min_rows is not None, self.look is not None]
        if rules.count(True) != 1:
            raise InvalidRequestError(
                f"The audit {self.name} looks at {rules.count(True)} things",
                remedy="Give one of rows, unique, min_rows and look",
            )
        if self.rows is not None:
            from delta_orch.expressions.parse import parse_expression

            # An invalid predicate is refused here, before the first run.
            parse_expression(self.rows)
        if self.min_rows is not None and self.min_rows < 0:
            raise InvalidRequestError(
                f"min_rows={self.min_rows} of the audit {self.name} is not a number of rows", remedy="Pass at least 1"
            )

    @property
    def description(self) -> str:
        """The condition, in one sentence."""
        if self.rows is not None:
            return f"Every row satisfies {self.rows}."
        if self.unique:
            return f"{', '.join(self.unique)} are unique."
        if self.min_rows is not None:
            return f"There are at least {self.min_rows} rows."
        return (getattr(self.look, "__doc__", None) or f"{self.name} passes.").strip().partition("\n")[0]

    def find(self, snapshot: TableSnapshot, only: Expression | None) -> AuditFinding:
        """Look at a staged version.

        Args:
            only: The rows that the step may write; None for all.

        Raises:
            InvalidRequestError: The audit does not fit the table, or `look` gave neither yes nor no.
            Otherwise what `look` raises.
        """
        if self.rows is not None:
            return self._find_rows(snapshot, self.rows, only)
        if self.unique:
            return self._find_repeated(snapshot)
        if self.min_rows is not None:
            from delta_orch.pipeline.conditions import has_rows

            is_enough = has_rows(snapshot, only, self.min_rows)
            described = "" if is_enough else f"There are {snapshot.scan(where=only).count()} rows, not {self.min_rows}."
            return AuditFinding(self.name, is_enough, described)
        assert self.look is not None
        result: object = self.look(snapshot)
        passed: object = getattr(result, "passed", result)
        if not isinstance(passed, bool):
            raise InvalidRequestError(
                f"The audit {self.name} returned {result!r:.100}", remedy="Return True, False, or a check's result"
            )
        return AuditFinding(self.name, passed, str(getattr(result, "description", None) or ""))

    def _find_rows(self, snapshot: TableSnapshot, predicate: str, only: Expression | None) -> AuditFinding:
        from delta_orch.expressions.resolve import resolve_predicate
        from delta_orch.expressions.to_sql import to_spark_sql
        from delta_orch.expressions.tree import conjunction, is_not_true

        failing = conjunction(only, is_not_true(resolve_predicate(predicate, snapshot.schema)))
        count, shown = count_and_show(snapshot, failing)
        if not count:
            return AuditFinding(self.name, True, "")
        described = f"{count:,} rows do not satisfy {predicate}, such as {shown[0]}."
        return AuditFinding(self.name, False, described, to_spark_sql(failing), count, shown)

    def _find_repeated(self, snapshot: TableSnapshot) -> AuditFinding:
        columns, count, shown = repeated_keys(snapshot, self.unique)
        if not count:
            return AuditFinding(self.name, True, "")
        described = f"{count:,} values of {', '.join(columns)} occur more than once, such as {shown[0]}."
        return AuditFinding(self.name, False, described, None, count, shown)


def count_and_show(snapshot: TableSnapshot, where: Expression) -> tuple[int, list[dict[str, object]]]:
    """How many rows satisfy a predicate, and some of them, without secrets. Reads them all."""
    count, shown = 0, list[dict[str, object]]()
    for batch in snapshot.scan(where=where).to_reader():
        shown += map(public, python_rows(batch.slice(0, MOST_SHOWN - len(shown))))
        count += batch.num_rows
    return count, shown


def rule_findings(report: ExpectationReport) -> list[AuditFinding]:
    """The results of the rules of a step (`verbs.expect`), each under the name of its check."""
    becomes = {"quarantine": "they are in the quarantine", "drop": "they were left out", "warn": "they were written"}
    findings = []
    for result in report.results:
        described = ""
        if result.num_broken:
            described = (
                f"{result.name}: {result.num_broken:,} of {report.num_rows:,} rows do not satisfy {result.rule}, "
                f"such as {dict(result.rows[0])}; {becomes.get(result.action, 'nothing was written')}."
            )
        is_strict = result.action == "fail"
        name = rule_check_name(result.name)
        findings.append(
            AuditFinding(name, not result.num_broken, described, None, result.num_broken, result.rows, is_strict)
        )
    return findings


def rule_check_name(name: str) -> str:
    """A rule's name in the letters that the name of a check may have."""
    return re.sub("[^A-Za-z0-9_]+", "_", name).strip("_") or "rule"


AuditLike = Audit | str | Look
"""An audit, a predicate that every row satisfies, or a function of the staged snapshot."""


def as_audits(audits: Iterable[AuditLike] | Mapping[str, object]) -> tuple[Audit, ...]:
    """Audits as a user writes them: a list, or by name a predicate, a function or the arguments of an `Audit`.

    Raises:
        InvalidRequestError: One is no audit, or two have one name.
    """
    if isinstance(audits, str) or not isinstance(audits, Iterable):
        raise InvalidRequestError(f"audit={audits!r:.100} is not a list of audits", remedy="Put it in brackets")
    named = audits.items() if isinstance(audits, Mapping) else ((None, audit) for audit in audits)
    made = tuple(_as_audit(audit, name, number) for number, (name, audit) in enumerate(named, 1))
    names = [audit.name for audit in made]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InvalidRequestError(f"Two audits are called {min(repeated)}", remedy="Give each a name of its own")
    return made


def _as_audit(audit: object, name: str | None, number: int) -> Audit:
    if isinstance(audit, Audit):
        return audit
    if name is None:
        name = getattr(audit, "__name__", "").strip("<>") or f"audit_{number}"
    if isinstance(audit, str):
        return Audit(name, rows=audit)
    if callable(audit):
        return Audit(name, look=audit)
    if isinstance(audit, Mapping) and set(audit) <= {"name", "rows", "unique", "min_rows"}:
        return Audit(**{"name": name, **audit})
    raise InvalidRequestError(
        f"{audit!r:.100} is not an audit",
        remedy="Pass an Audit, a predicate in Spark SQL, or a function of the snapshot",
    )


def repeated_keys(
    snapshot: TableSnapshot, keys: Sequence[str], where: str | Expression | None = None
) -> tuple[tuple[str, ...], int, list[dict[str, object]]]:
    """Values of columns that more than one row has: the columns, how many such values there are, and some of them.
    Reads these columns, in a DuckDB of its own, which spills.

    Raises:
        ColumnNotFoundError: There is no such column.
        DeltaError: The files cannot be read.
    """
    from delta_orch.engines.local.duckdb_requests import repeated
    from delta_orch.engines.local.duckdb_session import ensure_duckdb
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.expressions.column_names import resolve_column_names

    ensure_duckdb()
    columns = resolve_column_names(list(keys), snapshot.schema, "keys")
    rows = LocalEngine().scan(snapshot.scan(columns=columns, where=where).plan())
    count, some = 0, list[dict[str, object]]()
    for batch in repeated(rows).to_reader():
        some += python_rows(batch.slice(0, MOST_SHOWN - len(some)))
        count += batch.num_rows
    return columns, count, some


def ensure_unique_keys(staged: TableSnapshot, keys: Sequence[str]) -> None:
    """Hold the first rows of a table against their keys, as an upsert does.

    Raises ConstraintViolationError: Two rows have the same keys.
    """
    from delta_orch.verbs.merge.new_rows import same_keys

    if shown := repeated_keys(staged, keys)[2]:
        raise same_keys(shown)


DeclaredColumns = Mapping[str, StructField | None]


def declared_columns(columns: Mapping[str, str | None]) -> DeclaredColumns:
    """Column → its type, spelled as in Spark SQL or as in a table's schema (`bigint` or `long`); None for any.

    Raises:
        InvalidRequestError: A type is not given as text, or says NOT NULL, which is not compared.
        SchemaMismatchError: A text is not a type.
    """
    return {name: None if text is None else _field(name, text) for name, text in columns.items()}


def _field(name: str, text: object) -> StructField:
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"The type of column {name} is a value of type {type(text).__name__}",
            remedy="Write it as text: 'bigint'",
        )
    data_type, metadata = parse_declared_type(text)
    if any(not_null_places(data_type)):
        raise InvalidRequestError(
            f"The type of column {name} says NOT NULL", remedy="Leave it out, and check the rows: 'a.b IS NOT NULL'"
        )
    return StructField(name, data_type, metadata=metadata)


def column_drift(schema: StructType, declared: DeclaredColumns, *, exact: bool) -> list[str]:
    """The differences, one sentence a column. Names match without regard to case. `string` matches any text type,
    `varchar(20)` only itself. With `exact`, a column that is not declared is a difference."""
    drift = []
    for name, declared_field in declared.items():
        field = schema.find(name)
        if field is None:
            drift.append(f"{name} is missing")
        elif declared_field is not None:
            has_lengths = CHAR_VARCHAR_TYPE in declared_field.metadata
            table_type, needed = (_spelled(f, has_lengths=has_lengths) for f in (field, declared_field))
            if table_type != needed:
                drift.append(f"{name} is {table_type}, not {needed}")
    named = {name.lower() for name in declared}
    return drift + [f"{name} is new" for name in schema.names if exact and name.lower() not in named]


def _spelled(field: StructField, *, has_lengths: bool) -> str:
    return str(field.metadata.get(CHAR_VARCHAR_TYPE, field.data_type) if has_lengths else field.data_type)
