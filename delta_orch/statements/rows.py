"""INSERT, DELETE, UPDATE and MERGE, as calls of the verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from delta_orch.engines.base import ComputedColumn, Engine, Relation
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Literal
from delta_orch.expressions.parse import parse_value
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.types import STRING, StructField, StructType
from delta_orch.statements.cursor import Cursor, tokens_of
from delta_orch.statements.queries import Query, parse_query
from delta_orch.statements.session import Session, TableName, table_name, unsupported

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.verbs.merge.builder import Merge

_COMPUTED = (CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START)

Statement = Callable[[Session], object]


def insert(cursor: Cursor, known: frozenset[str]) -> Statement:
    """INSERT INTO | OVERWRITE [TABLE] t [(columns)] [REPLACE WHERE p] VALUES … | query."""
    cursor.expect("INSERT")
    overwrite = cursor.take("OVERWRITE")
    if not overwrite:
        cursor.expect("INTO")
    cursor.take("TABLE")
    name = table_name(cursor)
    if cursor.at("PARTITION"):
        raise unsupported("INSERT with PARTITION", "Name the partition columns among the others")
    replace_where: str | None = None
    if cursor.take("REPLACE", "WHERE"):
        replace_where = cursor.text_until("SELECT", "WITH", "VALUES")
    columns = None
    if cursor.at("(") and cursor.tokens[cursor.index + 1].word not in ("SELECT", "WITH"):
        columns = _plain_names(cursor)
    if cursor.at("BY", "NAME"):
        raise unsupported("INSERT BY NAME", "Use append(), which matches columns by name")
    rows: list[list[str]] | Query = _values(cursor) if cursor.take("VALUES") else parse_query(cursor, known)
    cursor.end()

    def run(session: Session) -> object:
        table = session.target(name)
        schema = table.snapshot().schema
        fields = _fields(columns, schema)
        engine = session.engine()
        data: object
        if isinstance(rows, Query):
            data = _renamed(engine, rows.relation(session, engine), fields, _nulls(fields, schema))
        else:
            data = _constants(rows, fields, _nulls(fields, schema))
        if replace_where is not None:
            return table.overwrite(data, replace_where=replace_where, engine=engine, **session.options)
        if overwrite:
            return table.overwrite(data, engine=engine, **session.options)
        return table.append(data, engine=engine, **session.options)

    return run


def _plain_names(cursor: Cursor) -> list[str]:
    cursor.expect("(")
    found = [cursor.name()]
    while cursor.take(","):
        found.append(cursor.name())
    cursor.expect(")")
    return found


def _paths(cursor: Cursor) -> list[Column]:
    cursor.expect("(")
    found = [Column(tuple(cursor.path()))]
    while cursor.take(","):
        found.append(Column(tuple(cursor.path())))
    cursor.expect(")")
    return found


def _values(cursor: Cursor) -> list[list[str]]:
    rows = []
    while True:
        cursor.expect("(")
        row = [cursor.text_until(",", ")")]
        while cursor.take(","):
            row.append(cursor.text_until(",", ")"))
        cursor.expect(")")
        rows.append(row)
        if not cursor.take(","):
            return rows


def _fields(columns: Sequence[str] | None, schema: StructType) -> list[StructField]:
    if columns is None:
        return list(schema)
    from delta_orch.expressions.column_names import resolve_column_names

    found = (schema.find(name) for name in resolve_column_names(columns, schema, "the list of columns"))
    return [field for field in found if field is not None]


def _nulls(fields: Sequence[StructField], schema: StructType) -> list[StructField]:
    """The columns that become null because the statement names others: those that the table computes are not."""
    given = {field.name for field in fields}
    missing = [field for field in schema if field.name not in given]
    return [field for field in missing if not any(key in field.metadata for key in _COMPUTED)]


def _renamed(engine: Engine, rows: Relation, fields: Sequence[StructField], nulls: Sequence[StructField]) -> Relation:
    """The columns of a query under the names of those they are inserted into: by position, as in SQL."""
    names = engine.schema(rows).names
    _ensure_count(len(names), len(fields))
    columns = [ComputedColumn(field.name, Column((name,))) for field, name in zip(fields, names, strict=True)]
    return engine.project(rows, [*columns, *(ComputedColumn(f.name, Literal(None, f.data_type)) for f in nulls)])


def _ensure_count(given: int, expected: int) -> None:
    if given != expected:
        raise InvalidRequestError(
            f"{given} values are given for {expected} columns",
            remedy="Give one for each column, or list the columns after the table",
        )


def _constants(rows: Sequence[Sequence[str]], fields: Sequence[StructField], nulls: Sequence[StructField]) -> pa.Table:
    import pyarrow as pa

    from delta_orch.engines.conform import conform_column
    from delta_orch.expressions.spark_literals import natural_type
    from delta_orch.expressions.to_arrow import literal_array
    from delta_orch.protocol.arrow_types import type_to_arrow

    for row in rows:
        _ensure_count(len(row), len(fields))
    columns = []
    for index, field in enumerate(fields):
        target = type_to_arrow(field.data_type)
        parts = []
        for row in rows:
            literal = parse_value(row[index])
            if not isinstance(literal, Literal):
                raise unsupported(f"VALUES with {row[index][:100]!r}, which is no constant", "Write INSERT … SELECT …")
            if literal.value is None:
                parts.append(pa.nulls(1, target))
                continue
            kind = literal.data_type or natural_type(literal.value)
            if (kind == STRING) != (field.data_type == STRING):
                raise InvalidRequestError(
                    f"The value {row[index][:100]} is a {kind}, the column {field.name} has {field.data_type}",
                    remedy=f"Write CAST({row[index][:100]} AS {field.data_type}), or a constant of that type",
                    column=field.name,
                )
            parts.append(conform_column(literal_array([literal.value], kind), target, lossless=True, path=field.name))
        columns.append(pa.chunked_array(parts, target).combine_chunks())
    columns += [pa.nulls(len(rows), type_to_arrow(field.data_type)) for field in nulls]
    return pa.Table.from_arrays(columns, names=[field.name for field in (*fields, *nulls)])


def delete(cursor: Cursor) -> Statement:
    """DELETE FROM t [WHERE p]."""
    cursor.expect("DELETE", "FROM")
    name = table_name(cursor)
    _refuse_alias(cursor, "WHERE")
    where = cursor.text_until() if cursor.take("WHERE") else None
    cursor.end()
    return lambda session: session.target(name).delete(where, engine=session.choice, **session.options)


def update(cursor: Cursor) -> Statement:
    """UPDATE t SET a = v, … [WHERE p]."""
    cursor.expect("UPDATE")
    name = table_name(cursor)
    _refuse_alias(cursor, "SET")
    cursor.expect("SET")
    assigned = _assignments(cursor, "WHERE")
    where = cursor.text_until() if cursor.take("WHERE") else None
    cursor.end()
    return lambda session: session.target(name).update(dict(assigned), where, engine=session.choice, **session.options)


def _refuse_alias(cursor: Cursor, following: str) -> None:
    if cursor.token.kind in ("word", "quoted") and not cursor.at(following):
        raise unsupported("An alias of the table in DELETE and UPDATE", "Name columns without it")


def parse_assignments(text: str) -> dict[Any, str]:
    """`a = value, b.c = value`, each column as a node. Raises InvalidRequestError."""
    cursor = Cursor(text, tokens_of(text))
    found = _assignments(cursor)
    cursor.end()
    return found


def _assignments(cursor: Cursor, *stops: str) -> dict[Any, str]:
    # The verbs take columns as nodes, too, which no name can break.
    found: dict[Any, str] = {}
    while True:
        column = Column(tuple(cursor.path()))
        cursor.expect("=")
        if column in found:
            raise InvalidRequestError(
                f"The column {'.'.join(column.path)[:200]} is assigned twice", remedy="Assign it once"
            )
        found[column] = cursor.text_until(",", *stops)
        if not cursor.take(","):
            return found


def merge(cursor: Cursor, known: frozenset[str]) -> Statement:
    """MERGE [WITH SCHEMA EVOLUTION] INTO t [AS a] USING source [AS b] ON condition WHEN …."""
    cursor.expect("MERGE")
    schema_mode = "merge" if cursor.take("WITH", "SCHEMA", "EVOLUTION") else None
    cursor.expect("INTO")
    name = table_name(cursor)
    target_alias = _alias(cursor, "USING") or (name.name.rpartition(".")[2] if name.path is None else "target")
    cursor.expect("USING")
    source: TableName | Query
    if cursor.take("("):
        text = cursor.text_until(")")
        source = parse_query(Cursor(text, tokens_of(text)), known)
        cursor.expect(")")
        source_alias = _alias(cursor, "ON") or "source"
    else:
        source = table_name(cursor)
        own = source.name.rpartition(".")[2] if source.path is None else "source"
        source_alias = _alias(cursor, "ON") or own
    cursor.expect("ON")
    condition = cursor.text_until("WHEN")
    clauses: list[Callable[[Merge], Merge]] = []
    while cursor.take("WHEN"):
        clauses.append(_clause(cursor))
    if not clauses:
        cursor.refuse("WHEN is missing")
    cursor.end()

    def run(session: Session) -> object:
        engine = session.engine()
        rows = source.relation(session, engine) if isinstance(source, Query) else session.value(source)
        builder = session.target(name).merge(
            rows,
            condition,
            source_alias=source_alias,
            target_alias=target_alias,
            engine=engine,
            schema_mode=schema_mode,
            **session.options,
        )
        for clause in clauses:
            builder = clause(builder)
        return builder.execute()

    return run


def _alias(cursor: Cursor, following: str) -> str | None:
    if cursor.take("AS"):
        return cursor.name()
    return None if cursor.at(following) or cursor.token.kind not in ("word", "quoted") else cursor.name()


def parse_merge_clause(text: str) -> Callable[[Merge], Merge]:
    """A clause of MERGE, with or without its WHEN. Raises InvalidRequestError."""
    cursor = Cursor(text, tokens_of(text))
    cursor.take("WHEN")
    found = _clause(cursor)
    cursor.end()
    return found


def _clause(cursor: Cursor) -> Callable[[Merge], Merge]:
    is_matched = not cursor.take("NOT")
    cursor.expect("MATCHED")
    by_source = not is_matched and cursor.take("BY", "SOURCE")
    if not is_matched and not by_source:
        cursor.take("BY", "TARGET")
    condition = cursor.text_until("THEN") if cursor.take("AND") else None
    cursor.expect("THEN")
    if is_matched or by_source:
        if cursor.take("DELETE"):
            if by_source:
                return lambda merge: merge.when_not_matched_by_source_delete(condition)
            return lambda merge: merge.when_matched_delete(condition)
        cursor.expect("UPDATE", "SET")
        if is_matched and cursor.take("*"):
            return lambda merge: merge.when_matched_update_all(condition)
        assigned = _assignments(cursor, "WHEN")
        if by_source:
            return lambda merge: merge.when_not_matched_by_source_update(assigned, condition)
        return lambda merge: merge.when_matched_update(assigned, condition)
    cursor.expect("INSERT")
    if cursor.take("*"):
        return lambda merge: merge.when_not_matched_insert_all(condition)
    columns = _paths(cursor)
    cursor.expect("VALUES")
    (values,) = _values(cursor)
    _ensure_count(len(values), len(columns))
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("A column is inserted twice", remedy="Name each column once")
    inserted: dict[Any, str] = dict(zip(columns, values, strict=True))
    return lambda merge: merge.when_not_matched_insert(inserted, condition)
