"""INSERT, as calls of append and overwrite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.base import ComputedColumn, Engine, Relation, as_they_are
from delta_orch.errors import InvalidExpressionError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.fit_comparison import fit_comparison
from delta_orch.expressions.nodes import Call, Cast, Column, Comparison, Expression, Literal, Opaque
from delta_orch.expressions.parse import parse_row_value, parse_value, syntax_of
from delta_orch.expressions.renaming import NewName, renamed
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, natural_type, type_sql
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.protocol.arrow_building import literal_array, type_to_arrow
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.schema_edit import quote_path
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
from delta_orch.statements.queries import Query, options_of_commit, parse_query, query_in_parentheses
from delta_orch.statements.rows import Statement, ensure_count, side_names, values
from delta_orch.statements.session import Session, table_name, unsupported
from delta_orch.writing.assignments import cast_to, default_of

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitOptions

_COMPUTED = (CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START)


def insert(cursor: Cursor, session: Session) -> Statement:
    """INSERT [WITH SCHEMA EVOLUTION] INTO | OVERWRITE [TABLE] t [AS a] [PARTITION (p = v)] [(columns) | BY NAME]
    [REPLACE WHERE p | USING (columns) | ON p] VALUES … | q [AS b]."""
    cursor.expect("INSERT")
    evolves = cursor.take("WITH", "SCHEMA", "EVOLUTION")
    overwrite = cursor.take("OVERWRITE")
    if not overwrite:
        cursor.expect("INTO")
    cursor.take("TABLE")
    name = table_name(cursor)
    alias = _alias(cursor)
    fixed = _partition(cursor) if cursor.take("PARTITION") else {}
    if overwrite and None in fixed.values():
        raise unsupported("INSERT OVERWRITE with a PARTITION of no value", "Write REPLACE WHERE, or give each a value")
    replace_where: str | None = None
    matched: _Matched | None = None
    columns = None
    by_name = False
    while True:
        if replace_where is None and matched is None and cursor.take("REPLACE"):
            if cursor.take("WHERE"):
                replace_where = cursor.text_until("SELECT", "WITH", "VALUES")
            else:
                matched = _matched(cursor, alias or name.short)
        elif columns is None and cursor.at("(") and cursor.tokens[cursor.index + 1].word not in ("SELECT", "WITH", "("):
            columns = cursor.listed(cursor.name)
        elif not by_name and cursor.take("BY", "NAME"):
            by_name = True
        else:
            break
    if by_name and columns is not None:
        raise InvalidRequestError("INSERT takes a list of columns or BY NAME, not both")
    if alias is not None and (matched is None or matched.on is None):
        raise unsupported("An alias of the table but in REPLACE ON", "Leave it out")
    if matched is not None and (overwrite or fixed):
        raise unsupported("REPLACE USING | ON but in INSERT INTO t", "Leave out OVERWRITE and PARTITION")
    rows = values(cursor) if cursor.take("VALUES") else _query(cursor, session, matched)
    cursor.end()
    if matched is not None and matched.on is not None and not isinstance(rows, Query):
        raise unsupported("REPLACE ON before VALUES", "Write (SELECT …) AS s")
    if evolves and (overwrite or fixed or replace_where is not None or matched is not None or not by_name):
        raise unsupported("INSERT WITH SCHEMA EVOLUTION but INTO t BY NAME", "Leave it out, or write BY NAME")
    if by_name and not isinstance(rows, Query):
        raise InvalidRequestError("VALUES have no names", remedy="List the columns, or write SELECT … AS name")

    def run(session: Session) -> object:
        table = session.target(name)
        schema = table.snapshot().schema
        given = _partition_fields(fixed, table)
        engine, options = session.engine(), session.options
        data: object
        if isinstance(rows, Query):
            appends = not overwrite and matched is None and replace_where is None
            options = options_of_commit(rows, session, table, appends=appends)
            is_named = by_name or (matched is not None and matched.on is not None)
            found = rows.relation(session, engine, named=is_named, defines_columns=evolves)
            if evolves:
                return table.append(found, schema_mode="merge", engine=engine, **options)
            wanted = engine.schema(found).names if by_name else columns
            fields = _fields(wanted, schema, given)
            further = [*given, *_nulls(fields, given, schema)]
            if matched is not None and matched.on is not None:
                inserted = _inserted(engine.schema(found), fields, further)
                return matched.merge(table, engine, found, inserted, fields, options)
            data = _renamed(engine, found, fields, further)
        else:
            fields, texts = _without_defaults(rows, _fields(columns, schema, given), table)
            further = [*given, *_nulls(fields, given, schema)]
            if not (fields or further):
                raise unsupported("VALUES of DEFAULT alone, where the table computes every column", "Give one a value")
            if _are_constants(texts, fields):
                data = _renamed(engine, session.relation(engine, _constants(texts, fields)), fields, further)
            else:
                parts = [_by_place(engine, _computed(engine, row), fields) for row in texts]
                shape = _common_shape([engine.schema(part) for part in parts], fields)
                rows_of = engine.union([engine.conform(part, shape) for part in parts])
                data = _renamed(engine, rows_of, fields, further)
        if matched is not None:
            return matched.merge(table, engine, data, as_they_are(engine.schema(data).names), fields, options)
        where: str | Expression | None = replace_where
        if overwrite and given and where is None:
            where = conjunction(*(Comparison("<=>", Column((f.name,)), value) for f, value in given))
        if where is not None:
            return table.overwrite(data, replace_where=where, engine=engine, **options)
        if overwrite:
            return table.overwrite(data, engine=engine, **options)
        return table.append(data, engine=engine, **options)

    return run


@dataclass(slots=True)
class _Matched:
    """REPLACE USING (columns), or REPLACE ON a condition: rows of the table that match a row of the query leave."""

    target_alias: str | None
    using: Sequence[str] = ()
    on: str | None = None
    source_alias: str | None = None

    def merge(
        self,
        table: DeltaTable,
        engine: Engine,
        rows: Relation,
        inserted: Sequence[ComputedColumn],
        fields: Sequence[StructField],
        options: CommitOptions,
    ) -> object:
        """Run it.

        Args:
            rows: What the condition is about. With USING these are the rows as the table takes them.
            inserted: The table's columns as they are made of `rows`.
            fields: Those that the statement has values for.
        """
        ours, theirs = side_names(self.target_alias, self.source_alias)
        condition: str | Expression | None = self.on
        if condition is None:
            keys = resolve_column_names(self.using, StructType(tuple(fields)), "REPLACE USING")
            condition = conjunction(*(Comparison("=", Column((ours, key)), Column((theirs, key))) for key in keys))
        merge = table.merge(
            rows,
            condition,
            source_alias=theirs,
            target_alias=ours,
            engine=engine,
            **options,
        )
        side = NewName(0, (theirs,))
        return merge.replace_matched(
            {quote_path((column.name,)): renamed(column.value, lambda _: side) for column in inserted}
        ).execute()


def _alias(cursor: Cursor) -> str | None:
    """The table's, which stands before REPLACE ON."""
    if cursor.take("AS"):
        return cursor.name()
    is_name = cursor.token.kind in ("word", "quoted") and not cursor.at("BY", "NAME")
    after = cursor.tokens[cursor.index + 1 : cursor.index + 3]
    words = [token.word for token in after]
    return cursor.name() if is_name and (words in (["REPLACE", "ON"], ["BY", "NAME"])) else None


def _matched(cursor: Cursor, alias: str | None) -> _Matched:
    if cursor.take("USING"):
        return _Matched(None, using=cursor.listed(cursor.name))
    if not cursor.take("ON"):
        cursor.refuse("WHERE, USING or ON is missing")
    return _Matched(alias, on=cursor.text_until("SELECT", "WITH", "VALUES", "TABLE", inside=True))


def _query(cursor: Cursor, session: Session, matched: _Matched | None) -> Query:
    """The query, which REPLACE ON gives a name."""
    if matched is None or matched.on is None or not cursor.take("("):
        return parse_query(cursor, session)
    text = query_in_parentheses(cursor, session)
    if cursor.take("AS") or cursor.token.kind in ("word", "quoted"):
        matched.source_alias = cursor.name()
    return parse_query(Cursor(text), session)


def _partition(cursor: Cursor) -> dict[str, str | None]:
    """`(p = value, q)`: the values as text, None for a partition that the rows give."""
    found: dict[str, str | None] = {}

    def take_one() -> None:
        name = cursor.name()
        if name.lower() in map(str.lower, found):
            raise InvalidRequestError(f"The partition column {name[:200]!r} is given twice")
        found[name] = cursor.text_until(",", ")") if cursor.take("=") else None

    cursor.listed(take_one)
    return found


def _partition_fields(fixed: Mapping[str, str | None], table: DeltaTable) -> list[tuple[StructField, Literal]]:
    """The columns that PARTITION gives a value, which it must fit."""
    snapshot = table.snapshot()
    found = []
    for name, text in fixed.items():
        field = snapshot.schema.find(name)
        if field is None or field.name not in snapshot.partition_columns:
            raise InvalidRequestError(
                f"PARTITION names {name[:200]!r}, which is not a partition column",
                cause=f"The partition columns are {', '.join(snapshot.partition_columns) or 'none'}",
                column=name[:200],
            )
        if text is not None:
            found.append((field, _partition_literal(text, field)))
    return found


def _partition_literal(text: str, field: StructField) -> Literal:
    """Text of a partition's value becomes its column's type, as Spark casts it."""
    value = parse_value(text)
    if not isinstance(value, Literal):
        raise unsupported(f"PARTITION ({field.name} = {text[:100]}), which is not a constant")
    if value.value is None:
        return Literal(None, field.data_type)
    fitted = fit_comparison("=", Column((field.name,)), field.data_type, value)
    if not isinstance(fitted, Comparison) or not isinstance(fitted.right, Literal) or fitted.op != "=":
        raise InvalidRequestError(f"The value {text[:100]} does not fit the column {field.name} of {field.data_type}")
    return fitted.right


_Given = Sequence[tuple[StructField, Literal]]


def _fields(columns: Sequence[str] | None, schema: StructType, given: _Given) -> list[StructField]:
    """The columns that rows have values for. With PARTITION those that it does not give come in their order."""
    apart = {field.name for field, _ in given}
    if columns is None:
        return [field for field in schema if field.name not in apart]
    names = resolve_column_names(columns, schema, "The list of columns")
    if apart & set(names):
        raise InvalidRequestError(f"The column {sorted(apart & set(names))[0]} is given by PARTITION, too")
    found = (schema.find(name) for name in names)
    return [field for field in found if field is not None]


def _nulls(fields: Sequence[StructField], given: _Given, schema: StructType) -> list[tuple[StructField, Literal]]:
    """The columns that become null because the statement names others: those that the table computes are not."""
    named = {field.name for field in fields} | {field.name for field, _ in given}
    missing = [field for field in schema if field.name not in named]
    return [(f, Literal(None, f.data_type)) for f in missing if not any(key in f.metadata for key in _COMPUTED)]


def _by_place(engine: Engine, rows: Relation, fields: Sequence[StructField]) -> Relation:
    """A row of VALUES with structs as `_placed` has them: what comes after goes by names."""
    placed: dict[str, Expression] = {}
    for given, field in zip(engine.schema(rows), fields, strict=True):
        kind = _placed(given.data_type, field.data_type, field.name)
        placed[given.name] = Column((given.name,)) if kind == given.data_type else Cast(Column((given.name,)), kind)
    return engine.project(rows, [ComputedColumn(name, value) for name, value in placed.items()])


def _renamed(engine: Engine, rows: Relation, fields: Sequence[StructField], further: _Given) -> Relation:
    """The columns of a query under the names of those they are inserted into, and in their types."""
    return engine.project(rows, _inserted(engine.schema(rows), fields, further))


def _inserted(found: StructType, fields: Sequence[StructField], further: _Given) -> list[ComputedColumn]:
    """What the table's columns are made of: by position, as in SQL."""
    if fields:
        ensure_count(len(found), len(fields))
    columns = []
    for field, given in zip(fields, found, strict=bool(fields)):
        placed, own = _placed(given.data_type, field.data_type, field.name), Column((given.name,))
        renamed = own if placed == given.data_type else Cast(own, placed)
        columns.append(ComputedColumn(field.name, cast_to(renamed, placed, field.data_type, field.name)))
    return [*columns, *(ComputedColumn(field.name, value) for field, value in further)]


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
    rows: list[list[str]], fields: Sequence[StructField], table: DeltaTable
) -> tuple[list[StructField], list[list[str]]]:
    """The columns that VALUES gives, and their texts: DEFAULT leaves a column out, or is the default beside values."""
    for row in rows:
        ensure_count(len(row), len(fields))
    defaults = [[row[index].strip().upper() == "DEFAULT" for row in rows] for index in range(len(fields))]
    kept = [index for index, found in enumerate(defaults) if not all(found)]
    # Rows need a column.
    kept = kept or [index for index, field in enumerate(fields) if not _is_computed(field)][:1]
    instead = {index: _default_text(fields[index], table) for index in kept if any(defaults[index])}
    texts = [[instead[i] if defaults[i][number] else row[i] for i in kept] for number, row in enumerate(rows)]
    return [fields[i] for i in kept], texts


def _is_computed(field: StructField) -> bool:
    return GENERATION_EXPRESSION in field.metadata or IDENTITY_START in field.metadata


def _default_text(field: StructField, table: DeltaTable) -> str:
    """What DEFAULT stands for, in SQL. Raises UnsupportedExpressionError for columns that the table computes."""
    if _is_computed(field):
        raise unsupported(f"DEFAULT beside values in the column {field.name}", "Write one INSERT for each")
    default = default_of(field, table.snapshot().configuration)
    is_null = isinstance(default, Literal) and default.value is None
    return "NULL" if is_null else f"CAST({to_spark_sql(default)} AS {type_sql(field.data_type)})"


def _are_constants(rows: list[list[str]], fields: Sequence[StructField]) -> bool:
    return all(
        isinstance(_constant(text, field), Literal) for row in rows for text, field in zip(row, fields, strict=True)
    )


def _computed(engine: Engine, texts: Sequence[str]) -> Relation:
    """A row of VALUES with functions or operators, which an engine computes."""
    import pyarrow as pa

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
    found = []
    for index, field in enumerate(fields):
        kinds = {row.fields[index].data_type for row in rows} - {VOID}
        is_plain = all(isinstance(kind, PrimitiveType | DecimalType) for kind in kinds)
        # Nested values and times differ in no more than what the column's own type settles.
        is_told = len(kinds) == 1 or (is_plain and not kinds <= {DATE, TIMESTAMP, TIMESTAMP_NTZ})
        found.append(StructField(f"c{index}", _common_kind(kinds, field) if is_told else field.data_type))
    return StructType(tuple(found))


def _constants(rows: list[list[str]], fields: Sequence[StructField]) -> pa.Table:
    """The values of columns, in types of their own."""
    import pyarrow as pa

    columns = {f.name: _column([row[i] for row in rows], f) for i, f in enumerate(fields)}
    return pa.table(columns) if columns else pa.table({"rows": pa.nulls(len(rows))})


def _column(texts: Sequence[str], field: StructField) -> pa.Array:
    import pyarrow as pa

    from delta_orch.engines.conform import nulls_of

    values = [_constant(text, field) for text in texts]
    kinds: list[DataType] = []
    for value, text in zip(values, texts, strict=True):
        if not isinstance(value, Literal):
            raise unsupported(f"VALUES with {text[:100]!r}, which is not a constant", "Write INSERT … SELECT …")
        kinds.append(VOID if value.value is None else value.data_type or natural_type(value.value))
    found = {*kinds} - {VOID}
    if found == {VARIANT}:
        from delta_orch.variant import json_to_variant

        return json_to_variant(pa.array([value.value for value in values if isinstance(value, Literal)], pa.string()))
    if not found:
        return nulls_of(len(texts), type_to_arrow(field.data_type))
    kind = _common_kind(found, field)
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
