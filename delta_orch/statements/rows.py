"""DELETE, UPDATE and MERGE, as calls of the verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.schema_edit import quote_path
from delta_orch.statements.cursor import Cursor, tokens_of
from delta_orch.statements.queries import Query, Source, options_of_commit, parse_query, query_in_parentheses, versioned
from delta_orch.statements.session import Session, table_name, unsupported

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.scan.explain import ScanExplanation
    from delta_orch.verbs.merge.clauses import Merge

_COMPUTED = (CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START)

Statement = Callable[[Session], object]


def values(cursor: Cursor) -> list[list[str]]:
    """`(a, b), (c, d)` as texts."""
    return cursor.each(lambda: cursor.listed(lambda: cursor.text_until(",", ")")))


def ensure_count(given: int, expected: int) -> None:
    if given != expected:
        raise InvalidRequestError(
            f"{given} values are given for {expected} columns",
            remedy="Give one for each column, or list the columns after the table",
        )


def explain(cursor: Cursor, session: Session) -> Statement:
    """EXPLAIN DELETE | UPDATE | MERGE …: what the statement would open."""
    cursor.expect("EXPLAIN")
    match cursor.token.word:
        case "DELETE":
            statement = delete(cursor, explains=True)
        case "UPDATE":
            statement = update(cursor, explains=True)
        case "MERGE":
            statement = merge(cursor, session, explains=True)
        case other:
            raise unsupported(f"EXPLAIN {other}", "For a query, call scan(where=…).explain()")

    def run(session: Session) -> object:
        session.refuse_options("EXPLAIN")
        return statement(session)

    return run


def delete(cursor: Cursor, *, explains: bool = False) -> Statement:
    """DELETE FROM t [[AS] a] [WHERE p]."""
    cursor.expect("DELETE", "FROM")
    name = table_name(cursor)
    qualifier = _alias(cursor, "WHERE") or name.short
    where = cursor.text_until() if cursor.take("WHERE") else None
    cursor.end()

    def run(session: Session) -> object:
        table = session.target(name)
        found = None if where is None else _Qualified(qualifier, table).without(where)
        return _explained(table, found) if explains else table.delete(found, engine=session.choice, **session.options)

    return run


def _explained(table: DeltaTable, where: str | None) -> ScanExplanation:
    return table.snapshot().scan(where=where).explain(row_groups=True)


def truncate(cursor: Cursor) -> Statement:
    """TRUNCATE TABLE t."""
    cursor.expect("TRUNCATE", "TABLE")
    name = table_name(cursor)
    if cursor.at("PARTITION"):
        raise unsupported("TRUNCATE … PARTITION", "Write DELETE FROM … WHERE")
    cursor.end()
    return lambda session: session.target(name).delete(engine=session.choice, **session.options)


def update(cursor: Cursor, *, explains: bool = False) -> Statement:
    """UPDATE t [[AS] a] SET a = v, … [WHERE p]."""
    cursor.expect("UPDATE")
    name = table_name(cursor)
    qualifier = _alias(cursor, "SET") or name.short
    cursor.expect("SET")
    written = _assignments(cursor, "WHERE")
    where = cursor.text_until() if cursor.take("WHERE") else None
    cursor.end()

    def run(session: Session) -> object:
        table = session.target(name)
        qualified = _Qualified(qualifier, table)
        found = None if where is None else qualified.without(where)
        if explains:
            return _explained(table, found)
        assigned: dict[str, str] = {}
        for column, value in written.items():
            path = column.path[qualified.begins(column.path) :]
            if quote_path(path) in assigned:
                raise InvalidRequestError(
                    f"The column {'.'.join(path)[:200]} is assigned twice", remedy="Assign it once"
                )
            assigned[quote_path(path)] = qualified.without(value)
        return table.update(assigned, found, engine=session.choice, **session.options)

    return run


class _Qualified:
    """Names of columns with the table's name before them: verbs of one table know no other name for it."""

    def __init__(self, qualifier: str | None, table: DeltaTable) -> None:
        self._qualifier = None if qualifier is None else qualifier.lower()
        self._names = {name.lower() for name in table.snapshot().schema.names} if qualifier else set()

    def begins(self, path: Sequence[str]) -> bool:
        """Whether a path begins with the table's name. A column that is called so, too, is meant where the table has
        no column of the second name, as in Spark."""
        first, second = (name.lower() for name in (*path, "", "")[:2])
        return first == self._qualifier and len(path) > 1 and (second in self._names or first not in self._names)

    def without(self, text: str) -> str:
        """`qualifier.column` as `column`."""
        tokens = tokens_of(text)
        names = [t.text[1:-1].replace("``", "`") if t.kind == "quoted" else t.text for t in tokens]
        pieces, position = [], 0
        for i, (token, dot) in enumerate(pairwise(tokens)):
            is_name = token.kind in ("word", "quoted") and dot.text == "." and (not i or names[i - 1] != ".")
            if is_name and self.begins([names[i], *names[i + 2 : i + 3]]):
                pieces.append(text[position : token.start])
                position = dot.end
        return "".join([*pieces, text[position:]])


def parse_assignments(text: str) -> dict[Any, str]:
    """`a = value, b.c = value`, each column as a node. Raises InvalidRequestError."""
    cursor = Cursor(text)
    found = _assignments(cursor)
    cursor.end()
    return found


def _assignments(cursor: Cursor, *stops: str) -> dict[Any, str]:
    # The verbs take columns as nodes, too, which no name can break.
    found: dict[Any, str] = {}

    def take_one() -> None:
        column = Column(tuple(cursor.path()))
        cursor.expect("=")
        if column in found:
            raise InvalidRequestError(
                f"The column {'.'.join(column.path)[:200]} is assigned twice", remedy="Assign it once"
            )
        found[column] = cursor.text_until(",", *stops)

    cursor.each(take_one)
    return found


def merge(cursor: Cursor, session: Session, *, explains: bool = False) -> Statement:
    """MERGE [WITH SCHEMA EVOLUTION] INTO t [AS a] USING source [AS b] ON condition WHEN …."""
    cursor.expect("MERGE")
    schema_mode = "merge" if cursor.take("WITH", "SCHEMA", "EVOLUTION") else None
    cursor.expect("INTO")
    name = table_name(cursor)
    target_alias = _alias(cursor, "USING") or name.short
    cursor.expect("USING")
    source: Source | Query
    if cursor.take("("):
        text = query_in_parentheses(cursor, session)
        source_alias = _alias(cursor, "ON")
        if cursor.at("("):
            names = ", ".join(map(session.quoted, cursor.listed(cursor.name)))
            text = f"SELECT * FROM ({text}\n) AS {session.quoted(source_alias or 'source')} ({names})"
        source = parse_query(Cursor(text), session)
    else:
        source = versioned(cursor)
        source_alias = _alias(cursor, "ON") or source.table.short
    cursor.expect("ON")
    condition = cursor.text_until("WHEN")
    clauses: list[Callable[[Merge], Merge]] = []
    while cursor.take("WHEN"):
        clauses.append(_clause(cursor))
    if not clauses:
        cursor.refuse("WHEN is missing")
    cursor.end()

    def run(session: Session) -> object:
        engine, table = session.engine(), session.target(name)
        options = options_of_commit(source, session, table)
        rows: object = source.given(session) if isinstance(source, Source) else None
        if isinstance(source, Query):
            rows = source.relation(session, engine, defines_columns=schema_mode is not None)
        ours, theirs = side_names(target_alias, source_alias)
        builder = table.merge(
            rows,
            condition,
            source_alias=theirs,
            target_alias=ours,
            engine=engine,
            schema_mode=schema_mode,
            **options,
        )
        for clause in clauses:
            builder = clause(builder)
        return builder.explain() if explains else builder.execute()

    return run


def side_names(target: str | None, source: str | None) -> tuple[str, str]:
    """What a merge calls its sides, where the statement has no name for one."""
    ours = target or free_name("target", [source or ""])
    return ours, source or free_name("source", [ours])


def _alias(cursor: Cursor, following: str) -> str | None:
    if cursor.take("AS"):
        return cursor.name()
    return None if cursor.at(following) or cursor.token.kind not in ("word", "quoted") else cursor.name()


def parse_merge_clause(text: str) -> Callable[[Merge], Merge]:
    """A clause of MERGE, with or without its WHEN. Raises InvalidRequestError."""
    cursor = Cursor(text)
    cursor.take("WHEN")
    found = _clause(cursor)
    cursor.end()
    return found


def _except(cursor: Cursor) -> list[str]:
    return cursor.names() if cursor.take("EXCEPT") else []


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
            left = _except(cursor)
            return lambda merge: merge.when_matched_update_all(condition, left)
        assigned = {quote_path(column.path): value for column, value in _assignments(cursor, "WHEN").items()}
        if by_source:
            return lambda merge: merge.when_not_matched_by_source_update(assigned, condition)
        return lambda merge: merge.when_matched_update(assigned, condition)
    cursor.expect("INSERT")
    if cursor.take("*"):
        left = _except(cursor)
        return lambda merge: merge.when_not_matched_insert_all(condition, left)
    columns = cursor.listed(lambda: Column(tuple(cursor.path())))
    cursor.expect("VALUES")
    (listed,) = values(cursor)
    ensure_count(len(listed), len(columns))
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("A column is inserted twice", remedy="Name each column once")
    inserted = {quote_path(column.path): value for column, value in zip(columns, listed, strict=True)}
    return lambda merge: merge.when_not_matched_insert(inserted, condition)
