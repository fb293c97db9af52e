"""Columns that somebody declared a table to have, held against those it has."""

from __future__ import annotations

from collections.abc import Mapping

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, StructField, StructType, not_null_places

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
    """What differs, one sentence a column. Names match whatever their case; `string` is any text, `varchar(20)` only
    that. With `exact` other columns differ, too."""
    drift = []
    for name, wanted in declared.items():
        field = schema.find(name)
        if field is None:
            drift.append(f"{name} is missing")
        elif wanted is not None:
            has_lengths = CHAR_VARCHAR_TYPE in wanted.metadata
            found, needed = (_spelled(f, has_lengths=has_lengths) for f in (field, wanted))
            if found != needed:
                drift.append(f"{name} is {found}, not {needed}")
    named = {name.lower() for name in declared}
    return drift + [f"{name} is new" for name in schema.names if exact and name.lower() not in named]


def _spelled(field: StructField, *, has_lengths: bool) -> str:
    return str(field.metadata.get(CHAR_VARCHAR_TYPE, field.data_type) if has_lengths else field.data_type)
