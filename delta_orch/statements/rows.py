"""DELETE, UPDATE and MERGE, as calls of the verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import TYPE_CHECKING

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column
from delta_orch.expressions.tokens import statement_tokens
from delta_orch.protocol.schema_edit import quote_path
from delta_orch.statements.cursor import Cursor, TableName
from delta_orch.statements.queries import Query, Source, options_of_commit, parse_query, query_in_parentheses, versioned
from delta_orch.statements.session import Session, Statement

if TYPE_CHECKING:
    from delta_orch.verbs.merge.clauses import Merge


def delete(session: Session, table: TableName, alias: str | None = None, where: str | None = None) -> object:
    """DELETE FROM t [AS a] [WHERE p], TRUNCATE TABLE t."""
    target = session.target(table)
    condition = None if where is None else _Qualified(alias or table.short, target).without(where)
    return target.delete(condition, engine=session.choice, **session.options)


def update(
    session: Session, table: TableName, alias: str | None, assigned: Mapping[Column, str], where: str | None
) -> object:
    """UPDATE t [AS a] SET a = v, … [WHERE p]."""
    target = session.target(table)
    qualified = _Qualified(alias or table.short, target)
    condition = None if where is None else qualified.without(where)
    values: dict[str, str] = {}
    for column, value in assigned.items():
        path = column.path[qualified.begins(column.path) :]
        if quote_path(path) in values:
            raise InvalidRequestError(f"The column {'.'.join(path)[:200]} is assigned twice", remedy="Assign it once")
        values[quote_path(path)] = qualified.without(value)
    return target.update(values, condition, engine=session.choice, **session.options)


class _Qualified:
    """Columns with the table's name before them. The verbs of one table take columns without it."""

    def __init__(self, qualifier: str | None, table: DeltaTable) -> None:
        self._qualifier = None if qualifier is None else qualifier.lower()
        self._names = {name.lower() for name in table.snapshot().schema.names} if qualifier else set()

    def begins(self, path: Sequence[str]) -> bool:
        """How many names of a path are the table's: 1 or 0. As in Spark, a column of the table's name is meant if the
        table has no column of the second name."""
        first, second = (name.lower() for name in (*path, "", "")[:2])
        return first == self._qualifier and len(path) > 1 and (second in self._names or first not in self._names)

    def without(self, text: str) -> str:
        """`qualifier.column` as `column`."""
        tokens = statement_tokens(text)
        names = [token.name for token in tokens]
        pieces, position = [], 0
        for i, (token, dot) in enumerate(pairwise(tokens)):
            is_name = token.kind in ("word", "quoted") and dot.text == "." and (not i or names[i - 1] != ".")
            if is_name and self.begins([names[i], *names[i + 2 : i + 3]]):
                pieces.append(text[position : token.start])
                position = dot.end
        return "".join([*pieces, text[position:]])


def merge(cursor: Cursor, session: Session) -> Statement:
    """MERGE [WITH SCHEMA EVOLUTION] INTO t [AS a] USING source [AS b] ON condition WHEN …."""
    begin = cursor.read("MERGE [evolves: WITH SCHEMA EVOLUTION] INTO {table table} {alias alias} USING")
    schema_mode = "merge" if begin["evolves"] else None
    target_alias = begin["alias"] or begin["table"].short
    source: Source | Query
    if cursor.at("("):
        text = query_in_parentheses(cursor, session)
        source_alias = cursor.alias("ON")
        if cursor.at("("):
            names = ", ".join(map(session.quoted, cursor.listed(cursor.name)))
            text = f"SELECT * FROM ({text}\n) AS {session.quoted(source_alias or 'source')} ({names})"
        source = parse_query(Cursor(text), session)
    else:
        source = versioned(cursor)
        source_alias = cursor.alias("ON") or source.table.short
    condition = cursor.read("ON {text condition} WHEN")["condition"]
    clauses = [_clause(cursor)]
    while cursor.take("WHEN"):
        clauses.append(_clause(cursor))
    cursor.end()

    def run(session: Session) -> object:
        engine, table = session.engine(), session.target(begin["table"])
        options = options_of_commit(source, session, table)
        rows: object = source.value(session) if isinstance(source, Source) else None
        if isinstance(source, Query):
            rows = source.relation(session, engine, defines_columns=schema_mode is not None)
        ours = target_alias or free_name("target", [source_alias or ""])
        builder = table.merge(
            rows,
            condition,
            source_alias=source_alias or free_name("source", [ours]),
            target_alias=ours,
            engine=engine,
            schema_mode=schema_mode,
            **options,
        )
        for clause in clauses:
            builder = clause(builder)
        return builder.execute()

    return run


_CLAUSES = {
    "MATCHED [AND {text condition}] THEN DELETE": "when_matched_delete",
    "MATCHED [AND {text condition}] THEN UPDATE SET * [EXCEPT {columns except_columns}]": "when_matched_update_all",
    "MATCHED [AND {text condition}] THEN UPDATE SET {assignments set}": "when_matched_update",
    "NOT MATCHED BY SOURCE [AND {text condition}] THEN DELETE": "when_not_matched_by_source_delete",
    "NOT MATCHED BY SOURCE [AND {text condition}] THEN UPDATE SET {assignments set}": (
        "when_not_matched_by_source_update"
    ),
    "NOT MATCHED [BY TARGET] [AND {text condition}] THEN INSERT * [EXCEPT {columns except_columns}]": (
        "when_not_matched_insert_all"
    ),
    "NOT MATCHED [BY TARGET] [AND {text condition}] THEN INSERT {paths columns} VALUES {values values}": (
        "when_not_matched_insert"
    ),
}
"""The clauses after WHEN, and the method of `Merge` for each. The arguments of both have the same names."""


def _clause(cursor: Cursor) -> Callable[[Merge], Merge]:
    """A clause of MERGE, after its WHEN."""
    method, arguments = cursor.first_of(_CLAUSES, stops=("WHEN",))
    if "columns" in arguments:
        arguments["values"] = _inserted(arguments.pop("columns"), arguments["values"])
    for name in {"set", "values"} & arguments.keys():
        arguments[name] = {quote_path(column.path): value for column, value in arguments[name].items()}
    return methodcaller(method, **{name: value for name, value in arguments.items() if value is not None})


def _inserted(columns: Sequence[Column], values: Sequence[str]) -> dict[Column, str]:
    if len(values) != len(columns):
        raise InvalidRequestError(f"{len(values)} values are given for {len(columns)} columns", remedy="Give one each")
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("A column is inserted twice", remedy="Name each column once")
    return dict(zip(columns, values, strict=True))
