"""The examples of docs/spark.md and docs/reading.md, in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.spark_source.options import REDACTION

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def flights(path: Path) -> DeltaTable:
    """Fourteen versions of a row each."""
    table = DeltaTable(path)
    for number in range(14):
        table.append(pa.table({"day": [f"2013-01-{number + 1:02}"], "carrier": ["AA"], "delay": [number]}))
    return table


def test_spark(spark: Any, tmp_path: Path) -> None:
    table = flights(tmp_path / "lake" / "flights")
    names: dict[str, Any] = {"spark": spark}
    read, follow, explain, register, write, redact = (
        code.replace("s3a://", f"{tmp_path}/").replace("s3://", f"{tmp_path}/") for code in blocks("spark")
    )
    exec(register, names)
    exec(read, names)
    assert names["changed"].count() == 2
    assert names["frame"].count() == 13
    assert table.snapshot().scan().count() == 28
    exec(follow, names)
    assert spark.sql("SELECT count(*) FROM flights").head()[0] == 28
    exec(explain, names)
    exec(
        write,
        {**names, "df": spark.createDataFrame([("2013-02-01", "AA", 1)], "day string, carrier string, delay long")},
    )
    assert spark.sql("SELECT count(*) FROM flights").head()[0] == 29
    before = spark.conf.get("spark.sql.redaction.string.regex", None)
    exec(redact, names)
    assert spark.conf.get("spark.sql.redaction.string.regex") == REDACTION
    if before is None:
        spark.conf.unset("spark.sql.redaction.string.regex")
    else:
        spark.conf.set("spark.sql.redaction.string.regex", before)


def test_reading(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = DeltaTable("lake/flights")
    for number in range(14):
        table.append(
            pa.table({"flight_date": ["2013-01-01"], "day": ["2013-07-01"], "carrier": ["AA"], "delay": [number]})
        )
    narrow, many, _ = blocks("reading")  # the third is run by tests/unit/test_docs.py
    exec(narrow.replace("s3://", f"{tmp_path}/"), {"spark": spark})
    names: dict[str, Any] = {}
    exec(many, names)
    assert names["scan"].count() == 14
