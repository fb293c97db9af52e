"""The page about moving from delta-spark and from readers of frames: every call on its right side runs."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_orch
from delta_orch import DeltaTable, column, identity_column, literal
from delta_orch.verbs.merge.clauses import Merge

PAGE = (Path(__file__).parents[2] / "docs" / "delta_spark_migration.md").read_text()
CALL = re.compile(r"`((?:table\.|other\.|DeltaTable\.|delta_orch\.sql|\.when|identity_column)[^`]*\))`")
ROWS = pa.table({"id": pa.array([1, 7], pa.int64()), "note": ["a", "b"], "day": [date(2026, 1, 31), date(2026, 2, 1)]})


def calls() -> list[str]:
    right = [line.strip("| ").split(" | ")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    return list(dict.fromkeys(call for cell in right for call in CALL.findall(cell)))


@pytest.mark.parametrize("call", calls())
def test_a_call_runs(tmp_path: Path, request: pytest.FixtureRequest, call: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS, partition_by=["day"])
    table.alter().add_feature("changeDataFeed").commit()
    if "drop_feature" in call:
        table.alter().add_feature("domainMetadata").commit()
    (tmp_path / "p" / "day=2026-01-31").mkdir(parents=True)
    pq.write_table(ROWS.select(["id"]), tmp_path / "p" / "day=2026-01-31" / "x.parquet")
    names: dict[str, Any] = {
        "table": table,
        "other": DeltaTable(tmp_path / "other"),
        "at": datetime.fromtimestamp(table.snapshot(0).timestamp_ms / 1000, UTC),
        "df": ROWS,
        "schema": ROWS.schema,
        "frame": pytest.importorskip("polars", reason="polars is not installed").DataFrame(ROWS),
        "target": str(tmp_path / "clone"),
        "set": {"note": "'x'"},
        "condition": "s.id > 5",
        "merge": table.merge(ROWS, "t.id = s.id", source_alias="s", target_alias="t"),
        "duckdb": pytest.importorskip("duckdb", reason="duckdb is not installed"),
        "DeltaTable": DeltaTable,
        "column": column,
        "identity_column": identity_column,
        "literal": literal,
        "delta_orch": delta_orch,
    }
    if "(spark)" in call:
        names["spark"] = request.getfixturevalue("spark")
    code = ("merge" if call.startswith(".") else "") + call.replace("/lake", str(tmp_path))
    if "SELECT 7" in call:
        table.overwrite(ROWS.select(["id"]), schema_mode="overwrite", partition_by=[])
    found = eval(code, names)
    if isinstance(found, Merge):
        (found if call.startswith(".") else found.when_matched_update_all()).execute()


def test_the_page_has_calls() -> None:
    assert len(calls()) > 40
