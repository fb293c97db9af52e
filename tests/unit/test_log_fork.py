"""Dagster and Airflow fork: what was opened before must work in the child."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from delta_orch import DeltaTable
from delta_orch.protocol.actions import Add
from delta_orch.storage.local import LocalStore
from delta_orch.testing import open_table
from tests.harness.log_builder import LogBuilder
from tests.harness.results import Snapshot


def _look(snapshot: Snapshot, table: DeltaTable, answers: Any) -> None:
    newest = table.log.advance(snapshot)
    answers.put((newest.version, sorted(newest.files()["path"].to_pylist()), snapshot.size_bytes))


def test_a_forked_child_goes_on_where_its_parent_was(tmp_path: Path) -> None:
    builder = LogBuilder(LocalStore(tmp_path / "t"))
    builder.create()
    builder.commit(*(Add(f"f{n}", {}, n, 0, True, '{"numRecords":1}') for n in range(500)))
    builder.checkpoint(1, row_group_rows=50)
    builder.commit(Add("new", {}, 1, 0, True))
    table = open_table(builder.store)
    snapshot = table.snapshot(1)
    # Threads have run in this process: reading ahead, row groups, Arrow's own.
    assert snapshot.files().num_rows == 500
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    children = [fork.Process(target=_look, args=(snapshot, table, answers)) for _ in range(3)]
    for child in children:
        child.start()
    found = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(timeout=60)
    expected = (2, sorted([*(f"f{n}" for n in range(500)), "new"]), sum(range(500)))
    assert found == [expected] * 3
