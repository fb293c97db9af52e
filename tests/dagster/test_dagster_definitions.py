import subprocess
import sys
from inspect import signature
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import delta_orch.dagster as plugin
from delta_orch import __version__
from delta_orch.dagster import DeltaTableResource
from delta_orch.delta_table import DeltaTable

GUIDE = Path(__file__).parents[2] / "docs" / "dagster.md"


def example(root: Path) -> str:
    """The pipeline of the guide, on a folder of the test's."""
    code = GUIDE.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert 'ROOT = "lake"' in code
    return code.replace('ROOT = "lake"', f"ROOT = {str(root)!r}")


def test_all_names_are_there_and_listed() -> None:
    assert sorted(plugin.__all__) == plugin.__all__
    assert all(hasattr(plugin, name) for name in plugin.__all__)
    # Public, but not marked as exported.
    assert dg.DagsterLibraryRegistry.get()["delta-orch"] == __version__  # type: ignore[attr-defined]


def test_definitions_load_and_run(tmp_path: Path) -> None:
    namespace: dict[str, object] = {}
    exec(compile(example(tmp_path), "docs/dagster.md", "exec"), namespace)
    defs = namespace["defs"]
    assert isinstance(defs, dg.Definitions)
    dg.Definitions.validate_loadable(defs)
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(asset_selection=[dg.AssetKey("flights")], partition_key="2013-01-02").success
    assert job.execute_in_process(asset_selection=[dg.AssetKey("enriched")]).success
    assert DeltaTable(tmp_path / "silver").snapshot().scan().to_arrow().to_pylist() == [{"day": "2013-01-02", "n": 1}]


def test_definitions_on_a_table_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = GUIDE.read_text().split("## A table that exists already")[1].split("```python\n", 1)[1].split("```", 1)[0]
    code = code.replace("abfss://lake@account.dfs.core.windows.net/silver/orders", str(tmp_path / "orders"))
    code = code.replace("lake/order_states", str(tmp_path / "states"))
    monkeypatch.setenv("LAKE_KEY", "unused")
    DeltaTable(tmp_path / "orders").append(pa.table({"id": [1, 2], "state": ["open", "done"]}))
    namespace: dict[str, object] = {}
    exec(compile(code, "docs/dagster.md", "exec"), namespace)
    defs = namespace["defs"]
    assert isinstance(defs, dg.Definitions)
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process()
    assert result.success
    assert result.output_for_node("open_orders").to_pylist() == [{"id": 1, "state": "open"}]
    rows = DeltaTable(tmp_path / "states").snapshot().scan().to_arrow().sort_by("state").to_pylist()
    assert rows == [{"state": "done", "id_count": 1}, {"state": "open", "id_count": 1}]


def test_dagster_validates_the_definitions(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(example(tmp_path))
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-f", "pipeline.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stderr + done.stdout


def test_the_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLE", str(tmp_path / "t"))
    resource = DeltaTableResource(table_uri=dg.EnvVar("TABLE"), storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(resource) + str(resource)
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"n": [1]}))
    table.append(pa.table({"n": [2]}))
    plain = DeltaTableResource(table_uri=dg.EnvVar("TABLE"))
    assert plain.table().uri == table.uri
    assert plain.snapshot().version == 1
    assert plain.snapshot(version=0).num_files == 1
    assert [entry.version for entry in plain.history()] == [1, 0]
    assert plain.changes(starting_version=1).to_arrow().column("n").to_pylist() == [2]
    newest = plain.history(1)[0].timestamp_ms
    assert plain.changes(starting_timestamp=newest).to_arrow().column("n").to_pylist() == [2]
    assert plain.changes(starting_version=2, allow_out_of_range=True).to_arrow().num_rows == 0
    for name in ("changes", "snapshot", "history"):
        assert signature(getattr(DeltaTableResource, name)) == signature(getattr(DeltaTable, name)), name

    @dg.asset
    def count(delta: DeltaTableResource) -> int:
        answer: int = delta.snapshot().scan().to_arrow().num_rows
        return answer

    assert dg.materialize([count], resources={"delta": plain}).output_for_node("count") == 2


def test_importing_the_package_imports_no_orchestrator() -> None:
    script = "import sys, delta_orch, delta_orch.pipeline.incremental; sys.exit('dagster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
