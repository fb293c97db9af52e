"""INSERT, as calls of append and overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta_orch.engines.base import ComputedColumn
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Cast, Column, Literal
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.statements.cursor import Cursor
from delta_orch.statements.queries import options_of_commit, parse_query
from delta_orch.statements.session import Session, Statement, unsupported
from delta_orch.writing.assignments import cast_to

_COMPUTED = (CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START)


def insert(cursor: Cursor, session: Session) -> Statement:
    """INSERT [WITH SCHEMA EVOLUTION] INTO | OVERWRITE t [(columns) | BY NAME] [REPLACE WHERE p] VALUES … | q."""
    begin = cursor.read(
        "INSERT [evolves: WITH SCHEMA EVOLUTION] [into: INTO] [overwrites: OVERWRITE] [TABLE] {table name}"
    )
    evolves, overwrites = begin["evolves"], begin["overwrites"]
    if begin["into"] == overwrites:
        cursor.refuse("INTO or OVERWRITE is missing")
    if cursor.at("PARTITION"):
        raise unsupported("INSERT … PARTITION", "Give the value in the rows; to replace a partition, REPLACE WHERE p")
    is_list = cursor.at("(") and cursor.tokens[cursor.index + 1].word not in ("SELECT", "WITH", "(")
    columns = cursor.listed(cursor.name) if is_list else None
    by_name = columns is None and cursor.take("BY", "NAME")
    replace_where = cursor.text("SELECT", "WITH", "VALUES") if cursor.take("REPLACE", "WHERE") else None
    if cursor.at("REPLACE"):
        raise unsupported("INSERT … REPLACE USING | ON", "Write MERGE, or REPLACE WHERE p")
    if by_name and cursor.at("VALUES"):
        raise InvalidRequestError("VALUES have no names", remedy="List the columns, or write SELECT … AS name")
    rows = parse_query(cursor, session)
    cursor.end()
    if evolves and (overwrites or replace_where is not None or not by_name):
        raise unsupported("INSERT WITH SCHEMA EVOLUTION but INTO t BY NAME", "Leave it out, or write BY NAME")

    def run(session: Session) -> object:
        table = session.target(begin["name"])
        schema, engine = table.snapshot().schema, session.engine()
        appends = not overwrites and replace_where is None
        options = options_of_commit(rows, session, table, appends=appends)
        relation = rows.relation(session, engine, named=by_name, defines_columns=evolves)
        if evolves:
            return table.append(relation, schema_mode="merge", engine=engine, **options)
        fields = _fields(engine.schema(relation).names if by_name else columns, schema)
        data = engine.project(relation, _inserted(engine.schema(relation), fields, schema))
        if overwrites or replace_where is not None:
            return table.overwrite(data, replace_where=replace_where, engine=engine, **options)
        return table.append(data, engine=engine, **options)

    return run


def _fields(columns: Sequence[str] | None, schema: StructType) -> list[StructField]:
    """The columns of the table for which rows have values."""
    if columns is None:
        return list(schema)
    names = resolve_column_names(columns, schema, "The list of columns")
    return [field for name in names if (field := schema.find(name)) is not None]


def _inserted(row_schema: StructType, fields: Sequence[StructField], schema: StructType) -> list[ComputedColumn]:
    """The values of the table's columns, assigned by position. A column that the statement does not name becomes null,
    unless the table computes it."""
    if len(row_schema) != len(fields):
        raise _other_count(len(row_schema), len(fields))
    columns = []
    for field, row_field in zip(fields, row_schema, strict=True):
        kind, value = _placed(row_field.data_type, field.data_type, field.name), Column((row_field.name,))
        placed = value if kind == row_field.data_type else Cast(value, kind)
        columns.append(ComputedColumn(field.name, cast_to(placed, kind, field.data_type, field.name)))
    named = {field.name for field in fields}
    missing = [
        field for field in schema if field.name not in named and not any(key in field.metadata for key in _COMPUTED)
    ]
    return [*columns, *(ComputedColumn(field.name, Literal(None, field.data_type)) for field in missing)]


def _other_count(num_values: int, expected: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{num_values} values are given for {expected} columns",
        remedy="Give one for each column, or list the columns after the table",
    )


def _placed(source: DataType, target: DataType, path: str) -> DataType:
    """A type whose structs have the table's names, because an INSERT assigns fields by their position in Spark. A value
    without a name is called `col1` if it comes first.

    Raises SchemaMismatchError: A struct has other fields, or in another order.
    """
    match source, target:
        case StructType(), StructType():
            pairs = enumerate(zip(source.names, target.names, strict=False), 1)
            fits = (name.lower() in (expected.lower(), f"col{place}") for place, (name, expected) in pairs)
            if len(source) != len(target) or not all(fits):
                raise SchemaMismatchError(
                    f"The struct {path} has the fields {', '.join(source.names)}",
                    cause=f"INSERT takes structs with the table's fields in order: {', '.join(target.names)}",
                    remedy="Name them in the query with named_struct(…)",
                    column=path,
                )
            placed = (
                replace(
                    part, name=field.name, data_type=_placed(part.data_type, field.data_type, f"{path}.{field.name}")
                )
                for part, field in zip(source, target, strict=True)
            )
            return StructType(tuple(placed))
        case ArrayType(), ArrayType():
            return replace(source, element_type=_placed(source.element_type, target.element_type, f"{path}.element"))
        case MapType(), MapType():
            key = _placed(source.key_type, target.key_type, f"{path}.key")
            return replace(
                source, key_type=key, value_type=_placed(source.value_type, target.value_type, f"{path}.value")
            )
    return source
