"""Queries of the local engine without a Spark beside it; that they mean the same is proven in tests/property."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.sql_query import translate_query
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    MissingFileError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.storage.open import open_store

ENGINE = LocalEngine()
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None], "n": [1.5, None, 2.5]})
WORDS = pa.table({"id": [1, 1, 4], "word": ["one", "uno", "four"]})


def run(query: str, **relations: Any) -> list[dict[str, Any]]:
    named = relations or {"t": ROWS, "u": WORDS}
    relation = ENGINE.sql(query, {name: ENGINE.relation(value) for name, value in named.items()})
    rows: list[dict[str, Any]] = ENGINE.to_arrow(relation).to_pylist()
    return rows


def filtered(where: str) -> list[dict[str, Any]]:
    rows = ENGINE.relation(ROWS)
    found: list[dict[str, Any]] = ENGINE.to_arrow(
        ENGINE.filter(rows, resolve_expression(parse_expression(where), rows.schema))
    ).to_pylist()
    return found


def test_a_filter_runs_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)  # an import of it fails
    assert [row["id"] for row in filtered("ID >= 2 AND NOT (name <=> 'b')")] == [3]
    assert [row["id"] for row in filtered("NOT ((id >= 2) <=> TRUE)")] == [1]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("SELECT * FROM t WHERE t.id >= 2", [2, 3]),
        ("SELECT * FROM t AS x WHERE x.id >= 2", [2, 3]),
        ("SELECT * FROM t WHERE length(name) = 1", [1, 2]),
        ("SELECT * FROM t WHERE id >= 2 ORDER BY id DESC", [3, 2]),
        ("SELECT * FROM t WHERE id >= 1 ORDER BY id LIMIT 1", [1]),
        ("SELECT id FROM t WHERE id > 1 ORDER BY 1 + id", None),
        ("SELECT DISTINCT id FROM t WHERE id > 2", [3]),
        ("SELECT id FROM t GROUP BY id HAVING count(*) > (SELECT 0 AS n) AND id > 2", [3]),
        ("SELECT count(DISTINCT id, name) AS id FROM t WHERE id < 3 LIMIT ALL", [2]),
    ],
)
def test_filters_that_need_more(query: str, ids: list[int] | None) -> None:
    if ids is None:
        assert sorted(row["id"] for row in run(query)) == [2, 3]
    else:
        assert [row["id"] for row in run(query)] == ids


def test_a_stream_is_read_once_by_a_query() -> None:
    assert run("SELECT count(*) AS n FROM t", t=ROWS.to_reader()) == [{"n": 3}]


def test_a_relation_that_stands_twice_is_read_twice() -> None:
    query = "WITH q AS (SELECT id FROM t) SELECT count(*) AS n FROM q a JOIN q b ON a.id = b.id"
    assert run(query) == [{"n": 3}]
    assert translate_query(query, {"t": ENGINE.relation(ROWS)}).inputs.keys() == {"input_0", "input_1"}


def test_names_that_are_hard_to_quote() -> None:
    rows = pa.table({'q"q': [1], "b`q": [2], "d.t": [3], "select": [4]})
    query = 'SELECT `q"q` AS `out"x`, `b``q` + 1L AS p, `d.t`, `r"r`.`select` FROM `r"r`'
    assert run(query, **{'r"r': rows}) == [{'out"x': 1, "p": 3, "d.t": 3, "select": 4}]


def test_strings_that_are_hard_to_quote() -> None:
    rows = pa.table({"s": ["it's", "\\", "\0", '"', "-- ; /*"]})
    for text in rows.column("s").to_pylist():
        written = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
        assert run(f"SELECT count(*) AS n FROM t WHERE concat(s, '') = '{written}'", t=rows) == [{"n": 1}]


def test_only_the_columns_used_are_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    relation = ENGINE.relation(ROWS)
    adds = ENGINE.write(relation, WriteSpec(store, relation.schema, ()))
    scan = ENGINE.scan(ScanPlan(store, relation.schema, (), adds))
    for query, columns in (
        ("SELECT count(*) AS c FROM t", set()),
        ("SELECT t.id AS i FROM t WHERE length(name) = 1", {"id", "name"}),
        ("SELECT * FROM t ORDER BY id", {"id", "name", "n"}),
        ("SELECT a.id AS i FROM (SELECT id FROM t) a", {"id"}),
    ):
        translated = translate_query(query, {"t": relation})
        assert [used.columns for used in translated.inputs.values()] == [columns]
        assert ENGINE.to_arrow(ENGINE.sql(query, {"t": scan})).num_rows in (1, 2, 3)
    assert ENGINE.to_arrow(ENGINE.sql("SELECT count(*) AS c FROM t", {"t": scan})).to_pylist() == [{"c": 3}]


def test_our_own_errors_pass_through_duckdb(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    relation = ENGINE.relation(ROWS)
    adds = ENGINE.write(relation, WriteSpec(store, relation.schema, ()))
    scan = ENGINE.scan(ScanPlan(store, relation.schema, (), adds))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(MissingFileError):
        ENGINE.to_arrow(ENGINE.sql("SELECT count(*) AS c FROM t", {"t": scan}))


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("SELEC 1", InvalidExpressionError, "Cannot read the query"),
        ("SELECT (", InvalidExpressionError, "Cannot read the query"),
        ("", InvalidExpressionError, "Cannot read the query"),
        ("SELECT * FROM nowhere", InvalidExpressionError, "no relation 'nowhere'"),
        ("SELECT * FROM read_parquet('x')", UnsupportedExpressionError, "parquet"),
        ("SELECT * FROM db.t", UnsupportedExpressionError, "db"),
        ("SELECT nope FROM t", ColumnNotFoundError, "nope"),
        ("SELECT nmae FROM t", ColumnNotFoundError, "Did you mean name"),
        ("SELECT id FROM t, u", InvalidExpressionError, "ambiguous"),
        ("SELECT * FROM t, u", InvalidExpressionError, "same name"),
        ("SELECT * FROM t, t", InvalidExpressionError, "called 't'"),
        ("SELECT name LIKE 'a%' FROM t", UnsupportedExpressionError, "without a name"),
        ("SELECT rank() OVER w AS r FROM t WINDOW W AS (ORDER BY id)", InvalidExpressionError, "no window 'w'"),
        ("SELECT * FROM VALUES (1, 2), (3)", InvalidExpressionError, "different numbers of columns"),
        ("SELECT * FROM VALUES (id)", ColumnNotFoundError, "id"),
        ("SELECT a FROM t AS x(a, b)", InvalidExpressionError, "2 names stand for 3 columns"),
        ("SELECT id FROM t WHERE id", InvalidExpressionError, "not a predicate"),
        ("SELECT id FROM t WHERE NULL", InvalidExpressionError, "not a predicate"),
        ("SELECT CASE WHEN NULL THEN 1 END AS c FROM t", InvalidExpressionError, "not a predicate"),
        ("SELECT concat(NULL, array(id)) AS c FROM t", UnsupportedExpressionError, "concat of an array and NULL"),
        ("SELECT id FROM t WHERE id IN (SELECT * FROM u)", InvalidExpressionError, "one value has 2 columns"),
        ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t AS T WHERE t.name = u.word)", ColumnNotFoundError, "u"),
        (
            "SELECT a.id FROM t a WHERE EXISTS (SELECT 1 FROM u WHERE EXISTS (SELECT 1 FROM u a WHERE n = 1))",
            UnsupportedExpressionError,
            "called 'a'",
        ),
        ("SELECT id FROM t WHERE id = (SELECT id FROM u)", InvalidExpressionError, "[Mm]ore than one row"),
        ("SELECT id FROM t JOIN u USING (name)", ColumnNotFoundError, "name"),
        ("SELECT u.* FROM t JOIN u USING (id)", UnsupportedExpressionError, r"u\.\* beside USING"),
        ("SELECT id FROM t LATERAL VIEW explode(name) x AS y", UnsupportedExpressionError, "Spark engine"),
        ("SELECT id FROM t TABLESAMPLE (1 ROWS)", UnsupportedExpressionError, "Spark engine"),
        ("SELECT id FROM t OFFSET id", UnsupportedExpressionError, "OFFSET with anything but a number"),
        ("SELECT id FROM t WHERE row_number() OVER (ORDER BY id) = 1", UnsupportedExpressionError, "row_number"),
        ("SELECT id FROM t ORDER BY rank() OVER (ORDER BY id)", UnsupportedExpressionError, "rank"),
        ("SELECT min(id) OVER (PARTITION BY 1 / id) AS m FROM t", UnsupportedExpressionError, "query in FROM"),
        ("SELECT id FROM t EXCEPT SELECT id, word FROM u", InvalidExpressionError, "EXCEPT"),
        ("SELECT id FROM t ORDER BY 2", InvalidExpressionError, "ORDER BY 2 names no column"),
        ("SELECT id FROM t ORDER BY 0", InvalidExpressionError, "ORDER BY 0 names no column"),
        ("SELECT *, count(*) AS how_many FROM t GROUP BY ALL", UnsupportedExpressionError, "GROUP BY ALL"),
        ("SELECT id AS k, count(*) AS n FROM t GROUP BY kk", ColumnNotFoundError, "kk"),
        ("SELECT sum(id) AS s FROM t GROUP BY s", UnsupportedExpressionError, "sum"),
        ("SELECT * EXCEPT (nope) FROM t", ColumnNotFoundError, "nope"),
        ("SELECT id FROM t UNION ALL SELECT word AS id FROM u", UnsupportedExpressionError, "UNION"),
        ("SELECT id FROM t UNION ALL SELECT id, word FROM u", InvalidExpressionError, "UNION"),
        ("SELECT name AS s FROM t GROUP BY ROLLUP (1, id)", UnsupportedExpressionError, "constants among"),
        ("SELECT 1 AS a FROM t GROUP BY GROUPING SETS (ROLLUP (name))", UnsupportedExpressionError, "Spark engine"),
        ("SELECT grouping(id) AS a FROM t GROUP BY ROLLUP (name)", UnsupportedExpressionError, "names no key"),
        ("SELECT stddev(id) AS a FROM t", UnsupportedExpressionError, "stddev"),
        ("SELECT percentile_approx(id, 0.5) AS a FROM t", UnsupportedExpressionError, "percentile_approx"),
        ("SELECT percentile(id, 1.5) AS a FROM t", InvalidExpressionError, "between 0 and 1"),
        ("SELECT posexplode(split(name, 'a')) AS (p) FROM t", InvalidExpressionError, "makes 2 columns"),
        ("SELECT id AS (a, b) FROM t", UnsupportedExpressionError, "several columns"),
        ("SELECT sum(id) FILTER (WHERE id > 1) OVER () AS s FROM t", UnsupportedExpressionError, "OVER"),
        ("INSERT INTO t SELECT * FROM u", UnsupportedExpressionError, "Spark engine"),
        ("SELECT 1 AS a; SELECT 2 AS a", UnsupportedExpressionError, "SELECT 2"),
        ("SELECT name LIKE 'a\\\\' AS x FROM t", InvalidExpressionError, "LIKE pattern"),
        ("SELECT array(id) / 1.5 AS x FROM t", UnsupportedExpressionError, "arithmetic on array"),
        ("SELECT 1.5 / DATE '2024-01-01' AS x FROM t", UnsupportedExpressionError, "arithmetic on date"),
    ],
)
def test_refused(query: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(query)


def test_columns_without_as_are_called_as_spark_calls_them() -> None:
    row = run("SELECT count(*), COUNT(id), count(DISTINCT ID), sum(t.Id), Max(id), 9, 'it''s' FROM t", t=ROWS)[0]
    assert list(row) == ["count(1)", "count(id)", "count(DISTINCT ID)", "sum(Id)", "max(id)", "9", "it's"]
    row = run("SELECT t.id + 1, upper(name), CAST(id AS INT), round(n), id IN (1, 2) OR id <> 3 FROM t", t=ROWS)[0]
    assert list(row) == ["(id + 1)", "upper(name)", "id", "round(n, 0)", "((id IN (1, 2)) OR (NOT (id = 3)))"]


def test_only_the_first_side_of_a_union_names_columns() -> None:
    assert run("SELECT 1 AS n, 'q' AS s UNION ALL SELECT 2 + 1, 'r'") == [{"n": 1, "s": "q"}, {"n": 3, "s": "r"}]
    assert run("SELECT 1, 1 AS b UNION ALL SELECT 2, 2") == [{"1": 1, "b": 1}, {"1": 2, "b": 2}]


def test_a_union_has_the_wider_whole_number() -> None:
    rows = run("SELECT id FROM t WHERE id = 1 UNION ALL SELECT 3 UNION ALL SELECT 9223372036854775807", t=ROWS)
    assert rows == [{"id": 1}, {"id": 3}, {"id": 2**63 - 1}]
    assert run("SELECT 1 UNION ALL SELECT id FROM t WHERE id = 3", t=ROWS) == [{"1": 1}, {"1": 3}]


def test_an_aggregate_in_the_wrong_place() -> None:
    with pytest.raises((InvalidExpressionError, UnsupportedExpressionError)):
        run("SELECT id FROM t WHERE sum(id) > 1")
    with pytest.raises(InvalidExpressionError):
        run("SELECT id, count(*) AS c FROM t")


def test_results_have_the_declared_types() -> None:
    relation = ENGINE.sql("SELECT count(*) AS c, sum(n) AS s, max(name) AS m FROM t", {"t": ENGINE.relation(ROWS)})
    assert str(ENGINE.schema(relation)) == "struct<c:long,s:double,m:string>"
    assert ENGINE.to_arrow(relation).schema.types == [pa.int64(), pa.float64(), pa.string()]


@pytest.mark.parametrize("call", ["ceil()", "date_trunc()", "datediff(name)", "day()", "map(name)", "substring(name)"])
def test_a_function_without_its_arguments_is_refused(call: str) -> None:
    with pytest.raises((InvalidExpressionError, UnsupportedExpressionError)):
        run(f"SELECT {call} AS c FROM t")
    with pytest.raises((InvalidExpressionError, UnsupportedExpressionError)):
        filtered(f"{call} = 1")


def test_an_operand_that_may_raise_is_not_evaluated_where_another_decides() -> None:
    rows = pa.table({"id": list(range(100_000)), "s": [str(i) if i % 2 else "x" for i in range(100_000)]})
    for where, count in (
        ("s <> 'x' AND s >= 5", 49_998),
        ("NOT (s = 'x' OR s < 5)", 49_998),
        ("id % 2 <> 0 AND 1 / (id % 2) = 1", 50_000),
        ("size(split(s, '9')) = 1 OR split(s, '9')[1] IS NOT NULL", 100_000),
    ):
        assert run(f"SELECT count(*) AS n FROM t WHERE {where}", t=rows) == [{"n": count}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4 | 1 & 2", 4), ("4 | 1 ^ 1", 4), ("true = false IN (false, true)", True),
     ("1 = 2 BETWEEN false AND true", True), ("NOT false AND false", False), ("2 + 3 * 4 % 5", 4),
     ("'\\u00fc\\101\\Z' = 'üA\x1a'", True)],
)  # fmt: skip
def test_operators_bind_as_in_spark(text: str, expected: object) -> None:
    assert run(f"SELECT {text} AS c FROM t LIMIT 1") == [{"c": expected}]


@pytest.mark.parametrize("text", ["datediff(MONTH, name, name)", "datediff(DAY, id, id)", "-name"])
def test_what_has_another_meaning_than_its_name_is_refused(text: str) -> None:
    with pytest.raises((UnsupportedExpressionError, InvalidExpressionError)):
        run(f"SELECT {text} AS c FROM t")


def test_a_comparison_of_an_expression_is_refused_in_words() -> None:
    with pytest.raises(
        InvalidExpressionError, match=r"\(an expression\) of type long cannot be compared with a binary"
    ):
        run("SELECT id + 1 = X'61' AS c FROM t")


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
