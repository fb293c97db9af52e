"""Writers that are killed, a catalog that fails in every way, and readers that write down what they saw.

python -m tests.concurrency.catalog_torture SECONDS [SEED]
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from tests.harness.unity_emulator import ENDPOINTS, UnityEmulator, unity_emulator

URI = "uc://main.default.t"
NUM_WRITERS = 3
_ASKED = ("loadTable", "updateTable", "getConfig", "reportMetrics")


def write(options: dict[str, str], name: str, journal: str) -> None:
    """Append numbered rows, each with its `txn`, and note each that was acknowledged. Goes on behind the journal."""
    with Path(journal).open("a+b", buffering=0) as file:
        file.seek(0)
        number = len(file.read().splitlines())
        table = DeltaTable(URI, options)
        while True:
            rows = pa.table({"writer": [name], "number": [number]})
            try:
                if number % 7 == 3:
                    table.upsert(rows, ["writer", "number"], txn=(name, number + 1))
                else:
                    table.append(rows, txn=(name, number + 1))
            except DeltaError as e:
                if not e.retryable:
                    raise
                table = DeltaTable(URI, options)
                continue
            file.write(b"%d\n" % number)
            number += 1


def read(options: dict[str, str], journal: str) -> None:
    """Note the version and the number of rows of each look."""
    table = DeltaTable(URI, options)
    with Path(journal).open("ab", buffering=0) as file:
        while True:
            try:
                # One reader stays, and one is new each time.
                table = table if random.random() < 0.7 else DeltaTable(URI, options)
                snapshot = table.snapshot()
                count = snapshot.scan().to_arrow().num_rows
            except DeltaError as e:
                if not e.retryable:
                    raise
                table = DeltaTable(URI, options)
                continue
            file.write(json.dumps([snapshot.version, count]).encode() + b"\n")


def _start(what: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", __spec__.name, what, *arguments])


def _length(journal: str) -> int:
    return Path(journal).stat().st_size if Path(journal).exists() else 0


def _disturb(unity: UnityEmulator, chance: random.Random, is_over: threading.Event) -> None:
    kinds = {429: "TooManyRequestsException", 500: "CommitStateUnknownException", 503: "ServiceUnavailableException"}
    while not is_over.wait(chance.uniform(0.02, 0.4)):
        if any(fault.times for fault in unity.faults):
            continue  # One at a time.
        status = chance.choice([0, 0, 429, 500, 503])
        unity.fail(
            chance.choice(_ASKED),
            status=status,
            kind=kinds.get(status, ""),
            when=chance.choice(["before", "after"]),
            times=chance.choice([1, 1, 1, 5]),
        )
        if chance.random() < 0.1:
            unity.lag = chance.randrange(4)


def torture(directory: Path, seconds: float, seed: int = 0) -> dict[str, int]:
    """Run it, and check what came of it.

    Returns: What there was of commits, kills, looks and faults.

    Raises AssertionError: Something acknowledged is lost or there twice, or a reader saw what no version is.
    """
    chance = random.Random(seed)
    names = [f"w{number}" for number in range(NUM_WRITERS)]
    journals = {name: str(directory / name) for name in [*names, "r0", "r1"]}
    num_kills = 0
    (directory / "tables").mkdir()
    with unity_emulator(directory / "tables") as unity:
        unity.most_unbackfilled = 4
        DeltaTable(URI, unity.options).create("writer STRING, number BIGINT")
        options = json.dumps(unity.options)
        writers = {name: _start("write", options, name, journals[name]) for name in names}
        began = dict.fromkeys(names, 0)
        readers = [_start("read", options, journals[name]) for name in ("r0", "r1")]
        is_over = threading.Event()
        disturbance = threading.Thread(target=_disturb, args=(unity, chance, is_over))
        disturbance.start()
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                time.sleep(min(chance.uniform(1, 6), seconds / 4))
                assert all(writer.poll() is None for writer in writers.values()), "a writer has ended"
                assert all(reader.poll() is None for reader in readers), "a reader has ended"
                at_work = [name for name in names if _length(journals[name]) > began[name]]
                if not at_work:
                    continue  # A busy machine: nobody is killed before it has written something.
                name = chance.choice(at_work)
                writers[name].kill()
                assert writers[name].wait() == -signal.SIGKILL
                num_kills += 1
                began[name] = _length(journals[name])
                writers[name] = _start("write", options, name, journals[name])
        finally:
            is_over.set()
            disturbance.join()
            for process in (*writers.values(), *readers):
                process.kill()
                process.wait()
        unity.faults.clear()
        unity.lag = 0
        table = DeltaTable(URI, unity.options)
        acknowledged = {name: len(Path(journals[name]).read_bytes().splitlines()) for name in names}
        rows = table.snapshot().scan().to_arrow()
        found = Counter(zip(rows["writer"].to_pylist(), rows["number"].to_pylist(), strict=True))
        assert max(found.values()) == 1, [key for key, count in found.items() if count > 1]
        for name, count in acknowledged.items():
            numbers = {number for writer, number in found if writer == name}
            # The last one may be there and its writer killed before it heard of it.
            assert numbers in (set(range(count)), set(range(count + 1))), (name, count, len(numbers))
        # Each version has one row more than the one before it: whatever a reader saw was that.
        looks = [json.loads(line) for name in ("r0", "r1") for line in Path(journals[name]).read_text().splitlines()]
        assert all(version == count for version, count in looks), [look for look in looks if look[0] != look[1]][:5]
        assert unity.table("main.default.t").latest == len(found)
        unity.ensure_lawful()
        return {
            "commits": len(found),
            "kills": num_kills,
            "looks": len(looks),
            "requests": sum(unity.requests[name] for name in ENDPOINTS),
        }


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", given, name, journal]:
            write(json.loads(given), name, journal)
        case ["read", given, journal]:
            read(json.loads(given), journal)
        case [length, *seed]:
            with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
                sys.stdout.write(f"{torture(Path(place), float(length), int(seed[0]) if seed else 0)}\n")
