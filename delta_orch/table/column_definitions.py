"""How a column's values are made, from its metadata: generated, identity, default (PROTOCOL, "Generated Columns",
"Identity Columns", "Default Columns"). Building such columns, checking that a table may have them, and finding the
constraints, invariants and generated columns that depend on a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

from delta_orch.errors import InvalidExpressionError, InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.schema import (
    CURRENT_DEFAULT,
    GENERATION_EXPRESSION,
    IDENTITY_ALLOW_EXPLICIT_INSERT,
    IDENTITY_START,
    IDENTITY_STEP,
    INVARIANTS,
)
from delta_orch.protocol.schema_edit import Path, quote_path
from delta_orch.protocol.table_properties import CONSTRAINT_PREFIX, ensure_no_credential
from delta_orch.protocol.types import LONG, STATED_DEFINITIONS, VARIANT, DataType, StructField, StructType, fields_of
from delta_orch.table.configuration import TableConfiguration

if TYPE_CHECKING:
    import pyarrow as pa

_LONG = range(-(2**63), 2**63)


def column(
    name: str,
    data_type: DataType | pa.DataType | str,
    *,
    nullable: bool = True,
    comment: str | None = None,
    default: str | None = None,
    generated_as: str | None = None,
) -> StructField:
    """A column of a table to be created.

    Args:
        data_type: A type, also one of Arrow, or its text in Spark SQL: `bigint`, `array<string>`, `varchar(20)`.
        default: Spark SQL for the value of rows that do not bring the column; without columns in it.
        generated_as: Spark SQL over other columns that computes this one.

    Raises:
        SchemaMismatchError: The text is not a type.
        InvalidExpressionError: `default` names a column, or is not an expression that may be evaluated.
        InvalidRequestError: Both a default and a generation expression.
        InvalidPropertyError: The comment, or an expression, holds a credential.
    """
    from delta_orch.protocol.type_text import declared_type

    for text, what in ((comment, "comment"), (default, "default"), (generated_as, "expression")):
        ensure_no_credential(text, f"{what} of the column")
    declared, metadata = declared_type(data_type, (name,))
    if default is not None and generated_as is not None:
        raise InvalidRequestError(
            f"Column {name!r} has both a default and a generation expression",
            cause="A generated column's value is always that of its expression",
            remedy="Give one of them",
            column=name,
        )
    field_metadata: dict[str, object] = dict(metadata)
    if comment is not None:
        field_metadata["comment"] = comment
    if default is not None:
        field_metadata[CURRENT_DEFAULT] = ensure_default(name, default)
    if generated_as is not None:
        field_metadata[GENERATION_EXPRESSION] = generated_as
    return StructField(name, declared, nullable, field_metadata)


def identity_column(
    name: str, *, start: int = 1, step: int = 1, allow_explicit_insert: bool = False, comment: str | None = None
) -> StructField:
    """A column of type long whose values the table makes: `start`, `start + step`, …, each once.

    Args:
        allow_explicit_insert: Rows may bring values of their own.

    Raises:
        SchemaMismatchError: `step` is 0, or a number does not fit into 64 bits.
    """
    metadata: dict[str, object] = {
        IDENTITY_START: start,
        IDENTITY_STEP: step,
        IDENTITY_ALLOW_EXPLICIT_INSERT: allow_explicit_insert,
    }
    field = StructField(name, LONG, metadata=metadata | ({} if comment is None else {"comment": comment}))
    ensure_identity(field)
    return field


def is_generated(field: StructField) -> bool:
    """Whether the column is computed from others."""
    return generation_expression(field) is not None


def is_identity(field: StructField) -> bool:
    """Whether the table makes the column's values."""
    return IDENTITY_START in field.metadata or IDENTITY_STEP in field.metadata


def ensure_definitions(schema: StructType, before: StructType | None) -> None:
    """Check the definitions of columns that are new or changed.

    Raises:
        SchemaMismatchError: One cannot be: an identity of another type than long, a generated variant, one of both
            kinds at once, or such a column inside a struct.
        InvalidExpressionError: A default that cannot be read.
        InvalidRequestError: Rows or an Arrow schema state one.
    """
    ensure_none_stated(schema)
    for field in schema:
        field_before = None if before is None else before.find(field.name)
        if (
            field_before is not None
            and field_before.metadata == field.metadata
            and field_before.data_type == field.data_type
        ):
            continue
        if is_identity(field):
            ensure_identity(field)
        if is_generated(field) and field.data_type == VARIANT:
            raise SchemaMismatchError(
                f"Column {field.name!r} is a variant: it cannot be generated",
                remedy="Compute it before writing",
                column=field.name,
            )
        made = [is_identity(field), is_generated(field), CURRENT_DEFAULT in field.metadata]
        if sum(made) > 1:
            raise SchemaMismatchError(
                f"Column {field.name!r} is more than one of identity, generated and default",
                remedy="Define it in one of these ways",
                column=field.name,
            )
        if CURRENT_DEFAULT in field.metadata:
            ensure_default(field.name, str(field.metadata[CURRENT_DEFAULT]))
        for inner in fields_of(field.data_type):
            if is_identity(inner) or is_generated(inner) or CURRENT_DEFAULT in inner.metadata:
                raise SchemaMismatchError(
                    f"The field {inner.name!r} inside column {field.name!r} cannot be generated, an identity or have a "
                    "default",
                    remedy="Only top-level columns can",
                    column=field.name,
                )


def ensure_none_stated(schema: StructType) -> None:
    """Check that no column would lose a definition that the metadata of Arrow or Spark states. Raises
    InvalidRequestError."""
    for field in fields_of(schema):
        stated = field.metadata.get(STATED_DEFINITIONS)
        if isinstance(stated, Mapping) and stated:
            raise InvalidRequestError(
                f"The metadata of the column {field.name!r} holds {min(stated)}",
                cause="Rows and Arrow schemas give columns names, types and NOT NULL, but no definitions",
                remedy="Create the table with columns (column(), identity_column()) or schema JSON before, or remove "
                "the metadata",
                column=field.name,
            )


def ensure_identity(field: StructField) -> None:
    """Check an identity column's type and numbers. Raises SchemaMismatchError."""
    start, step = field.metadata.get(IDENTITY_START), field.metadata.get(IDENTITY_STEP)
    problem = None
    if field.data_type != LONG:
        problem = f"its type is {field.data_type}, not long"
    elif not all(isinstance(n, int) and not isinstance(n, bool) and n in _LONG for n in (start, step)):
        problem = f"start {start!r} and step {step!r} must be 64-bit integers"
    elif step == 0:
        problem = "its step is 0, so that all its values would be one"
    elif not isinstance(field.metadata.get(IDENTITY_ALLOW_EXPLICIT_INSERT, False), bool):
        problem = f"{IDENTITY_ALLOW_EXPLICIT_INSERT} is neither true nor false"
    if problem is not None:
        raise SchemaMismatchError(
            f"Column {field.name!r} cannot be an identity column", cause=problem, column=field.name
        )


def ensure_default(name: str, text: str) -> str:
    """The text of a default, if it is one expression without columns, over the functions that are allowed.

    Raises:
        InvalidExpressionError: It is not.
    """
    from delta_orch.expressions.checked import check_expression

    check_expression(text, f"the default of column {name}", is_default=True)
    return text.strip()


class NamedExpression(NamedTuple):
    """Text in Spark SQL that the table holds, and what it is called in messages."""

    what: str
    text: str

    def columns(self, schema: StructType) -> tuple[Path, ...]:
        """The paths it mentions. Raises InvalidExpressionError where it may not be evaluated."""
        from delta_orch.expressions.checked import check_expression

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
    expression = field.metadata.get(GENERATION_EXPRESSION)
    return None if expression is None else str(expression)


def expressions_of(configuration: TableConfiguration) -> Iterator[NamedExpression]:
    """Every expression of a table that uses its columns."""
    for name, text in constraints_of(configuration.configuration).items():
        yield NamedExpression(f"the constraint {name}", text)
    for field in fields_of(configuration.schema):
        if (generation := generation_expression(field)) is not None:
            yield NamedExpression(f"the generated column {field.name}", generation)
        if (stored := field.metadata.get(INVARIANTS)) is not None:
            yield NamedExpression(f"the invariant of column {field.name}", invariant_text(stored) or str(stored))


def ensure_not_depended_on(configuration: TableConfiguration, path: Path, change: str) -> None:
    """Check that no expression uses a column, a field inside it, or the column it is inside.

    Args:
        change: The participle for the message, as in "cannot be dropped".

    Raises:
        InvalidRequestError: One does; all are named. Nothing was changed.
    """
    schema = configuration.schema
    dependents = [e.what for e in expressions_of(configuration) if any(_overlap(c, path) for c in e.columns(schema))]
    if dependents:
        raise InvalidRequestError(
            f"Column {quote_path(path)} cannot be {change}",
            cause=f"It is used by {', '.join(dependents)}",
            remedy="Drop the constraint first; a generated column can only be dropped itself",
            column=".".join(path),
            used_by=dependents,
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
    earlier_expressions = frozenset() if before is None else frozenset(expressions_of(before))
    schema = configuration.schema
    generated = {f.name.lower() for f in schema if generation_expression(f) is not None}
    for expression in expressions_of(configuration):
        try:
            columns = expression.columns(schema)
        except InvalidExpressionError:
            if expression in earlier_expressions:
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


def invariant_text(stored: object) -> str | None:
    """The text of an invariant: `{"expression": {"expression": "x > 3"}}`, or in old tables the expression itself. None
    where there is none in it."""
    try:
        parsed = orjson.loads(stored) if isinstance(stored, str) else stored
    except orjson.JSONDecodeError:
        return str(stored)
    for _ in range(2):
        if isinstance(parsed, dict):
            parsed = parsed.get("expression")
    return parsed if isinstance(parsed, str) else None
