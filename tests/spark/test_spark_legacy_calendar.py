"""Files of writers that count days by the Julian calendar before 1582: both engines read the labels as written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.select import spark_engine
from tests.handmade import HandmadeTable
from tests.harness.row_multiset import ensure_same_rows

pytestmark = pytest.mark.spark

DAYS = [
    "0002-01-01", "0099-12-31", "0100-03-01", "0500-02-28", "0500-03-01", "0999-12-31", "1000-02-28", "1000-03-01",
    "1500-02-28", "1500-03-01", "1582-10-04", "1582-10-15", "1582-10-16", "1700-01-01", "1899-12-31", "1900-01-01",
    "1970-01-01", "9998-12-31",
]  # fmt: skip
TIMES = [f"{day} {time}" for day in DAYS for time in ("00:00:00", "12:34:56.789012", "23:59:59.999999")]


@contextmanager
def settings(spark: Any, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize(
    ("zone", "kind"),
    [
        ("UTC", "INT96"),
        ("UTC", "TIMESTAMP_MICROS"),
        ("America/Los_Angeles", "TIMESTAMP_MILLIS"),
        ("Asia/Kolkata", "INT96"),
        ("Europe/Berlin", "TIMESTAMP_MICROS"),
        ("+02:00", "INT96"),
    ],
)
def test_old_labels(spark: Any, tmp_path: Path, zone: str, kind: str) -> None:
    legacy = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.session.timeZone": zone,
    }
    made = HandmadeTable(tmp_path / "t")
    with settings(spark, legacy):
        labels = [(i, day, time) for i, (day, time) in enumerate(zip(DAYS * 3, TIMES, strict=True))]
        rows = spark.createDataFrame(labels, "id long, d string, t string")
        rows = rows.selectExpr(
            "id", "cast(d as date) d", "cast(t as timestamp) t", "cast(t as timestamp_ntz) n",
            "named_struct('in', array(cast(d as date), null), 'at', map('k', cast(t as timestamp))) s",
        )  # fmt: skip
        rows.coalesce(1).write.parquet(str(tmp_path / "written"))
    (written,) = (tmp_path / "written").glob("*.parquet")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
            ("n", pa.timestamp("us")),
            ("s", pa.struct([("in", pa.list_(pa.date32())), ("at", pa.map_(pa.string(), pa.timestamp("us", "UTC")))])),
        ]
    )
    made.create(schema, reader_features=("timestampNtz",))
    written.rename(made.root / "f.parquet")
    made.commit(made.add("f.parquet"))
    snapshot, engine = made.open().snapshot(), spark_engine(spark)
    local = snapshot.scan().to_arrow()
    found = sorted(zip(local["id"].to_pylist(), map(str, local["d"].to_pylist()), strict=True))
    assert found == list(enumerate(DAYS * 3))
    ensure_same_rows(local, engine.to_arrow(snapshot.scan().to_relation(engine)))
    chosen = snapshot.scan(where="d < DATE'1500-03-01'").to_arrow()
    assert chosen.num_rows == 3 * DAYS.index("1500-03-01")
