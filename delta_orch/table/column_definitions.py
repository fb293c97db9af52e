"""What a column's metadata says about its values: generated, identity, default (PROTOCOL, "Generated Columns",
"Identity Columns", "Default Columns"). Building such columns, and checking that a table may have them.
"""

from __future__ import annotations

from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.checked import check_expression
from delta_orch.protocol.schema import (
    CURRENT_DEFAULT,
    GENERATION_EXPRESSION,
    IDENTITY_ALLOW_EXPLICIT_INSERT,
    IDENTITY_START,
    IDENTITY_STEP,
)
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import LONG, VARIANT, DataType, StructField, StructType, fields_of
from delta_orch.table.column_dependencies import generation_expression

_LONG = range(-(2**63), 2**63)


def column(
    name: str,
    data_type: DataType | str,
    *,
    nullable: bool = True,
    comment: str | None = None,
    default: str | None = None,
    generated_as: str | None = None,
) -> StructField:
    """A column of a table to be created.

    Args:
        data_type: A type, or its text in Spark SQL: `bigint`, `array<string>`, `varchar(20)`.
        default: Spark SQL for the value of rows that do not bring the column; without columns in it.
        generated_as: Spark SQL over other columns that computes this one.

    Raises:
        SchemaMismatchError: The text is not a type.
        InvalidExpressionError: `default` names a column, or is not an expression that may be evaluated.
        InvalidRequestError: Both a default and a generation expression.
    """
    declared, metadata = parse_declared_type(data_type) if isinstance(data_type, str) else (data_type, {})
    if default is not None and generated_as is not None:
        raise InvalidRequestError(
            f"Column {name!r} has both a default and a generation expression",
            cause="A generated column's value is always that of its expression",
            remedy="Give one of them",
            column=name,
        )
    given: dict[str, object] = dict(metadata)
    if comment is not None:
        given["comment"] = comment
    if default is not None:
        given[CURRENT_DEFAULT] = ensure_default(name, default)
    if generated_as is not None:
        given[GENERATION_EXPRESSION] = generated_as
    return StructField(name, declared, nullable, given)


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
    """
    for field in schema:
        known = None if before is None else before.find(field.name)
        if known is not None and known.metadata == field.metadata and known.data_type == field.data_type:
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
    check_expression(text, f"the default of column {name}", is_default=True)
    return text.strip()
