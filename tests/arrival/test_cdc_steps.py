"""`write="cdc"` of steps: units in any order, done again with corrections, and killed wherever they are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.unit import Attempt, Unit
from delta_orch.testing import open_table
from delta_orch.verbs.change_events import Changes
from tests.arrival.test_cdc import HOW, MAPPED, Event, content, expected, random_sets, rows
from tests.families import family
from tests.harness.fault_store import FaultStore, Moment

OPTIONS: Any = {"properties": {**MAPPED, "delta.enableDeletionVectors": "true"}}


def a_step(table: DeltaTable, unit: int, order: int, scd: Any) -> Step:
    changes = Changes(HOW["sequence_by"], HOW["delete_when"], HOW["except_columns"], scd)
    attempt = Attempt((Unit("w", f"unit {unit}"),), order, f"run {order}")
    keys = tuple(HOW["keys"])
    return Step("Task x", table, "cdc", attempt=attempt, merge_keys=keys, changes=changes, options=OPTIONS)


@pytest.mark.parametrize("scd", [1, 2])
@family("seed", range(24), every=4)
def test_units_come_in_any_order_and_again(tmp_path: Path, seed: int, scd: Any) -> None:
    """Each unit has some of the events. It is done up to three times; the last time counts, where a value is corrected.
    Any call of the store may fail, before or after it takes effect, and the attempt is then repeated."""
    chance = random.Random(seed)
    events = random_sets(chance, 10)
    chance.shuffle(events)
    units = [list(events[number::4]) for number in range(4)]
    seen: list[list[Event]] = [[] for _ in units]
    for order, unit in enumerate(chance.choices(range(4), k=8), start=1):
        if seen[unit] and chance.random() < 0.5:
            units[unit] = [
                event._replace(value=chance.choice(["x", "q"]), gone=chance.random() < 0.3) for event in units[unit]
            ]
        for _ in range(10):
            store = FaultStore(DeltaTable(tmp_path / "t").store, watch_data=True)
            if chance.random() < 0.6:
                store.at_call(chance.randint(0, 30), chance.choice(["before", "after"]), do=store.fail)
            try:
                report = a_step(open_table(store), unit, order, scd).run(partial(rows, units[unit]))
            except DeltaError as error:
                assert error.retryable, error
                continue
            assert report.outcome in ("written", "replaced", "recovered", "nothing new")
            break
        else:
            a_step(DeltaTable(tmp_path / "t"), unit, order, scd).run(partial(rows, units[unit]))
        seen[unit] = units[unit]
        table = DeltaTable(tmp_path / "t")
        assert content(table, scd) == expected([event for events in seen for event in events], scd)
    late = a_step(table, unit, 0, scd).run(lambda: pytest.fail("computed"))
    assert late.outcome == "fenced"


KILLED = """
import sys
from delta_orch import DeltaTable
from delta_orch.testing import open_table
from tests.arrival.test_cdc_steps import a_step
from tests.arrival.test_cdc import Event, rows
from tests.harness.fault_store import FaultStore
uri, number, when, scd = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = FaultStore(DeltaTable(uri).store, watch_data=True)
store.at_call(number, when, do=store.kill)
a_step(open_table(store), 1, 1, scd).run(lambda: rows([Event(1, 2, 0, "late"), Event(2, 9, 0, None, True)]))
print(len(store.calls))
"""


@pytest.mark.long
@pytest.mark.parametrize("scd", [1, 2])
def test_a_process_that_is_killed_at_its_store(tmp_path: Path, scd: Any) -> None:
    """At calls spread over all that an attempt makes. The next attempt has the same result."""
    first = [Event(1, 1, 0, "a"), Event(1, 5, 0, "b"), Event(2, 3, 0, "c")]
    every = [*first, Event(1, 2, 0, "late"), Event(2, 9, 0, None, True)]

    def new_table(name: str) -> DeltaTable:
        table = DeltaTable(tmp_path / name)
        a_step(table, 0, 1, scd).run(lambda: rows(first))
        return table

    def run(table: DeltaTable, number: int, when: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", KILLED, table.uri, str(number), when, str(scd)]
        return subprocess.run(arguments, capture_output=True, text=True, check=False)

    whole = run(new_table("whole"), 10_000, "before")
    assert whole.returncode == 0, whole.stderr
    calls = int(whole.stdout)
    for number in range(0, calls, max(1, calls // 3)):
        table = new_table(f"killed at {number}")
        assert run(table, number, ("before", "after")[number % 2]).returncode == -9
        assert content(table, scd) in (expected(first, scd), expected(every, scd))
        assert run(table, 10_000, "before").returncode == 0
        assert content(table, scd) == expected(every, scd)


APPLIER = """
import json, sys
from delta_orch import DeltaTable
from delta_orch.errors import ConflictError
from tests.arrival.test_cdc import HOW, Event, rows
uri, scd, batches = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
for batch in batches:
    while True:
        try:
            DeltaTable(uri).apply_changes(rows([Event(*one) for one in batch]), scd=scd, **HOW)
            break
        except ConflictError as error:
            assert error.retryable, error
"""


@pytest.mark.parametrize("scd", [1, 2])
def test_two_processes_apply_the_same_and_other_events(tmp_path: Path, scd: Any) -> None:
    chance, table = random.Random(scd), DeltaTable(tmp_path / "t")
    events = random_sets(chance, 6)
    table.apply_changes(rows(events[:1]), scd=scd, **HOW, **OPTIONS)
    processes = []
    for _ in range(2):
        mine = chance.sample(events, len(events) * 3 // 4)
        batches = [mine[number::2] for number in range(2)]
        arguments = [sys.executable, "-c", APPLIER, table.uri, str(scd)]
        processes.append((mine, subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True)))
        assert processes[-1][1].stdin is not None
        processes[-1][1].stdin.write(json.dumps(batches))
        processes[-1][1].stdin.close()
    assert [process.wait(timeout=120) for _, process in processes] == [0, 0]
    assert content(table, scd) == expected([*events[:1], *processes[0][0], *processes[1][0]], scd)


def test_appliers_that_create_the_table_at_once(tmp_path: Path) -> None:
    """The second one may run again, and does so behind the first."""
    store = FaultStore(DeltaTable(tmp_path / "t").store)
    other = [Event(1, 1, 0, "a"), Event(2, 5, 0, "b")]

    def overtake(call: object) -> None:
        a_step(DeltaTable(tmp_path / "t"), 1, 1, 2).run(lambda: rows(other))

    store.at(Moment.COMMIT_PUT, "before", do=overtake)
    mine = [Event(1, 2, 0, "c"), Event(2, 3, 0, None, True)]
    a_step(open_table(store), 2, 1, 2).run(lambda: rows(mine))
    assert content(DeltaTable(tmp_path / "t"), 2) == expected([*other, *mine], 2)


def test_what_a_step_cannot_do(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    a_step(table, 1, 1, 1).run(lambda: rows([Event(1, 1, 0, "a")]))
    with pytest.raises(InvalidRequestError, match="unit_column"):
        replace(a_step(table, 2, 1, 1), unit_column="load").run(lambda: rows([Event(1, 1, 0, "a")]))
