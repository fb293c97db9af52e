"""A thousand deferred sensors in one triggerer: `python -m benchmarks.triggers [sensors] [tables]`.

They wait for versions and rows of some tables, each polled every two seconds. Printed are the requests a poll,
the processor time and the memory that they add, and how long after a commit to every table the last of them fires.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import cpu_seconds, peak_memory_bytes
from delta_orch import DeltaTable
from delta_orch.storage.local import LocalStore

POLL_S = 2.0
POLLS = 5
REQUESTS: Counter[str] = Counter()


def count_requests() -> None:
    """Note each call of the store."""
    for name in ("head", "read_bytes", "list_from", "list_names"):
        method: Callable[..., object] = getattr(LocalStore, name)

        def counted(*args: object, _name: str = name, _method: Callable[..., object] = method, **kw: object) -> object:
            REQUESTS[_name] += 1
            return _method(*args, **kw)

        setattr(LocalStore, name, counted)


async def measure(root: Path, sensors: int, tables: int) -> None:
    from airflow.triggers.base import BaseTrigger

    from delta_orch.airflow.triggers import DeltaConditionTrigger, DeltaVersionTrigger
    from delta_orch.pipeline.conditions import RowCondition

    made = [DeltaTable(root / str(number)) for number in range(tables)]
    for table in made:
        table.append(pa.table({"i": [1]}))
    rows = RowCondition("i = 2").as_json()
    memory, cpu = peak_memory_bytes(), cpu_seconds()
    waiting: list[asyncio.Task[object]] = []
    for number in range(sensors):
        uri = made[number % tables].uri
        trigger: BaseTrigger = (
            DeltaVersionTrigger(uri, after_version=0, poll_interval_s=POLL_S)
            if number % 2
            else DeltaConditionTrigger(uri, rows, poll_interval_s=POLL_S)
        )
        waiting.append(asyncio.ensure_future(anext(aiter(trigger.run()))))
    await asyncio.sleep(POLL_S * 2)
    started = cpu_seconds() - cpu
    REQUESTS.clear()
    cpu = cpu_seconds()
    await asyncio.sleep(POLL_S * POLLS)
    assert not any(one.done() for one in waiting)
    per_poll = {name: count / POLLS for name, count in REQUESTS.items()}
    sys.stdout.write(
        f"{sensors} sensors of {tables} tables: start {started:.2f} s of CPU; each poll {per_poll} requests, "
        f"{1000 * (cpu_seconds() - cpu) / POLLS:.0f} ms of CPU; {(peak_memory_bytes() - memory) / 1e6:.0f} MB\n"
    )
    cpu, begun = cpu_seconds(), time.monotonic()
    for table in made:
        table.append(pa.table({"i": [2]}))
    events = await asyncio.wait_for(asyncio.gather(*waiting), 300)
    assert all(event.payload["version"] == 1 for event in events)  # type: ignore[attr-defined]
    late_s = time.monotonic() - begun
    sys.stdout.write(
        f"after a commit to each the last fires within {late_s:.1f} s, {cpu_seconds() - cpu:.2f} s of CPU\n"
    )


def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    sensors, tables = [*given, *(1000, 50)[len(given) :]]
    count_requests()
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(measure(Path(root), sensors, tables))


if __name__ == "__main__":
    main()
