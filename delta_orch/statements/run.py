"""`delta_orch.sql`: one statement, a query for the engine or a call of a verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.clock import one_moment
from delta_orch.log.write.commit_options import CommitOptions, ensure_options
from delta_orch.statements import describe, inserts, rows, tables
from delta_orch.statements.cursor import Cursor, Token
from delta_orch.statements.queries import BEGIN_QUERY, parse_query
from delta_orch.statements.rows import Statement
from delta_orch.statements.session import Session, unsupported


def sql(
    text: str,
    *,
    engine: EngineChoice = "auto",
    tables: Mapping[str, object] | None = None,
    storage_options: Mapping[str, object] | None = None,
    **options: Unpack[CommitOptions],
) -> object:
    """Run one statement of SQL on Delta tables.

    A query is in the engine's own SQL: DuckDB's in process, Spark's on Spark. All else is Spark SQL that means the same
    on both engines: docs/sql.md lists it, and other statements are refused by name before anything is read.

        delta_orch.sql("UPDATE flights SET delay = 0 WHERE delay IS NULL", tables={"flights": table})
        delta_orch.sql("SELECT count(*) AS n FROM delta.`/data/flights` VERSION AS OF 3")

    Args:
        text: The statement. A table is delta.`path`, or a name in `tables`.
        engine: `auto` (Spark where a Spark DataFrame is among the tables, else local), `local`, `spark`, or an engine.
        tables: By name, without regard to case: a `DeltaTable` or its location; to read from, also a snapshot, or data
            as `append` takes it.
        storage_options: Of the stores of all tables that the statement names by their location.
        options: `CommitOptions`, for statements that commit.

    Returns: For SELECT the rows: an Arrow table, on Spark a DataFrame. For DESCRIBE and SHOW an Arrow table. Otherwise
        what the verb returns: a `CommitResult`, for VACUUM a `VacuumResult`, for EXPLAIN a `ScanExplanation`.

    Raises:
        InvalidRequestError: The text is not one statement, or it names an unknown table. Nothing was read or changed.
        UnsupportedExpressionError: A part of it is not supported. Nothing was read or changed.
        DeltaError: As the verb that the statement stands for raises it.
    """
    ensure_options(options, CommitOptions)
    if tables is not None and not (isinstance(tables, Mapping) and all(isinstance(name, str) for name in tables)):
        raise InvalidRequestError("tables must map names to tables", remedy="Write tables={'name': DeltaTable(…)}")
    given = dict(tables or {})
    if len({name.lower() for name in given}) < len(given):
        raise InvalidRequestError("Two table names differ only in case", remedy="Rename one")
    with one_moment():
        session = Session(given, engine, storage_options, options)
        return _parse_statement(text, session)(session)


def _parse_statement(text: str, session: Session) -> Statement:
    """What a statement does. Raises InvalidRequestError, UnsupportedExpressionError: As `sql`."""
    cursor = Cursor(text)
    if cursor.at("WITH"):
        cursor.go_on(of_duckdb=session.engine().name == "local")
        if (moved := _with_inside(text, cursor.tokens)) is not None:
            cursor = Cursor(moved)
    word = cursor.token.word
    if cursor.token.kind == "end":
        raise InvalidRequestError("The statement is empty", remedy="Write one statement of SQL")
    if word in BEGIN_QUERY:
        session.refuse_options("SELECT")
        return parse_query(cursor, session).rows
    match word:
        case "INSERT":
            return inserts.insert(cursor, session)
        case "DELETE":
            return rows.delete(cursor)
        case "UPDATE":
            return rows.update(cursor)
        case "MERGE":
            return rows.merge(cursor, session)
        case "EXPLAIN":
            return rows.explain(cursor, session)
        case "TRUNCATE":
            return rows.truncate(cursor)
        case "CREATE" | "REPLACE":
            return tables.create(cursor, session)
    simple = _SIMPLE.get(word)
    if simple is None:
        raise unsupported(f"The statement {cursor.token.text[:60]!r}")
    return simple(cursor)


def _with_inside(text: str, tokens: list[Token]) -> str | None:
    """`WITH … INSERT | MERGE` with the WITH inside the query that reads from it; None for a query."""
    depth = 0
    query = using = None
    verb: Token | None = None
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if depth or token.kind != "word":
            continue
        if verb is None and token.word in ("SELECT", "INSERT", "MERGE", "DELETE", "UPDATE", "VALUES", "TABLE"):
            verb = token
        elif verb is not None and query is None and token.word in ("SELECT", "VALUES"):
            query = token
        elif verb is not None and using is None and token.word == "USING":
            using = token
    if verb is None or verb.word not in ("INSERT", "MERGE", "DELETE", "UPDATE"):
        return None
    names = text[tokens[0].start : verb.start]
    if verb.word == "INSERT" and query is not None and query.word == "SELECT":
        return f"{text[verb.start : query.start]}{names}{text[query.start :]}"
    if verb.word == "MERGE" and using is not None:
        source = tokens[tokens.index(using) + 1]
        after = tokens[tokens.index(using) + 2]
        if source.kind in ("word", "quoted") and after.text != ".":
            alias = f" AS {source.text}" if after.word == "ON" else ""
            rest = text[source.end :]
            return f"{text[verb.start : using.end]} ({names}SELECT * FROM {source.text}){alias}{rest}"
        if source.text == "(":
            return f"{text[verb.start : source.end]}{names}{text[source.end :]}"
    raise unsupported(f"WITH before {verb.word}", "Write it inside the query, after INSERT INTO t or USING (")


_SIMPLE = {
    "OPTIMIZE": tables.optimize, "REORG": tables.reorg, "VACUUM": tables.vacuum, "RESTORE": tables.restore,
    "DESCRIBE": describe.describe, "DESC": describe.describe, "SHOW": describe.show, "CONVERT": tables.convert,
    "ALTER": tables.alter, "GENERATE": tables.generate, "COMMENT": tables.comment,
    "FSCK": tables.repair,
}  # fmt: skip
