"""Upkeep behind the caller's back: the commit does not wait for it, the process does; and what there is when neither
can."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_orch import DeltaTable
from delta_orch.log.upkeep import background, post_commit
from delta_orch.log.upkeep.background import run_behind, wait_for_upkeep
from delta_orch.protocol.paths import checkpoint_path
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment
from tests.harness.table_builder import append_days, create_table, read_anew

EVERY_SECOND = {"delta.checkpointInterval": "2"}
A_MINUTE = 60.0


@pytest.fixture(autouse=True)
def no_checkpoint_is_quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(post_commit, "_QUICK_ACTIONS", 0)
    yield
    assert wait_for_upkeep(timeout_s=A_MINUTE)


def append(table: DeltaTable) -> int:
    return append_days(table, read_anew(table), "2").version


def checkpoints(root: Path) -> list[int]:
    return sorted(int(file.name[:20]) for file in (root / "_delta_log").glob("*.checkpoint.parquet"))


def test_a_commit_returns_before_its_checkpoint_is_written(tmp_path: Path) -> None:
    store = FaultStore(open_store(tmp_path))
    table = open_table(store)
    create_table(table, "1", properties=EVERY_SECOND)
    append(table)
    gate = store.gate(Moment.CHECKPOINT_PUT, "before")
    assert append(table) == 2
    gate.wait_until_reached()
    assert checkpoints(tmp_path) == []
    assert append(table) == 3
    assert not wait_for_upkeep(store.uri, timeout_s=0)
    gate.open()
    assert DeltaTable(tmp_path).wait_for_upkeep(A_MINUTE)
    assert checkpoints(tmp_path) == [2]
    snapshot = open_table(open_store(tmp_path)).snapshot()
    assert (snapshot.segment.checkpoint is not None, snapshot.num_files) == (True, 4)


def test_of_what_waits_for_a_table_only_the_newest_is_done() -> None:
    done: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(A_MINUTE)

    run_behind("a", hold)
    assert begun.wait(A_MINUTE)
    for job in ("a1", "b1", "a2", "a3", "b2"):
        run_behind(job[0], lambda job=job: done.append(job))  # type: ignore[misc]
    go.set()
    assert wait_for_upkeep(timeout_s=A_MINUTE)
    assert sorted(done) == ["a3", "b2"]


def test_a_failure_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def fail() -> None:
        raise SystemExit("no more")

    with caplog.at_level(logging.WARNING):
        run_behind("a", fail)
        run_behind("b", lambda: done.append(1))
        assert wait_for_upkeep(timeout_s=A_MINUTE)
    assert done == [1]
    assert "Upkeep of a failed" in caplog.text


@pytest.mark.parametrize("new_commits", [0, 1, 2, 3])
def test_a_table_made_in_the_place_of_a_deleted_one_does_not_get_its_checkpoint(
    tmp_path: Path, new_commits: int
) -> None:
    root = tmp_path / "t"
    table = open_table(open_store(root))
    create_table(table, "1", properties=EVERY_SECOND)
    append(table)
    go = threading.Event()
    run_behind("other", lambda: go.wait(A_MINUTE))
    append(table)
    shutil.rmtree(root)
    create_table(table, "1", properties={"delta.checkpointInterval": "100"})
    for _ in range(new_commits):
        append(table)
    new_paths = read_anew(table).files()["path"].to_pylist()
    go.set()
    assert wait_for_upkeep(table.store.uri, A_MINUTE)
    # The new table's version of that number may get one: its own.
    assert checkpoints(root) == ([2] if new_commits >= 2 else [])
    snapshot = open_table(open_store(root)).snapshot()
    assert sorted(snapshot.files()["path"].to_pylist()) == sorted(new_paths)


WRITER = """
import os, sys
from delta_orch.log.upkeep import post_commit
from delta_orch import DeltaTable
from tests.harness.table_builder import append_days

post_commit._QUICK_ACTIONS = 0
table = DeltaTable(sys.argv[1])
if sys.argv[2] == "dies":
    # As a process whose end comes before the thread has begun.
    post_commit.run_behind = lambda table, job: None
for _ in range(int(sys.argv[3])):
    append_days(table, table.snapshot(), "2")
if sys.argv[2] == "dies":
    os._exit(0)
"""


def write_in_a_process(root: Path, end: str, commits: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", WRITER, str(root), end, str(commits)], check=True, env=environment)


def test_the_end_of_the_interpreter_waits(tmp_path: Path) -> None:
    create_table(open_table(open_store(tmp_path)), "1", properties=EVERY_SECOND)
    write_in_a_process(tmp_path, "returns", 2)
    assert checkpoints(tmp_path) == [2]


def test_the_end_of_a_forked_process_waits_for_its_own(tmp_path: Path) -> None:
    table = open_table(open_store(tmp_path))
    create_table(table, "1", properties=EVERY_SECOND)
    append(table)
    go = threading.Event()
    # Work of this process, in its own thread: the child has neither.
    run_behind("other", lambda: go.wait(A_MINUTE))
    child = multiprocessing.get_context("fork").Process(target=append, args=(table,))
    child.start()
    child.join(A_MINUTE)
    go.set()
    assert child.exitcode == 0
    assert checkpoints(tmp_path) == [2]


def test_processes_that_never_live_to_write_one_do_it_before_they_return(tmp_path: Path) -> None:
    create_table(open_table(open_store(tmp_path)), "1", properties=EVERY_SECOND)
    write_in_a_process(tmp_path, "dies", 9)
    assert checkpoints(tmp_path) == []
    write_in_a_process(tmp_path, "dies", 1)
    assert checkpoints(tmp_path) == [10]
    write_in_a_process(tmp_path, "dies", 9)
    assert checkpoints(tmp_path) == [10]


def test_the_foreground_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: str, job: background.Job) -> None:
        raise AssertionError("in the background")

    monkeypatch.setattr(post_commit, "run_behind", refuse)
    monkeypatch.setenv(post_commit.UPKEEP_VARIABLE, "foreground")
    table = open_table(open_store(tmp_path))
    create_table(table, "1", properties=EVERY_SECOND)
    for _ in range(2):
        append(table)
    assert table.store.head(checkpoint_path(2)) is not None
