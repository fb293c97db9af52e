"""A loader dies at every call of the table's store, and is started again: the rows of each file are there once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from delta_orch import DeltaTable, Expect
from delta_orch.storage.open import open_store
from delta_orch.testing import StoreCall, open_table
from delta_orch.testing.failing_store import Rule, When
from tests.arrival.landing import Landing, ids_of
from tests.harness.fault_store import FaultStore


class Killed(BaseException):
    """The end of a process: nobody catches it, and no call of the store follows."""


def die(call: StoreCall) -> None:
    raise Killed(f"{call.method} {call.path}")


def dying(path: Path, number: int, when: When) -> DeltaTable:
    """A table whose process dies before or after a call, and does nothing after it."""
    store = FaultStore(open_store(str(path)), watch_data=True)
    store._rules.append(Rule(lambda call: call.number == number, when, die, 1))
    store._rules.append(Rule(lambda call: call.number > number, "before", die, 10**9))
    return open_table(store)


RULES = {"id is positive": Expect("id >= 0")}


def bad_ids_of(path: Path) -> list[int]:
    table = DeltaTable(path).quarantine()
    found = table.snapshot().scan(["row"]).to_arrow()["row"].to_pylist() if table.exists() else []
    return sorted(json.loads(row)["id"] for row in found)


@pytest.mark.parametrize(
    ("case", "when"),
    [
        ("replace", "before"),
        *(
            pytest.param(case, when, marks=pytest.mark.long)
            for case, when in [("replace", "after"), *product(("first", "further"), ("before", "after"))]
        ),
    ],
)
def test_a_loader_that_dies_at_any_call_loads_each_file_once(tmp_path: Path, case: str, when: When) -> None:
    landing, number, seen = Landing(tmp_path / "landing"), 0, set()
    source = landing.source(max_files=2, on_changed="replace", source_file=True)
    for n in range(3):
        landing.put(f"a{n}.json", 10 * n, 10 * n + 1, -1)
    before = []
    while True:
        path = tmp_path / f"table{number}"
        if case != "first":
            DeltaTable(path).ingest(source, expect=RULES)
            before = ids_of(path)
        if case == "replace":
            landing.put("a1.json", 100 + number, -2)
        elif case == "further":
            landing.put("b.json", 50, -3)
            landing.put("c.json", 51)
            landing.put("d.json", 52)
        expected = {"first": [0, 1, 10, 11, 20, 21], "further": [0, 1, 10, 11, 20, 21, 50, 51, 52]}
        after = expected.get(case, [0, 1, 20, 21, 100 + number])
        try:
            dying(path, number, when).ingest(source, expect=RULES)
        except Killed:
            pass
        else:
            break
        found = ids_of(path)
        assert found in ([], before, after) or set(found) < set(after)
        seen.add(len(found))
        DeltaTable(path).ingest(source, expect=RULES)
        assert ids_of(path) == after
        assert bad_ids_of(path) == {"replace": [-2, -1, -1], "first": [-1] * 3, "further": [-3, -1, -1, -1]}[case]
        landing.put("a1.json", 10, 11, -1)
        for name in ("b", "c", "d"):
            (landing.root / f"{name}.json").unlink(missing_ok=True)
        number += 1
    assert number > 10
    assert len(seen) > 1


LOADER = """
import sys
from delta_orch import DeltaTable, FileSource
print("ready", flush=True)
source = FileSource(sys.argv[1], format="json", max_files=3)
DeltaTable(sys.argv[2]).ingest(source, properties={"delta.checkpointInterval": "4"})
"""


def start(landing: Landing, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADER, str(landing.root), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
    return process


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_two_loaders_that_are_killed_at_any_moment_load_each_file_once(tmp_path: Path, seed: int) -> None:
    landing, path, dice = Landing(tmp_path / "landing"), tmp_path / "table", random.Random(seed)
    for n in range(40):
        landing.put(f"{n:03d}.json", 2 * n, 2 * n + 1)
    for _ in range(6):
        loaders = [start(landing, path), start(landing, path)]
        time.sleep(dice.uniform(0.1, 1.2))
        for loader in loaders:
            loader.send_signal(signal.SIGKILL)
            loader.wait()
        found = ids_of(path)
        assert len(found) == len(set(found))
        assert len(found) % 2 == 0
    last = [start(landing, path), start(landing, path)]
    assert [loader.wait() for loader in last] == [0, 0]
    assert ids_of(path) == list(range(80))
