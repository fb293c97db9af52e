"""A writer killed anywhere in its commit: the table stays readable, the commit is wholly in or wholly out, and running
it again commits exactly once.

The writers are forked from this process and die by SIGKILL: no handler runs, no `finally`, nothing is flushed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore
from tests.harness.kill_points import KillingOs
from tests.harness.table_builder import append_days, begin_creation, create_table, day_files, read_anew

TXN = TxnId("job", 7)


@dataclass(frozen=True)
class Scenario:
    """`prepare` brings the table to where the writer starts, `write` is the commit that gets killed.

    `files` is how many files the table has before and after.
    """

    name: str
    prepare: Callable[[DeltaTable], None]
    write: Callable[[DeltaTable], object]
    files: tuple[int, int]


def prepare_nine_versions(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    for _ in range(8):
        append_days(table, snapshot, "2")
        snapshot = table.snapshot()


def append_tenth(table: DeltaTable) -> object:
    """Version 9; the next multiple of ten is one further."""
    return append_days(table, read_anew(table), "3", txns=[TXN])


def prepare_ten_versions(table: DeltaTable) -> None:
    prepare_nine_versions(table)
    append_days(table, read_anew(table), "2")


def prepare_old_snapshot(table: DeltaTable) -> None:
    prepare_ten_versions(table)
    append_days(table, read_anew(table), "2")


def append_from_old_snapshot(table: DeltaTable) -> object:
    """The versions after 8 are taken: the commit is rebased twice."""
    if read_anew(table).version == 10:
        return append_days(table, table.snapshot(8), "3", txns=[TXN])
    return append_days(table, read_anew(table), "3", txns=[TXN])


def nothing(table: DeltaTable) -> None:
    """The table does not exist."""


def create(table: DeltaTable) -> object:
    if table.exists():
        return append_days(table, read_anew(table), "3", txns=[TXN])
    transaction = begin_creation(table, txns=[TXN])
    transaction.add_files(day_files("3"))
    return transaction.commit()


SCENARIOS = [
    Scenario("append", prepare_nine_versions, append_tenth, (9, 10)),
    Scenario("append and checkpoint", prepare_ten_versions, append_tenth, (10, 11)),
    Scenario("append after rebase", prepare_old_snapshot, append_from_old_snapshot, (11, 12)),
    Scenario("create", nothing, create, (0, 1)),
]


def run_in_child(write: Callable[[], object]) -> bool:
    """Whether the child was killed; it must end well otherwise."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def ensure_whole_and_retry(store: LogStore, scenario: Scenario) -> bool:
    """Check the table a killed writer has left, and that a retry commits exactly once. Whether the commit was in."""
    table = open_table(store)
    before, after = scenario.files
    committed = False
    if table.exists():
        snapshot = read_anew(table)
        committed = snapshot.txn_version(TXN.app_id) == TXN.version
        assert snapshot.num_files == (after if committed else before)
        for version in range(snapshot.version + 1):
            table.log.read_commit(version)
    else:
        assert before == 0
    result = scenario.write(table)
    assert result.skipped is committed  # type: ignore[attr-defined]
    assert scenario.write(table).skipped  # type: ignore[attr-defined]
    snapshot = read_anew(table)
    assert snapshot.num_files == after
    assert snapshot.txns == {TXN.app_id: TXN.version}
    answer: bool = committed
    return answer


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    chosen: Scenario = request.param
    return chosen


@pytest.fixture
def new_table(scenario: Scenario, tmp_path: Path) -> Callable[[], LogStore]:
    """Makes a table of its own for each attempt: a copy of one that the scenario has prepared."""
    template = tmp_path / "template"
    template.mkdir()
    scenario.prepare(open_table(open_store(template)))
    numbers = itertools.count()

    def copy() -> LogStore:
        return open_store(shutil.copytree(template, tmp_path / f"table{next(numbers)}"))

    return copy


def test_killed_at_every_call_of_the_store(scenario: Scenario, new_table: Callable[[], LogStore]) -> None:
    counting = FaultStore(new_table())
    scenario.write(open_table(counting))
    assert counting.calls
    outcomes = []
    for call in with_last(counting.calls):
        for when in ("before", "after"):
            store = new_table()
            dying = FaultStore(store)
            dying.at_call(call.number, when, do=FaultStore.kill)
            assert run_in_child(partial(scenario.write, open_table(dying))), (call, when)
            outcomes.append(ensure_whole_and_retry(store, scenario))
    ensure_one_turning_point(outcomes)


def test_killed_at_every_system_call(scenario: Scenario, new_table: Callable[[], LogStore]) -> None:
    counting = KillingOs(None, "before")
    counting.install()
    try:
        scenario.write(open_table(new_table()))
    finally:
        counting.uninstall()
    assert {"open", "write", "fsync", "link", "unlink"} <= set(counting.names)
    outcomes = []
    for number, name in with_last(list(enumerate(counting.names))):
        for when in ("before", "during", "after") if name == "write" else ("before", "after"):
            store = new_table()

            def write(store: LogStore = store, number: int = number, when: str = when) -> None:
                KillingOs(number, when).install()
                scenario.write(open_table(store))

            assert run_in_child(write), (number, name, when)
            outcomes.append(ensure_whole_and_retry(store, scenario))
    ensure_one_turning_point(outcomes)


_T = TypeVar("_T")


def with_last(calls: Sequence[_T]) -> list[_T]:
    """Every fifth call, and the last one, after which the commit has happened."""
    return [*calls[:-1:5], calls[-1]]


def ensure_one_turning_point(committed: list[bool]) -> None:
    """The commit happens at one instant: out before it, in after it; and it does happen."""
    assert not committed[0]
    assert committed[-1]
    assert committed == sorted(committed)


def test_a_killed_writer_leaves_only_what_no_listing_shows(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    create_table(open_table(store), "1")

    def write() -> None:
        KillingOs(2, "after").install()
        append_days(open_table(store), open_table(store).snapshot(), "2")

    assert run_in_child(write)
    assert len(list((tmp_path / "_delta_log").glob(".*.tmp"))) == 1
    listed = [f.path for f in store.list_from("_delta_log") if not f.path.endswith(".crc")]
    assert listed == ["_delta_log/00000000000000000000.json"]
