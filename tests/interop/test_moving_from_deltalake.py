"""The page about moving from `deltalake`: what it says of calls and of answers."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.delta_table import TableSnapshot
from delta_orch.scan.scan import Scan
from delta_orch.verbs.alter.builder import Alteration

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

PAGE = (Path(__file__).parents[2] / "docs" / "deltalake_migration.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return lines[2:]


@pytest.mark.parametrize(("expression", "there", "here"), rows_of("Expressions"))
def test_answers_that_differ(tmp_path: Path, expression: str, there: str, here: str) -> None:
    rows: dict[str, Any] = {
        "i": pa.array([7], pa.int32()),
        "d": [Decimal("1.25")],
        "ts": pa.array([datetime(2024, 1, 2, 3, 4, 5)], pa.timestamp("us")),
        "s": ["a.b"],
        "a": [[5, 6]],
        "f": pa.nulls(1, pa.float64()),
        "n": pa.nulls(1, pa.int64()),
        "t": pa.nulls(1, pa.string()),
    }
    value = expression.strip("`")
    column = {"i": "f", "d": "d", "a": "n", "e": "n"}.get(value[0], "t")
    for path, expected in ((tmp_path / "there", there), (tmp_path / "here", here)):
        deltalake.write_deltalake(path, pa.table(rows))
        if path.name == "there":
            deltalake.DeltaTable(path).update({column: value})
        else:
            DeltaTable(path).update({column: value})
        [found] = DeltaTable(path).snapshot().scan().to_arrow()[column].to_pylist()
        assert (f"{found:g}" if isinstance(found, float) else str(found)) == expected


def test_calls_exist_on_both_sides() -> None:
    calls = rows_of("Calls")
    assert len(calls) > 15
    for there, here in calls:
        for name in re.findall(r"\bdt\.(\w+)", there):
            assert hasattr(deltalake.DeltaTable, name), name
        for name in re.findall(r"\btable\.(\w+)", here):
            assert hasattr(DeltaTable, name), name
        for name in re.findall(r"\(\)\.(\w+)", here):
            assert any(hasattr(kind, name) for kind in (TableSnapshot, Scan, Alteration)) or name in (
                "to_arrow",
                "commit",
            )
