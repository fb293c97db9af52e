"""Tables of very many things: what opening, appending, planning and a checkpoint take.

python -m tests.harness.giant txns 1000000
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable

_A_COMMIT = 100_000
ROWS = pa.table({"id": [1, 2], "s": ["a", "b"]})
_WHERE = {"txns": "id = 1", "partitions": "s = 'p77'", "columns": "c7 = 1", "properties": "id = 1"}


def make(root: Path, kind: str, count: int) -> pa.Table:
    """Make the table. Returns rows that fit it."""
    table, rows = DeltaTable(root), ROWS
    if kind == "columns":
        rows = pa.table({f"c{i}": [1] for i in range(count)})
    if kind == "properties":
        table.append(rows, properties={f"my.p{i}": f"v{i}" for i in range(count)})
    else:
        table.append(rows, partition_by=["s"] if kind == "partitions" else [])
    line = {"txns": _txn, "partitions": _partition}.get(kind)
    for version, start in enumerate(range(0, count, _A_COMMIT) if line else (), 1):
        lines = (json.dumps(line(i)) for i in range(start, min(start + _A_COMMIT, count))) if line else ()
        (root / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines))
    return rows


def _txn(i: int) -> object:
    return {"txn": {"appId": f"app-{i}", "version": i, "lastUpdated": 1_700_000_000_000}}


def _partition(i: int) -> object:
    add = {"path": f"s=p{i}/f.parquet", "partitionValues": {"s": f"p{i}"}, "size": 100, "modificationTime": 1}
    return {"add": {**add, "dataChange": True, "stats": '{"numRecords":1}'}}


def steps(root: Path, kind: str, rows: pa.Table) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured."""
    for when in ("", " from a checkpoint"):
        yield f"open{when}", lambda: DeltaTable(root).snapshot().version
        yield f"append{when}", lambda: DeltaTable(root).append(rows).version
        yield f"plan{when}", lambda: DeltaTable(root).snapshot().scan(where=_WHERE[kind]).plan().files.num_rows
        if not when:
            yield "checkpoint", lambda: DeltaTable(root).checkpoint()


def main() -> None:
    """Measure, and say what it took: processor time, as others may be at work on the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(_WHERE))
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "t"
        rows = make(root, given.kind, given.count)
        for name, act in steps(root, given.kind, rows):
            started = time.process_time()
            act()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            sys.stdout.write(f"{name}: {time.process_time() - started:.2f} s of processor time, peak {peak} MB\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
