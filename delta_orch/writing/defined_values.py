"""Whether the defaults and the generated values that a table defines are of their columns' types."""

from __future__ import annotations

from dataclasses import replace

from delta_orch.errors import SchemaMismatchError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.protocol.schema import CURRENT_DEFAULT
from delta_orch.protocol.types import (
    BOOLEAN,
    STRING,
    VARIANT,
    VOID,
    DataType,
    StructField,
    StructType,
    may_be_null,
    parts_beside,
)
from delta_orch.table.column_definitions import generation_expression
from delta_orch.writing.assignments import is_atomic
from delta_orch.writing.row_rules import default_value, generated_value, given_default


def ensure_own_values_fit(schema: StructType) -> None:
    """Check the columns that have a default or a generation expression.

    Raises:
        SchemaMismatchError: A default is no value of its column's type, or a generation expression has another type,
            as far as the local engine knows it.
        InvalidExpressionError: An expression cannot be evaluated.
    """
    for field in schema:
        if (default := field.metadata.get(CURRENT_DEFAULT)) is not None:
            ensure_default_fits(field, str(default))
        if (text := generation_expression(field)) is not None:
            _ensure_same(field, text, _type_of(generated_value(field, text, schema), schema))


def ensure_default_fits(field: StructField, text: str) -> None:
    """Check a default, which Spark casts to its column's type, but for truth and numbers. Raises as
    `ensure_own_values_fit`."""
    default_value(field, text)
    have, want = _type_of(given_default(field, text), StructType(())), field.data_type
    if have is not None and (
        not _has_shape(have, want) or (have not in (VOID, want) and BOOLEAN in (have, want) and want != STRING)
    ):
        raise SchemaMismatchError(
            f"The default of column {field.name} is not a value of its type",
            cause=f"{text[:200]!r} is of type {have}, the column of type {want}",
            remedy=f"Give a value of type {want}",
            column=field.name,
        )


def _has_shape(have: DataType, want: DataType) -> bool:
    """Whether a cast is possible but for atomic types: it takes fields by their place."""
    if have in (VOID, want):
        return True
    if isinstance(have, StructType) and isinstance(want, StructType):
        return len(have) == len(want) and all(
            _has_shape(a.data_type, b.data_type) for a, b in zip(have, want, strict=True)
        )
    if parts := parts_beside(have, want):
        return all(_has_shape(a, b) for _, a, b in parts)
    return is_atomic(have) and (is_atomic(want) or want == VARIANT)


def _type_of(value: Expression, schema: StructType) -> DataType | None:
    """The type of a value over the columns of a table, None where only Spark knows it."""
    from delta_orch.engines.local.sql_scalars import Scalars
    from delta_orch.engines.local.sql_types import Source

    known = StructType(tuple(f for f in schema if f.data_type != VOID))
    try:
        return Scalars(Source("rows", known)).value(value).data_type
    except UnsupportedExpressionError:
        return None


def _ensure_same(field: StructField, text: str, found: DataType | None) -> None:
    if found is not None and _bare(found) != _bare(field.data_type):
        raise SchemaMismatchError(
            f"The generated column {field.name} has another type than its expression",
            cause=f"{text[:200]!r} is of type {found}, the column of type {field.data_type}",
            remedy=f"Write CAST(… AS {field.data_type}) around the expression, or declare the column {found}",
            column=field.name,
        )


def _bare(data_type: DataType) -> DataType:
    """Without NOT NULL and metadata."""
    return may_be_null(data_type, lambda field: replace(field, metadata={}))
