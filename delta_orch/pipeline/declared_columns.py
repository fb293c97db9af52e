"""Columns that somebody declared a table to have, held against those it has."""

from __future__ import annotations

from collections.abc import Mapping

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import DataType, StructType

DeclaredColumns = Mapping[str, DataType | None]


def declared_columns(columns: Mapping[str, str | None]) -> DeclaredColumns:
    """Column → its type, spelled as in Spark SQL or as in a table's schema (`bigint` or `long`); None for any.

    Raises:
        InvalidRequestError: A type is not given as text.
        SchemaMismatchError: A text is not a type.
    """
    for name, text in columns.items():
        if not isinstance(text, str | None):
            raise InvalidRequestError(
                f"The type of column {name} is a value of type {type(text).__name__}",
                remedy="Write it as text: 'bigint'",
            )
    return {name: None if text is None else parse_declared_type(text)[0] for name, text in columns.items()}


def column_drift(schema: StructType, declared: DeclaredColumns, *, exact: bool) -> list[str]:
    """What differs, one sentence a column. Names match whatever their case. With `exact` other columns differ, too."""
    drift = []
    for name, wanted in declared.items():
        field = schema.find(name)
        if field is None:
            drift.append(f"{name} is missing")
        elif wanted is not None and str(field.data_type) != str(wanted):
            drift.append(f"{name} is {field.data_type}, not {wanted}")
    named = {name.lower() for name in declared}
    return drift + [f"{name} is new" for name in schema.names if exact and name.lower() not in named]
