"""Work ahead on threads: in order, with a bound, until the first error; and by hand where the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_orch.storage.prefetch import Threads, ahead, map_ahead

OUTLIVES = """
import atexit, sys, threading, time
import pyarrow as pa
from delta_orch import DeltaTable

table = DeltaTable(sys.argv[1])
rows = pa.table({"part": [part for part in (0, 1, 2) for _ in range(40_000)], "id": range(120_000)})

def work():
    while not threading._SHUTTING_DOWN:
        time.sleep(0.01)
    for part in (0, 1, 2):
        table.append(rows.slice(part * 40_000, 40_000), partition_by=["part"])
    table.append(rows)
    table.delete("id % 2 = 1")
    table.optimize()
    print(table.snapshot().scan().to_arrow().num_rows)

match sys.argv[2]:
    case "thread":
        threading.Thread(target=work).start()
    case "atexit":
        atexit.register(work)
"""


@pytest.mark.parametrize("way", ["thread", "atexit"])
def test_a_table_is_read_and_written_when_the_interpreter_is_about_to_end(tmp_path: Path, way: str) -> None:
    program = [sys.executable, "-c", OUTLIVES, str(tmp_path / "t"), way]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("120000\n", "")


def test_work_is_done_where_pools_can_no_longer_be_imported() -> None:
    program = """
import atexit, sys
from delta_orch.storage.prefetch import map_ahead

def work():
    assert "concurrent.futures.thread" not in sys.modules
    print(list(map_ahead(abs, range(9), 3)))

atexit.register(work)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{list(range(9))}\n", "")


def test_work_is_not_done_twice_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    threads, gate = Threads(2), threading.Event()
    first = threads.begin(gate.wait)
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        threads.begin(done.append, 1)
    gate.set()
    assert first.result()
    threads.end()
    assert done in ([], [1])


def test_results_come_in_order_until_the_first_error() -> None:
    found, begun = [], []

    def work(number: int) -> int:
        begun.append(number)
        if number == 50:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError):
        for number in map_ahead(work, range(1000), 3):
            found.append(number)
            assert max(begun) <= number + 2 * 3
    assert found == list(range(50))


def test_no_thread_is_left_when_the_consumer_gives_up() -> None:
    before = threading.active_count()
    results = map_ahead(abs, range(1000), 3)
    assert [next(results), next(results)] == [0, 1]
    assert threading.active_count() > before
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_ahead_works_on_one_item_more_and_ends_with_the_block() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            begun.append(threading.get_ident())
            if number == 3:
                raise ValueError("the fourth")
            yield number

    taken = []
    with pytest.raises(ValueError, match="the fourth"), ahead(items()) as numbers:
        for number in numbers:
            taken.append(number)
    assert taken == [0, 1, 2]
    assert set(begun).isdisjoint({threading.get_ident()}) and len(set(begun)) == 1

    begun.clear()
    with ahead(items()) as numbers:
        assert next(numbers) == 0
    assert len(begun) <= 2
    assert not any(
        thread.name.startswith("delta-orch-ahead") and thread.ident in begun for thread in threading.enumerate()
    )
