"""The log's upkeep killed anywhere, between any two calls of the store and any two system calls: the table reads as
before, and done again it succeeds.

Each attempt works on a copy of one prepared table, in a forked process that dies by SIGKILL.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.protocol.paths import checksum_path
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.families import family
from tests.harness.fault_store import FaultStore
from tests.harness.kill_points import KillingOs
from tests.harness.results import Snapshot
from tests.harness.table_builder import append_days, begin, create_table, read_anew

DAY_S = 86_400


@dataclass(frozen=True)
class Upkeep:
    name: str
    act: Callable[[DeltaTable], object]


UPKEEP = [
    Upkeep("classic checkpoint", lambda table: table.checkpoint("classic")),
    Upkeep("V2 checkpoint, JSON", lambda table: table.checkpoint("v2", "json")),
    Upkeep("V2 checkpoint, Parquet", lambda table: table.checkpoint("v2", "parquet")),
    Upkeep("log compaction", DeltaTable.compact_log),
    Upkeep("version checksum", DeltaTable.write_checksum),
    Upkeep("log cleanup", DeltaTable.cleanup_log),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 0 to 7, V2 checkpoints at 2 and 4, half a year old up to 5; the newest without a checksum."""
    path = tmp_path_factory.mktemp("template")
    table = open_table(open_store(path))
    create_table(table, "0", properties={"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "1000"})
    for version in range(1, 8):
        append_days(table, read_anew(table), str(version))
        if version in (2, 4):
            transaction_of_a_removal(table)
            table.checkpoint()
    table.store.delete(checksum_path(read_anew(table).version))
    old = time.time() - 180 * DAY_S
    for file in (path / "_delta_log").rglob("*"):
        if file.is_file() and not file.name.startswith(tuple(f"{v:020d}" for v in (7, 8, 9))):
            os.utime(file, (old, old))
    return path


def transaction_of_a_removal(table: DeltaTable) -> None:
    snapshot = read_anew(table)
    transaction = begin(table, snapshot, operation="TEST")
    transaction.remove_files(snapshot.files().slice(0, 1))
    transaction.commit()


@pytest.fixture
def new_table(template: Path, tmp_path: Path) -> Callable[[], LogStore]:
    numbers = itertools.count()
    return lambda: open_store(shutil.copytree(template, tmp_path / f"table{next(numbers)}"))


def described(snapshot: Snapshot) -> Any:
    files, tombstones = snapshot.files(["path", "size", "stats"]), snapshot.tombstones(["path", "size"])
    return (
        snapshot.version, snapshot.metadata, snapshot.protocol, snapshot.txns,
        files.sort_by("path").to_pylist(), tombstones.sort_by("path").to_pylist(),
    )  # fmt: skip


def is_killed(act: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def ensure_readable_and_again(store: LogStore, upkeep: Upkeep, before: Any) -> None:
    table = open_table(store)
    assert described(read_anew(table)) == before
    upkeep.act(table)
    assert described(open_table(store).snapshot()) == before
    assert append_days(table, read_anew(table), "9").version == before[0] + 1


@family("upkeep", UPKEEP, ids=lambda upkeep: upkeep.name, every=5)
def test_killed_at_every_call_of_the_store(upkeep: Upkeep, new_table: Callable[[], LogStore]) -> None:
    counting = FaultStore(new_table())
    before = described(open_table(counting).snapshot())
    counting.forget_calls()
    upkeep.act(open_table(counting))
    changing = [c for c in counting.calls if c.method in ("put", "put_if_absent", "delete", "stage")]
    assert changing
    for call in changing:
        for when in ("before", "after"):
            store = new_table()
            dying = FaultStore(store)
            dying.at_call(call.number, when, do=FaultStore.kill)
            assert is_killed(partial(upkeep.act, open_table(dying))), (call, when)
            ensure_readable_and_again(store, upkeep, before)


@pytest.mark.long
@pytest.mark.parametrize("upkeep", UPKEEP, ids=lambda upkeep: upkeep.name)
def test_killed_at_every_system_call(upkeep: Upkeep, new_table: Callable[[], LogStore]) -> None:
    counting = KillingOs(None, "before")
    store = new_table()
    before = described(open_table(store).snapshot())
    counting.install()
    try:
        upkeep.act(open_table(store))
    finally:
        counting.uninstall()
    assert counting.names
    for number, name in enumerate(counting.names):
        if name not in ("write", "link", "unlink", "replace"):
            # The others leave behind what these do, or nothing.
            continue
        store = new_table()

        def act(store: LogStore = store, number: int = number) -> None:
            KillingOs(number, "during").install()
            upkeep.act(open_table(store))

        assert is_killed(act), (number, name)
        ensure_readable_and_again(store, upkeep, before)
