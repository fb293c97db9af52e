"""What two writers may do to one table, and what must have come of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable, FileSource
from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import (
    DeltaError,
    InvalidRequestError,
    LogGapError,
    SchemaMismatchError,
    TableExistsError,
    VersionNotFoundError,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.memory import FILES, MemoryFile
from delta_orch.testing import open_table

Row = tuple[str, int, str]
Verb = Callable[..., Any]


def rows(by: str, *days_and_ids: tuple[str, int]) -> pa.Table:
    days, ids = zip(*days_and_ids, strict=True)
    return pa.table({"day": pa.array(days), "id": pa.array(ids, pa.int64()), "by": [by] * len(ids)})


BASE = rows("base", *((day, i) for day, start in (("a", 0), ("b", 10)) for i in range(start, start + 4)))

TABLES: dict[str, dict[str, str]] = {
    "vectors": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"},
    "plain": {},
    "feed": {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointInterval": "3",
    },
}
"""Properties of the table, by its name in a schedule's line."""


def _upsert(table: DeltaTable, by: str, *ids: int, **options: Any) -> Any:
    return table.upsert(rows(by, *(("a", i) for i in ids)), ["day", "id"], **options)


def _read(table: DeltaTable) -> list[Row]:
    """A reader whose version is decided some time before the files are read."""
    snapshot = table.snapshot()
    # Where others take their turns: a listing of all files commutes with no change of them.
    list(table.store.list_recursive(""))
    return rows_of(snapshot)


def ingest(table: DeltaTable, **options: Any) -> Any:
    """A file that this table has not loaded, or has."""
    source = FileSource(
        Path(__file__).parents[1] / "landing",
        pattern="day_id_and_by.json",
        format="json",
        schema={"day": "string", "id": "bigint", "by": "string"},
    )
    return table.ingest(source, **options)


VERBS: dict[str, Verb] = {
    "append": lambda t, **o: t.append(rows("append", ("a", 5)), **o),
    "overwrite": lambda t, **o: t.overwrite(rows("overwrite", ("a", 1)), **o),
    "replace_where": lambda t, **o: t.overwrite(rows("replace", ("a", 2)), replace_where="id < 3", **o),
    "dynamic": lambda t, **o: t.overwrite(rows("dynamic", ("a", 3)), partition_overwrite_mode="dynamic", **o),
    "delete": lambda t, **o: t.delete("id = 1", **o),
    "delete_2": lambda t, **o: t.delete("id = 2", **o),
    "update": lambda t, **o: t.update({"by": "'update'"}, "id IN (0, 11)", **o),
    "merge": lambda t, **o: _upsert(t, "merge", 2, 6, **o),
    "merge_5": lambda t, **o: _upsert(t, "merge 5", 0, 5, **o),
    "optimize": lambda t, **o: t.optimize(**o),
    "alter": lambda t, **o: t.alter().set_properties({"owner": "me"}).commit(**o),
    "add_column": lambda t, **o: t.alter().add_column("note", "string").commit(**o),
    "vacuum": lambda t, **o: t.vacuum(),
    "checkpoint": lambda t, **o: t.checkpoint(),
    "cleanup": lambda t, **o: t.cleanup_log(),
    "create": lambda t, **o: t.create(BASE.schema, partition_by=["day"], **o),
    "read": lambda t, **o: _read(t),
    "restore": lambda t, **o: t.restore(version=0, **o),
    "ingest": ingest,
}
"""By its name in a schedule's line. All mean the same whenever they run."""

READER = "read"

REFUSALS: dict[str, type[DeltaError]] = {
    "create": TableExistsError,
    "add_column": InvalidRequestError,
    "merge": SchemaMismatchError,
    "merge_5": SchemaMismatchError,
}
"""What a verb may say that changes nothing, on its own or behind others: a source of a merge lacks a new column."""

CUT_OFF = (VersionNotFoundError, LogGapError)
"""What is said of a version that was cleaned up, before it is read or while it is."""


@cache
def base_files(name: str) -> dict[str, bytes]:
    """A table of four versions, two days and two or three files a day, and a file that no version names."""
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    table.append(BASE, partition_by=["day"], properties=TABLES[name])
    table.append(BASE)
    table.append(rows("more", ("a", 7), ("b", 17)))
    table.append(rows("last", ("b", 18)))
    table.store.put("day=a/part-00000-left-over.parquet", b"PAR1")
    table.wait_for_upkeep()
    return {file.path: table.store.read_bytes(file.path) for file in table.store.list_recursive()}


def new_store(name: str) -> LogStore:
    """The table, so old that vacuum and cleanup find something to delete."""
    store = DeltaTable(f"memory://{uuid.uuid4()}").store
    root = store.uri.removeprefix("memory://")
    old_ms = time.time_ns() // 1_000_000 - 60 * 86_400_000
    FILES.update({f"{root}/{path}": MemoryFile(data, old_ms) for path, data in base_files(name).items()})
    return store


def rows_in(store: LogStore) -> list[Row]:
    """As a reader finds them who starts now: every file that the log names is read."""
    return rows_of(open_table(store).snapshot())


def rows_of(snapshot: TableSnapshot) -> list[Row]:
    """The rows of a version."""
    read = snapshot.scan(["day", "id", "by"]).to_arrow()
    return sorted(zip(*(read[name].to_pylist() for name in ("day", "id", "by")), strict=True))


@cache
def rows_after(name: str, *verbs: str) -> list[Row]:
    """The rows after verbs that ran one after the other. One that is refused changes nothing."""
    store = new_store(name)
    for verb in verbs:
        # What is refused there may also be refused among others.
        with suppress(*CUT_OFF, *REFUSALS.values()):
            VERBS[verb](open_table(store))
    return rows_in(store)
