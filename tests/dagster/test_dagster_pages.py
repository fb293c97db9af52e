"""docs/dagster.md and its references, as the site has them: the examples run, and every parameter is listed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

import delta_orch.dagster as plugin
from delta_orch.dagster import checks
from delta_orch.dagster.incremental import WRITES as INCREMENTAL_WRITES
from delta_orch.dagster.settings import DEFINED_KEYS, INPUT_KEYS, WRITES
from delta_orch.delta_table import DeltaTable
from delta_orch.pipeline.unit import ON_REDO
from scripts.site_reference import expanded

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "dagster.md").read_text()
PAGES = ("reference", "incremental", "operations")
REFERENCE = "\n".join(expanded((DOCS / f"dagster-{page}.md").read_text()) for page in PAGES)
MAX_WORDS = 1_800
RULES = [
    name
    for name, rule in vars(checks).items()
    if inspect.isfunction(rule)
    and rule.__module__ == checks.__name__
    and name[0] != "_"
    and not name.startswith("build")
]
PARAMETERS_OF = [
    name
    for name in plugin.__all__
    if name not in ("ChangeBatch", "DeltaAutomation", "DeltaSnapshot", "FileBatch", "checks")
]  # fmt: skip


def section(page: str, heading: str) -> str:
    """The text below a heading, down to the next one of its level or above."""
    level = heading.split(" ", 1)[0]
    _, found, text = page.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^#{{2,{len(level)}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The names in the first cell of each row of the tables."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def block(page: str, heading: str) -> str:
    return section(page, heading).split("```python\n", 1)[1].split("```", 1)[0]


def definitions(page: str, heading: str) -> tuple[dg.Definitions, dict[str, Any]]:
    """Run an example and load what it defines."""
    namespace: dict[str, Any] = {}
    # Dagster looks at the annotations themselves: this file's are text.
    exec(compile(block(page, heading), heading, "exec", dont_inherit=True), namespace)
    defs = namespace["defs"]
    assert isinstance(defs, dg.Definitions)
    dg.Definitions.validate_loadable(defs)
    return defs, namespace


def rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(path).snapshot().scan().to_arrow().to_pylist()
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples name relative paths."""
    monkeypatch.chdir(tmp_path)


def test_the_guide_is_short() -> None:
    assert len(GUIDE.split()) <= MAX_WORDS
    assert len((DOCS / "exactly-once.md").read_text().split()) <= 700


@pytest.mark.parametrize("name", PARAMETERS_OF)
def test_the_reference_lists_every_parameter(name: str) -> None:
    entry = getattr(plugin, name)
    if isinstance(entry, type) and issubclass(entry, BaseModel):
        parameters = set(entry.model_fields)
    else:
        parameters = set(inspect.signature(entry).parameters)
    text = section(REFERENCE, f"## `{name}`").partition("| parameter |")[2].partition("\n\n")[0]
    listed = [cell.strip("*") for cell in first_cells(text)]
    assert len(listed) == len(set(listed))
    assert set(listed) == parameters


def test_the_reference_lists_the_parameters_of_methods_and_rules() -> None:
    run = section(REFERENCE, "### `run`").partition("| parameter |")[2]
    assert set(first_cells(run)) == set(inspect.signature(plugin.PipesDeltaSparkClient.run).parameters) - {"self"}
    rules = section(REFERENCE, "## `build_delta_check`").partition("| function |")[2]
    listed = {name: arguments.split(", ") for name, arguments in re.findall(r"`checks\.(\w+)\((.*?)\)`", rules)}
    assert listed == {name: list(inspect.signature(getattr(checks, name)).parameters) for name in RULES}


def test_the_reference_lists_the_metadata() -> None:
    assert set(first_cells(section(REFERENCE, "## Metadata of an asset"))) == set(DEFINED_KEYS)
    assert set(first_cells(section(REFERENCE, "## Metadata of an input"))) == set(INPUT_KEYS)
    for value in {*WRITES, *INCREMENTAL_WRITES, *ON_REDO}:
        assert f"`{value}`" in REFERENCE, value
    for name in plugin.__all__:
        assert name in REFERENCE, name


def test_the_tutorial() -> None:
    namespace: dict[str, Any] = {}
    code = (DOCS / "first-dagster.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    exec(compile(code, "docs/first-dagster.md", "exec", dont_inherit=True), namespace)
    job = namespace["defs"].resolve_implicit_global_asset_job_def()
    outcomes = []
    for day, visitors in (("2026-01-01", 40), ("2026-01-02", 42), ("2026-01-02", 50)):
        Path(f"visits-{day}.csv").write_text(f"day,page,visitors\n{day},/,{visitors}\n")
        for name, key in (("visits", day), ("totals", None)):
            run = job.execute_in_process(asset_selection=[dg.AssetKey(name)], partition_key=key)
            (event,) = run.get_asset_materialization_events()
            outcomes.append(event.materialization.metadata["delta/outcome"].value)
    assert outcomes == ["written"] * 4 + ["replaced", "written"]
    assert sorted(row["visitors_sum"] for row in rows("lake/totals")) == [40, 50]


def test_appending() -> None:
    defs, _ = definitions(GUIDE, "## Appending")
    job = defs.resolve_implicit_global_asset_job_def()
    payments, events = [dg.AssetKey("payments")], [dg.AssetKey("events")]
    for _ in range(2):
        assert job.execute_in_process(asset_selection=payments).success
        assert job.execute_in_process(asset_selection=events, partition_key="2026-01-01-00:00").success
    assert len(rows("lake/payments")) == 4
    assert [row["kind"] for row in rows("lake/events")] == ["click", "click"]
    assert len({row["load_id"] for row in rows("lake/events")}) == 2


def test_incremental_assets() -> None:
    defs, _ = definitions(GUIDE, "## Incremental assets")
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process().success
    refreshed = job.execute_in_process(
        asset_selection=[dg.AssetKey("daily_totals")],
        run_config={"ops": {"daily_totals": {"config": {"full_refresh": True}}}},
    )
    assert refreshed.success
    totals = sorted((row["day"], row["amount_sum"]) for row in rows("lake/totals"))
    assert totals == [("mon", 3), ("tue", 4)]


def test_audits() -> None:
    defs, _ = definitions(GUIDE, "## Audits: bad rows never become visible")
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    assert [row["id"] for row in rows("lake/payments")] == [1, 2]


def test_undo() -> None:
    written, _ = definitions(GUIDE, "## Appending")
    job = written.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(asset_selection=[dg.AssetKey("payments")])
    defs, _ = definitions(GUIDE, "## Rerun, look, undo")
    undo = defs.resolve_job_def("undo_payments")
    for dry_run, left in ((True, 2), (False, 0)):
        config = {"ops": {"delta_undo": {"config": {"run": run.run_id, "dry_run": dry_run}}}}
        assert undo.execute_in_process(run_config=config).success
        assert len(rows("lake/payments")) == left


def test_checks_and_maintenance() -> None:
    defs, _ = definitions(GUIDE, "## Checks and maintenance")
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {"orders", "maintenance/orders"}
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success


def test_versions_of_each_key() -> None:
    defs, _ = definitions(REFERENCE, "## Change events: cdc")
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    (row,) = rows("lake/customers")
    assert {"valid_from", "valid_to", "is_current", "is_deleted"} <= row.keys()


def test_a_submitted_program() -> None:
    definitions(REFERENCE, "## `PipesDeltaSparkClient`")


def test_every_example_is_run_by_some_test() -> None:
    """The first two examples of the guide are run by `test_dagster_definitions`."""
    assert GUIDE.count("```python\n") == 7
    assert sum((DOCS / f"dagster-{page}.md").read_text().count("```python\n") for page in PAGES) == 2
