"""The demo from end to end, on fourteen days: every stage, every attempt to break it, both orchestrators."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from tests.demo.plan import make_plan
from tests.demo.readers import DELTALAKE, LOG_REPLAY
from tests.demo.results import Results
from tests.demo.source import Landing, Source
from tests.demo.verification import Verifier

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

DAYS = 14
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
            "--days",
            str(DAYS),
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
    assert "flights: source = bronze = silver  12,208 = 12,208 = 12,208" in done.stdout
    assert "Every flight exactly once" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    return home


@pytest.fixture(scope="module")
def summary(home: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((home / "summary.json").read_text())
    return content


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else "no log"


def test_every_flight_is_there_exactly_once(summary: dict[str, Any]) -> None:
    # Counted in the distribution's CSV by hand: the first fourteen days of January have 12,208 flights.
    assert (summary["rows_in_source"], summary["rows_in_bronze"], summary["rows_in_silver"]) == (12208, 12208, 12208)
    assert (summary["duplicates"], summary["lost_rows"]) == (0, 0)
    assert summary["passed"] is True
    assert summary["failures"] == []


def test_every_attempt_to_break_it_was_made(summary: dict[str, Any]) -> None:
    names = [step["name"] for step in summary["steps"]]
    assert names == ["recovered", "replaced", "fenced", "undone", "parallel", "upserted"]
    assert all(step["passed"] for step in summary["steps"])
    # Counted in the distribution's CSV by hand: 3 January has 914 flights, of which 822 were loaded too early, and 72
    # readings.
    assert summary["rows_undone"] == 822 + 72
    assert summary["steps_recovered"] == 2
    assert summary["runs_fenced"] == 1
    assert summary["units_replaced"] == 2 + len(make_plan(DAYS, int(PROCESSES)).parallel) * 3
    assert summary["conflicts_rebased"] >= int(PROCESSES) - 1


def test_two_independent_readers_confirm_every_table(summary: dict[str, Any]) -> None:
    assert {"deltalake", "duckdb log replay"} <= set(summary["readers_confirmed"])
    assert len(summary["comparisons"]) == 4 * len(summary["readers_confirmed"])
    assert all(comparison["confirmed"] for comparison in summary["comparisons"])
    assert "duckdb delta extension" in [*summary["readers_confirmed"], *summary["readers_unavailable"]]


def test_airflow_retried_without_doubling_and_replaced_what_was_cleared(
    summary: dict[str, Any],
) -> None:
    airflow = summary["airflow"]
    assert [day["state"] for day in airflow["days"]] == ["success", "success"]
    # A DAG that follows Dagster's commits, and the Dagster sensor that waits for it.
    assert airflow["followed"]["state"] == "success"
    assert airflow["handshake"] == {"before": [], "after": [f"carriers-{airflow['followed']['version']}"]}
    assert airflow["maintenance"]["state"] == "success"
    # The retry reports the commit of the attempt before it as the task's own.
    told = {"state": "success", "tries": 2, "outcome": "recovered", "version": 1, "rows_replaced": None}
    assert airflow["retried"] == {"task": "weather_readings", **told}
    # The upsert failed after its commit, too; the independent readers find each correction once.
    assert (airflow["upserted"]["tries"], airflow["upserted"]["outcome"]) == (2, "recovered")
    # 2 January has 943 flights and 72 readings, of which every tenth was missing before the clear.
    cleared = {task: (told["outcome"], told["rows_replaced"]) for task, told in airflow["cleared"].items()}
    assert cleared["flights"] == ("replaced", 848)
    assert cleared["weather_readings"] == ("replaced", 64)
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
    source, plan = Source(home / "source"), make_plan(DAYS, int(PROCESSES))
    results = Results(rows_in_source=12208)
    readers = [DELTALAKE, LOG_REPLAY]
    results.comparisons = Verifier(tmp_path / "tables").against_source(source, plan.days, readers)
    assert results.readers_confirmed() == []
    summary = results.summary()
    assert (summary["rows_in_bronze"], summary["duplicates"], summary["lost_rows"]) == (12209, 1, 0)
    assert summary["passed"] is False


@pytest.mark.parametrize(
    ("slip", "rows", "lost", "extra"),
    [("changed back", 12208, 1, 1), ("left out", 12207, 1, 0), ("doubled", 12209, 0, 1)],
)
def test_a_correction_that_is_not_applied_once_is_noticed(
    home: Path, summary: dict[str, Any], tmp_path: Path, slip: str, rows: int, lost: int, extra: int
) -> None:
    step = next(step for step in summary["steps"] if step["name"] == "upserted")
    assert (step["flights_corrected"], step["flights_added"]) == (82, 85)
    shutil.copytree(home / "tables", tmp_path / "tables")
    flights = DeltaTable(tmp_path / "tables" / "flights")
    changed, new = (
        lines.split(",")
        for lines in (home / "landing" / "corrections" / "2013-01-01.csv").read_text().splitlines()[1:86:84]
    )
    fields = new if slip == "left out" else changed
    where = f"flight_date = DATE '2013-01-01' AND carrier = '{fields[9]}' AND flight = {fields[10]}"
    one = flights.snapshot().scan(where=where).to_arrow()
    assert one.num_rows == 1
    if slip == "changed back":
        flights.update({"arr_delay": "NULL"}, where)
    elif slip == "left out":
        flights.delete(where)
    else:
        flights.append(one)
    verifier = Verifier(tmp_path / "tables")
    in_source = verifier.against_source(Source(home / "source"), make_plan(DAYS).days, [DELTALAKE, LOG_REPLAY])
    for comparison in [*in_source, *verifier.against_landing(Landing(home / "landing"))]:
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
sys.exit(main(["--days", "14", "--home", sys.argv[1]]))
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
        [sys.executable, "-m", "tests.demo", "--days", "14", "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error[INVALID_REQUEST]")
    assert (tmp_path / "precious").read_text() == "mine"
