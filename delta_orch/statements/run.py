"""`delta_orch.sql`: one statement, a query for the engine or a call of a verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Unpack, cast

from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.clock import one_moment
from delta_orch.log.write.commit_options import CommitOptions, ensure_options
from delta_orch.statements import describe, inserts, rows, tables
from delta_orch.statements.cursor import Cursor
from delta_orch.statements.queries import BEGIN_QUERY, parse_query
from delta_orch.statements.session import Session, Statement, unsupported

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitResult

_READS: dict[str, Callable[..., object]] = {
    "DESCRIBE|DESC HISTORY {place table} [LIMIT {integer limit}]": describe.history,
    "DESCRIBE|DESC DETAIL {place table}": describe.detail,
    "DESCRIBE|DESC [TABLE] {table table}": describe.columns,
    "SHOW TBLPROPERTIES {table table}": describe.properties,
    "SHOW PARTITIONS {table table}": describe.partitions,
    "GENERATE {name mode} FOR TABLE {table table}": lambda session, mode, table: session.target(table).generate(
        mode.lower()
    ),
}
"""Statements that commit nothing. The function of a pattern gets the session and the pattern's arguments."""

_CHANGES: dict[str, Callable[..., object]] = {
    "DELETE FROM {table table} {alias alias} [WHERE {text where}]": rows.delete,
    "TRUNCATE TABLE {table table}": rows.delete,
    "UPDATE {table table} {alias alias} SET {assignments assigned} [WHERE {text where}]": rows.update,
    "OPTIMIZE {place table} [full: FULL] [WHERE {text where}] [ZORDER BY {columns zorder_by}]": tables.calls(
        "optimize", with_engine=True
    ),
    "REORG TABLE {table table} [WHERE {text where}] APPLY ( PURGE )": tables.calls("purge", with_engine=True),
    "VACUUM {place table} [lite: LITE] [full: FULL] [RETAIN {number hours} HOURS] [dry_run: DRY RUN]": tables.vacuum,
    "RESTORE [TABLE] {table table} [TO] {version version}": tables.restore,
    "FSCK REPAIR TABLE {table table} [dry_run: DRY RUN]": tables.calls("repair"),
    "CONVERT TO DELTA PARQUET . {name path} [PARTITIONED BY {definitions fields}]": tables.convert,
    "COMMENT ON TABLE {table table} IS {comment text}": tables.describe_table,
    **{
        f"ALTER TABLE {{table table}} {parts}": partial(tables.alter, change)
        for parts, change in tables.ALTERATIONS.items()
    },
}
"""Statements that commit. Those that may hold a query are in `_parse_statement`."""

_INSTEAD = {
    "EXPLAIN": "Pass dry_run=True to a DELETE, UPDATE or MERGE; for a query, call scan(where=…).explain()",
    "DROP": "Delete the table's directory",
    "SHOW": "Write DESCRIBE t, SHOW TBLPROPERTIES t or SHOW PARTITIONS t",
}


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
        what the verb returns: a `CommitResult`, for VACUUM a `VacuumResult`.

    Raises:
        InvalidRequestError: The text is not one statement, or it names an unknown table. Nothing was read or changed.
        UnsupportedExpressionError: A part of it is not supported. Nothing was read or changed.
        DeltaError: As the verb that the statement stands for raises it.
    """
    ensure_options(options, CommitOptions)
    if tables is not None and not (isinstance(tables, Mapping) and all(isinstance(name, str) for name in tables)):
        raise InvalidRequestError("tables must map names to tables", remedy="Write tables={'name': DeltaTable(…)}")
    with one_moment():
        session = Session(_named_tables(tables or {}), engine, storage_options, options)
        return _parse_statement(text, session)(session)


def read(
    text: str, open_table: Callable[[str], DeltaTable], storage_options: Mapping[str, object] | None = None
) -> pa.Table:
    """The rows of a statement that only reads, in process: a query, DESCRIBE or SHOW.

    Args:
        text: The statement.
        open_table: The table of a location, delta.`path`, or of a name without dots.
        storage_options: Of tables of a catalog by their names of three parts.

    Raises:
        InvalidRequestError: The statement does something else. Nothing was read or changed.
        DeltaError: As `sql`.
    """
    word = Cursor(text).token.word
    if word not in (*BEGIN_QUERY, "DESCRIBE", "DESC", "SHOW"):
        raise InvalidRequestError(
            f"The statement {word[:60] or text[:60]!r} does not read" if text.strip() else "The statement is empty",
            cause="Only queries, DESCRIBE and SHOW run here: a retry would repeat what changes a table",
            remedy="Change tables in a step of the orchestrator, or by delta_orch.sql",
        )
    with one_moment():
        session = Session({}, "local", storage_options, {}, open_table)
        return cast("pa.Table", _parse_statement(text, session)(session))


_REPLACING: dict[tuple[str, ...], Literal["overwrite", "delete"]] = {
    ("INSERT", "OVERWRITE"): "overwrite",
    ("CREATE", "OR", "REPLACE", "TABLE"): "overwrite",
    ("REPLACE", "TABLE"): "overwrite",
    ("DELETE", "FROM"): "delete",
    ("TRUNCATE", "TABLE"): "delete",
}
"""The first words of statements that leave the same table when they run again, and the mode of each as a step."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A statement that replaces or deletes rows, and may run again.

    Attributes:
        table: The table that it changes.
        mode: As of a step: `overwrite` or `delete`.
        is_whole: It replaces every row.
        run: Runs the statement. Raises as `sql`.
    """

    table: DeltaTable
    mode: Literal["overwrite", "delete"]
    is_whole: bool
    run: Callable[[CommitOptions], CommitResult]


def parse_replacement(
    text: str, tables: Mapping[str, object], storage_options: Mapping[str, object] | None
) -> Replacement:
    """A statement that leaves the same table when it runs again: INSERT OVERWRITE, also with REPLACE WHERE, CREATE OR
    REPLACE TABLE, REPLACE TABLE, DELETE and TRUNCATE.

    Raises:
        InvalidRequestError: It is another statement, or it cannot be read. When it runs: its query reads the table that
            it changes. Nothing was read or changed.
        UnsupportedExpressionError: As `sql`.
    """
    session = Session(_named_tables(tables), "auto", storage_options, {}, runs_again=True)
    _parse_statement(text, session)
    cursor = Cursor(text)
    begin = next((words for words in _REPLACING if cursor.at(*words)), None)
    if begin is None:
        words = " ".join(token.text for token in cursor.tokens[:2])
        raise InvalidRequestError(
            f"A statement that begins with {words[:60]} does not run here",
            cause="Where the orchestrator runs it again, it would add or change rows twice, or it changes no rows",
            remedy="Write INSERT OVERWRITE t [REPLACE WHERE p], CREATE OR REPLACE TABLE t or DELETE FROM t",
        )
    cursor.expect(*begin)
    cursor.take("TABLE")
    table = session.target(cursor.table())
    pairs = list(pairwise(cursor.tokens))
    if "REPLACE" in begin and any(first.word == "LOCATION" and second.kind == "string" for first, second in pairs):
        raise unsupported("LOCATION", "Write delta.`path` as the name of the table")

    def run(options: CommitOptions) -> CommitResult:
        with one_moment():
            with_options = replace(session, options=options)
            return cast("CommitResult", _parse_statement(text, with_options)(with_options))

    mode = _REPLACING[begin]
    is_scoped = any((first.word, second.word) == ("REPLACE", "WHERE") for first, second in pairs)
    return Replacement(table, mode, mode == "overwrite" and not is_scoped, run)


def _named_tables(tables: Mapping[str, object]) -> dict[str, object]:
    """Raises InvalidRequestError: Two names differ only in case."""
    if len({name.lower() for name in tables}) < len(tables):
        raise InvalidRequestError("Two table names differ only in case", remedy="Rename one")
    return dict(tables)


def _parse_statement(text: str, session: Session) -> Statement:
    """The function that runs a statement. Raises InvalidRequestError, UnsupportedExpressionError: As `sql`."""
    cursor = Cursor(text)
    word = cursor.token.word
    if cursor.token.kind == "end":
        raise InvalidRequestError("The statement is empty", remedy="Write one statement of SQL")
    if word in BEGIN_QUERY:
        session.refuse_options("SELECT")
        return parse_query(cursor, session).rows
    match word:
        case "INSERT":
            return inserts.insert(cursor, session)
        case "MERGE":
            return rows.merge(cursor, session)
        case "CREATE" | "REPLACE":
            return tables.create(cursor, session)
    reads, changes = (
        {p: f for p, f in table.items() if word in p.split(" ")[0].split("|")} for table in (_READS, _CHANGES)
    )
    if not reads and not changes:
        raise unsupported(f"The statement {cursor.token.text[:60]!r}", _INSTEAD.get(word))
    call, arguments = cursor.first_of({**reads, **changes})
    if reads:
        session.refuse_options(word)
    return lambda session: call(session, **arguments)
