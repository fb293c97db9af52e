"""optimize, vacuum, checkpoint and history, on both engines where rows move."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.base import Engine
from delta_orch.errors import (
    ConflictError,
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.paths import commit_path
from delta_orch.testing import FailingStore, StoreCall, open_table
from delta_orch.verbs.compaction import pack_bins
from delta_orch.verbs.removed_files import vector_paths
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.table_builder import FILE_SCHEMA


def paths(table: DeltaTable) -> set[str]:
    return set(table.snapshot().files(["path"]).column("path").to_pylist())


def age(table: DeltaTable, hours: float) -> None:
    """Make every data file look older."""
    then = time.time() - hours * 3600
    for file in table.store.list_recursive():
        if not file.path.startswith("_delta_log/"):
            os.utime(table.store.resolve(file.path), (then, then))


@pytest.fixture
def small_files(rows: Any, table: DeltaTable, days: Any) -> DeltaTable:
    """Six files in partition a, two in b, one in c."""
    table.append(rows.data(days(("a", 0), ("b", 1), ("c", 2))), partition_by=["day"])
    table.append(rows.data(days(("a", 3), ("b", 4))))
    for i in range(5, 9):
        table.append(rows.data(days(("a", i))))
    return table


@pytest.mark.long
def test_optimize_merges_small_files(rows: Any, small_files: DeltaTable, ids: Any) -> None:
    before, (c_file,) = ids(small_files), partition_files(small_files, "c")
    sizes = small_files.snapshot().size_bytes
    result = small_files.optimize(engine=rows.engine)
    assert not result.skipped
    assert ids(small_files) == before
    snapshot = small_files.snapshot()
    assert snapshot.num_files == 3
    assert c_file in paths(small_files)
    metrics = {k: int(v) for k, v in small_files.history()[0].operation_metrics.items()}
    assert (metrics["numRemovedFiles"], metrics["numAddedFiles"]) == (8, 2)
    assert metrics["numRemovedBytes"] - metrics["numAddedBytes"] == sizes - snapshot.size_bytes
    assert metrics["minFileSize"] <= metrics["p50FileSize"] <= metrics["maxFileSize"]
    commit = small_files.log.read_commit(result.version)
    assert not any(commit.adds.column("data_change").to_pylist() + commit.removes.column("data_change").to_pylist())
    assert '"numRecords":6' in "".join(snapshot.files(["stats"]).column("stats").to_pylist())


def partition_files(table: DeltaTable, day: str) -> list[str]:
    files = table.snapshot().files(["path", "partition_values"]).to_pylist()
    return [f["path"] for f in files if dict(f["partition_values"])["day"] == day]


@pytest.mark.long
def test_optimize_again_does_nothing(rows: Any, small_files: DeltaTable) -> None:
    small_files.optimize(engine=rows.engine)
    version = small_files.version()
    result = small_files.optimize(engine=rows.engine)
    assert (result.skipped, result.version) == (True, version)
    assert small_files.version() == version


@pytest.mark.long
def test_optimize_where(rows: Any, small_files: DeltaTable) -> None:
    before = set(partition_files(small_files, "a"))
    small_files.optimize("day = 'b'", engine=rows.engine)
    assert len(partition_files(small_files, "b")) == 1
    assert set(partition_files(small_files, "a")) == before
    for where in ("id = 3", "length(day) = 1"):
        with pytest.raises(InvalidExpressionError):
            small_files.optimize(where)


@pytest.mark.long
def test_optimize_honours_the_target_size(rows: Any, small_files: DeltaTable) -> None:
    largest = max(small_files.snapshot().files(["size"]).column("size").to_pylist())
    small_files.optimize(target_file_size_bytes=largest * 2 + 1, engine=rows.engine)
    assert len(partition_files(small_files, "a")) in (2, 3)
    sizes: list[Any] = [0, -1, 1.5, True]
    for size in sizes:
        with pytest.raises(InvalidRequestError):
            small_files.optimize(target_file_size_bytes=size)


@pytest.mark.long
def test_optimize_yields_to_appends(rows: Any, small_files: DeltaTable, days: Any, ids: Any) -> None:
    stale = DeltaTable(small_files.uri)
    stale.snapshot()
    engine = AppendsWhileRewriting(small_files, rows.data(days(("a", 99))))
    result = stale.optimize(engine=cast(Engine, engine))
    assert len(result.rebased_versions) == 1
    assert ids(small_files)["a"] == [0, 3, 5, 6, 7, 8, 99]


@pytest.mark.long
def test_optimize_conflicts_with_a_delete_of_its_files(small_files: DeltaTable, rows: Any, days: Any, ids: Any) -> None:
    engine = AppendsWhileRewriting(small_files, rows.data(days(("a", 99))), replace_where="day = 'a'")
    with pytest.raises(ConflictError):
        DeltaTable(small_files.uri).optimize(engine=cast(Engine, engine))
    assert ids(small_files)["a"] == [99]


class AppendsWhileRewriting:
    """The local engine, but another writer commits between rewriting and committing."""

    name = "local"

    def __init__(self, table: DeltaTable, data: Any, replace_where: str | None = None) -> None:
        from delta_orch.engines.local.engine import LocalEngine

        self._engine = LocalEngine()
        self._table, self._data, self._replace_where = table, data, replace_where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def rewrite(self, plans: Any, spec: Any) -> pa.Table:
        adds = self._engine.rewrite(plans, spec)
        if self._replace_where is None:
            self._table.append(self._data)
        else:
            self._table.overwrite(self._data, replace_where=self._replace_where)
        return adds


def bins(partitions: list[int], sizes: list[int], limit: int) -> list[tuple[int, int]]:
    return list(pack_bins(partitions, sizes, limit))


def test_pack_bins() -> None:
    assert bins([], [], 10) == []
    assert bins([0], [1], 10) == []
    assert bins([0, 0, 0], [1, 2, 3], 10) == [(0, 3)]
    assert bins([0, 0, 0, 0], [4, 4, 4, 4], 10) == [(0, 2), (2, 4)]
    assert bins([0, 0, 0], [4, 4, 9], 10) == [(0, 2)]
    assert bins([0, 1, 1, 2], [1, 1, 1, 1], 10) == [(1, 3)]
    assert bins([0, 0], [6, 6], 10) == []


@pytest.mark.long
def test_vacuum_deletes_what_nothing_needs(rows: Any, small_files: DeltaTable, ids: Any) -> None:
    small_files.optimize(engine=rows.engine)
    orphan = Path(small_files.store.resolve("day=a/part-orphan.parquet"))
    orphan.write_bytes(b"left over")
    before = ids(small_files)
    live = paths(small_files)
    everything = data_files(small_files)

    # The merged files are old, but were removed only now: their tombstones protect them.
    age(small_files, 24 * 8)
    kept = small_files.vacuum(dry_run=True)
    assert kept.paths == ("day=a/part-orphan.parquet",)
    assert kept.size_bytes == len(b"left over")

    listed = small_files.vacuum(retention_hours=0, dry_run=True, enforce_retention=False)
    assert set(listed.paths) == everything - live
    assert data_files(small_files) == everything
    version = small_files.version()

    result = small_files.vacuum(retention_hours=0, enforce_retention=False)
    assert result.paths == listed.paths
    assert not result.dry_run
    assert data_files(small_files) == live
    assert ids(small_files) == before
    assert [e.operation for e in small_files.history(2)] == ["VACUUM END", "VACUUM START"]
    with pytest.raises(MissingFileError):
        ids(small_files.snapshot(version=1))
    assert not small_files.vacuum(retention_hours=0, enforce_retention=False).paths
    assert small_files.version() == version + 2


def data_files(table: DeltaTable) -> set[str]:
    return {f.path for f in table.store.list_recursive() if not f.path.startswith("_delta_log/")}


def test_vacuum_spares_what_is_not_its_business(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    root = Path(table.store.resolve("x")).parent
    spared = ["_hidden/file.parquet", ".dot/file", "_manifest", ".DS_Store", "_delta_log/unknown", "a/_b/c.parquet"]
    doomed = ["loose.parquet", "_change_data/cdc-1.parquet", "dir/deep/file", "day=b/x.parquet", ".old.parquet.crc"]
    for path in spared + doomed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    result = table.vacuum(retention_hours=0, enforce_retention=False)
    assert set(result.paths) == set(doomed)
    assert all((root / path).exists() for path in spared)
    assert (root / "dir" / "deep").is_dir()


def test_vacuum_of_partition_directories_that_look_hidden(table: DeltaTable) -> None:
    table.append(pa.table({"_day": ["a"], "id": [1]}), partition_by=["_day"])
    table.overwrite(pa.table({"_day": ["b"], "id": [2]}))
    result = table.vacuum(retention_hours=0, enforce_retention=False)
    assert len(result.paths) == 1
    assert result.paths[0].startswith("_day=a/")


@pytest.mark.parametrize("uri", ["memory://vacuumed-names", ""])
def test_vacuum_deletes_no_live_file_whatever_it_is_called(tmp_path: Path, days: Any, uri: str) -> None:
    """Stores without inodes know a file by its name only."""
    names = [
        ".x.parquet.crc", "..crc", ".crc", "x.crc", "._x.crc", ".x.crc.crc", "_x.parquet", ".x", "..x", "x.tmp", "~x",
        ".0123456789abcdef.tmp", "a b.parquet", "%41.parquet", "_temporary/0/x.parquet", "d/.x.parquet.crc", "d/_x",
        ".spark-staging/x.parquet", "_change_data/x.parquet", "_staged/x.parquet", "day=a/.y.crc",
    ]  # fmt: skip
    table = DeltaTable(uri or tmp_path / "t")
    table.append(days(("a", 1)))
    store, (written,) = table.store, paths(table)
    content = store.read_bytes(written)
    lines = [
        orjson.dumps({"add": {
            "path": quote(name), "partitionValues": {}, "size": len(content), "modificationTime": 0, "dataChange": True
        }}) for name in names
    ]  # fmt: skip
    for name in (*names, *(f"{name.rpartition('/')[0]}/.{name.rpartition('/')[2]}.crc".strip("/") for name in names)):
        store.put(name, content)
    store.put(".left.parquet.crc", b"x")
    store.put("left.parquet", b"x")
    store.put(f"_delta_log/{1:020d}.json", b"\n".join(lines))
    assert table.snapshot().num_files == 1 + len(names)
    assert table.vacuum(retention_hours=0, enforce_retention=False).paths == (".left.parquet.crc", "left.parquet")
    assert table.snapshot().scan().to_arrow().num_rows == 1 + len(names)


def test_vacuum_knows_live_files_by_any_spelling(table: DeltaTable) -> None:
    odd = ["a b", "c%d", "ü", "e=f/g", "#?"]
    table.append(pa.table({"p": odd, "id": list(range(5))}), partition_by=["p"])
    before = table.snapshot().scan().to_arrow().sort_by("id")
    assert not table.vacuum(retention_hours=0, enforce_retention=False).paths
    assert table.snapshot().scan().to_arrow().sort_by("id").equals(before)


@pytest.mark.parametrize("spelling", ["{uri}/{path}", "{root}/{path}", "./{path}", "day=x/../{path}", "{link}/{path}"])
def test_vacuum_knows_live_files_by_detours(table: DeltaTable, days: Any, tmp_path: Path, spelling: str) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    (path,) = paths(table)
    root = Path(table.store.resolve("x")).parent
    (tmp_path / "link").symlink_to(root)
    commit = root / "_delta_log" / f"{0:020d}.json"
    other = spelling.format(uri=table.uri, root=root, path=path, link=tmp_path / "link")
    commit.write_text(commit.read_text().replace(f'"{path}"', f'"{other}"'))
    again = DeltaTable(table.uri)
    assert paths(again) == {other}
    assert not again.vacuum(retention_hours=0, enforce_retention=False).paths
    assert (root / path).exists()


def test_vacuum_knows_deletion_vectors() -> None:
    def vector(kind: str, path: str) -> dict[str, Any]:
        return {"storage_type": kind, "path_or_inline_dv": path, "offset": 1, "size_in_bytes": 1, "cardinality": 1}

    files = pa.table(
        {
            "path": ["a", "b", "c", "d"],
            "deletion_vector": pa.array(
                [vector("u", "ab^-aqEH.-t@S}K{vb[*k^"), vector("i", "xyz"), vector("p", "file:///dv%25/x.bin"), None],
                FILE_SCHEMA.field("deletion_vector").type,
            ),
        }
    )
    # The example of the protocol text, "Deletion Vector Descriptor Schema".
    stored = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector_paths(files).to_pylist() == [stored, "file:///dv%25/x.bin"]


@pytest.mark.parametrize("inner", ["inner", "day=a/inner", "a/b/c", "inner/inner"])
def test_vacuum_leaves_tables_inside_the_table_alone(table: DeltaTable, days: Any, inner: str) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    root = Path(table.store.resolve("x")).parent
    parts = inner.split("/")
    tables = [DeltaTable(root / inner)]
    if inner == "inner/inner":
        tables.insert(0, DeltaTable(root / "inner"))
    for below in tables:
        below.append(days(("b", 2)), properties={"delta_orch.allowNestedTables": "true"})
        below.overwrite(days(("c", 3)))
    loose = [root / inner / "loose.parquet", root / f"{parts[0]}-sibling.parquet", root / "loose.parquet"]
    for path in loose:
        path.write_bytes(b"x")
    result = table.vacuum(retention_hours=0, enforce_retention=False)
    assert set(result.paths) == {"loose.parquet", f"{parts[0]}-sibling.parquet"}
    assert loose[0].exists()
    assert all(below.fsck(check_files=True).ok and below.snapshot(0).scan().to_arrow().num_rows for below in tables)
    # Each table still cleans up after itself, and not after those inside it.
    assert all(len(below.vacuum(0, enforce_retention=False).paths) in (1, 2) for below in reversed(tables))
    assert all(below.fsck(check_files=True).ok for below in (table, *tables))


def test_vacuum_leaves_names_alone_that_no_log_can_hold(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    odd = Path(os.fsdecode(os.fsencode(table.store.resolve("x")) + b"\xff.parquet"))
    odd.touch()
    assert not table.vacuum(retention_hours=0, enforce_retention=False).paths
    assert odd.exists()


def test_vacuum_refuses_deletion_vectors_without_their_feature(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2]})
    made = HandmadeTable(tmp_path / "t")
    made.create(rows.schema)
    add = made.add("f.parquet", rows)
    made.commit(replace(add, deletion_vector=DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 1, 36, 1)))
    (tmp_path / "t" / "ab").mkdir()
    kept = tmp_path / "t" / "ab" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    kept.write_bytes(b"x")
    with pytest.raises(ProtocolViolationError, match="does not list the feature"):
        made.open().vacuum(0, enforce_retention=False)
    assert kept.exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_vacuum_checks_the_writers_protocol(table: DeltaTable, days: Any, dry_run: bool) -> None:
    """PROTOCOL, "vacuumProtocolCheck": whoever does not know how a table is written must not delete its files."""
    table.append(days(("a", 1)))
    table.overwrite(days(("a", 2)))
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]}
    commit = orjson.dumps({"protocol": protocol}) + b"\n"
    table.store.put_if_absent(commit_path(2), commit)
    before = {file.path for file in table.store.list_recursive()}
    with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
        table.vacuum(0, dry_run, enforce_retention=False)
    assert {file.path for file in table.store.list_recursive()} == before


def test_vacuum_refuses_a_short_retention(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    too_short: list[Any] = [0, 167.9, -1, float("nan"), "7", True]
    for hours in too_short:
        with pytest.raises(InvalidRequestError):
            table.vacuum(retention_hours=hours)
    with pytest.raises(InvalidRequestError):
        table.vacuum(retention_hours=-1, enforce_retention=False)
    assert table.vacuum(retention_hours=168).retention_ms == 7 * 24 * 3600 * 1000
    short = DeltaTable(table.uri + "_short")
    short.append(days(("a", 1)), properties={"delta.deletedFileRetentionDuration": "interval 1 hour"})
    assert short.vacuum(retention_hours=1).retention_ms == 3600 * 1000


def test_vacuum_while_others_append(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    table.overwrite(days(("a", 2)))
    stale = DeltaTable(table.uri)
    stale.snapshot()
    table.append(days(("a", 3)))
    result = stale.vacuum(retention_hours=0, enforce_retention=False)
    assert result.num_files == 1
    assert sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [2, 3]


@pytest.mark.long
def test_checkpoint(rows: Any, small_files: DeltaTable, ids: Any) -> None:
    before = ids(small_files)
    version = small_files.checkpoint()
    assert version == small_files.version()
    assert small_files.store.head(f"_delta_log/{version:020d}.checkpoint.parquet") is not None
    for v in range(version):
        Path(small_files.store.resolve(f"_delta_log/{v:020d}.json")).unlink()
    again = DeltaTable(small_files.uri)
    assert ids(again) == before
    assert again.snapshot().metadata == small_files.snapshot().metadata


def test_verbs_on_no_table(table: DeltaTable) -> None:
    for action in (
        table.optimize,
        table.vacuum,
        table.checkpoint,
        table.history,
        table.txns,
        table.version,
        table.snapshot,
        lambda: table.changes(starting_version=0),
        lambda: table.snapshot(version=0),
        lambda: table.snapshot(timestamp="2013-01-01"),
    ):
        with pytest.raises(TableNotFoundError):
            action()
    assert not table.exists()


def test_history_and_time_travel(table: DeltaTable, days: Any) -> None:
    from datetime import UTC, datetime

    for i in range(3):
        table.append(days(("a", i)), user_metadata=str(i), commit_info={"run": i})
        time.sleep(0.005)
    entries = table.history()
    assert [(e.version, e.user_metadata, e.commit_info["run"]) for e in entries] == [
        (2, "2", 2),
        (1, "1", 1),
        (0, "0", 0),
    ]
    assert [e.version for e in table.history(2)] == [2, 1]
    first = entries[2].timestamp_ms
    for timestamp in (
        first,
        datetime.fromtimestamp(first / 1000, UTC),
        datetime.fromtimestamp(first / 1000, UTC).isoformat(),
    ):
        assert table.snapshot(timestamp=timestamp).version == 0
    bad: Any
    for bad in ("yesterday", 1.5, True, object()):
        with pytest.raises(InvalidRequestError):
            table.snapshot(timestamp=bad)
    for bad in (-1, "0", 1.0, True):
        with pytest.raises(InvalidRequestError):
            table.snapshot(version=bad)
    with pytest.raises(InvalidRequestError):
        table.snapshot(version=0, timestamp=first)


def test_many_small_files_are_read_as_one_by_one(tmp_path: Path) -> None:
    """Files of few bytes are read together: the same rows, in the same order, whatever is among them."""
    made = HandmadeTable(tmp_path / "t")
    rows = [pa.table({"id": [2 * n, 2 * n + 1], "s": [None, f"v{n}"]}) for n in range(70)]
    rows[20] = pa.table({"id": list(range(1000, 60_000)), "s": [str(n) * 8 for n in range(59_000)]})
    rows[30] = pa.table({"s": ["one"]})
    rows[40] = pa.table({"id": pa.array([80, 81], pa.int32()), "more": [1, 2]})
    rows[50] = rows[50].slice(0, 0)
    made.create(rows[0].schema, features=["deletionVectors"], reader_features=["deletionVectors"])
    adds = [made.add(f"f{n:02}.parquet", part) for n, part in enumerate(rows)]
    adds[60] = replace(adds[60], deletion_vector=inline_vector(0))
    made.commit(*adds)
    table = made.open()
    found = table.snapshot().scan().to_arrow()
    ids = [i for n, part in enumerate(rows) for i in (part["id"].to_pylist() if "id" in part.column_names else [None])]
    ids.remove(120)
    assert found["id"].to_pylist() == ids
    assert found["s"].null_count == sum(2 if n == 40 else 1 for n in range(70) if n not in (20, 30, 50, 60))
    assert table.snapshot().scan(columns=[]).to_arrow().num_rows == len(ids)
    assert table.optimize().operation_metrics["numRemovedFiles"] == 70
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist(), key=str) == sorted(ids, key=str)
    (tmp_path / "t" / "f69.parquet").unlink()
    with pytest.raises(MissingFileError, match="f69"):
        table.snapshot(1).scan().to_arrow()


@pytest.mark.parametrize("place", ["inner", "day=a/b/inner", "..", "../.."])
@pytest.mark.parametrize("verb", ["create", "append", "overwrite"])
def test_a_table_inside_or_around_another_is_refused(tmp_path: Path, days: Any, place: str, verb: str) -> None:
    DeltaTable(tmp_path / "a" / "b" / "c").append(days(("a", 1)))
    other = DeltaTable(tmp_path / "a" / "b" / "c" / place)
    rows = days(("a", 1))
    write = getattr(other, verb)
    with pytest.raises(TableExistsError, match="inside the other"):
        write(rows.schema if verb == "create" else rows)
    assert not other.exists()
    write(rows.schema if verb == "create" else rows, properties={"delta_orch.allowNestedTables": "true"})
    assert other.exists()
    # Those that are side by side, and a path that only looks alike.
    DeltaTable(tmp_path / "side" / "by").append(rows)
    DeltaTable(tmp_path / "side" / "by-side").append(rows)


@pytest.mark.parametrize("place", ["_delta_log", "a/_delta_log", "_delta_log/a"])
@pytest.mark.parametrize("verb", ["create", "append", "clone"])
def test_the_place_of_a_log_is_no_place_of_a_table(tmp_path: Path, days: Any, place: str, verb: str) -> None:
    root, rows = tmp_path / "lake", days(("a", 1))
    nested = {"delta_orch.allowNestedTables": "true"}
    source = DeltaTable(tmp_path / "source")
    source.append(rows)
    for properties in ({}, nested):
        with pytest.raises(InvalidRequestError, match="reserved for the log"):
            if verb == "clone":
                source.clone(root / place, properties=properties)
            else:
                write = getattr(DeltaTable(root / place), verb)
                write(rows.schema if verb == "create" else rows, properties=properties)
    assert not DeltaTable(root / place).exists()


def test_a_table_inside_another_is_refused_by_way_of_a_link(tmp_path: Path, days: Any) -> None:
    DeltaTable(tmp_path / "outer").append(days(("a", 1)))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "outer")
    with pytest.raises(TableExistsError):
        DeltaTable(tmp_path / "elsewhere" / "link" / "inner").append(days(("a", 1)))


def test_a_nested_table_is_refused_in_stores_without_directories(days: Any) -> None:
    name = f"memory://{uuid4()}"
    DeltaTable(f"{name}/outer").append(days(("a", 1)))
    with pytest.raises(TableExistsError):
        DeltaTable(f"{name}/outer/inner").append(days(("a", 1)))
    with pytest.raises(TableExistsError):
        DeltaTable(name).append(days(("a", 1)))
    DeltaTable(f"{name}/outer-too").append(days(("a", 1)))


def test_vacuum_keeps_live_files_behind_links(table: DeltaTable, days: Any, tmp_path: Path) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    root = Path(table.store.resolve("x")).parent
    (root / "hot").mkdir()
    (root / "day=a").rename(root / "hot" / "day=a")
    (root / "day=a").symlink_to(root / "hot" / "day=a")
    assert not table.vacuum(0, enforce_retention=False).paths
    assert table.snapshot().scan().to_arrow().num_rows == 1


def test_vacuum_says_what_it_deleted_where_something_cannot_be(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    root = Path(table.store.resolve("x")).parent
    for name in ("1", "2", "3"):
        (root / name).write_bytes(b"x")
    store = FailingStore(table.store)
    store.delete = lambda path: store.fail(StoreCall(0, "delete", path)) if path == "2" else table.store.delete(path)  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="deleted 2 of 3 files") as caught:
        open_table(store).vacuum(0, enforce_retention=False)
    assert caught.value.context["failed"] == ("2",)
    assert not (root / "1").exists()
    assert not (root / "3").exists()
    end = table.history(1)[0]
    assert end.operation == "VACUUM END"
    assert end.operation_parameters["status"] == "FAILED"
    assert table.vacuum(0, enforce_retention=False).paths == ("2",)


@pytest.mark.parametrize("wrong", [None, 0, 1, "no", "yes", [], 0.0])
def test_switches_take_booleans_only(table: DeltaTable, days: Any, wrong: Any) -> None:
    table.append(days(("a", 1)))
    orphan = Path(table.store.resolve("orphan"))
    orphan.write_bytes(b"x")
    for call in (
        lambda: table.vacuum(0, enforce_retention=wrong),
        lambda: table.vacuum(0, wrong, enforce_retention=False),
        lambda: table.cleanup_log(wrong),
        lambda: table.append(days(("a", 2)), dry_run=wrong),
    ):
        with pytest.raises(InvalidRequestError, match=r"(enforce_retention|dry_run) must be bool"):
            call()
    assert orphan.exists()
    assert table.version() == 0
