"""INSERT, as calls of append and overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from delta_orch.engines.base import ComputedColumn, Engine, Relation
from delta_orch.engines.conform import nulls_of
from delta_orch.errors import InvalidExpressionError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Call, Cast, Column, Expression, Literal, Opaque
from delta_orch.expressions.parse import parse_row_value, syntax_of
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, natural_type
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.arrow_building import literal_array, type_to_arrow
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.types import (
    DATE,
    DOUBLE,
    FLOAT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from delta_orch.statements.cursor import Cursor
from delta_orch.statements.queries import Query, options_of_commit, parse_query
from delta_orch.statements.session import Session, Statement, unsupported
from delta_orch.variant import json_to_variant
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
    rows = cursor.each(cursor.values) if cursor.take("VALUES") else parse_query(cursor, session)
    cursor.end()
    if evolves and (overwrites or replace_where is not None or not by_name):
        raise unsupported("INSERT WITH SCHEMA EVOLUTION but INTO t BY NAME", "Leave it out, or write BY NAME")
    if by_name and not isinstance(rows, Query):
        raise InvalidRequestError("VALUES have no names", remedy="List the columns, or write SELECT … AS name")

    def run(session: Session) -> object:
        table = session.target(begin["name"])
        schema, engine, options = table.snapshot().schema, session.engine(), session.options
        if isinstance(rows, Query):
            appends = not overwrites and replace_where is None
            options = options_of_commit(rows, session, table, appends=appends)
            relation = rows.relation(session, engine, named=by_name, defines_columns=evolves)
            if evolves:
                return table.append(relation, schema_mode="merge", engine=engine, **options)
            fields = _fields(engine.schema(relation).names if by_name else columns, schema)
        else:
            fields, texts = _without_defaults(rows, _fields(columns, schema))
            if _are_constants(texts, fields):
                relation = session.relation(engine, _constants(texts, fields))
            else:
                parts = [_by_place(engine, _computed(engine, row), fields) for row in texts]
                shape = _common_shape([engine.schema(part) for part in parts], fields)
                relation = engine.union([engine.conform(part, shape) for part in parts])
        data = engine.project(relation, _inserted(engine.schema(relation), fields, schema))
        if overwrites or replace_where is not None:
            return table.overwrite(data, replace_where=replace_where, engine=engine, **options)
        return table.append(data, engine=engine, **options)

    return run


def _fields(columns: Sequence[str] | None, schema: StructType) -> list[StructField]:
    """The columns that rows have values for."""
    if columns is None:
        return list(schema)
    names = resolve_column_names(columns, schema, "The list of columns")
    return [field for name in names if (field := schema.find(name)) is not None]


def _by_place(engine: Engine, rows: Relation, fields: Sequence[StructField]) -> Relation:
    """A row of VALUES with structs as `_placed` has them: what comes after goes by names."""
    placed: dict[str, Expression] = {}
    for own_field, field in zip(engine.schema(rows), fields, strict=True):
        kind = _placed(own_field.data_type, field.data_type, field.name)
        placed[own_field.name] = (
            Column((own_field.name,)) if kind == own_field.data_type else Cast(Column((own_field.name,)), kind)
        )
    return engine.project(rows, [ComputedColumn(name, value) for name, value in placed.items()])


def _inserted(row_schema: StructType, fields: Sequence[StructField], schema: StructType) -> list[ComputedColumn]:
    """What the table's columns are made of: by position, as in SQL. A column that the statement does not name becomes
    null, unless the table computes it."""
    if len(row_schema) != len(fields):
        raise _other_count(len(row_schema), len(fields))
    columns = []
    for field, own in zip(fields, row_schema, strict=True):
        kind, value = _placed(own.data_type, field.data_type, field.name), Column((own.name,))
        placed = value if kind == own.data_type else Cast(value, kind)
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


def _placed(have: DataType, want: DataType, path: str) -> DataType:
    """A type whose structs have the table's names: in Spark an INSERT assigns fields by their position. A value without
    a name is called `col1` in the first place.

    Raises SchemaMismatchError: A struct has other fields, or in another order.
    """
    match have, want:
        case StructType(), StructType():
            pairs = enumerate(zip(have.names, want.names, strict=False), 1)
            fits = (own.lower() in (theirs.lower(), f"col{place}") for place, (own, theirs) in pairs)
            if len(have) != len(want) or not all(fits):
                raise SchemaMismatchError(
                    f"The struct {path} has the fields {', '.join(have.names)}, the table's {', '.join(want.names)}",
                    cause="INSERT takes structs with the same fields in the same order",
                    remedy="Name them in the query with named_struct(…)",
                    column=path,
                )
            placed = (
                replace(own, name=field.name, data_type=_placed(own.data_type, field.data_type, f"{path}.{field.name}"))
                for own, field in zip(have, want, strict=True)
            )
            return StructType(tuple(placed))
        case ArrayType(), ArrayType():
            return replace(have, element_type=_placed(have.element_type, want.element_type, f"{path}.element"))
        case MapType(), MapType():
            key = _placed(have.key_type, want.key_type, f"{path}.key")
            return replace(have, key_type=key, value_type=_placed(have.value_type, want.value_type, f"{path}.value"))
    return have


def _without_defaults(
    rows: list[list[str]], fields: Sequence[StructField]
) -> tuple[list[StructField], list[list[str]]]:
    """The columns that VALUES gives, and their texts: a column of DEFAULT is left out, so that the table fills it."""
    for row in rows:
        if len(row) != len(fields):
            raise _other_count(len(row), len(fields))
    defaults = [{row[index].strip().upper() == "DEFAULT" for row in rows} for index in range(len(fields))]
    if {True, False} in defaults:
        name = fields[defaults.index({True, False})].name
        raise unsupported(f"DEFAULT beside values in the column {name}", "Write one INSERT for each")
    kept = [index for index, words in enumerate(defaults) if words == {False}]
    if not kept:
        raise unsupported("VALUES of DEFAULT alone", "Give one column a value")
    return [fields[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _are_constants(rows: list[list[str]], fields: Sequence[StructField]) -> bool:
    return all(
        isinstance(_constant(text, field), Literal) for row in rows for text, field in zip(row, fields, strict=True)
    )


def _computed(engine: Engine, texts: Sequence[str]) -> Relation:
    """A row of VALUES with functions or operators, which an engine computes."""
    values = [parse_row_value(text) for text in texts]
    if columns := [column for value in values for column in columns_of(value)]:
        raise InvalidExpressionError(f"VALUES has no column {'.'.join(columns[0].path)[:200]!r}")
    one_row = engine.relation(pa.table({"row": [0]}))
    return engine.project(one_row, [ComputedColumn(f"c{i}", value) for i, value in enumerate(values)])


def _constant(text: str, field: StructField) -> Expression:
    """A value; for a variant the JSON that `parse_json` takes."""
    value = parse_row_value(text)
    if field.data_type == VARIANT and isinstance(value, Opaque):
        match syntax_of(value):
            case Call("parse_json", (Literal(str(json)),)):
                return Literal(json, VARIANT)
    return value


def _common_shape(rows: Sequence[StructType], fields: Sequence[StructField]) -> StructType:
    """The columns of the queries of all rows, in the types that Spark finds for an inline table."""
    common_fields = []
    for index, field in enumerate(fields):
        kinds = {row.fields[index].data_type for row in rows} - {VOID}
        is_plain = all(isinstance(kind, PrimitiveType | DecimalType) for kind in kinds)
        # Nested values and times differ in no more than what the column's own type settles.
        is_told = len(kinds) == 1 or (is_plain and not kinds <= {DATE, TIMESTAMP, TIMESTAMP_NTZ})
        common_fields.append(StructField(f"c{index}", _common_kind(kinds, field) if is_told else field.data_type))
    return StructType(tuple(common_fields))


def _constants(rows: list[list[str]], fields: Sequence[StructField]) -> pa.Table:
    """The values of columns, in types of their own."""
    columns = {f.name: _column([row[i] for row in rows], f) for i, f in enumerate(fields)}
    return pa.table(columns) if columns else pa.table({"rows": pa.nulls(len(rows))})


def _column(texts: Sequence[str], field: StructField) -> pa.Array:
    values = [_constant(text, field) for text in texts]
    kinds: list[DataType] = []
    for value, text in zip(values, texts, strict=True):
        if not isinstance(value, Literal):
            raise unsupported(f"VALUES with {text[:100]!r}, which is not a constant", "Write INSERT … SELECT …")
        kinds.append(VOID if value.value is None else value.data_type or natural_type(value.value))
    value_types = {*kinds} - {VOID}
    if value_types == {VARIANT}:
        return json_to_variant(pa.array([value.value for value in values if isinstance(value, Literal)], pa.string()))
    if not value_types:
        return nulls_of(len(texts), type_to_arrow(field.data_type))
    kind = _common_kind(value_types, field)
    arrays = [
        literal_array([value.value], kind if own == VOID else own).cast(type_to_arrow(kind))
        for value, own in zip(values, kinds, strict=True)
        if isinstance(value, Literal)
    ]
    return pa.concat_arrays(arrays)


def _common_kind(kinds: set[DataType], field: StructField) -> DataType:
    """The type of the constants of a column, as Spark finds one for an inline table."""
    if len(kinds) == 1:
        return next(iter(kinds))
    decimals = [kind for kind in kinds if isinstance(kind, DecimalType)]
    integrals = [kind for kind in kinds if kind in INTEGRAL_RANGES]
    others = kinds - {*decimals, *integrals}
    if others and others <= {FLOAT, DOUBLE}:
        return DOUBLE
    if not others and not decimals:
        return max(integrals, key=lambda kind: INTEGRAL_RANGES[kind][1])
    if not others:
        decimals += [DecimalType(len(str(INTEGRAL_RANGES[kind][1])), 0) for kind in integrals]
        scale = max(kind.scale for kind in decimals)
        return DecimalType(min(max(kind.precision - kind.scale for kind in decimals) + scale, 38), scale)
    raise InvalidRequestError(
        f"The values for the column {field.name} have the types {', '.join(sorted(map(str, kinds)))}",
        remedy=f"Write all of them in one type, for example {field.data_type}",
        column=field.name,
    )
