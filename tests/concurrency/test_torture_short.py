"""The short form of `make torture`, and that it would tell if something went wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.emulators import EmulatorMissingError, s3_emulator
from tests.harness.results import Commit
from tests.harness.torture.model import replay
from tests.harness.torture.plan import Step
from tests.harness.torture.run import TortureFailure, TortureReport, judge, read_new, run_torture
from tests.harness.torture.worker import WorkerOptions

ROWS = pa.table({"day": ["a"], "id": pa.array([-1], pa.int64()), "op": ["nobody's"]})


def test_on_a_disk(tmp_path: Path) -> None:
    report = run_torture(str(tmp_path / "table"), tmp_path / "notes", seconds=6, seed=1)
    assert report.kills > 0
    assert report.acknowledged > 0


@pytest.mark.long
def test_on_s3(tmp_path: Path) -> None:
    try:
        with s3_emulator() as store:
            report = run_torture(
                store.table_uri("torture"),
                tmp_path / "notes",
                seconds=8,
                processes=4,
                seed=2,
                kill_seconds=2,
                storage_options=store.storage_options,
            )
    except EmulatorMissingError as e:
        pytest.skip(str(e))
    assert report.acknowledged > 0


def test_what_nobody_did_is_found(tmp_path: Path) -> None:
    uri, notes = str(tmp_path / "table"), tmp_path / "notes"
    run_torture(uri, notes, seconds=1, processes=1, seed=3, kill_seconds=100)
    options, table = WorkerOptions(uri, None, notes, 3), DeltaTable(uri)
    commits: list[Commit] = []
    read_new(table, commits)
    judge(options, table, commits, TortureReport(), 1)
    with pytest.raises(TortureFailure, match="versions"):
        judge(options, table, commits[:-1], TortureReport(), 1)
    table.append(ROWS, schema_mode="merge")
    read_new(table, commits)
    with pytest.raises(TortureFailure, match="rows"):
        judge(options, table, commits, TortureReport(), 1)


def test_a_commit_that_is_there_twice_is_found(tmp_path: Path) -> None:
    uri, notes = str(tmp_path / "table"), tmp_path / "notes"
    run_torture(uri, notes, seconds=1, processes=1, seed=4, kill_seconds=100)
    options, table = WorkerOptions(uri, None, notes, 4), DeltaTable(uri)
    commits: list[Commit] = []
    for _ in range(2):
        table.append(ROWS, schema_mode="merge", user_metadata="7-7")
    read_new(table, commits)
    with pytest.raises(TortureFailure, match="committed twice"):
        judge(options, table, commits, TortureReport(), 1)


def test_the_model() -> None:
    steps = [
        Step(0, 0, "append", (("a", 1), ("b", 2), ("a", 15)), (0, 0)),
        Step(1, 0, "replace_ids", (("a", 12),), (10, 20)),
        Step(1, 1, "replace_days_of_data", (("b", 3),), (0, 0)),
    ]
    at = [(version, step, None) for version, step in enumerate(steps)]
    assert replay(at) == {("a", 1, "0-0"): 1, ("a", 12, "1-0"): 1, ("b", 3, "1-1"): 1}
    now = len(at)
    replaced = (now, Step(0, 1, "replace_day", (("a", 9),), (0, 0)), None)
    assert replay([*at, replaced]) == {("a", 9, "0-1"): 1, ("b", 3, "1-1"): 1}
    upserted = (now + 1, Step(0, 2, "upsert_ids", (("a", 9), ("a", 10)), (0, 0)), None)
    after = {("a", 9, "0-2"): 1, ("a", 10, "0-2"): 1, ("b", 3, "1-1"): 1}
    assert replay([*at, replaced, upserted]) == after
    restored = (now + 2, Step(0, 3, "restore", (), (0, 0)), now - 1)
    assert replay([*at, replaced, upserted, restored]) == replay(at)
