"""Settings of a session: they say what the user's own frames mean, and nothing about a verb."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, column
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS
from delta_orch.errors import InvalidExpressionError, UnsupportedError
from tests.spark.spark_files import rows_of

pytestmark = pytest.mark.spark

UNLIKE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.alwaysInlineCommonExpr": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.legacy.negativeIndexInArrayInsert": "true",
}
"""Settings under which SQL means something else."""


@pytest.fixture
def unlike(engine: SparkEngine) -> Iterator[SparkEngine]:
    """An engine whose session is set up unlike any other."""
    conf = engine.host.session.conf
    for key, value in UNLIKE.items():
        conf.set(key, value)
    yield engine
    for key in UNLIKE:
        conf.unset(key)
    conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.long
def test_statements_mean_the_same_whatever_the_settings_are(unlike: SparkEngine, tmp_path: Path) -> None:
    session, table = unlike.host.session, DeltaTable(tmp_path / "t")
    # The user's own frames mean what his settings say.
    rows = session.sql(
        "SELECT id, CAST(id AS TINYINT) n, CAST('x' AS INT) bad, '1' AS `a.b`, 1 AS `order` FROM range(4)"
    )
    table.append(rows, properties={"delta.enableDeletionVectors": "true"})
    assert table.snapshot().scan(["bad"]).to_arrow()["bad"].null_count == 4
    with pytest.raises(InvalidExpressionError, match="OVERFLOW"):
        table.update({"n": "id + 1000"}, engine=unlike)
    with pytest.raises(InvalidExpressionError, match="CAST_INVALID_INPUT"):
        table.update({"n": "concat(`a.b`, 'x')"}, engine=unlike)
    table.update({"`A.B`": "concat('<', `a.b`, \"!\", order)"}, "ID = 1", engine=unlike)
    source = session.sql("SELECT 2L ID, 1000L wide, CAST(TIMESTAMP'2020-01-01 00:30:00' AS STRING) shown")
    merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    with pytest.raises(InvalidExpressionError, match="OVERFLOW"):
        merge.when_matched_update({"n": "s.wide"}).execute()
    merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"`a.b`": "s.shown"}).when_not_matched_by_source_delete("t.id = 3").execute()
    table.upsert(session.sql("SELECT 9L Id, 9 AS `oRDER`"), ["id"], schema_mode="merge")
    assert rows_of(table.snapshot().scan(["id", "`a.b`"]).to_arrow(), "id") == [
        {"id": 0, "a.b": "1"},
        {"id": 1, "a.b": "<1!1"},
        {"id": 2, "a.b": "2020-01-01 00:30:00"},
        {"id": 9, "a.b": None},
    ]
    assert {key: session.conf.get(key) for key in UNLIKE} == UNLIKE


@pytest.mark.long
def test_legacy_settings_are_of_the_users_frames_alone(unlike: SparkEngine, tmp_path: Path) -> None:
    session, table = unlike.host.session, DeltaTable(tmp_path / "t")
    table.create([column("id", "bigint"), column("c", "char(3)"), column("r", "string")])
    value = "concat(typeof(1e1), array_insert(array(1, 2), -1, 9)[2])"
    table.append(session.sql(f"SELECT id, 'a' AS c, {value} AS r FROM range(2)"))
    where = "id = 1 AND c = lower('A') AND nullif(c, 'a') IS NOT NULL AND c NOT BETWEEN 'a' AND 'a'"
    table.update({"r": value}, where, engine=unlike)
    found = rows_of(table.snapshot().scan(["id", "r"]).to_arrow(), "id")
    assert found == [{"id": 0, "r": "decimal(2,0)2"}, {"id": 1, "r": "double9"}]


@pytest.mark.long
def test_a_frame_is_not_planned_under_the_settings_of_another_verb(spark_connect: Any) -> None:
    """A Connect session has one set of settings for all threads."""
    engine = SparkEngine(spark_connect)
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.host.settings(ANALYSIS_SETTINGS):
            held.set()
            ended.wait(60)

    spark_connect.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = spark_connect.sql("SELECT date_format(timestamp_seconds(id), 'HH') AS hour FROM range(1)")
        other = threading.Thread(target=hold)
        other.start()
        assert held.wait(60)
        threading.Timer(1, ended.set).start()
        kept = engine.relation(rows)
        assert ended.is_set()
        with engine.host.settings(ANALYSIS_SETTINGS):
            assert kept.collect() == [("09",)]
            with pytest.raises(UnsupportedError, match="under way"):
                engine.relation(rows)
        other.join()
    finally:
        spark_connect.conf.set("spark.sql.session.timeZone", "UTC")


def test_rows_are_kept_only_where_settings_differ(spark_connect: Any) -> None:
    rows, engine = spark_connect.range(1), SparkEngine(spark_connect)
    try:
        for zone, differs in (("Etc/UTC", False), ("Asia/Tokyo", True), ("UTC", False)):
            spark_connect.conf.set("spark.sql.session.timeZone", zone)
            assert (engine.relation(rows) is not rows) is differs, zone
    finally:
        spark_connect.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.long
def test_files_may_spell_columns_otherwise(unlike: SparkEngine, tmp_path: Path) -> None:
    for number, (name, inner) in enumerate([("id", "a"), ("ID", "A")]):
        pq.write_table(pa.table({name: [number], "st": [{inner: 5}]}), tmp_path / f"{number}.parquet")
    DeltaTable.convert(tmp_path)
    table = DeltaTable(tmp_path)
    rows = unlike.to_arrow(table.snapshot().scan().to_spark(unlike.host.session))
    assert rows_of(rows, "id") == [{"id": 0, "st": {"a": 5}}, {"id": 1, "st": {"a": 5}}]
    table.update({"st.a": "st.a + id"}, "id >= 0", engine=unlike)
    assert rows_of(table.snapshot().scan().to_arrow(), "id") == [{"id": 0, "st": {"a": 5}}, {"id": 1, "st": {"a": 6}}]


def test_a_collation_that_a_condition_cannot_have(classic: SparkEngine, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"k": ["a"]}))
    source = classic.host.session.sql("SELECT 'A' COLLATE UTF8_LCASE k")
    with pytest.raises(InvalidExpressionError, match="collation"):
        table.upsert(source, ["k"])
    assert table.version() == 0
