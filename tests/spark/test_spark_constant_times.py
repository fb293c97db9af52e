"""Dates and times that a predicate computes of constants are those of Spark, and files are left out by them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.nodes import Opaque
from delta_orch.expressions.parse import syntax_of

pytestmark = pytest.mark.spark

DAYS = ["2024-01-31", "2024-02-29", "2023-12-31", "1582-10-15", "0001-01-01", "9999-12-31", "1900-03-01"]
TIMES = ("00:00:00", "23:59:59.999999")
STARTS = [
    *(f"DATE'{day}'" for day in DAYS),
    *(f"{kind}'{day} {time}'" for kind in ("TIMESTAMP", "TIMESTAMP_NTZ") for day in DAYS for time in TIMES),
]
UNITS = ["YEAR", "MONTHS", "WEEK", "DAYS", "HOUR", "MINUTES", "SECOND"]
MOVES = [
    *(f"{{}} {sign} INTERVAL {count} {unit}" for sign in "+-" for count in (0, 1, -13, 400) for unit in UNITS),
    *(f"{{}} {sign} INTERVAL '{count}' {unit}" for sign in "+-" for count in (1, -1) for unit in ("DAY", "MONTH")),
    "INTERVAL 1 MONTH + {}", "INTERVAL 3 DAYS + {}", "{} - INTERVAL 1 DAY - INTERVAL 1 MONTH", "{} + INTERVAL -2 DAYS",
    "{} + INTERVAL 1 YEAR -2 MONTHS", "{} - INTERVAL '-1-11' YEAR TO MONTH", "{} + INTERVAL 1 WEEK 2 DAYS",
    "{} - INTERVAL 1 DAY 30 MINUTES", "{} + INTERVAL '-3 04:05:06.7' DAY TO SECOND", "{} + INTERVAL 1.5 SECONDS",
    "{} + 1", "{} - 30", "date_add({}, 1)", "date_sub({}, 400)", "date_add({}, -1S)", "{} + 2L",
]  # fmt: skip


@pytest.mark.long
def test_they_are_those_of_spark(spark: Any) -> None:
    texts = [move.format(start) for move in MOVES for start in STARTS]
    known = {text: found for text in texts if (found := constant_of(syntax_of(Opaque(text, ())))) is not None}
    assert len(known) > len(texts) * 0.7
    listed = ", ".join(f"CAST({text} AS STRING), typeof({text})" for text in known)
    (row,) = spark.sql(f"SELECT {listed}").collect()
    told = list(zip(row[::2], row[1::2], strict=True))
    mine = [(str(found.value).replace("+00:00", ""), found.data_type) for found in known.values()]
    for text, (value, kind), (expected, spark_kind) in zip(known, mine, told, strict=True):
        assert (value.rstrip("0").rstrip(".") if "." in value else value, str(kind)) == (expected, spark_kind), text


@pytest.mark.parametrize(
    "where",
    [
        "day >= current_date() - INTERVAL 7 DAYS", "day > date_sub(current_date, 8)", "current_date() - 7 <= day",
        "at >= now() - INTERVAL 7 DAYS", "day >= current_date() - INTERVAL 1 WEEK + INTERVAL 0 DAYS",
    ],
)  # fmt: skip
def test_files_are_left_out(spark: Any, tmp_path: Path, where: str) -> None:
    table, now = DeltaTable(tmp_path / "t"), datetime.now(UTC)
    for age in range(0, 60, 10):
        at = now - timedelta(days=age)
        rows = {"id": [age], "day": [at.date()], "at": pa.array([at], pa.timestamp("us", "UTC"))}
        table.append(pa.table(rows), partition_by=["day"])
    scan = table.snapshot().scan(where=where)
    assert scan.to_arrow()["id"].to_pylist() == [row.id for row in scan.to_spark(spark).collect()] == [0]
    assert scan.explain().after_data_skipping.num_files == 1
    table.delete(where)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [10, 20, 30, 40, 50]


def test_a_partition_of_some_days_ago_is_named_by_them(tmp_path: Path) -> None:
    """What the log alone must decide."""
    table, today = DeltaTable(tmp_path / "t"), datetime.now(UTC).date()
    for age in (0, 0, 40, 40):
        table.append(
            pa.table({"id": [age], "day": pa.array([today - timedelta(days=age)], pa.date32())}), partition_by=["day"]
        )
    table.optimize(where="day >= current_date() - INTERVAL 7 DAYS")
    assert table.snapshot().num_files == 3


@pytest.mark.long
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12", "UTC"])
@pytest.mark.parametrize("kind", ["classic", "connect", "portable"])
def test_a_users_filter_has_the_day_of_the_session(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, zone: str
) -> None:
    """Files were left out by the day of UTC, and rows of the session's day were missing."""
    session = request.getfixturevalue("spark_connect" if kind == "connect" else "spark")
    engine = request.getfixturevalue("portable_engine") if kind == "portable" else None
    table, now = DeltaTable(tmp_path / "t"), datetime.now(UTC)
    for days in (-2, -1, 0, 1, 2):
        table.append(pa.table({"day": [(now + timedelta(days=days)).date()], "n": [days]}), partition_by=["day"])
    scan = table.snapshot().scan()
    frame = scan.to_spark(session) if engine is None else engine.scan(scan.plan())
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        today = session.sql("SELECT current_date()").collect()[0][0]
        assert [row.day for row in frame.where("day = current_date()").collect()] == [today]
        assert [row.day for row in frame.where("day = current_date").collect()] == [today]
    finally:
        session.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.long
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize(
    "where",
    [
        "day < TIMESTAMP'2024-01-01T00:00:00Z'", "day >= TIMESTAMP'2024-01-02T00:00:00Z' - INTERVAL 1 DAY",
        "day <= TIMESTAMP'2023-12-31 12:00:00Z'", "day > TIMESTAMP'2024-01-01T00:00:00Z' - INTERVAL 1 HOUR",
        "day = TIMESTAMP'2023-12-31 10:00:00Z'", "day = TIMESTAMP'2024-01-01 12:00:00Z'",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["spark", "spark_connect"])
def test_a_day_beside_a_time_is_of_the_sessions_zone(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, where: str, zone: str
) -> None:
    session = request.getfixturevalue(kind)
    table = DeltaTable(tmp_path / "t")
    for day in (date(2023, 12, 31), date(2024, 1, 1), date(2024, 1, 2)):
        table.append(pa.table({"day": [day], "n": [1]}), partition_by=["day"])
    frame = table.snapshot().scan().to_spark(session)
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        plain = "VALUES (DATE'2023-12-31'), (DATE'2024-01-01'), (DATE'2024-01-02') AS x(day)"
        wanted = sorted(row.day for row in session.sql(f"SELECT * FROM {plain} WHERE {where}").collect())
        assert sorted(row.day for row in frame.where(where).collect()) == wanted
    finally:
        session.conf.set("spark.sql.session.timeZone", before)
