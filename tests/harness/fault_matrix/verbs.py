"""What is tried: every verb, the ways of it that call the store differently, and every way of reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from delta_orch import Expect, FileSource, TxnId
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import StorageError
from delta_orch.protocol.schema import serialize_schema
from delta_orch.storage.base import os_errors
from delta_orch.verbs.clone import clone
from delta_orch.verbs.convert import convert
from tests.harness.fault_matrix.tables import UNIT, described, rows, take_files
from tests.harness.row_deletion import delete_rows

TXN = ("matrix", 7)
LANDING = Path(__file__).parents[1] / "landing"
Act = Callable[[DeltaTable], Any]


@dataclass(frozen=True)
class Verb:
    """One verb in one situation.

    Attributes:
        template: The table it meets (`tables`).
        act: It; given the same table again, it is the same request again.
        is_read: It answers something and changes nothing.
        has_txn: Running it again is `skipped` where it has been committed.
        commits: It makes one version: the table is as before or as after, and an error says which.
        moves: It moves the rows of the files that it sees, so a listing that is behind gives it fewer of them.
        mends: The table that it meets has lost files.
        prepares: It makes versions before its own, which may change properties and nothing else that readers see.
        holds: It begins with a snapshot of the table's past.
    """

    name: str
    template: str
    act: Act
    is_read: bool = False
    has_txn: bool = False
    commits: bool = True
    prepares: bool = False
    moves: bool = False
    mends: bool = False
    holds: bool = False


def _commit(name: str, template: str, act: Act) -> Verb:
    return Verb(name, template, act, has_txn=True)


def _upkeep(name: str, template: str, act: Act) -> Verb:
    return Verb(name, template, act, commits=False)


def _read(name: str, template: str, act: Act, *, holds: bool = False) -> Verb:
    return Verb(name, template, act, is_read=True, commits=False, holds=holds)


def _merge(table: DeltaTable) -> Any:
    merge = table.merge(rows("a", 1, 2, 77), "target.id = source.id", txn=TXN)
    merge.when_matched_delete("source.id = 1").when_matched_update({"day": "'z'"}).when_not_matched_insert_all()
    return merge.execute()


def _mirror(table: DeltaTable) -> Any:
    merge = table.merge(rows("a", 1, 4, 6), "target.id = source.id", txn=TXN)
    return merge.when_not_matched_insert_all().when_not_matched_by_source_delete().execute()


def _apply(table: DeltaTable, scd: Any) -> Any:
    """Newer events of keys that are there, and of new ones. Tombstones hold the time, so that no two are the same."""
    how: Any = {"delete_when": "id = 5"} if scd == 2 else {}
    return table.apply_changes(rows("aa", 2, 5, 77), keys=["id"], sequence_by="day", scd=scd, txn=TXN, **how)


def _alter(table: DeltaTable, change: Callable[[Any], Any]) -> Any:
    return change(table.alter()).commit(txn=TXN)


def _clone_onto(table: DeltaTable, *, shallow: bool) -> Any:
    """The table that meets the faults is the target; its source is another, of the same kind of store."""
    is_memory = table.store.uri.startswith("memory:")
    source = DeltaTable("memory://fault-matrix-source" if is_memory else f"{table.store.uri}-source")
    if not source.exists():
        source.append(rows("s", 8, 9), partition_by=["day"], properties={"delta.enableDeletionVectors": "true"})
        delete_rows(source, 0)
    return clone(
        source.snapshot(),
        table.log,
        is_newest=True,
        shallow=shallow,
        replace_target=True,
        properties=None,
        options={"txn": TXN},
    )


def _convert(table: DeltaTable) -> Any:
    """The file is put there first. That fails as every call does, and is not what is tried."""
    filesystem, root = table.store.data_filesystem()
    with os_errors("write", root):
        filesystem.create_dir(f"{root}/day=a", recursive=True)
        pq.write_table(rows("a", 1, 2).select(["id"]), f"{root}/day=a/x.parquet", filesystem=filesystem)
    newest = table.snapshot() if table.exists() else None
    return convert(table.log, newest, {"day": "string"}, None, {})


def _add_files(table: DeltaTable, replace_where: str | None = None) -> Any:
    filesystem, root = table.store.data_filesystem()
    with os_errors("write", root):
        pq.write_table(rows("a", 78).select(["id"]), f"{root}/day=a/added.parquet", filesystem=filesystem)
    return table.add_files(["day=a/added.parquet"], replace_where=replace_where, txn=TXN)


def _ingest(table: DeltaTable, **how: Any) -> Any:
    source = FileSource(LANDING, pattern="day_and_id.json", format="json", schema={"day": "string", "id": "bigint"})
    return SimpleNamespace(skipped=not table.ingest(source, **how).commits)


def _redo(table: DeltaTable) -> Any:
    return table.append(rows("a", 9), txn=TxnId(UNIT, 8, is_unit=True, replaces=True))


def _publish(table: DeltaTable) -> Any:
    """Written first, committed later."""
    prepared = table.append(rows("a", 9), txn=TXN, stage=True)
    return prepared if prepared.staged is None else table.staged(prepared.staged).publish()


def _generate(table: DeltaTable) -> tuple[str, ...]:
    """Each manifest lists its partition as some version has it, at any time; all of them one version, in the end."""
    newest = DeltaTable(table.uri)
    versions = [_by_partition(newest.snapshot(version)) for version in range(newest.version() + 1)]
    for day, names in _manifests(table).items():
        assert names in [version.get(day) for version in versions], f"the manifest of day={day} lists {names}"
    written = table.generate()
    assert _manifests(table) in versions, f"the manifests list {_manifests(table)}"
    return written


def _by_partition(snapshot: TableSnapshot) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in snapshot.list_files()["path"].to_pylist():
        day, _, name = path.partition("/")
        found.setdefault(day, set()).add(name)
    return found


def _manifests(table: DeltaTable) -> dict[str, set[str]]:
    """The names of the files that each lists, by the directory of its partition."""
    files = take_files(table.uri.removeprefix("file://")).items()
    found = {
        tuple(path.split("/")): file.data.decode().splitlines() for path, file in files if path.endswith("/manifest")
    }
    return {path[1]: {line.rpartition("/")[2] for line in lines} for path, lines in found.items()}


def _history(table: DeltaTable) -> list[Any]:
    return [(entry.version, entry.operation) for entry in table.history()]


def _changes(table: DeltaTable) -> list[Any]:
    read = table.changes(starting_version=1).to_arrow().drop_columns(["_commit_timestamp"])
    return sorted(map(repr, read.to_pylist()))


def _findings(table: DeltaTable) -> list[str]:
    """What fsck finds wrong, but for what the store did not answer."""
    report = table.fsck(check_files=True)
    return [p.code for p in report.problems if p.severity == "error" and p.code != StorageError.code]


VERBS = (
    Verb("create", "none", lambda t: t.create(rows("a").schema, partition_by=["day"])),
    Verb("create, is there", "empty", lambda t: t.create(rows("a").schema, partition_by=["day"])),
    _commit("create or replace", "rich", lambda t: t.create_or_replace(rows("a").schema, txn=TXN)),
    _commit("append, first", "none", lambda t: t.append(rows("a", 1), partition_by=["day"], txn=TXN)),
    _commit("append, table just made", "empty", lambda t: t.append(rows("a", 1), partition_by=["day"], txn=TXN)),
    Verb("append", "plain", lambda t: t.append(rows("a", 9))),
    _commit("append, txn", "plain", lambda t: t.append(rows("a", 9), txn=TXN)),
    _commit("append, checkpoint due", "rich, checkpoint due", lambda t: t.append(rows("a", 9), txn=TXN)),
    _commit(
        "append, new column",
        "plain",
        lambda t: t.append(rows("a", 9).append_column("more", [["x"]]), txn=TXN, schema_mode="merge"),
    ),
    _commit("append, identity column", "counted", lambda t: t.append(rows("a", 9), txn=TXN)),
    _commit(
        "overwrite, tracked rows", "counted", lambda t: t.overwrite(rows("b", 3), replace_where="id IN (1, 3)", txn=TXN)
    ),
    _commit("overwrite", "plain", lambda t: t.overwrite(rows("z", 9), txn=TXN)),
    _commit("overwrite a partition", "plain", lambda t: t.overwrite(rows("a", 9), replace_where="day = 'a'", txn=TXN)),
    _commit("overwrite in files", "rich", lambda t: t.overwrite(rows("b", 5), replace_where="id IN (2, 5)", txn=TXN)),
    _commit(
        "overwrite, dynamic",
        "plain",
        lambda t: t.overwrite(rows("b", 9), partition_overwrite_mode="dynamic", txn=TXN),
    ),
    _commit("delete, whole files", "plain", lambda t: t.delete("day = 'a'", txn=TXN)),
    _commit("delete, files written anew", "rich", lambda t: t.delete("id IN (2, 5)", txn=TXN)),
    _commit("delete, rows marked", "scattered", lambda t: t.delete("id % 7 = 3 AND id < 400", txn=TXN)),
    _commit("delete, most of a marked file", "marked", lambda t: t.delete("id = 1", txn=TXN)),
    _read("delete, no such row", "rich", lambda t: t.delete("id = 99").skipped),
    _commit("update, files written anew", "rich", lambda t: t.update({"id": "id + 10"}, "id IN (2, 5)", txn=TXN)),
    _commit("update, rows marked", "scattered", lambda t: t.update({"day": "'z'"}, "id % 7 = 3 AND id < 400", txn=TXN)),
    _commit("update, tracked rows", "counted", lambda t: t.update({"day": "'c'"}, "id = 1", txn=TXN)),
    _commit("set properties", "plain", lambda t: _alter(t, lambda a: a.set_properties({"delta.appendOnly": "true"}))),
    _commit("add column", "plain", lambda t: _alter(t, lambda a: a.add_column("more", "string"))),
    _commit("add constraint", "plain", lambda t: _alter(t, lambda a: a.add_constraint("c", "id > 0"))),
    _commit("add feature", "plain", lambda t: _alter(t, lambda a: a.add_feature("deletionVectors"))),
    _commit(
        "drop feature",
        "markable",
        lambda t: _alter(
            t, lambda a: a.set_properties({"delta.enableDeletionVectors": "false"}).drop_feature("deletionVectors")
        ),
    ),
    _commit(
        "drop feature, files written anew",
        "counted",
        lambda t: _alter(t, lambda a: a.drop_feature("columnMapping")),
    ),
    _commit("drop feature, marked rows", "marked", lambda t: _alter(t, lambda a: a.drop_feature("deletionVectors"))),
    Verb(
        "drop row tracking",
        "counted",
        lambda t: _alter(t, lambda a: a.drop_feature("rowTracking")),
        has_txn=True,
        prepares=True,
    ),
    Verb(
        "enable row tracking",
        "plain",
        lambda t: _alter(t, lambda a: a.set_properties({"delta.enableRowTracking": "true"})),
        has_txn=True,
    ),
    _commit("set domain", "rich", lambda t: t.set_domain_metadata("mine", "after", txn=TXN)),
    _commit("remove domain", "rich", lambda t: t.remove_domain_metadata("mine", txn=TXN)),
    _commit("optimize", "plain", lambda t: t.optimize(txn=TXN)),
    _commit("optimize, marked rows", "marked", lambda t: t.optimize(max_deleted_rows_ratio=0, txn=TXN)),
    _commit("optimize, Z-order", "plain", lambda t: t.optimize(zorder_by=["id"], txn=TXN)),
    _commit("merge, marked rows", "marked", _merge),
    Verb("optimize, clustered", "clustered", lambda t: t.optimize(txn=TXN), has_txn=True, moves=True),
    _commit("upsert, rows marked", "scattered", lambda t: t.upsert(rows("z", 3, 9, 900), ["id"], txn=TXN)),
    _commit("upsert, files written anew", "rich", lambda t: t.upsert(rows("z", 2, 5, 77), ["id"], txn=TXN)),
    _commit("changes, newest rows", "rich", lambda t: _apply(t, 1)),
    _commit("changes, rows marked", "scattered", lambda t: _apply(t, 1)),
    Verb("changes, new table", "none", lambda t: _apply(t, 2), has_txn=True),
    _commit("changes, late versions", "versions", lambda t: _apply(t, 2)),
    _commit("upsert, tracked rows", "counted", lambda t: t.upsert(rows("z", 1, 9), ["id"], txn=TXN)),
    _commit("merge, deletes what the source lacks", "plain", _mirror),
    Verb("repair", "broken", lambda t: t.repair(txn=TXN), has_txn=True, mends=True),
    _commit("purge", "marked before", lambda t: t.purge(txn=TXN)),
    _commit("restore", "plain", lambda t: t.restore(version=2, txn=TXN)),
    _commit("restore, marked rows", "marked", lambda t: t.restore(version=0, txn=TXN)),
    _commit("clone onto, shallow", "plain", lambda t: _clone_onto(t, shallow=True)),
    _commit("clone onto, deep", "marked", lambda t: _clone_onto(t, shallow=False)),
    _commit("append, in place of its unit", "unit", _redo),
    Verb("undo", "unit", lambda t: t.undo(unit=UNIT)),
    Verb("convert", "none", _convert),
    _commit("add files", "plain", _add_files),
    _commit("add files, replacing", "plain", lambda t: _add_files(t, "id = 78 OR id = 1")),
    _commit("append, staged and published", "plain", _publish),
    # After its commit it looks for more files.
    Verb("ingest", "plain", _ingest, has_txn=True, commits=False),
    Verb(
        "ingest, first, rules",
        "none",
        lambda t: _ingest(t, expect={"one": Expect("id > 9", "warn")}),
        has_txn=True,
        commits=False,
    ),
    _upkeep("vacuum", "littered", lambda t: t.vacuum()),
    _upkeep("checkpoint, classic", "plain", lambda t: t.checkpoint()),
    _upkeep("checkpoint, V2 JSON", "rich", lambda t: t.checkpoint("v2", "json")),
    _upkeep("checkpoint, V2 Parquet", "rich", lambda t: t.checkpoint("v2", "parquet")),
    _upkeep("compact log", "plain", lambda t: t.compact_log(0, 3)),
    _upkeep("generate", "listed", _generate),
    _upkeep("write checksum", "plain", lambda t: t.write_checksum(2)),
    _upkeep("clean up log", "plain", lambda t: t.cleanup_log()),
    _read("scan", "plain", described),
    _read("scan, V2 checkpoint", "rich", described),
    _read("scan, filtered", "rich", lambda t: t.snapshot().scan(["id"], "id > 4").to_arrow()["id"].to_pylist()),
    _read("scan, marked rows", "marked", described),
    _read("advance", "plain", described, holds=True),
    _read("time travel", "plain", lambda t: serialize_schema(t.snapshot(1).schema)),
    _read("history", "plain", _history),
    _read("changes", "rich", _changes),
    _read("fsck", "rich", _findings),
)
