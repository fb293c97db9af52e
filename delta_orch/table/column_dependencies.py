"""What depends on a column: CHECK constraints, invariants and generated columns refer to columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from delta_orch.errors import InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.checked import check_expression
from delta_orch.protocol.schema import GENERATION_EXPRESSION, INVARIANTS
from delta_orch.protocol.schema_edit import Path, quote_path
from delta_orch.protocol.types import StructField, StructType, fields_of
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.property_rules import CONSTRAINT_PREFIX


@dataclass(frozen=True, slots=True)
class NamedExpression:
    """Text in Spark SQL that the table holds, and what it is called in messages."""

    what: str
    text: str

    def columns(self, schema: StructType) -> tuple[Path, ...]:
        """The paths it mentions. Raises InvalidExpressionError where it may not be evaluated."""
        return check_expression(self.text, self.what, columns=schema.names).columns


def constraints_of(configuration: Mapping[str, str]) -> dict[str, str]:
    """CHECK constraints by name, as text (PROTOCOL, "CHECK Constraints")."""
    return {
        key[len(CONSTRAINT_PREFIX) :]: text
        for key, text in configuration.items()
        if key.lower().startswith(CONSTRAINT_PREFIX)
    }


def generation_expression(field: StructField) -> str | None:
    """The text that computes a generated column, None for another column (PROTOCOL, "Generated Columns")."""
    found = field.metadata.get(GENERATION_EXPRESSION)
    return None if found is None else str(found)


def expressions_of(configuration: TableConfiguration) -> Iterator[NamedExpression]:
    """Every expression of a table that uses its columns."""
    for name, text in constraints_of(configuration.configuration).items():
        yield NamedExpression(f"the constraint {name}", text)
    for field in fields_of(configuration.schema):
        if (generation := generation_expression(field)) is not None:
            yield NamedExpression(f"the generated column {field.name}", generation)
        if (stored := field.metadata.get(INVARIANTS)) is not None:
            yield NamedExpression(f"the invariant of column {field.name}", _invariant_text(str(stored)))


def ensure_not_depended_on(configuration: TableConfiguration, path: Path, change: str) -> None:
    """Check that no expression uses a column, a field inside it, or the column it is inside.

    Args:
        change: The participle for the message, as in "cannot be dropped".

    Raises:
        InvalidRequestError: One does; all are named. Nothing was changed.
    """
    schema = configuration.schema
    found = [e.what for e in expressions_of(configuration) if any(_overlap(c, path) for c in e.columns(schema))]
    if found:
        raise InvalidRequestError(
            f"Column {quote_path(path)} cannot be {change}",
            cause=f"It is used by {', '.join(found)}",
            remedy="Drop the constraint first; a generated column can only be dropped itself",
            column=".".join(path),
            used_by=found,
        )


def ensure_expressions_fit(configuration: TableConfiguration, before: TableConfiguration | None) -> None:
    """Check that every column that an expression uses exists, and that generated columns use no generated column.

    Args:
        before: The table as it was. An expression that it has already may be one that must not be evaluated: then
            rows cannot be written, but the table can be altered, or the expression could not be dropped.

    Raises:
        InvalidExpressionError: A column is missing, or a generated column uses itself or another generated one; a new
            expression may not be evaluated (`check_expression`).
    """
    known = frozenset() if before is None else frozenset(expressions_of(before))
    schema = configuration.schema
    generated = {f.name.lower() for f in schema if generation_expression(f) is not None}
    for expression in expressions_of(configuration):
        try:
            columns = expression.columns(schema)
        except InvalidExpressionError:
            if expression in known:
                continue
            raise
        for path in columns:
            if schema.find(path[0]) is None:
                raise InvalidExpressionError(
                    f"There is no column {quote_path(path)}, which {expression.what} needs",
                    cause=f"The expression is {expression.text!r}",
                    remedy=f"The columns are {', '.join(schema.names[:20])}",
                    column=".".join(path),
                )
            if expression.what.startswith("the generated") and path[0].lower() in generated:
                raise InvalidExpressionError(
                    f"{expression.what} is computed from {path[0]}, which is generated itself",
                    remedy="Compute it from columns that are not generated",
                    column=path[0],
                )


def _overlap(one: Path, other: Path) -> bool:
    length = min(len(one), len(other))
    return [n.lower() for n in one[:length]] == [n.lower() for n in other[:length]]


def _invariant_text(stored: str) -> str:
    try:
        return str(orjson.loads(stored)["expression"]["expression"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        # Old tables hold the expression itself.
        return stored
