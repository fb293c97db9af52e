"""`delta_orch.sql`: every statement does what the method does that it stands for, or is refused by name."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_orch
from delta_orch import DeltaTable, column
from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    AppendOnlyError,
    ConflictError,
    DeltaError,
    InvalidRequestError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.parse import parse_row_value
from delta_orch.protocol.types import STRING, StructField, StructType
from delta_orch.statements.queries import Query
from tests.handmade import HandmadeTable

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    found = DeltaTable(tmp_path / "odd `name")
    found.create(SCHEMA, partition_by=["day"], properties={"delta.enableDeletionVectors": "true"})
    rows = "VALUES (1, 'a', DATE '2024-01-01'), (2, 'it''s; -- no', DATE '2024-01-02'), (3, NULL, NULL)"
    sql(f"INSERT INTO t {rows}", t=found)
    return found


def sql(text: str, **tables: object) -> Any:
    return delta_orch.sql(text, tables=tables)


def rows(table: DeltaTable) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.snapshot().scan().to_arrow().to_pylist()), key=lambda r: r[0])


def ids(table: DeltaTable) -> list[int]:
    return [row[0] for row in rows(table)]


def test_insert_keeps_text_and_types(table: DeltaTable) -> None:
    assert [row[1] for row in rows(table)] == ["a", "it's; -- no", None]
    sql("INSERT INTO t (name, id) VALUES ('x', 4)", t=table)
    sql("insert into table T select id + 10 AS i, name AS n, day AS d from t where id = 1;", t=table)
    assert ids(table) == [1, 2, 3, 4, 11]
    sql("INSERT OVERWRITE t REPLACE WHERE day = '2024-01-01' SELECT 7 AS a, 'b' AS b, DATE '2024-01-01' AS c", t=table)
    assert ids(table) == [2, 3, 4, 7]
    sql("INSERT OVERWRITE t VALUES (9, 'z', NULL)", t=table)
    assert ids(table) == [9]


def test_insert_casts_constants_as_delta_on_spark_does(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    sql("CREATE TABLE t (i INT, d DECIMAL(5, 2), day DATE, b BOOLEAN, f DOUBLE, s STRING) USING delta", t=table)
    sql("INSERT INTO t VALUES ('1', 2, '2024-01-01', 1, 3, true), (NULL, 1.255, NULL, 0, 1e3, NULL)", t=table)
    sql("INSERT INTO t (i, d, f) VALUES (2.7, -3.1, 0.5), (3, 4, 2)", t=table)
    day = date(2024, 1, 1)
    assert table.snapshot().scan().to_arrow().sort_by("f").to_pylist() == [
        dict(zip(["i", "d", "day", "b", "f", "s"], row, strict=True))
        for row in [
            (2, Decimal("-3.10"), None, None, 0.5, None),
            (3, Decimal("4.00"), None, None, 2.0, None),
            (1, Decimal("2.00"), day, True, 3.0, "true"),
            (None, Decimal("1.26"), None, False, 1000.0, None),
        ]
    ]


def test_replace_inside_of_replace_is_spelled_once(table: DeltaTable) -> None:
    """Else its text, and the time to read that, would double with each: sixteen took two minutes."""
    text = "'abcdefghijklmnop'"
    for letter in "abcdefghijklmnop":
        text = f"replace({text}, '{letter}', '<{letter.upper()}>')"
    assert computed(table, text) == "<A><B><C><D><E><F><G><H><I><J><K><L><M><N><O><P>"


def computed(table: DeltaTable, text: str) -> Any:
    """The value of an expression for the row 1."""
    engine = LocalEngine()
    rows = table.snapshot().scan(where="id = 1").to_relation(engine)
    found = engine.project(rows, [ComputedColumn("x", parse_row_value(text))])
    return engine.to_arrow(found)["x"][0].as_py()


def test_names_without_an_alias_in_a_merge(table: DeltaTable, tmp_path: Path) -> None:
    place = str(tmp_path / "odd `name").replace("`", "``")
    text = f"MERGE INTO delta.`{place}` USING target ON id = i WHEN MATCHED THEN DELETE"
    sql(text, target=pa.table({"i": [1]}))
    sql("MERGE INTO t AS source USING (SELECT 2 AS i) ON id = i WHEN MATCHED THEN DELETE", t=table)
    assert ids(table) == [3]


@pytest.mark.parametrize(
    "values",
    ["(1, 'a')", "('one', 'a', NULL)", "(1, 'a', '2024-13-01')", "(1, 'a', 5)", "('x' || 'y', 'a', NULL)",
     "(1e30, 'a', NULL)", "(2 * 2, upper('a'), NULL), (5, 6, NULL)", "(1, 'a', DEFAULT)", "(1, name, NULL)",
     "(1, 'a', NULL), (2, 'b')", '(1, "a", NULL)'],
)  # fmt: skip
def test_insert_refuses_what_does_not_fit(table: DeltaTable, values: str) -> None:
    with pytest.raises(DeltaError):
        sql(f"INSERT INTO t VALUES {values}", t=table)
    assert ids(table) == [1, 2, 3]


def test_insert_computes_and_casts(table: DeltaTable, tmp_path: Path) -> None:
    sql("INSERT INTO t VALUES (2 * 2, upper('a'), NULL), (5, '6', DATE '2024-01-01')", t=table)
    sql("INSERT INTO t SELECT 6.0, 7, TIMESTAMP '2024-01-01 10:00:00'", t=table)
    assert [(row[0], row[1]) for row in rows(table)][3:] == [(4, "A"), (5, "6"), (6, "7")]
    with pytest.raises(DeltaError):
        sql("INSERT INTO t SELECT 1e30, 'x', NULL", t=table)
    twin = tmp_path / "twin"
    sql(f"CREATE TABLE IF NOT EXISTS delta.`{twin}` USING delta AS SELECT * FROM t WHERE id < 3", t=table)
    again: Any = sql(f"CREATE TABLE IF NOT EXISTS delta.`{twin}` USING delta AS SELECT * FROM t", t=table)
    other: Any = sql(f"CREATE TABLE IF NOT EXISTS delta.`{twin}` (x INT) USING delta")
    assert again.timestamp_ms == other.timestamp_ms == DeltaTable(twin).snapshot().timestamp_ms
    assert again.skipped and other.skipped and ids(DeltaTable(twin)) == [1, 2]
    sql("INSERT INTO t TABLE s", t=DeltaTable(twin), s=table)
    assert len(ids(DeltaTable(twin))) == 8
    with pytest.raises(InvalidRequestError, match="PURGE is missing before 'UPGRADE'"):
        sql("REORG TABLE t APPLY (UPGRADE UNIFORM(ICEBERG_COMPAT_VERSION=2))", t=table)


def test_insert_takes_nested_values_and_defaults(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    sql(
        f"CREATE TABLE delta.`{table.uri}` (id BIGINT, tags ARRAY<STRING>, m MAP<STRING, BIGINT>, st STRUCT<a: BIGINT, "
        "b: ARRAY<INT>>, k STRING DEFAULT 'kk') USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = "
        "'supported')"
    )
    sql("INSERT INTO t (id, tags) VALUES (1, []), (2, ['q', NULL])", t=table)
    nested = "{'a': 1, 'b': []}), (4, [NULL], MAP {'a': NULL}, {'a': NULL, 'b': NULL}"
    sql(f"INSERT INTO t (id, tags, m, st) VALUES (3, [5], MAP {{'a': 2}}, {nested})", t=table)
    sql("INSERT INTO t (id, tags) SELECT 5, []", t=table)
    sql("INSERT INTO t (id) VALUES (NULL)", t=table)
    sql("UPDATE t SET id = 6 WHERE id IS NULL", t=table)
    assert rows(table) == [
        (1, [], None, None, "kk"),
        (2, ["q", None], None, None, "kk"),
        (3, ["5"], [("a", 2)], {"a": 1, "b": []}, "kk"),
        (4, [None], [("a", None)], {"a": None, "b": None}, "kk"),
        (5, [], None, None, "kk"),
        (6, None, None, None, "kk"),
    ]
    sql("UPDATE t SET tags = array(tags[0] || '0', NULL) WHERE array_contains(tags, 'q')", t=table)
    assert rows(table)[1][1] == ["q0", None]
    sql("DELETE FROM t WHERE id = 3 OR (size(tags) > 0 AND tags[size(tags) - 1] IS NULL)", t=table)
    assert [row[:2] for row in rows(table)] == [(1, []), (5, []), (6, None)]
    with pytest.raises(DeltaError, match="DEFAULT"):
        sql("INSERT INTO t VALUES (8, [], NULL, NULL, DEFAULT)", t=table)
    sql("INSERT INTO t VALUES (8, NULL, MAP {'k': 1}, {'a': 7, 'b': []}, 'k'), (9, [], NULL, NULL, 'kk')", t=table)
    assert rows(table)[-2:] == [(8, None, [("k", 1)], {"a": 7, "b": []}, "k"), (9, [], None, None, "kk")]
    with pytest.raises(DeltaError):
        sql("INSERT INTO t VALUES (1, [])", t=table)


def test_structs_of_a_query_have_the_tables_fields(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    sql(f"CREATE TABLE delta.`{table.uri}` (st STRUCT<a: BIGINT, b: BIGINT>) USING delta")
    sql("INSERT INTO t SELECT {'a': 1, 'b': 2}", t=table)
    sql("INSERT INTO t SELECT struct_pack(a := 3, b := 4)", t=table)
    sql("INSERT INTO t VALUES ({'a': 7, 'b': NULL}), (NULL)", t=table)
    found = [row["st"] and tuple(row["st"].values()) for row in table.snapshot().scan().to_arrow().to_pylist()]
    assert sorted(map(str, found)) == ["(1, 2)", "(3, 4)", "(7, None)", "None"]
    for query in (
        "{'a': 1, 'b': 2, 'c': 3}",
        "{'b': 1, 'a': 2}",
        "{'a': 1}",
    ):
        with pytest.raises(DeltaError, match="the table's fields in order"):
            sql(f"INSERT INTO t SELECT {query}", t=table)
    sql("ALTER TABLE t CHANGE COLUMN st.b FIRST", t=table)
    assert str(table.snapshot().schema.find("st").data_type) == "struct<b:long,a:long>"  # type: ignore[union-attr]


def test_delete_and_update(table: DeltaTable) -> None:
    assert sql("DELETE FROM t WHERE name = 'it''s; -- no'", t=table).operation_metrics["numDeletedRows"] in (1, "1")
    sql(
        "UPDATE t SET name = 'n', id = CASE WHEN id = 1 THEN 5 ELSE id END /* ; */ WHERE name IS NULL OR id = 1",
        t=table,
    )
    assert [row[:2] for row in rows(table)] == [(3, "n"), (5, "n")]
    before = table.version()
    previewed: Any = delta_orch.sql("DELETE FROM t", tables={"t": table}, dry_run=True)
    assert previewed.preview is not None
    assert table.version() == before
    sql("DELETE FROM t", t=table)
    assert ids(table) == []


def test_an_alias_stands_for_the_table(table: DeltaTable) -> None:
    sql("UPDATE t AS x SET x.name = concat(x.name, ' x.name', `x`.name) WHERE X.id = 1", t=table)
    assert rows(table)[0][1] == "a x.namea"
    sql("UPDATE t SET t.name = 'b' WHERE t.id = 1", t=table)
    assert rows(table)[0][1] == "b"
    sql("DELETE FROM t x WHERE x.id = 1 OR x.name = 'x.id'", t=table)
    assert ids(table) == [2, 3]


def test_a_column_may_be_called_as_its_table(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    sql("CREATE TABLE t (id INT, t STRUCT<id: INT, x: INT>) USING delta", t=table)
    sql("INSERT INTO t VALUES (1, {'id': 10, 'x': 20}), (2, {'id': 1, 'x': 2})", t=table)
    sql("UPDATE t SET t.id = t.id + t.x, t.x = 5, t.t.id = `t`.`t`.id + t.t.x WHERE t.x = 20 AND T.t.id > 9", t=table)
    assert rows(table) == [(2, {"id": 1, "x": 2}), (21, {"id": 30, "x": 5})]
    sql("DELETE FROM t AS T WHERE t.id = 2 AND t.x = 2", t=table)
    assert ids(table) == [21]
    with pytest.raises(DeltaError, match="assigned twice"):
        sql("UPDATE t SET t.x = 1, t.t.x = 2", t=table)
    query = "SELECT /*+ COALESCE(1) */ t.id AS i, t.x AS x, t.t.id AS k FROM t WHERE t.x = 5 AND t.id = 21"
    assert sql(query, t=table).to_pylist() == [{"i": 21, "x": 5, "k": 30}]


def test_insert_by_name_and_default(table: DeltaTable) -> None:
    sql("INSERT INTO t BY NAME SELECT 'n' AS NAME, 5 AS id", t=table)
    sql("INSERT INTO t (id, day) VALUES (6, current_date())", t=table)
    twin = DeltaTable(f"{table.uri} twin")
    table.clone(twin.uri)
    sql("INSERT WITH SCHEMA EVOLUTION INTO t BY NAME SELECT 'x' AS more, id FROM s WHERE id = 6", t=twin, s=table)
    assert (6, None, None, "x") in rows(twin) and (1, "a", date(2024, 1, 1), None) in rows(twin)
    for wrong in ("INTO t SELECT 1 AS id", "OVERWRITE t BY NAME SELECT 1 AS id", "INTO t BY NAME SELECT 1.5 AS id"):
        with pytest.raises(DeltaError):
            sql(f"INSERT WITH SCHEMA EVOLUTION {wrong}", t=twin)
    assert [(r[0], r[1]) for r in rows(table)][3:] == [(5, "n"), (6, None)]
    day = "DATE '2024-01-01'"
    sql(f"INSERT OVERWRITE TABLE t REPLACE WHERE day = {day} SELECT 20 AS id, 'only' AS name, {day} AS day", t=table)
    assert [r[:2] for r in rows(table) if str(r[2]) == "2024-01-01"] == [(20, "only")]
    assert {2, 3, 5, 6} <= set(ids(table))


def test_queries_have_names_inside_the_statement(table: DeltaTable) -> None:
    with pytest.raises(UnsupportedExpressionError, match="WITH before INSERT"):
        sql("WITH u AS (SELECT * FROM t) INSERT INTO t SELECT * FROM u", t=table)
    sql("INSERT INTO t WITH u AS (SELECT id + 100 AS id, name, day FROM t) SELECT * FROM u", t=table)
    assert ids(table) == [1, 2, 3, 101, 102, 103]
    query = "WITH u AS (SELECT id FROM t WHERE id > 100) SELECT id FROM u"
    sql(f"MERGE INTO t USING ({query}) u ON t.id = u.id WHEN MATCHED THEN DELETE", t=table)
    assert ids(table) == [1, 2, 3]


def test_rows_and_tables_stand_in_from(table: DeltaTable) -> None:
    query = "SELECT t.id, v.k FROM t JOIN (VALUES (1, 'x'), (3, 'y')) AS v(id, k) ON t.id = v.id ORDER BY 1"
    found = sql(query, t=table)
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, "x"), (3, "y")]
    sql("INSERT INTO t SELECT * FROM (VALUES (7, 'v', NULL)) v(i) UNION ALL (TABLE t) ORDER BY 1 DESC LIMIT 2", t=table)
    assert ids(table) == [1, 2, 3, 3, 7]
    found = sql("WITH w(a, b, c) AS (TABLE t) SELECT a + 1, count(*) FROM w GROUP BY ALL", t=table)
    assert found.column_names == ["(a + 1)", "count_star()"] and found.num_rows == 4


def test_queries_stand_in_conditions_of_queries(table: DeltaTable) -> None:
    keys = pa.table({"k": [1, 3, 8]})
    found = sql("SELECT id FROM t WHERE id IN (SELECT k FROM keys WHERE k < 5) AND day IS NULL", t=table, keys=keys)
    assert found.column("id").to_pylist() == [3]
    sql("INSERT INTO t (id) SELECT k FROM keys WHERE NOT EXISTS (SELECT 1 FROM t WHERE id = k)", t=table, keys=keys)
    assert ids(table) == [1, 2, 3, 8]
    found = sql("SELECT id FROM t VERSION AS OF 1 WHERE id = (SELECT max(id) - 5 FROM t)", t=table)
    assert found.column("id").to_pylist() == [3]
    for text in (
        "DELETE FROM t WHERE id IN (SELECT * FROM keys)",
        "UPDATE t SET id = 0 WHERE EXISTS (SELECT 1 FROM keys)",
    ):
        with pytest.raises(DeltaError, match="holds a subquery"):
            sql(text, t=table, keys=keys)


def test_a_predicate_is_about_the_columns_of_the_alias(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.append(pa.table({"a": [1, 2, 3], "b": [30, 20, 10]}))
    for alias in ("AS x(b, a)", "x(b, a)", 'x ("b", a)'):
        assert sql(f"SELECT * FROM t {alias} WHERE a > 25", t=table).to_pylist() == [{"b": 1, "a": 30}]


def test_changes_are_a_table(table: DeltaTable) -> None:
    sql("DELETE FROM t WHERE id = 1", t=table)
    query = "SELECT _change_type AS c, id FROM table_changes('t', {}) WHERE id = 1 ORDER BY _commit_version"
    assert sql(query.format("0"), t=table).to_pylist() == [{"c": "insert", "id": 1}, {"c": "delete", "id": 1}]
    assert sql(query.format("2, 2"), t=table)["c"].to_pylist() == ["delete"]
    path = f"{table.uri}".replace("`", "``")
    found = sql(f"SELECT id FROM table_changes('delta.`{path}`', 2) AS c")
    assert found["id"].to_pylist() == [1]


def test_vacuum_takes_its_words(table: DeltaTable) -> None:
    for words in ("LITE DRY RUN", "FULL RETAIN 200 HOURS DRY RUN", "RETAIN 200.5 HOURS DRY RUN"):
        assert sql(f"VACUUM t {words}", t=table).paths == ()


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    DeltaTable("~/t").append(pa.table({"id": [1]}))
    assert DeltaTable(tmp_path / "t").exists() and DeltaTable(Path("~/t")).exists()
    assert sql("SELECT id FROM delta.`~/t`").num_rows == 1


def test_merge_with_every_clause(table: DeltaTable) -> None:
    source = pa.table({"id": [1, 2, 8], "name": ["new", None, "ins"], "day": pa.array([None] * 3, pa.date32())})
    sql(
        """MERGE INTO t AS tgt USING s AS src ON tgt.id = src.id
        WHEN MATCHED AND src.name IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET tgt.name = src.name
        WHEN NOT MATCHED BY TARGET THEN INSERT (id, name) VALUES (src.id, src.name)
        WHEN NOT MATCHED BY SOURCE AND tgt.id > 2 THEN UPDATE SET name = 'gone'""",
        t=table,
        s=source,
    )
    assert [row[:2] for row in rows(table)] == [(1, "new"), (3, "gone"), (8, "ins")]
    sql("MERGE INTO t USING (SELECT id + 1 AS id, name, day FROM s) x ON t.id = x.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE",
        t=table, s=source)  # fmt: skip
    assert ids(table) == [2, 3, 9]
    sql("MERGE INTO t USING s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * EXCEPT (name, day) WHEN NOT MATCHED THEN INSERT * EXCEPT (name)",
        t=table, s=source.slice(1).append_column("n", pa.array(["a", "b"])))  # fmt: skip
    assert [row[:2] for row in rows(table)] == [(2, "new"), (3, None), (8, None), (9, "ins")]


def test_a_source_of_merge_has_names_of_its_own(table: DeltaTable) -> None:
    sql("""MERGE INTO t USING (VALUES (2, 'two'), (9, 'nine') -- rows
        ) AS v(id, `the name`) ON t.id = v.id WHEN MATCHED THEN UPDATE SET name = v.`the name`
        WHEN NOT MATCHED THEN INSERT (id, name) VALUES (v.id, v.`the name`)""", t=table)  # fmt: skip
    assert {row[0]: row[1] for row in rows(table)} == {1: "a", 2: "two", 3: None, 9: "nine"}


def test_integers_of_more_than_64_bits_are_decimals(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "big")
    table.create([column("n", "decimal(38,0)"), column("id", "bigint")])
    sql(
        "INSERT INTO t (n) VALUES (99999999999999999999::DECIMAL(38)), (-18446744073709551616::DECIMAL(38)), (1)",
        t=table,
    )
    assert sql("SELECT n FROM t ORDER BY n", t=table)["n"].to_pylist() == [-(2**64), 1, 10**20 - 1]
    with pytest.raises(DeltaError):
        sql("INSERT INTO t (id) VALUES (99999999999999999999)", t=table)


def test_select_reads_versions_and_prunes(table: DeltaTable, tmp_path: Path) -> None:
    sql("DELETE FROM t WHERE id = 1", t=table)
    assert sql("SELECT count(*) AS n FROM t VERSION AS OF 1", t=table)["n"].to_pylist() == [3]
    for version in ("'1'", "1.5"):
        with pytest.raises(InvalidRequestError):
            sql(f"SELECT count(*) AS n FROM t VERSION AS OF {version}", t=table)
    joined = "SELECT a.id FROM t a JOIN t VERSION AS OF 1 AS b ON a.id = b.id WHERE b.name IS NOT NULL"
    assert sql(joined, t=table)["id"].to_pylist() == [2]
    assert sql("WITH u AS (SELECT id FROM t) SELECT id FROM u", t=table).num_rows == 2
    with pytest.raises(UnsupportedExpressionError):
        sql("WITH t AS (SELECT id FROM t) SELECT id FROM t", t=table)
    other = DeltaTable(tmp_path / "from where")
    other.append(pa.table({"id": [1], "from": ["x"]}))
    assert sql(f'SELECT "from" AS f FROM delta.`{tmp_path}/from where` WHERE id = 1')["f"].to_pylist() == ["x"]
    assert sql(f"SELECT id FROM `Delta`.`{tmp_path}/odd ``name` WHERE day IS NULL")["id"].to_pylist() == [3]


def test_definition_and_upkeep(tmp_path: Path) -> None:
    path = str(tmp_path / "made")
    sql(f"""CREATE TABLE delta.`{path}` (id BIGINT NOT NULL COMMENT 'the key', m MAP<STRING, INT>,
        d DECIMAL(5,2) DEFAULT 1.5,
        y INT GENERATED ALWAYS AS (CAST(id AS INT))) USING delta PARTITIONED BY (y) COMMENT 'what it is'
        TBLPROPERTIES ('delta.appendOnly' = false, 'delta.feature.allowColumnDefaults' = 'supported')""")  # fmt: skip
    table = DeltaTable(path)
    assert [f.name for f in table.snapshot().schema] == ["id", "m", "d", "y"]
    assert table.snapshot().metadata.description == "what it is" and table.snapshot().partition_columns == ("y",)
    with pytest.raises(TableExistsError):
        sql("CREATE TABLE t (id BIGINT) USING delta", t=table)
    sql("CREATE TABLE t (a INT) USING delta", t=str(tmp_path / "second"))
    second = DeltaTable(tmp_path / "second")
    sql("ALTER TABLE t ADD COLUMNS (b ARRAY<STRUCT<x: INT, y: STRING>> COMMENT 'c' AFTER a, e DOUBLE)", t=second)
    sql("ALTER TABLE t SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', k = 'v')", t=second)
    sql("ALTER TABLE t RENAME COLUMN a TO `a.b`", t=second)
    sql("ALTER TABLE t DROP COLUMN e", t=second)
    sql("ALTER TABLE t ADD CONSTRAINT positive CHECK (`a.b` > 0)", t=second)
    assert second.snapshot().schema.names == ("a.b", "b")
    assert sql("DESCRIBE t", t=second)["col_name"].to_pylist() == ["a.b", "b"]
    shown = sql("SHOW TBLPROPERTIES t", t=second).to_pydict()
    told = dict(zip(shown["key"], shown["value"], strict=True))
    assert told["k"] == "v" and told["delta.minReaderVersion"] == "2" and told["delta.minWriterVersion"] == "5"
    assert "delta.feature.allowColumnDefaults" in sql("SHOW TBLPROPERTIES t", t=table)["key"].to_pylist()
    with pytest.raises(DeltaError):
        sql("INSERT INTO t VALUES (-1, NULL)", t=second)
    sql("ALTER TABLE t DROP CONSTRAINT positive", t=second)
    sql("INSERT INTO t VALUES (-1, NULL)", t=second)
    sql("INSERT INTO t VALUES (2, NULL)", t=second)
    assert sql("OPTIMIZE t", t=second).operation_metrics["numAddedFiles"] in (1, "1")
    version = second.version()
    said = {"userName": "ann", "job": {"jobId": "7"}, "clusterId": "c"}
    delta_orch.sql("DELETE FROM t", tables={"t": second}, commit_info=said)
    (deletion,) = sql("DESCRIBE HISTORY t LIMIT 1", t=second).to_pylist()
    assert [deletion[name] for name in ("job", "notebook", "clusterId")] == ['{"jobId":"7"}', None, "c"]
    assert sql("DESCRIBE HISTORY t LIMIT 2", t=second)["userName"].to_pylist() == ["ann", None]
    sql(f"RESTORE TABLE t TO VERSION AS OF {version}", t=second)
    assert second.snapshot().scan().to_arrow().num_rows == 2
    assert sql("DESCRIBE HISTORY t LIMIT 1", t=second)["operation"].to_pylist() == ["RESTORE"]
    (detail,) = sql(f"DESCRIBE DETAIL '{tmp_path}/second'").to_pylist()
    assert detail["numFiles"] == 1 and "columnMapping" in detail["tableFeatures"] and detail["createdAt"] is not None
    (entry,) = sql(f"DESCRIBE HISTORY '{tmp_path}/second' LIMIT 1").to_pylist()
    assert entry["readVersion"] == version + 1 and entry["isBlindAppend"] is False
    assert sql("DESCRIBE t", t=second)["data_type"].to_pylist() == ["int", "array<struct<x:int,y:string>>"]
    assert sql(f"OPTIMIZE '{tmp_path}/second'").skipped and sql(f"VACUUM '{tmp_path}/second' DRY RUN").paths == ()
    assert sql("VACUUM t RETAIN 200 HOURS DRY RUN", t=second).paths == ()
    sql(f"CREATE TABLE delta.`{tmp_path}/copy` SHALLOW CLONE t", t=second)
    assert DeltaTable(tmp_path / "copy").snapshot().scan().to_arrow().num_rows == 2


def test_statements_of_delta_on_spark(tmp_path: Path) -> None:
    """Parts that its documentation and tests have, each as the method does it."""
    table = DeltaTable(tmp_path / "t")
    identity = "k BIGINT GENERATED BY DEFAULT AS IDENTITY, n INT, gone INT, p STRING, q DATE"
    sql(f"CREATE TABLE t ({identity}) USING delta PARTITIONED BY (p, q) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", t=table)  # fmt: skip
    assert table.snapshot().schema.names == ("k", "n", "gone", "p", "q")
    assert table.snapshot().partition_columns == ("p", "q")
    sql("INSERT INTO t VALUES (100, 1, NULL, 'a', NULL)", t=table)
    sql("ALTER TABLE t ALTER COLUMN k SYNC IDENTITY", t=table)
    sql("INSERT INTO t (n) VALUES (2)", t=table)
    assert table.snapshot().scan(["k"]).to_arrow()["k"].to_pylist() == [100, 101]
    sql("ALTER TABLE t DROP COLUMNS IF EXISTS (gone, missing)", t=table)
    assert sql("ALTER TABLE t DROP COLUMN IF EXISTS gone", t=table).skipped
    with pytest.raises(DeltaError, match="gone"):
        sql("ALTER TABLE t DROP COLUMN gone", t=table)
    path = table.snapshot().list_files("p = 'a'", absolute=True)["path"][0].as_py()
    Path(path.removeprefix("file://")).unlink()
    assert sql("FSCK REPAIR TABLE t DRY RUN", t=table).preview.removes
    sql("FSCK REPAIR TABLE t", t=table)
    assert table.snapshot().scan(["n"]).to_arrow()["n"].to_pylist() == [2]


def test_rows_move_and_tables_are_made_of_others(table: DeltaTable, tmp_path: Path) -> None:
    before = rows(table)
    moved = sql("OPTIMIZE t WHERE day = '2024-01-02' ZORDER BY (id, name)", t=table)
    assert moved.operation_metrics["numAddedFiles"] in (1, "1")
    sql("INSERT INTO t VALUES (4, 'd', DATE '2024-01-02'), (5, 'e', DATE '2024-01-02')", t=table)
    sql("DELETE FROM t WHERE id = 4", t=table)
    assert any(file["deletion_vector"] for file in table.snapshot().files().to_pylist())
    sql("REORG TABLE t WHERE day = '2024-01-02' APPLY (PURGE)", t=table)
    sql("REORG TABLE t APPLY (PURGE)", t=table)
    assert not any(file["deletion_vector"] for file in table.snapshot().files().to_pylist())
    assert ids(table) == [1, 2, 3, 5]
    committed = datetime.fromtimestamp(table.snapshot(1).timestamp_ms / 1000, UTC)
    sql(f"RESTORE t TO TIMESTAMP AS OF '{committed.isoformat()}'", t=table)
    assert rows(table) == before

    sql(f"CREATE TABLE delta.`{tmp_path}/chosen` USING delta AS SELECT id, name FROM t WHERE id > 1", t=table)
    assert ids(DeltaTable(tmp_path / "chosen")) == [2, 3]
    sql(f"CREATE TABLE delta.`{tmp_path}/deep` DEEP CLONE t", t=table)
    deep = DeltaTable(tmp_path / "deep")
    assert rows(deep) == before
    sql("DELETE FROM t", t=deep)
    assert sql(f"CREATE TABLE IF NOT EXISTS delta.`{tmp_path}/deep` DEEP CLONE t", t=table).skipped
    assert rows(deep) == []
    with pytest.raises(TableExistsError):
        sql(f"CREATE TABLE delta.`{tmp_path}/deep` DEEP CLONE t", t=table)
    sql(f"REPLACE TABLE delta.`{tmp_path}/deep` DEEP CLONE t TBLPROPERTIES ('owner' = 'ops')", t=table)
    assert rows(deep) == before
    assert deep.snapshot().metadata.configuration["owner"] == "ops"
    with pytest.raises(TableNotFoundError):
        sql(f"REPLACE TABLE delta.`{tmp_path}/nowhere` SHALLOW CLONE t", t=table)
    assert all("://" not in path and not path.startswith("/") for path in deep.snapshot().files()["path"].to_pylist())

    clustered = DeltaTable(tmp_path / "clustered")
    sql("CREATE TABLE t (a INT, b INT) USING delta CLUSTER BY (a)", t=clustered)
    assert clustered.snapshot().clustering_columns == (("a",),)
    sql("ALTER TABLE t CLUSTER BY (b)", t=clustered)
    assert clustered.snapshot().clustering_columns == (("b",),)
    sql("INSERT INTO t VALUES (1, 2)", t=clustered)
    sql("OPTIMIZE t FULL", t=clustered)
    assert clustered.snapshot().files()["clustering_provider"].to_pylist() == ["liquid"]
    sql("ALTER TABLE t ALTER COLUMN a COMMENT 'first'", t=clustered)
    assert "first" in sql("DESCRIBE TABLE t", t=clustered)["comment"].to_pylist()
    assert sql("DESC t", t=clustered).to_pylist()[0] == {"col_name": "a", "data_type": "int", "comment": "first"}
    sql("ALTER TABLE t SET TBLPROPERTIES (k = 'v')", t=clustered)
    sql("ALTER TABLE t UNSET TBLPROPERTIES ('k')", t=clustered)
    assert "k" not in clustered.snapshot().metadata.configuration
    sql("ALTER TABLE t CLUSTER BY NONE", t=clustered)
    sql("ALTER TABLE t DROP FEATURE clustering", t=clustered)
    assert "clustering" not in (clustered.snapshot().protocol.writer_features or ())

    found = tmp_path / "parquet" / "day=2024-01-01"
    found.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), found / "a.parquet")
    sql(f"CONVERT TO DELTA parquet.`{tmp_path}/parquet` PARTITIONED BY (day DATE)")
    converted = DeltaTable(tmp_path / "parquet")
    assert converted.snapshot().partition_columns == ("day",)
    assert converted.snapshot().scan(where="day = '2024-01-01'").to_arrow()["id"].to_pylist() == [1, 2]


def test_partitions_are_listed(table: DeltaTable) -> None:
    assert len(sql("SHOW PARTITIONS t", t=table)) == 3


REFUSED = [
    "",
    ";",
    "-- only a comment",
    "DELETE FROM t; DELETE FROM t",
    "DELETE FROM t WHERE id = 1; SELECT 1 AS a",
    "DROP TABLE t",
    "TRUNCATE t",
    "DELETE FROM missing",
    "DELETE t",
    "UPDATE t SET id",
    "UPDATE t",
    "UPDATE t SET id = 1, ID = 2",
    "UPDATE t SET id = WHERE id = 1",
    "MERGE INTO t USING s ON a = b",
    "VACUUM t RETAIN x HOURS",
    "OPTIMIZE t WHERE",
    "RESTORE t TO",
    "RESTORE t TO VERSION AS OF -1",
    "SELECT 'a",
    "SELECT /* a",
    "SELECT id FROM t)",
    "SELECT (id FROM t",
    "DESCRIBE HISTORY t t",
    "SHOW TABLES",
    "CREATE TABLE t (id INT)",
    "CREATE TABLE t USING parquet",
    "CREATE TABLE t (id INT) USING delta COMMENT 'a' COMMENT 'b'",
    "CREATE TABLE t (id INT COMMENT 'a' COMMENT 'b') USING delta",
    "CREATE VIEW v AS SELECT 1",
    "CREATE OR REPLACE TABLE t (a INT, ts TIMESTAMP) USING delta PARTITIONED BY (days(ts))",
    "INSERT INTO t REPLACE USING () SELECT id, name, day FROM t",
    "INSERT INTO t (id) REPLACE USING (day) SELECT id FROM t",
    "INSERT OVERWRITE t REPLACE USING (day) SELECT id, name, day FROM t",
    "INSERT INTO t PARTITION (day = NULL) REPLACE USING (id) SELECT id, name FROM t",
    "INSERT INTO t AS x REPLACE USING (day) SELECT id, name, day FROM t",
    "INSERT INTO t AS x SELECT id, name, day FROM t",
    "INSERT INTO t REPLACE (id) SELECT id, name, day FROM t",
    "INSERT INTO t REPLACE ON t.id = s.id SELECT 1 AS id, 'a' AS name, NULL AS day",
    "INSERT INTO t REPLACE ON t.id = s.i VALUES (1, 'a', NULL)",
    "INSERT INTO t REPLACE ON t.id IN (SELECT 1) (SELECT 1 AS i, 'a' AS n, NULL AS d) AS s",
    "INSERT INTO t REPLACE ON t.id = s.i (SELECT 1 AS i, 'a' AS n) AS s",
    "CREATE TABLE n LIKE t COMMENT 'x'",
    "CREATE TABLE n LIKE t AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE t LIKE t",
    "ALTER TABLE t SET LOCATION 'x'",
    "ALTER TABLE t SET TBLPROPERTIES ('location' = 'x')",
    "CREATE OR REPLACE TABLE t (id INT) USING delta TBLPROPERTIES ('provider' = 'parquet')",
    "INSERT INTO t PARTITION (day) VALUES (1)",
    "INSERT INTO t PARTITION (id = 1) VALUES ('a', NULL)",
    "INSERT INTO t PARTITION (day = '2024-13-01') VALUES (1, 'a')",
    "INSERT INTO t PARTITION (day = 'x', DAY = 'y') VALUES (1, 'a')",
    "INSERT INTO t PARTITION (day = '2024-01-01') (id, day) VALUES (1, NULL)",
    "INSERT OVERWRITE t PARTITION (day) SELECT id, name, day FROM t",
    "INSERT INTO t BY NAME VALUES (1, 'a', NULL)",
    "INSERT INTO t BY NAME SELECT id, 1 AS other FROM t",
    "INSERT INTO t (id) BY NAME SELECT id FROM t",
    "WITH s AS (SELECT 1 AS i) DELETE FROM t",
    "VACUUM t LITE FULL",
    "VACUUM t USING INVENTORY s",
    "SELECT * FROM table_changes('t')",
    "SELECT * FROM table_changes('t', 0, 99)",
    "SELECT * FROM table_changes('t; DROP', 0)",
    "DELETE FROM t WHERE \"NAME\" = 'a'",
    'UPDATE t SET name = "id"',
    "UPDATE t SET name = concat(\"day\", 'x')",
    'MERGE INTO t USING t AS s ON t.id = s.id AND "name" = s.name WHEN MATCHED THEN DELETE',
    'MERGE INTO t USING t AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = "day"',
    'ALTER TABLE t ADD CONSTRAINT c CHECK ("id" > 0)',
    "UPDATE t AS x SET x.id = 1, id = 2",
    "SHOW CREATE t",
    "GENERATE other FOR TABLE t",
    "CREATE OR REPLACE TABLE t (a INT) USING delta AS SELECT 1 AS a",
    "INSERT INTO t VALUES",
    "INSERT INTO t VALUES (1, 'a', NULL",
    "DELETE FROM t WHERE id = (SELECT max(id) FROM t)",
    "DELETE FROM t WHERE rand() < 1",
    "DELETE FROM t WHERE",
    "SET x = 1",
    "ALTER TABLE t ALTER COLUMN id",
    "ALTER TABLE t ALTER COLUMN",
    "EXPLAIN SELECT 1",
    "DELETE FROM t WHERE id = 1) OR (true",
    "UPDATE t SET name = 'x' WHERE id = 1 OR",
    "CALL x()",
    "SELECT * FROM t VERSION AS OF 99",
]


def test_a_table_takes_the_place_of_another(table: DeltaTable, tmp_path: Path) -> None:
    sql("ALTER TABLE t SET TBLPROPERTIES ('k' = 'old', 'delta.enableChangeDataFeed' = 'true')", t=table)
    sql("ALTER TABLE t ADD CONSTRAINT small CHECK (id < 10)", t=table)
    before, read = table.version(), table.snapshot()
    text = "CREATE OR REPLACE TABLE t USING delta PARTITIONED BY (name) COMMENT 'it''s' TBLPROPERTIES ('x' = 'y') AS"
    sql(f"{text} SELECT name, id + 100 AS n, CAST(id AS STRING) AS id FROM t WHERE id < 3", t=table)
    found = table.snapshot()
    assert table.version() == before + 1 and rows(table) == [("a", 101, "1"), ("it's; -- no", 102, "2")]
    metadata = found.metadata
    assert (metadata.partition_columns, metadata.description) == (("name",), "it's")
    assert metadata.configuration == {"delta.enableDeletionVectors": "true", "x": "y"}
    assert metadata.id != read.metadata.id
    entry = table.history(1)[0]
    assert entry.operation == "CREATE OR REPLACE TABLE AS SELECT"
    assert entry.operation_parameters["partitionBy"] == '["name"]'
    assert len(read.scan().to_arrow()) == 3
    with pytest.raises(DeltaError):
        sql(f"{text} SELECT id FROM t", t=table)
    preview: Any = delta_orch.sql(f"{text} SELECT * FROM t", tables={"t": table}, dry_run=True)
    assert preview.preview is not None and table.version() == before + 1
    sql("CREATE OR REPLACE TABLE t USING delta AS SELECT id FROM t WHERE false", t=table)
    assert rows(table) == [] and table.snapshot().partition_columns == ()
    sql("ALTER TABLE t SET TBLPROPERTIES ('delta.appendOnly' = 'true')", t=table)
    sql("INSERT INTO t VALUES ('1')", t=table)
    with pytest.raises(AppendOnlyError):
        sql("CREATE OR REPLACE TABLE t USING delta AS SELECT 1 AS i", t=table)
    other = tmp_path / "new one"
    sql(f"CREATE OR REPLACE TABLE delta.`{other}` PARTITIONED BY (i) AS SELECT id AS i, 2 AS j FROM t", t=table)
    assert rows(DeltaTable(other)) == [("1", 2)]
    (manifest,) = sql("GENERATE SYMLINK_FORMAT_MANIFEST FOR TABLE t", t=DeltaTable(other))
    assert "_symlink_format_manifest/i=1/manifest" in manifest
    with pytest.raises(InvalidRequestError):
        table.create_or_replace()


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t WHERE id = {}",
        "UPDATE t SET name = 'y' WHERE id = {}",
        "MERGE INTO t USING (SELECT {} AS k) s ON t.id = s.k WHEN MATCHED THEN DELETE",
    ],
)
def test_a_dry_run_says_what_would_be_read(tmp_path: Path, text: str) -> None:
    table = DeltaTable(tmp_path / "t")
    for start in (0, 10, 20):
        table.append(pa.table({"id": range(start, start + 10, 2), "name": ["x"] * 5}))

    def run(value: int, dry_run: bool) -> Any:
        return delta_orch.sql(text.format(value), tables={"t": table}, dry_run=dry_run)

    def files(result: Any) -> list[int]:
        return [result.measured[f"numTargetFiles{when}Skipping"] for when in ("Before", "After")]

    preview = run(14, True)
    assert (files(preview), table.version()) == ([3, 1], 2)
    assert (preview.measured["numRowGroups"], preview.measured["numRowGroupsRead"]) == (1, 1)
    assert dict(run(14, False).measured) == dict(preview.measured)
    assert files(run(9, True)) == [3, 0]
    assert files(run(3, True)) == [3, 1]


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("create_or_replace", "CREATE OR REPLACE TABLE t USING delta AS SELECT * FROM t"),
        ("overwrite", "INSERT OVERWRITE t SELECT * FROM t WHERE id > 1"),
        ("overwrite", "INSERT INTO t REPLACE WHERE id > 1 SELECT * FROM t WHERE id > 1"),
        (
            "merge",
            "MERGE INTO t USING (SELECT id, name FROM t) s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN DELETE",
        ),
    ],
)
def test_a_commit_between_a_query_on_the_table_and_its_change_is_a_conflict(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, verb: str, text: str
) -> None:
    change = getattr(DeltaTable, verb)

    def late(self: DeltaTable, *given: Any, **options: Any) -> Any:
        DeltaTable(table.uri).append(pa.table({"id": [9], "name": ["late"], "day": [None]}, SCHEMA))
        return change(self, *given, **options)

    monkeypatch.setattr(DeltaTable, verb, late)
    with pytest.raises(ConflictError):
        sql(text, t=table)
    assert ids(table) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("append", "INSERT INTO t SELECT max(id) + 1, 'n', NULL FROM t"),
        ("overwrite", "INSERT INTO t REPLACE WHERE id = 1 SELECT 1, name, day FROM t WHERE id = 2"),
        ("merge", "MERGE INTO t USING (SELECT 1 AS id, name FROM t WHERE id = 2) s ON t.id = s.id "
                  "WHEN MATCHED THEN UPDATE SET name = s.name"),
        ("merge", "MERGE INTO t USING t AS s ON t.id = 1 AND s.id = 2 WHEN MATCHED THEN UPDATE SET name = s.name"),
    ],
)  # fmt: skip
def test_a_statement_depends_on_every_row_of_its_table_that_its_query_may_read(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, verb: str, text: str
) -> None:
    """Whichever rows it changes. Otherwise two statements that read each other's rows both commit."""
    change = getattr(DeltaTable, verb)

    def late(self: DeltaTable, *given: Any, **options: Any) -> Any:
        DeltaTable(table.uri).update({"name": "'late'"}, "id = 2")
        return change(self, *given, **options)

    with monkeypatch.context() as patch, pytest.raises(ConflictError) as error:
        patch.setattr(DeltaTable, verb, late)
        sql(text, t=table)
    assert error.value.retryable
    assert rows(table)[1][1] == "late" and ids(table) == [1, 2, 3]
    sql(text, t=table)
    assert table.history(1)[0].commit_info["isBlindAppend"] is False


@pytest.mark.parametrize("way", ["path", "uri", "detour", "link", "named link", "linked log", "changes"])
def test_a_table_is_the_same_whatever_way_leads_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2]}))
    (tmp_path / "link").symlink_to(tmp_path / "t")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "_delta_log").symlink_to(tmp_path / "t" / "_delta_log")
    for file in (tmp_path / "t").glob("*.parquet"):
        (tmp_path / "half" / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    source = {
        "path": "delta.`t/`", "uri": f"delta.`file:{tmp_path}/t`", "detour": f"delta.`{tmp_path}/link/../t/.`",
        "link": f"delta.`{tmp_path}/link`", "named link": "s", "linked log": "delta.`half`",
        "changes": "table_changes('delta.`link`', 0)",
    }[way]  # fmt: skip
    tables = {"t": table, "s": tmp_path.as_uri() + "/link"}
    change = DeltaTable.overwrite

    def late(self: DeltaTable, *given: Any, **options: Any) -> Any:
        DeltaTable(tmp_path / "t").append(pa.table({"id": [9]}))
        return change(self, *given, **options)

    with monkeypatch.context() as patch, pytest.raises(ConflictError) as error:
        patch.setattr(DeltaTable, "overwrite", late)
        delta_orch.sql(f"INSERT OVERWRITE t SELECT max(id) + 1 AS id FROM {source}", tables=tables)
    assert error.value.retryable and ids(table) == [1, 2, 9]
    with pytest.raises(InvalidRequestError, match="onto itself"):
        delta_orch.sql("CREATE OR REPLACE TABLE t CLONE delta.`link`", tables=tables)


def test_of_two_that_create_a_table_with_rows_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "CREATE TABLE t USING delta AS SELECT * FROM s"
    tables = {"t": DeltaTable(tmp_path / "t"), "s": pa.table({"id": [1, 2]})}
    relation = Query.relation

    def late(self: Query, *given: Any, **options: Any) -> Any:
        found = relation(self, *given, **options)
        monkeypatch.setattr(Query, "relation", relation)
        delta_orch.sql(text, tables=tables)
        return found

    monkeypatch.setattr(Query, "relation", late)
    with pytest.raises(ConflictError):
        delta_orch.sql(text, tables=tables)
    with pytest.raises(TableExistsError):
        delta_orch.sql(text, tables=tables)
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow()["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("rest", ["USING delta AS SELECT * FROM s", "(x INT) USING delta", "CLONE o"])
def test_a_table_that_another_makes_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    other = DeltaTable(tmp_path / "o")
    other.append(pa.table({"id": [1]}))
    table = DeltaTable(tmp_path / "t")
    exists = DeltaTable.exists

    def early(self: DeltaTable) -> bool:
        found = exists(self)
        monkeypatch.setattr(DeltaTable, "exists", exists)
        DeltaTable(tmp_path / "t").append(pa.table({"id": [7]}))
        return found

    monkeypatch.setattr(DeltaTable, "exists", early)
    tables = {"t": table, "s": pa.table({"id": [1, 2]}), "o": other}
    result: Any = delta_orch.sql(f"CREATE TABLE IF NOT EXISTS t {rest}", tables=tables)
    assert result.skipped and result.version == 0
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [7]


def test_an_insert_of_rows_of_its_table_goes_behind_blind_appends(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = DeltaTable.append

    def late(self: DeltaTable, *given: Any, **options: Any) -> Any:
        append(DeltaTable(table.uri), pa.table({"id": [9], "name": ["late"], "day": [None]}, SCHEMA))
        return append(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "append", late)
        sql("INSERT INTO t SELECT max(id) + 1, 'n', NULL FROM t", t=table)
        assert ids(table) == [1, 2, 3, 4, 9]
        with pytest.raises(ConflictError):
            delta_orch.sql("INSERT INTO t TABLE t", tables={"t": table}, isolation_level="Serializable")


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_supported_is_refused_and_changes_nothing(table: DeltaTable, text: str) -> None:
    version = table.version()
    with pytest.raises(DeltaError) as error:
        sql(text, t=table)
    assert len(str(error.value)) < 2000
    assert table.version() == version


def test_the_word_is_named_that_does_not_fit() -> None:
    with pytest.raises(InvalidRequestError, match="TABLE is missing before 'COLUMN'"):
        delta_orch.sql("COMMENT ON COLUMN t.id IS 'x'")


def test_names_are_data(tmp_path: Path) -> None:
    name = "x`; DELETE FROM t; --"
    odd = DeltaTable(tmp_path / "a b'c")
    odd.append(pa.table({name: [1], "when": [2], "select": [3]}), properties={"delta.columnMapping.mode": "name"})
    quoted = f"`{name.replace('`', '``')}`"
    sql(f"UPDATE t SET {quoted} = `when` + 5, `select` = 4 WHERE {quoted} = 1", t=odd)
    assert odd.snapshot().scan().to_arrow().to_pylist() == [{name: 7, "when": 2, "select": 4}]
    assert sql(f"SELECT {quoted} AS a FROM delta.`{tmp_path}/a b'c`")["a"].to_pylist() == [7]


def test_tables_and_values_are_queries_and_merge_reads_versions(table: DeltaTable, tmp_path: Path) -> None:
    assert sql("TABLE t", t=table).num_rows == 3
    assert sql("TABLE t VERSION AS OF 0", t=table).num_rows == 0
    assert sql("VALUES (1, 'a'), (2, NULL)").to_pylist() == [{"col0": 1, "col1": "a"}, {"col0": 2, "col1": None}]
    sql("INSERT INTO t TABLE t VERSION AS OF 1", t=table)
    assert ids(table) == [1, 1, 2, 2, 3, 3]
    sql("MERGE INTO t USING t VERSION AS OF 0 AS old ON t.id = old.id WHEN NOT MATCHED BY SOURCE THEN DELETE", t=table)
    assert ids(table) == []
    merge = "ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    sql(f"MERGE INTO t USING delta.`{tmp_path}/odd ``name` VERSION AS OF 1 s {merge}", t=table)
    assert ids(table) == [1, 2, 3]
    values = "(VALUES (3, 'v'), (4, 'w')) AS v (i, n) ON t.id = v.i WHEN MATCHED THEN UPDATE SET name = v.n"
    sql(f"MERGE INTO t USING {values} WHEN NOT MATCHED THEN INSERT (id, name) VALUES (i, n)", t=table)
    assert [row[:2] for row in rows(table)][2:] == [(3, "v"), (4, "w")]
    assert sql("SELECT id FROM (TABLE t) AS q WHERE id > 3", t=table)["id"].to_pylist() == [4]
    with pytest.raises(DeltaError):
        sql("MERGE INTO t USING s VERSION AS OF 0 ON t.id = s.id WHEN MATCHED THEN DELETE", t=table, s=table.snapshot())


def test_messages_of_queries_have_the_users_names(table: DeltaTable, tmp_path: Path) -> None:
    other = pa.table({"id": [1]})
    for text, name in (
        ("SELECT id FROM t JOIN `An Other` ON true", '"An Other".id'),
        ("SELECT id + FROM t VERSION AS OF 1", "syntax error"),
        ("SELECT * FROM t JOIN nowhere USING (id)", "tables={'nowhere'"),
        (
            f"SELECT id FROM delta.`{tmp_path}/odd ``name`, delta.`{tmp_path}/odd ``name` VERSION AS OF 1",
            f"{tmp_path}/odd `name@v1",
        ),
    ):
        with pytest.raises(DeltaError, match=re.escape(name)):
            delta_orch.sql(text, tables={"t": table, "An Other": other})


def test_a_name_means_one_relation(table: DeltaTable) -> None:
    """Whatever the tables are called in the text that the engine gets."""
    text = "SELECT count(*) AS n FROM t JOIN t VERSION AS OF 0 AS old ON t.id = old.id"
    assert sql(text, t=table)["n"].to_pylist() == [0]
    text = "SELECT a.id FROM T AS a JOIN t AS b ON a.id = b.id JOIN `t@v0` AS c ON c.id = a.id"
    assert sql(text, t=table, **{"t@v0": pa.table({"id": [2]})})["id"].to_pylist() == [2]
    text = "WITH `t@v0` AS (SELECT 3 AS id) SELECT t.id FROM t VERSION AS OF 0 AS t RIGHT JOIN `t@v0` AS w ON true"
    assert sql(text, t=table)["id"].to_pylist() == [None]
    inner = "SELECT id FROM (WITH t AS (SELECT 9 AS id) SELECT * FROM t) AS q"
    assert sql(inner, t=table)["id"].to_pylist() == [9]


@pytest.mark.parametrize("tables", [{"t": 3}, {"t": None}, {"t": "x", "T": "y"}, ["t"], "t", {1: 2}])
def test_wrong_tables_are_refused(tables: Any) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedExpressionError)):
        delta_orch.sql("DELETE FROM t", tables=tables)


def test_options_of_commits_are_for_commits(table: DeltaTable) -> None:
    with pytest.raises(InvalidRequestError):
        delta_orch.sql("SELECT id FROM t", tables={"t": table}, dry_run=True)
    result = delta_orch.sql("DELETE FROM t WHERE id = 1", tables={"t": table}, txn=delta_orch.TxnId("app", 1))
    assert not result.skipped  # type: ignore[attr-defined]
    assert delta_orch.sql("DELETE FROM t", tables={"t": table}, txn=delta_orch.TxnId("app", 1)).skipped  # type: ignore[attr-defined]


def test_a_table_has_a_comment(table: DeltaTable) -> None:
    for text, found in (("'it''s'", "it's"), ("NULL", None)):
        sql(f"COMMENT ON TABLE t IS {text}", t=table)
        assert table.snapshot().metadata.description == found
    sql("ALTER TABLE t SET TBLPROPERTIES ('comment' = 'about', 'owner' = 'me')", t=table)
    metadata = table.snapshot().metadata
    assert metadata.description == "about"
    assert metadata.configuration["owner"] == "me" and "comment" not in metadata.configuration
    sql("ALTER TABLE t UNSET TBLPROPERTIES ('comment')", t=table)
    assert table.snapshot().metadata.description is None
    sql("ALTER TABLE t SET TBLPROPERTIES ('comment' = 'about')", t=table)
    sql("ALTER TABLE t UNSET TBLPROPERTIES ('owner', 'comment')", t=table)
    metadata = table.snapshot().metadata
    assert metadata.description is None and "owner" not in metadata.configuration
    sql("CREATE OR REPLACE TABLE t (s STRUCT<a: INT NOT NULL COMMENT 'it''s', b: CHAR(3) COMMENT ''>) USING delta "
        "TBLPROPERTIES (comment = 'new')", t=table)  # fmt: skip
    assert table.snapshot().metadata.description == "new"
    (field,) = table.snapshot().schema
    assert [dict(f.metadata) for f in field.data_type] == [{"comment": "it's"}, {"comment": ""}]  # type: ignore[attr-defined]


def test_truncate_and_replace(table: DeltaTable, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="PARTITION"):
        sql("TRUNCATE TABLE t PARTITION (day = DATE '2024-01-01')", t=table)
    assert sql("TRUNCATE TABLE t", t=table).operation_metrics["numDeletedRows"] == 3
    assert ids(table) == []
    sql("REPLACE TABLE t USING delta AS SELECT 1 AS other", t=table)
    assert table.snapshot().schema.names == ("other",)
    sql("REPLACE TABLE t (id BIGINT) USING delta", t=table)
    assert table.snapshot().schema.names == ("id",)
    with pytest.raises(TableNotFoundError):
        sql(f"REPLACE TABLE delta.`{tmp_path / 'nowhere'}` (id BIGINT) USING delta")
    assert not DeltaTable(tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET a = current_timestamp(), b = now(), c = localtimestamp(), d = current_date()",
        "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = now(), b = current_timestamp(), "
        "c = localtimestamp(), d = current_date() WHEN NOT MATCHED THEN INSERT (id, a, b, c, d) VALUES (s.id, now(), "
        "current_timestamp(), localtimestamp(), current_date())",
        "INSERT INTO t (a, b, c, d) VALUES (now(), current_timestamp, localtimestamp, current_date), "
        "(current_timestamp, now(), localtimestamp, current_date)",
    ],
)
def test_a_statement_has_one_moment(tmp_path: Path, statement: str) -> None:
    t, s = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "s")
    sql("CREATE TABLE t (id INT, a TIMESTAMP, b TIMESTAMP, c TIMESTAMP_NTZ, d DATE) USING delta", t=t)
    sql("INSERT INTO t (id) VALUES (1)", t=t)
    sql("CREATE TABLE s USING delta AS SELECT 1 AS id UNION ALL SELECT 2 AS id", s=s)
    moments = set()
    for _ in range(2):
        sql(statement, t=t, s=s)
        found = [row for row in t.snapshot().scan().to_arrow().to_pylist() if row["a"] is not None]
        for row in found:
            assert row["a"] == row["b"] == row["c"].replace(tzinfo=UTC)
            assert row["d"] == row["c"].date()
        moments.add(frozenset(row["a"] for row in found))
    assert len(moments) == 2
    assert {len(moment) for moment in moments} <= ({1, 2} if statement.startswith("INSERT") else {1})


def test_a_table_whose_texts_are_compared_by_a_collation_is_not_queried(tmp_path: Path) -> None:
    column = StructField("name", STRING, True, {"__COLLATIONS": {"name": "spark.UTF8_LCASE"}})
    made = HandmadeTable(tmp_path / "t")
    made.create(StructType((column,)), features=["collations"])
    made.commit(made.add("f.parquet", pa.table({"name": ["a", "A"]})))
    assert made.open().snapshot().scan().to_arrow().num_rows == 2
    for table in (made.open(), made.open().snapshot()):
        with pytest.raises(UnsupportedExpressionError, match="collations"):
            delta_orch.sql("SELECT DISTINCT name FROM t", tables={"t": table})


def test_secrets_among_the_properties_of_a_stranger_are_not_shown(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    left = {"db.password": "hunter2", "url": "https://h/x?sig=hunter3", "owner": "me"}
    made.create(pa.schema([("id", pa.int64())]), configuration=left)
    for text in ("SHOW TBLPROPERTIES t", "DESCRIBE DETAIL t"):
        shown = str(sql(text, t=made.open()).to_pylist())
        assert "hunter" not in shown and "me" in shown
