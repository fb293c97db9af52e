"""The tables that verbs are tried on: files in memory, so that every case gets a copy of its own for nothing."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import TxnId
from delta_orch.arrival.loaded_files import CURSOR_PREFIX
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import MissingFileError
from delta_orch.protocol.paths import checksum_path
from delta_orch.storage.memory import FILES, MemoryFile
from delta_orch.table.column_definitions import column, identity_column
from tests.harness.row_deletion import delete_rows

_DAY_MS = 86_400_000
UNIT = "airflow:matrix.task:monday"
_NUMBERS = itertools.count()

Files = Mapping[str, MemoryFile]
"""By path below the table's root."""


@dataclass(frozen=True)
class Template:
    """A table as it is, and as it was a while ago: what stale listings still show."""

    now: Files
    past: Files


def rows(day: str, *ids: int) -> pa.Table:
    """Rows of one day."""
    return pa.table({"day": pa.array([day] * len(ids), pa.string()), "id": pa.array(ids, pa.int64())})


def put_files(uri: str, files: Files) -> None:
    """Make a table of these files, in place of what is there."""
    if uri.startswith("memory://"):
        forget(uri)
        FILES.update({f"{uri.removeprefix('memory://')}/{path}": file for path, file in files.items()})
        return
    for path, file in files.items():
        full = Path(uri, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(file.data)
        os.utime(full, ns=(file.modification_time_ms * 1_000_000,) * 2)


def take_files(uri: str) -> dict[str, MemoryFile]:
    """The files of a table."""
    if not uri.startswith("memory://"):
        found = (file for file in Path(uri).rglob("*") if file.is_file())
        return {str(file.relative_to(uri)): MemoryFile(file.read_bytes(), 0) for file in found}
    prefix = uri.removeprefix("memory://") + "/"
    return {key.removeprefix(prefix): file for key, file in FILES.copy().items() if key.startswith(prefix)}


def forget(uri: str) -> None:
    """Drop a table in memory."""
    for path in take_files(uri):
        del FILES[f"{uri.removeprefix('memory://')}/{path}"]


def new_uri() -> str:
    """A name in memory that no table has: nothing this process remembers is about it."""
    return f"memory://fault-matrix-{next(_NUMBERS)}"


def described(table: DeltaTable, *, expects_gone_files: bool = False) -> dict[str, Any] | None:
    """What a table says to its readers, None where there is none.

    Args:
        expects_gone_files: A table whose files are gone has None for its rows, instead of an error.
    """
    if not table.exists():
        return None
    snapshot = table.snapshot()
    try:
        read = snapshot.scan().to_arrow().to_pylist()
    except MissingFileError:
        if not expects_gone_files:
            raise
        read = None
    return {
        "rows": None if read is None else Counter(tuple(sorted(row.items(), key=lambda item: item[0])) for row in read),
        "files": snapshot.num_files,
        "schema": snapshot.metadata.schema_string,
        "partitioned by": snapshot.partition_columns,
        "properties": {
            # Names of materialised columns are made up at random.
            key: "random" if "materialized" in key else value
            for key, value in snapshot.metadata.configuration.items()
        },
        "domains": {k: v for k, v in snapshot.domain_metadata.items() if not k.startswith("delta.")},
        # The record of loaded files has the time as its version.
        "txns": {name: 1 if name.startswith(CURSOR_PREFIX) else order for name, order in snapshot.txns.items()},
    }


# The tables


@cache
def make_templates() -> Mapping[str, Template]:
    """All of them, by name."""
    return {name: _make(*steps) for name, steps in _STEPS.items()}


def _make(first: Callable[[DeltaTable], object], then: Callable[[DeltaTable], object]) -> Template:
    table = DeltaTable(new_uri())
    first(table)
    past = _aged(take_files(table.uri))
    then(table)
    now = _aged(take_files(table.uri))
    forget(table.uri)
    return Template(now, past)


def _aged(files: Files) -> dict[str, MemoryFile]:
    """Half a year old, but for the newest commit: what retention keeps for its age alone is kept no longer."""
    commits = sorted(path for path in files if path.startswith("_delta_log/") and path.endswith(".json"))
    old_ms = time.time_ns() // 1_000_000 - 180 * _DAY_MS
    return {
        path: file if path == commits[-1] else MemoryFile(file.data, old_ms + _position(path))
        for path, file in files.items()
    }


def _position(path: str) -> int:
    """Commits in their order."""
    name = path.rpartition("/")[2]
    return int(name[:20]) if name[:20].isdigit() else 0


def _nothing(table: DeltaTable) -> None:
    """There is no table."""


def _create_plain(table: DeltaTable) -> None:
    table.append(rows("a", 1, 2), partition_by=["day"], properties={"delta.checkpointInterval": "100"}, txn=("job", 1))
    table.append(rows("b", 3))


def _grow_plain(table: DeltaTable) -> None:
    table.checkpoint()
    table.append(rows("a", 4))
    table.overwrite(rows("b", 5), replace_where="day = 'b'")
    table.store.delete(checksum_path(2))


def _create_rich(table: DeltaTable, interval: str = "100") -> None:
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.feature.domainMetadata": "supported",
        "delta.checkpointPolicy": "v2",
        "delta.checkpointInterval": interval,
    }
    table.append(rows("a", 1, 2, 3), properties=properties)
    table.append(rows("b", 4, 5, 6))


def _grow_rich(table: DeltaTable) -> None:
    table.checkpoint()
    table.set_domain_metadata("mine", "before")
    table.append(rows("c", 7, 8, 9))
    table.overwrite(rows("d", 9), replace_where="id = 9")


def _create_marked(table: DeltaTable) -> None:
    table.append(rows("a", 1, 2, 3), properties={"delta.enableDeletionVectors": "true"})
    table.append(rows("b", 4, 5, 6))


def _create_with_unit(table: DeltaTable) -> None:
    """Rows of a unit of work, and others beside them."""
    about = {"step": {"write": "append"}}
    table.append(rows("a", 1, 2), txn=TxnId(UNIT, 7, is_unit=True), commit_info=about, partition_by=["day"])
    table.append(rows("a", 3))


def _add_versions(table: DeltaTable, day: str) -> None:
    """An event of each key, after which others are late."""
    table.apply_changes(rows(day, 1, 2, 5), keys=["id"], sequence_by="day", scd=2)


def _create_scattered(table: DeltaTable) -> None:
    """So many rows that a deletion vector is a file."""
    table.append(rows("a", *range(400)), properties={"delta.enableDeletionVectors": "true"})


def _mark(table: DeltaTable) -> None:
    """Delete the second row of every file, by a deletion vector in a file."""
    delete_rows(table, 1)


def _create_and_mark(table: DeltaTable) -> None:
    _create_marked(table)
    _mark(table)


def _create_counted(table: DeltaTable) -> None:
    """Columns that are numbered, rows that are tracked, commits that tell the time, columns under other names."""
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.columnMapping.mode": "name",
    }
    table.create([column("day", "string"), column("id", "long"), identity_column("number")], properties=properties)
    table.append(rows("a", 1, 2))


def _create_clustered(table: DeltaTable) -> None:
    table.create(rows("a").schema, cluster_by=["id", "day"])
    table.append(rows("a", 1, 3))


def _create_listed(table: DeltaTable) -> None:
    _create_plain(table)
    table.generate()


def _grow_listed(table: DeltaTable) -> None:
    """The manifests are of a version that is gone by: one changes, one is new, one is of a partition without files."""
    table.delete("day = 'a'")
    table.append(rows("b", 4))
    table.append(rows("c", 7))


def _lose_file(table: DeltaTable) -> None:
    """One of the files of the newest version is gone."""
    _grow_plain(table)
    table.store.delete(table.snapshot().files(["path"])["path"][0].as_py())


def _litter(table: DeltaTable) -> None:
    """Files that no version names: of a writer that never committed."""
    _grow_plain(table)
    for number in range(3):
        table.store.put(f"day=a/part-0000{number}-left-over.parquet", b"PAR1")


_STEPS: dict[str, tuple[Callable[[DeltaTable], object], Callable[[DeltaTable], object]]] = {
    "none": (_nothing, _nothing),
    "empty": (_nothing, lambda table: table.create(rows("a").schema, partition_by=["day"])),
    "plain": (_create_plain, _grow_plain),
    "littered": (_create_plain, _litter),
    "clustered": (_create_clustered, lambda table: table.append(rows("b", 2, 4))),
    "broken": (_create_plain, _lose_file),
    "listed": (_create_listed, _grow_listed),
    "markable": (_create_marked, lambda table: table.append(rows("c", 7))),
    "marked": (_create_marked, _mark),
    "marked before": (_create_and_mark, lambda table: table.append(rows("c", 7))),
    "unit": (_create_with_unit, lambda table: table.append(rows("b", 4))),
    "versions": (lambda table: _add_versions(table, "a"), lambda table: _add_versions(table, "b")),
    "scattered": (_create_scattered, lambda table: table.append(rows("b", *range(400, 800)))),
    "counted": (_create_counted, lambda table: table.append(rows("b", 3, 4))),
    "rich": (_create_rich, _grow_rich),
    "rich, checkpoint due": (lambda table: _create_rich(table, "5"), _grow_rich),
}
