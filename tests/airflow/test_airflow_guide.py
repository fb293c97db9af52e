"""docs/airflow.md: its example runs, and it names everything the plugin exports."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import delta_orch.airflow as plugin
from delta_orch.airflow.incremental_operator import WRITES as INCREMENTAL_WRITES
from delta_orch.airflow.write_operator import WRITES
from delta_orch.delta_table import DeltaTable
from delta_orch.pipeline.unit import ON_REDO

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "airflow.md").read_text()


def test_the_example_runs(runs: Any, tmp_path: Path) -> None:
    code = GUIDE.split("```python\n", 1)[1].split("```", 1)[0]
    # Airflow takes one asset a name for active, and other examples have one of that name elsewhere.
    for given, replacement in {'"/data/lake"': repr(str(tmp_path)), '_asset("flights"': '_asset("the guide"'}.items():
        assert given in code
        code = code.replace(given, replacement)
    namespace: dict[str, Any] = {}
    exec(compile(code, "docs/airflow.md", "exec"), namespace)
    run = runs.run(namespace["dag"], datetime(2026, 1, 2, tzinfo=UTC))
    assert str(run.state) == "success"
    rows = [{"day": "2026-01-02", "carrier": "UA", "delay": 12}]
    for name in ("flights", "enriched"):
        assert DeltaTable(tmp_path / name).snapshot().scan().to_arrow().to_pylist() == rows
    # A run without a logical date, as an asset or a user starts it.
    manual = runs.run(namespace["dag"], None, run_after=datetime(2026, 2, 3, tzinfo=UTC))
    assert str(manual.state) == "success"
    days = DeltaTable(tmp_path / "flights").snapshot().scan().to_arrow()["day"].to_pylist()
    assert sorted(days) == ["2026-01-02", "2026-02-03"]


@pytest.mark.slow
def test_the_moved_tasks_run(runs: Any, tmp_path: Path) -> None:
    code = (DOCS / "airflow_migration.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert '"/data/lake"' in code
    namespace: dict[str, Any] = {}
    exec(compile(code.replace('"/data/lake"', repr(str(tmp_path))), "docs/airflow_migration.md", "exec"), namespace)
    for day in (2, 3):
        assert str(runs.run(namespace["dag"], datetime(2026, 1, day, tzinfo=UTC)).state) == "success"
    totals = DeltaTable(tmp_path / "totals").snapshot().scan().to_arrow()
    assert sorted(map(tuple, map(dict.values, totals.to_pylist()))) == [("2026-01-02", 7), ("2026-01-03", 7)]


def test_it_names_all_there_is() -> None:
    for name in plugin.__all__:
        assert name in GUIDE, name
    for value in {*WRITES, *INCREMENTAL_WRITES, *ON_REDO}:
        assert f"`{value}`" in GUIDE, value
