"""The demo from end to end, on eight months: every stage, every attempt to break it, both orchestrators."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_defs.flights_transformations import FLIGHT_RULES
from delta_orch import DeltaTable
from tests.demo.plan import make_plan
from tests.demo.readers import DELTALAKE, LOG_REPLAY
from tests.demo.results import Results
from tests.demo.source import Source
from tests.demo.verification import Verifier

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

MONTHS = 8
PROCESSES = "2"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one demo that has been run by the command users run."""
    home = tmp_path_factory.mktemp("demo") / "home"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.demo",
            "--months",
            str(MONTHS),
            "--processes",
            PROCESSES,
            "--home",
            str(home),
        ],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{tail(home / 'logs' / 'demo.log')}"
    assert "flights: source = Dagster = Airflow  224,910 = 224,910 = 224,910" in done.stdout
    assert "Every flight exactly once" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    return home


@pytest.fixture(scope="module")
def summary(home: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((home / "summary.json").read_text())
    return content


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else "no log"


ROWS = 224_910
"""Counted in the distribution's CSV by hand: the flights of the first eight months."""


def test_every_flight_is_there_exactly_once(summary: dict[str, Any]) -> None:
    assert {summary[f"rows_in_{place}"] for place in ("source", "dagster", "airflow", "silver")} == {ROWS}
    assert (summary["duplicates"], summary["lost_rows"]) == (0, 0)
    assert summary["passed"] is True
    assert summary["failures"] == []


def test_every_attempt_to_break_it_was_made(summary: dict[str, Any]) -> None:
    names = [step["name"] for step in summary["steps"]]
    assert names == ["arrived", "replaced", "recovered", "fenced", "undone", "raced", "corrected"]
    assert all(step["passed"] for step in summary["steps"])
    # Counted in the distribution's CSV by hand: June has 2,160 readings, of which 1,944 were loaded too early.
    assert summary["rows_undone"] == 1_944
    assert summary["steps_recovered"] == 2
    assert summary["runs_fenced"] == 1
    # Every thousandth of the 28,330 flights of April.
    assert summary["rows_repaired"] == 29
    assert summary["loaders_without_news"] == int(PROCESSES) - 1


def test_the_quarantine_says_how_many_rows_and_why(home: Path, summary: dict[str, Any]) -> None:
    assert set(summary["quarantined"]) == set(FLIGHT_RULES)
    assert summary["quarantined"] == summary["airflow"]["quarantined"]
    for tables in ("tables", "airflow_tables"):
        rows = DeltaTable(home / tables / "flights_quarantine").snapshot().scan(["source_file"]).to_arrow()
        assert rows.num_rows == sum(summary["quarantined"].values()) > 20
        assert {Path(name).name for name in rows["source_file"].to_pylist()} == {"corrections-1.csv"}


def test_two_independent_readers_confirm_every_table(summary: dict[str, Any]) -> None:
    assert {"deltalake", "duckdb log replay"} <= set(summary["readers_confirmed"])
    assert len(summary["comparisons"]) == 4 * len(summary["readers_confirmed"])
    assert all(comparison["confirmed"] for comparison in summary["comparisons"])
    assert "duckdb delta extension" in [*summary["readers_confirmed"], *summary["readers_unavailable"]]


def test_airflow_retried_without_doubling_and_replaced_what_was_cleared(
    summary: dict[str, Any],
) -> None:
    airflow = summary["airflow"]
    assert airflow["loaded"]["state"] == "success"
    # A DAG that follows Dagster's commits, and the Dagster sensor that waits for it.
    assert airflow["followed"]["state"] == "success"
    assert airflow["handshake"] == {"before": [], "after": [f"carriers-{airflow['followed']['version']}"]}
    assert airflow["maintenance"]["state"] == "success"
    # The retries report the commits of the attempts before them as the tasks' own.
    retried = {task["task"]: (task["state"], task["tries"], task["outcome"]) for task in airflow["retried"]}
    assert retried == dict.fromkeys(("flights", "weather_readings"), ("success", 2, "recovered"))
    cleared = {task: (told["outcome"], told["rows_replaced"]) for task, told in airflow["cleared"].items()}
    # The first eight months have 17,459 readings. Every tenth of the 2,226 of January was missing before the clear.
    assert cleared["weather_readings"] == ("replaced", 17_459 - 223)
    assert {outcome for outcome, _ in cleared.values()} == {"replaced"}
    assert airflow["comparisons"]
    assert all(comparison["confirmed"] for comparison in airflow["comparisons"])


def test_compaction_left_fewer_files(summary: dict[str, Any]) -> None:
    assert summary["files_after_compaction"] < summary["files_before_compaction"]
    assert summary["files_vacuumed"] >= summary["files_before_compaction"] - summary["files_after_compaction"]


def test_the_verdict_turns_when_one_flight_is_doubled(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "tables", tmp_path / "tables")
    flights = DeltaTable(tmp_path / "tables" / "flights")
    one = flights.snapshot().scan(where="flight_date = DATE '2013-01-05' AND flight = 1141").to_arrow()
    assert one.num_rows == 1
    flights.append(one)
    source, plan = Source(home / "source"), make_plan(MONTHS, int(PROCESSES))
    results = Results(rows_in_source=ROWS)
    readers = [DELTALAKE, LOG_REPLAY]
    results.comparisons = Verifier(tmp_path / "tables").against_source(source, plan.months, readers)
    assert results.readers_confirmed() == []
    summary = results.summary()
    assert (summary["rows_in_dagster"], summary["duplicates"], summary["lost_rows"]) == (ROWS + 1, 1, 0)
    assert summary["passed"] is False


@pytest.mark.parametrize(
    ("slip", "rows", "lost", "extra"),
    [("changed back", ROWS, 1, 1), ("left out", ROWS - 1, 1, 0), ("doubled", ROWS + 1, 0, 1)],
)
def test_a_correction_that_is_not_applied_once_is_noticed(
    home: Path, summary: dict[str, Any], tmp_path: Path, slip: str, rows: int, lost: int, extra: int
) -> None:
    step = next(step for step in summary["steps"] if step["name"] == "corrected")
    lines = (home / "landing" / "flights" / "corrections-2.csv").read_text().splitlines()[1:]
    assert (step["flights_corrected"] + step["flights_added"]) == len(lines)
    shutil.copytree(home / "tables", tmp_path / "tables")
    flights = DeltaTable(tmp_path / "tables" / "flights")
    # Corrected flights come first, then those that were added.
    fields = lines[-1 if slip == "left out" else 0].split(",")
    day = f"{fields[0]}-{int(fields[1]):02}-{int(fields[2]):02}"
    where = (
        f"flight_date = DATE '{day}' AND carrier = '{fields[9]}' AND flight = {fields[10]} AND origin = '{fields[12]}'"
    )
    one = flights.snapshot().scan(where=where).to_arrow()
    assert one.num_rows == 1
    if slip == "changed back":
        flights.update({"arr_delay": "NULL"}, where)
    elif slip == "left out":
        flights.delete(where)
    else:
        flights.append(one)
    verifier = Verifier(tmp_path / "tables")
    for comparison in verifier.against_source(
        Source(home / "source"), make_plan(MONTHS).months, [DELTALAKE, LOG_REPLAY]
    ):
        if comparison.table == "flights":
            assert (comparison.found.rows, comparison.lost_rows, comparison.extra_rows) == (rows, lost, extra)
            assert not comparison.confirmed


def test_everything_is_below_the_home_folder(home: Path) -> None:
    assert {path.name for path in home.iterdir()} >= {"tables", "airflow_tables", "dagster", "logs", "summary.json"}


def test_a_stage_that_fails_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    code = """
import sys
from tests.demo.__main__ import Demo, main

def fail(*_):
    print("noise of a library")
    raise RuntimeError("the source is closed")

Demo.set_up = fail
sys.exit(main(["--months", "8", "--home", sys.argv[1]]))
"""
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "✘ RuntimeError: the source is closed" in done.stdout
    assert "noise" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "noise of a library" in (home / "logs" / "demo.log").read_text()
    assert "Traceback" in (home / "logs" / "demo.log").read_text()
    assert not (home / "summary.json").exists()


def test_without_java_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo", "--home", str(tmp_path / "home")],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error[MISSING_DEPENDENCY]")
    assert "default-jre-headless" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo", "--months", "8", "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error[INVALID_REQUEST]")
    assert (tmp_path / "precious").read_text() == "mine"
