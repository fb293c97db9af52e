"""docs/airflow.md and its references: the examples run, and the references, as the site has them, list every parameter
there is."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import delta_orch.airflow as plugin
from delta_orch.airflow.incremental_operator import WRITES as INCREMENTAL_WRITES
from delta_orch.airflow.sensors import DeltaSensor
from delta_orch.airflow.table_operator import DeltaTableOperator, DeltaUnitOperator
from delta_orch.airflow.write_operator import WRITES
from delta_orch.delta_table import DeltaTable
from delta_orch.pipeline.unit import ON_REDO
from scripts.site_reference import expanded

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "airflow.md").read_text()
REFERENCE = "\n".join(expanded((DOCS / f"airflow-{page}.md").read_text()) for page in ("reference", "operations"))
MAX_WORDS = 1_800
JANUARY_2 = datetime(2026, 1, 2, tzinfo=UTC)
BASES = {
    "Every operator": DeltaTableOperator,
    "Operators that change rows: `DeltaUnitOperator`": DeltaUnitOperator,
    "Every sensor: `DeltaSensor`": DeltaSensor,
}
SECTIONS: dict[str, Any] = {
    **BASES,
    **{f"`{name}`": getattr(plugin, name) for name in plugin.__all__ if f"## `{name}`" in REFERENCE},
}
NO_SECTION = {
    *("DELTA_RETRY_POLICY", "DeltaCheckpointOperator", "DeltaConditionTrigger", "DeltaHook", "DeltaVersionTrigger"),
    *("delta_changes_task", "delta_task"),
}


def section(page: str, heading: str) -> str:
    _, found, text = page.partition(f"\n## {heading}\n")
    assert found, heading
    return text.split("\n## ", 1)[0]


def load(page: str, heading: str, folder: Path) -> Any:
    """Run an example. Airflow takes one asset a name for active, and other tests have one of the name `flights`."""
    code = section(page, heading).split("```python\n", 1)[1].split("```", 1)[0]
    assert "/data/lake" in code
    code = code.replace("/data/lake", str(folder)).replace('_asset("flights"', '_asset("the guide"')
    namespace: dict[str, Any] = {}
    exec(compile(code, heading, "exec"), namespace)
    return namespace["dag"]


def rows(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(table).snapshot().scan().to_arrow().to_pylist()
    return found


def parameters_of(entry: Any) -> tuple[set[str], set[str]]:
    """Its own parameters, and those with what its bases take."""
    if not inspect.isclass(entry):
        own = set(inspect.signature(entry).parameters)
        return own, own
    mro: tuple[Any, ...] = entry.__mro__
    kinds = [set(inspect.signature(kind.__init__).parameters) - {"self", "args", "kwargs"} for kind in mro]
    return kinds[0], set().union(*kinds)


def test_the_guide_is_short() -> None:
    assert len(GUIDE.split()) <= MAX_WORDS


def test_the_example_runs(runs: Any, tmp_path: Path) -> None:
    dag = load(GUIDE, "The first DAG", tmp_path)
    run = runs.run(dag, JANUARY_2)
    assert str(run.state) == "success"
    expected = [{"day": "2026-01-02", "carrier": "UA", "delay": 12}]
    for name in ("flights", "enriched"):
        assert rows(tmp_path / name) == expected
    # A run without a logical date, as an asset or a user starts it.
    manual = runs.run(dag, None, run_after=datetime(2026, 2, 3, tzinfo=UTC))
    assert str(manual.state) == "success"
    assert sorted(row["day"] for row in rows(tmp_path / "flights")) == ["2026-01-02", "2026-02-03"]


def test_the_tutorial(runs: Any, tmp_path: Path) -> None:
    code = (DOCS / "first-airflow.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert '"/tmp/lake"' in code
    namespace: dict[str, Any] = {}
    exec(compile(code.replace('"/tmp/lake"', repr(str(tmp_path))), "docs/first-airflow.md", "exec"), namespace)
    source = tmp_path / "visits-2026-01-02.csv"
    source.write_text("day,page,visitors\n2026-01-02,/,42\n2026-01-02,/about,3\n")
    run = runs.run(namespace["dag"], JANUARY_2)
    source.write_text("day,page,visitors\n2026-01-02,/,50\n2026-01-02,/about,3\n")
    assert str(runs.clear(namespace["dag"], run, "visits", "totals").state) == "success"
    assert runs.xcom(run, "visits")["outcome"] == "replaced"
    assert [row["visitors_sum"] for row in rows(tmp_path / "totals")] == [53]


def test_appending_and_undo(runs: Any, tmp_path: Path) -> None:
    dag = load(GUIDE, "Appending, and mapped tasks", tmp_path)
    run = runs.run(dag, JANUARY_2)
    assert str(run.state) == "success"
    assert sorted(row["region"] for row in rows(tmp_path / "payments")) == ["eu", "us"]
    cleared = runs.clear(dag, run, "load")
    assert str(cleared.state) == "success"
    assert sorted(row["region"] for row in rows(tmp_path / "payments")) == ["eu", "us"]
    assert runs.xcom(run, "load", map_index=0)["outcome"] == "replaced"
    undo = load(GUIDE, "Look and undo", tmp_path)
    runs.register(undo)
    assert str(undo.test(logical_date=JANUARY_2, run_conf={"run": run.run_id}).state) == "success"
    assert rows(tmp_path / "payments") == []


def test_overwrites(runs: Any, tmp_path: Path) -> None:
    dag = load(GUIDE, "Overwrites", tmp_path)
    runs.run(dag, datetime(2026, 1, 3, tzinfo=UTC))
    late = runs.run(dag, JANUARY_2)
    assert runs.xcom(late, "prices")["outcome"] == "fenced"
    assert rows(tmp_path / "prices") == [{"day": "2026-01-03", "price": 3}]


@pytest.mark.long
def test_incremental_tasks(runs: Any, tmp_path: Path) -> None:
    dag = load(GUIDE, "Incremental tasks", tmp_path)
    assert str(runs.run(dag, JANUARY_2).state) == "success"
    refreshed = dag.test(logical_date=datetime(2026, 1, 3, tzinfo=UTC), run_conf={"full_refresh": True})
    assert str(refreshed.state) == "success"
    assert runs.xcom(refreshed, "totals")["outcome"] == "replaced"
    totals = sorted(tuple(row.values()) for row in rows(tmp_path / "totals"))
    assert totals == [("2026-01-02", 7), ("2026-01-03", 7)]


@pytest.mark.long
def test_write_audit_publish(runs: Any, tmp_path: Path) -> None:
    assert str(runs.run(load(GUIDE, "Write, audit, publish", tmp_path), JANUARY_2).state) == "success"
    assert rows(tmp_path / "audited") == [{"day": "2026-01-02", "amount": 3}]


def test_waiting_for_tables(tmp_path: Path) -> None:
    dag = load(GUIDE, "Wait for tables, and start DAGs by commits", tmp_path)
    assert sorted(dag.task_ids) == ["dagster", "day"]


@pytest.mark.long
def test_the_moved_tasks_run(runs: Any, tmp_path: Path) -> None:
    code = (DOCS / "airflow_migration.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert '"/data/lake"' in code
    namespace: dict[str, Any] = {}
    exec(compile(code.replace('"/data/lake"', repr(str(tmp_path))), "docs/airflow_migration.md", "exec"), namespace)
    for day in (2, 3):
        assert str(runs.run(namespace["dag"], datetime(2026, 1, day, tzinfo=UTC)).state) == "success"
    totals = DeltaTable(tmp_path / "totals").snapshot().scan().to_arrow()
    assert sorted(map(tuple, map(dict.values, totals.to_pylist()))) == [("2026-01-02", 7), ("2026-01-03", 7)]


def test_every_example_is_run() -> None:
    assert GUIDE.count("```python\n") == 7


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_reference_lists_every_parameter(heading: str) -> None:
    table = section(REFERENCE, heading).partition("| parameter |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    listed = [name.strip("*") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(listed) == len(set(listed))
    own, whole = parameters_of(SECTIONS[heading])
    assert own <= set(listed) <= whole | {"kwargs"}


def test_it_names_all_there_is() -> None:
    assert {f"`{name}`" for name in plugin.__all__} - SECTIONS.keys() == {f"`{name}`" for name in NO_SECTION}
    for name in NO_SECTION:
        assert f"`{name}`" in REFERENCE, name
    for value in {*WRITES, *INCREMENTAL_WRITES, *ON_REDO}:
        assert f"`{value}`" in REFERENCE, value
