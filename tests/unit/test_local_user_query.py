"""A user's SELECT in process: DuckDB's own SQL over the tables that it names, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.engines.local.duckdb_query import run_query
from delta_orch.engines.local.duckdb_session import confine, connect
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    DeltaError,
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
    SchemaMismatchError,
    UnsupportedExpressionError,
)

ENGINE = LocalEngine()
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None], "n": [1.5, None, 2.5]})
WORDS = pa.table({"id": [1, 1, 4], "word": ["one", "uno", "four"]})


def run(query: str, **tables: Any) -> list[dict[str, Any]]:
    found: Any = delta_orch.sql(query, tables=tables or {"t": ROWS, "u": WORDS})
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Ten files, one a day and name, of which one has a deletion vector."""
    table = DeltaTable(tmp_path / "t")
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    columns = [("id", pa.int32()), ("day", pa.date32()), ("moment", pa.timestamp("us", "UTC")), ("x", pa.float64()),
               ("name", pa.string()), ("d", pa.decimal128(9, 2)), ("tags", pa.list_(pa.string()))]  # fmt: skip
    schema = pa.schema(columns)
    table.create(schema, partition_by=["day"], properties=properties)
    for i in range(10):
        values = {
            "id": [2 * i, 2 * i + 1],
            "day": [date(2024, 1, i + 1)] * 2,
            "moment": [datetime(2024, 1, i + 1, tzinfo=UTC)] * 2,
            "x": [i / 2, None],
            "name": [f"n{i}", f"n{i}"],
            "d": [Decimal(i), Decimal("0.25")],
            "tags": [["a"], None],
        }
        table.append(pa.table(values, schema))
    table.delete("id = 1")
    table.alter().rename_column("name", "the name").commit()
    return table


# DuckDB's own SQL


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT t.id FROM t WHERE t.id >= 2", [{"id": 2}, {"id": 3}]),
        ("FROM t SELECT id WHERE id = 1", [{"id": 1}]),
        ('SELECT "id" AS "the id" FROM "t" WHERE name = \'a\'', [{"the id": 1}]),
        ("SELECT id FROM t QUALIFY row_number() OVER (ORDER BY id DESC) = 1", [{"id": 3}]),
        ("SELECT quantile_cont(id, 0.5) AS m FROM t", [{"m": 2.0}]),
        ("SELECT '{\"a\": [1, 2]}'::JSON -> 'a' ->> 1 AS j", [{"j": "2"}]),
        ("WITH a AS (FROM t), b AS MATERIALIZED (FROM a) SELECT count(*) AS n FROM a, b, t", [{"n": 27}]),
        ("SELECT id, words FROM t LEFT JOIN (SELECT id, list(word ORDER BY word) AS words FROM u GROUP BY ALL) "
         "USING (id) WHERE id < 3 ORDER BY id", [{"id": 1, "words": ["one", "uno"]}, {"id": 2, "words": None}]),
        ("SELECT id FROM t EXCEPT SELECT id FROM u ORDER BY ALL", [{"id": 2}, {"id": 3}]),
        ("SELECT id FROM (t SEMI JOIN u USING (id))", [{"id": 1}]),
        ("SELECT (SELECT max(word) FROM u WHERE u.id = t.id) AS w FROM t ORDER BY id LIMIT 1", [{"w": "uno"}]),
        ("SELECT t FROM t WHERE id = 1", [{"t": {"id": 1, "name": "a", "n": 1.5}}]),
        ("SELECT COLUMNS('^n$') FROM t ORDER BY id LIMIT 1", [{"n": 1.5}]),
        ("SELECT * FROM t NATURAL JOIN u ORDER BY word LIMIT 1", [{"id": 1, "name": "a", "n": 1.5, "word": "one"}]),
        ("SELECT * FROM (FROM t) PIVOT (max(n) FOR name IN ('a')) WHERE id = 1", [{"id": 1, "a": 1.5}]),
        ("SELECT extract(year FROM DATE '2024-01-02') AS y, 1 IS DISTINCT FROM 2 AS d", [{"y": 2024, "d": True}]),
        ("SELECT $$it's$$ AS s, E'a\\'b' AS e, 'C:\\' AS c -- FROM nowhere", [{"s": "it's", "e": "a'b", "c": "C:\\"}]),
        ("WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT max(i) AS i FROM r",
         [{"i": 3}]),
        ("SELECT i FROM range(2) AS r(i), unnest([7]) AS u(j);", [{"i": 0}, {"i": 1}]),
        ("VALUES (1, 'a')", [{"col0": 1, "col1": "a"}]),
        ("SELECT 1 AS a UNION ALL BY NAME SELECT 2 AS b", [{"a": 1, "b": None}, {"a": None, "b": 2}]),
        ("SELECT now() - now() = INTERVAL 0 DAY AS same", [{"same": True}]),
        ("SELECT TIMESTAMPTZ '2024-01-01 00:00:00'::VARCHAR AS at", [{"at": "2024-01-01 00:00:00+00"}]),
    ],
)  # fmt: skip
def test_the_query_is_duckdbs(query: str, expected: list[dict[str, Any]]) -> None:
    assert run(query) == expected


def test_two_columns_of_one_name_are_read_and_not_written(tmp_path: Path) -> None:
    query = "SELECT t.id, u.id FROM t JOIN u ON t.id = u.id"
    found: Any = delta_orch.sql(query, tables={"t": ROWS, "u": WORDS})
    assert found.column_names == ["id", "id"] and found.num_rows == 2
    with pytest.raises(InvalidExpressionError, match="same name"):
        delta_orch.sql(f"CREATE TABLE delta.`{tmp_path}/n` AS {query}", tables={"t": ROWS, "u": WORDS})


def test_rows_to_write_have_types_of_tables(tmp_path: Path) -> None:
    delta_orch.sql(f"CREATE TABLE delta.`{tmp_path}/s` AS SELECT sum(id) AS s FROM t", tables={"t": ROWS})
    table = DeltaTable(tmp_path / "s")
    assert str(table.snapshot().schema.find("s").data_type) == "long"  # type: ignore[union-attr]
    with pytest.raises(DeltaError):
        delta_orch.sql("INSERT INTO s SELECT sum(i) FROM x",
                       tables={"s": table, "x": pa.table({"i": [2**63 - 1, 1]})})  # fmt: skip
    with pytest.raises(SchemaMismatchError):
        delta_orch.sql(f"CREATE TABLE delta.`{tmp_path}/i` AS SELECT INTERVAL 1 DAY AS i")
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"s": 6}]


@pytest.mark.parametrize("query", ["SELECT count(*) AS n FROM t",
                                   "SELECT count(*) AS n FROM t a JOIN t b ON a.id = b.id",
                                   "WITH q AS (FROM t) SELECT count(*) AS n FROM q a JOIN q b USING (id)",
                                   "SELECT count(*) AS n FROM t WHERE id <= (SELECT max(id) FROM t)"])  # fmt: skip
def test_a_stream_may_stand_in_a_query_several_times(query: str) -> None:
    assert run(query, t=ROWS.to_reader()) == [{"n": 3}]


# What a query must not do


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_csv_auto('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM READ_PARQUET('{file}')",
        "SELECT * FROM parquet_scan('{file}')",
        "SELECT * FROM parquet_metadata('{file}')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('t')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM pragma_version()",
        "SELECT id FROM t WHERE id IN (SELECT 1 FROM read_text('/etc/passwd'))",
        "WITH q AS (FROM read_text('/etc/passwd')) FROM t",
        "SELECT * FROM t, LATERAL (FROM glob('/' || t.name))",
    ],
)
def test_table_functions_are_those_of_an_allow_list(table: DeltaTable, tmp_path: Path, query: str) -> None:
    file = next(tmp_path.rglob("*.parquet"))
    with pytest.raises(UnsupportedExpressionError, match="table function"):
        run(query.replace("{file}", str(file)), t=table)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM '{file}'",
        'SELECT * FROM "{file}"',
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM duckdb_secrets",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM nowhere",
        "SELECT * FROM main.t",
        "SELECT * FROM hidden",
    ],
)
def test_relations_are_those_that_are_given(table: DeltaTable, tmp_path: Path, query: str) -> None:
    hidden = pa.table({"a": [1]})
    file = next(tmp_path.rglob("*.parquet"))
    with pytest.raises(InvalidExpressionError, match="There is no relation"):
        run(query.replace("{file}", str(file)), t=table)
    assert hidden.num_rows == 1


@pytest.mark.parametrize(
    "text",
    [
        "COPY t TO '{out}'", "COPY (SELECT 1) TO '{out}'", "ATTACH '{out}' AS x", "INSTALL httpfs", "LOAD httpfs",
        "PRAGMA database_list", "SET threads = 1", "RESET threads", "EXPORT DATABASE '{out}'", "CALL pragma_version()",
        "CREATE VIEW v AS SELECT 1", "CHECKPOINT", "EXPLAIN SELECT 1", "SELECT 1; COPY t TO '{out}'", "USE x",
        "WITH q AS (SELECT 1) COPY q TO '{out}'", "SUMMARIZE t", "PIVOT t ON name", "SELECT 1; SELECT 2",
    ],
)  # fmt: skip
def test_a_text_is_one_select(tmp_path: Path, text: str) -> None:
    text = text.replace("{out}", str(tmp_path / "out"))
    with pytest.raises((UnsupportedExpressionError, InvalidRequestError)):
        run(text)
    # The engine itself, to which Airflow's operators hand a text, does not depend on what was checked before.
    relations = {"t": ENGINE.relation(ROWS)}
    if not text.startswith("SUMMARIZE"):
        with pytest.raises((UnsupportedExpressionError, InvalidExpressionError)):
            ENGINE.select(text, relations)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_text('/etc/passwd')", "COPY (SELECT 1) TO '{out}'", "INSTALL httpfs", "LOAD httpfs",
        "ATTACH '{out}'", "SET threads = 4", "SET enable_external_access = true",
    ],
)  # fmt: skip
def test_the_database_itself_is_confined(tmp_path: Path, text: str) -> None:
    """Whatever the syntax tree of a query did not show."""
    with closing(connect()) as connection:
        confine(connection, [])
        with pytest.raises(duckdb.Error):
            connection.execute(text.replace("{out}", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("SELECT nope FROM t", "nope"),
        ("SELECT id FROM t, u", "[Aa]mbiguous"),
        ("SELECT id, count(*) FROM t", "GROUP BY"),
        ("SELECT id FROM t WHERE sum(id) > 1", "aggregate"),
        ("SELECT no_such_function(id) FROM t", "no_such_function"),
        ("SELECT id + FROM t", "syntax error"),
        ("SELECT 'x'::INT AS i", "Could not convert"),
        ("SELECT error('boom') FROM t", "boom"),
        ("SELECT ? AS p", "[Pp]arameter"),
    ],
)
def test_what_duckdb_refuses_is_our_error_with_its_words(query: str, cause: str) -> None:
    with pytest.raises(InvalidExpressionError) as refused:
        run(query)
    assert re.search(cause, str(refused.value.context.get("cause", refused.value)))
    assert "DuckDB's SQL" in str(refused.value)


def test_a_file_that_is_gone_is_named(table: DeltaTable, tmp_path: Path) -> None:
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(MissingFileError):
        run("SELECT count(*) FROM t", t=table)


# Which files and columns are read


def files_read(table: DeltaTable, query: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many files a query has to open: those of the relations that it is run over."""
    import delta_orch.engines.local.user_query as module

    counts: list[int] = []
    original = run_query

    def counted(query: Any, connection: Any) -> Any:
        plans = [used.relation.plan for used in query.inputs.values()]
        counts.append(sum(plan.files.num_rows for plan in plans if plan is not None))
        return original(query, connection)

    monkeypatch.setattr(module, "run_query", counted)
    delta_orch.sql(query, tables={"t": table, "u": WORDS})
    (count,) = counts
    return count


@pytest.mark.parametrize(
    ("query", "files"),
    [
        ("SELECT id FROM t", 10),
        ("SELECT id FROM t WHERE day = '2024-01-03'", 1),
        ("SELECT id FROM t WHERE day = DATE '2024-01-03' AND tags IS NULL", 1),
        ("SELECT id FROM t AS x WHERE '2024-01-09' <= x.day", 2),
        ("SELECT id FROM t WHERE id BETWEEN 4 AND 7", 2),
        ("SELECT id FROM t WHERE id IN (0, 19)", 2),
        ("SELECT id FROM t WHERE id = 3 OR id = 18", 2),
        ('SELECT id FROM t WHERE id = 3 OR length("the name") = 2', 10),
        ("SELECT id FROM t WHERE id < 2 AND hash(id) % 2 = 0", 1),
        ("SELECT id FROM t WHERE \"the name\" = 'n4'", 1),
        ("SELECT id FROM t WHERE moment = '2024-01-03 00:00:00'", 1),
        ("SELECT id FROM t WHERE d > 8.5", 1),
        ("SELECT id FROM t WHERE x < 0.4", 1),
        ("SELECT id FROM t WHERE NOT day = '2024-01-03'", 10),
        ("WITH q AS (FROM t WHERE day > '2024-01-08') SELECT id FROM q a JOIN q b USING (id)", 2),
        ("SELECT t.id FROM t JOIN u ON t.id = u.id WHERE t.day = '2024-01-01'", 1),
        ("SELECT u.id FROM u LEFT JOIN t ON t.id = u.id WHERE t.day IS NULL", 10),
        ("SELECT u.id FROM t RIGHT JOIN u ON t.id = u.id WHERE t.id = 1", 10),
        ("SELECT a.id FROM t a JOIN t b ON a.id = b.id WHERE a.day = '2024-01-01' AND b.day = '2024-01-02'", 2),
        ("SELECT a.id FROM t a JOIN t b ON a.id = b.id WHERE a.day = '2024-01-01'", 10),
        ("SELECT id FROM t WHERE day = '2024-01-01' UNION ALL SELECT id FROM t WHERE id = 4", 2),
        ("SELECT v FROM t AS x(day, v) WHERE day = 1", 10),
        ("SELECT id AS day FROM t WHERE day = '2024-01-01'", 1),
    ],
)
def test_the_log_rules_out_files(table: DeltaTable, query: str, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files_read(table, query, monkeypatch) == files


QUERIES = [
    "SELECT * FROM t WHERE day IN ('2024-01-01', '2024-01-02', '2024-01-10') ORDER BY id",
    "SELECT id, x FROM t WHERE x >= 0.5 OR id = 0 ORDER BY id",
    "SELECT count(*) AS n FROM t",
    "SELECT sum(a.id) AS s FROM t a LEFT JOIN t b ON a.id = b.id + 1 WHERE a.day < '2024-01-04' AND b.id IS NULL",
    'SELECT "the name" AS n, max(tags) AS t FROM t WHERE d <> 0.25 GROUP BY ALL ORDER BY n',
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_rows_are_those_of_the_whole_table(table: DeltaTable, query: str) -> None:
    """DuckDB's own answer over all rows in memory, as the scan reads them."""
    assert run(query, t=table) == run(query, t=table.snapshot().scan().to_arrow())
    assert run(query, t=table.snapshot()) == run(query, t=table)


_INTERRUPTED = """
import os, signal, sys, delta_orch, pyarrow as pa
signal.signal(signal.SIGINT, signal.default_int_handler)
def batches():
    for i in range(50):
        if i == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGINT)
        yield pa.record_batch({"id": list(range(i * 10_000, i * 10_000 + 10_000))})
rows = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
try:
    delta_orch.sql("SELECT id % 7 AS k, count(*) AS n FROM rows GROUP BY id % 7", tables={"rows": rows})
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("batch", [1, 5, 30])
def test_an_interrupted_query_is_a_keyboard_interrupt(batch: int) -> None:
    """DuckDB makes a RuntimeError of it, or text where it comes while rows are read for DuckDB."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(batch)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "interrupted\n"
