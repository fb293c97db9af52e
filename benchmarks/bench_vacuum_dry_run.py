"""What vacuum would delete of a table with 100,000 files: one listing, and a look at each name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

TITLE = "Vacuum, dry run: 100,000 files in 100 partitions, one of a hundred needed by no version"
FILES, PARTITIONS = 100_000, 100
LEFT_BEHIND = FILES // 100

WARM_UPS = 1

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A table of files that are empty: nobody opens them."""
    import deltalake
    import orjson
    import pyarrow as pa

    table = directory / "vacuum_dry_run"
    if (table / "_delta_log").exists():
        return table
    schema = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    deltalake.DeltaTable.create(str(table), schema, partition_by=["part"])
    adds = []
    for number in range(FILES):
        part = number % PARTITIONS
        path = table / f"part={part}" / f"part-{number:06}-c000.snappy.parquet"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
        if number >= LEFT_BEHIND:
            name = f"part={part}/{path.name}"
            partition_values = {"part": str(part)}
            add = {"path": name, "partitionValues": partition_values, "size": 0, "modificationTime": 0}
            adds.append(orjson.dumps({"add": {**add, "dataChange": True, "stats": '{"numRecords":1}'}}))
    (table / "_delta_log" / f"{1:020}.json").write_bytes(b"\n".join(adds))
    deltalake.DeltaTable(str(table)).create_checkpoint()
    return table


def delta_orch() -> Run:
    """`vacuum(dry_run=True)`."""
    from delta_orch import DeltaTable

    return lambda table: DeltaTable(table).vacuum(dry_run=True).num_files


def deltalake() -> Run:
    """delta-rs."""
    from deltalake import DeltaTable

    return lambda table: len(DeltaTable(str(table)).vacuum(dry_run=True, full=True))


def floor() -> Run:
    """The listing alone, as our store makes it: name, size and time of every file."""
    from delta_orch.storage.open import open_store

    def run(table: Path) -> int:
        listed = list(open_store(table).list_recursive())
        return sum(file.path.startswith("part=") for file in listed) - FILES + LEFT_BEHIND

    return run


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake, "floor: the listing": floor}
