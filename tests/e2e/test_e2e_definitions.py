"""The example pipelines load where users load them: `dagster dev -m dagster_defs`, Airflow's DAG folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def environment(home: Path) -> dict[str, str]:
    (home / "dagster").mkdir(parents=True)
    (home / "dagster" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    return {
        **os.environ,
        "FLIGHTS_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
    }


def run(arguments: list[str], home: Path, cwd: Path = CHECKOUT, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_dagster_accepts_the_definitions(tmp_path: Path) -> None:
    dagster = Path(sys.executable).with_name("dagster")
    done = run([str(dagster), "definitions", "validate", "-m", "dagster_defs"], tmp_path / "home")
    assert "Validation successful" in done.stdout + done.stderr


def test_the_definitions_hold_the_pipeline_and_its_maintenance(tmp_path: Path) -> None:
    code = """
import json
import dagster as dg
from dagster_defs import defs
graph = defs.resolve_asset_graph()
print(json.dumps({
    "assets": sorted(key.to_user_string() for key in graph.get_all_asset_keys()),
    "parents": sorted(key.to_user_string() for key in graph.get(dg.AssetKey("flights_enriched")).parent_keys),
    "sensors": sorted(sensor.name for sensor in defs.sensors),
}))
"""
    done = run([sys.executable, "-W", "ignore", "-c", code], tmp_path / "home")
    content = json.loads(done.stdout.splitlines()[-1])
    tables = ["carrier_daily", "flights", "flights_enriched", "weather_readings"]
    assert content["assets"] == sorted([*tables, *(f"maintenance/{name}" for name in tables)])
    arrivals = [f"{name}_{what}" for name in ("flights", "weather") for what in ("arrived", "changed")]
    assert content["sensors"] == ["carriers_read", *arrivals]
    assert content["parents"] == ["flights", "weather_readings"]


def test_airflow_imports_the_dags(tmp_path: Path) -> None:
    code = """
from airflow.dag_processing.dagbag import DagBag
import json, os
bag = DagBag(dag_folder=os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
print(json.dumps({"errors": bag.import_errors, "dags": {name: dag.task_ids for name, dag in bag.dags.items()}}))
"""
    # As the Dag processor does, so that DAG files can import what lies beside them.
    path = f"{CHECKOUT / 'dags'}:{os.environ.get('PYTHONPATH', '')}"
    done = run([sys.executable, "-W", "ignore", "-c", code], tmp_path / "home", PYTHONPATH=path)
    content = json.loads(done.stdout.splitlines()[-1])
    assert content["errors"] == {}
    assert sorted(content["dags"]) == ["carriers", "flights", "flights_maintenance"]
    tables = {"flights", "weather_readings", "flights_enriched", "carrier_daily"}
    assert set(content["dags"]["flights"]) == tables
    assert len(content["dags"]["flights_maintenance"]) == 20


def test_each_folder_can_be_copied_alone(tmp_path: Path) -> None:
    """Into an empty directory, where nothing else of the checkout is."""
    name = "flights_transformations.py"
    assert (CHECKOUT / "dags" / name).read_text() == (CHECKOUT / "dagster_defs" / name).read_text()
    shutil.copytree(CHECKOUT / "dagster_defs", tmp_path / "dagster_defs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "dags", tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    dagster = Path(sys.executable).with_name("dagster")
    arguments = [str(dagster), "definitions", "validate", "-m", "dagster_defs"]
    run(arguments, tmp_path / "home", tmp_path, PYTHONPATH="")
    code = """
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder="dags", bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors
assert "flights" in bag.dags
"""
    script = tmp_path / "load.py"
    script.write_text(code)
    folders = {"PYTHONPATH": str(tmp_path / "dags"), "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags")}
    run([sys.executable, "-W", "ignore", str(script)], tmp_path / "other", tmp_path, **folders)
