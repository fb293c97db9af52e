"""Tables of strangers that lie: about rows, ids, columns, paths and links. They end in errors of this package, or are
read right; nothing outside of them changes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from delta_orch import DeltaTable, sql
from delta_orch.errors import (
    ConcurrentDeleteReadError,
    CorruptDeletionVectorError,
    DeltaError,
    InvalidPropertyError,
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    StorageError,
    TableError,
)
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.schema import parse_schema
from delta_orch.storage import parquet_footer
from delta_orch.storage.parquet_footer import LISTS, ThriftWalk

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "p": ["a", "b", "c"]})
NUM_ROWS, ROW_GROUPS = 3, 4


def _edit(root: Path, action: str, change: Any, version: int = 0) -> None:
    """Change the actions of one kind in a commit, as another writer might have written them."""
    log = root / "_delta_log"
    commit = log / f"{version:020d}.json"
    lines = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if action in line:
            change(line[action])
    commit.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for checksum in log.glob("*.crc"):
        checksum.unlink()


def _table(root: Path, **properties: str) -> DeltaTable:
    table = DeltaTable(root)
    table.append(ROWS, properties={key.replace("__", "."): value for key, value in properties.items()})
    table.wait_for_upkeep()
    return table


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def _claim_rows(path: Path, count: int) -> None:
    """The file and its row groups say that they have so many rows."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, places = data[start:-8], []

    def look(walk: ThriftWalk, wanted: Mapping[int, Any]) -> None:
        for field in walk.fields():
            if field in wanted and walk.kind in LISTS:
                for _ in range(walk.list_size()):
                    look(walk, wanted[field])
            elif field == NUM_ROWS and NUM_ROWS in wanted:
                before = walk.at
                walk.integer()
                places.append((before, walk.at))
            else:
                walk.skip()

    look(ThriftWalk(footer), {NUM_ROWS: None, ROW_GROUPS: {NUM_ROWS: None}})
    assert len(places) >= 2
    for begin, end in reversed(places):
        footer = footer[:begin] + _varint(count << 1) + footer[end:]
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("count", [4, 1 << 30, 1 << 40, 1 << 62])
def test_a_footer_that_claims_more_rows_than_there_are(tmp_path: Path, count: int) -> None:
    table = _table(tmp_path / "t")
    [path] = (tmp_path / "t").glob("*.parquet")
    _claim_rows(path, count)
    started = time.process_time()
    for act in (
        lambda t: t.snapshot().scan().to_arrow(),
        lambda t: t.snapshot().scan(where="id = 2").to_arrow(),
        lambda t: t.delete("id = 2"),
        lambda t: t.overwrite(ROWS.slice(0, 2), replace_where="id < 3"),
    ):
        with pytest.raises(TableError):
            act(DeltaTable(table.uri))
    assert not DeltaTable(table.uri).fsck(deep=True).ok
    # Nothing of the size that is claimed was made.
    assert time.process_time() - started < 60
    assert DeltaTable(table.uri).version() == 0


@pytest.mark.parametrize("count", [100, 1 << 40])
def test_a_checkpoint_that_claims_more_rows_than_there_are(tmp_path: Path, count: int) -> None:
    """What it leaves out could be the files of the table."""
    table = _table(tmp_path / "t")
    table.checkpoint()
    for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
        commit.unlink()
    [path] = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    _claim_rows(path, count)
    with pytest.raises(TableError):
        DeltaTable(table.uri).snapshot().scan().to_arrow()


def test_rows_without_columns_are_made_in_pieces(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    _edit(tmp_path / "t", "add", lambda add: add.pop("stats"))
    [path] = (tmp_path / "t").glob("*.parquet")
    _claim_rows(path, (1 << 25) + 5)
    assert DeltaTable(table.uri).snapshot().scan().count() == (1 << 25) + 5


def test_too_many_row_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path / "t")
    [path] = (tmp_path / "t").glob("*.parquet")
    pq.write_table(ROWS, path, row_group_size=1)
    _edit(tmp_path / "t", "add", lambda add: add.update(size=path.stat().st_size))
    assert DeltaTable(table.uri).snapshot().scan().to_arrow().num_rows == 3
    monkeypatch.setattr(parquet_footer, "_MOST_ROW_GROUPS", 2)
    with pytest.raises(TableError, match="3 row groups, more than 2"):
        DeltaTable(table.uri).snapshot().scan().to_arrow()


@pytest.mark.long
def test_few_bytes_that_mark_billions_of_rows_are_refused() -> None:
    every = DeletionVector(BitMap64(range(1 << 40)))
    with pytest.raises(CorruptDeletionVectorError, match="marks"):
        every.row_indexes(1 << 36)
    assert len(every.row_indexes(1000)) == 1000


@pytest.mark.parametrize("count", [1, 3, 1 << 61])
def test_the_feed_of_a_vector_that_marks_more_than_there_is(tmp_path: Path, count: int) -> None:
    table = _table(tmp_path, delta__enableDeletionVectors="true")
    table.delete("id = 2")
    vector = DeletionVector(BitMap64([1, 2**40, 2**62])).inline_descriptor()
    told = {"storageType": "i", "pathOrInlineDv": vector.path_or_inline_dv, "sizeInBytes": vector.size_in_bytes}
    stats = json.dumps({"numRecords": count})
    _edit(tmp_path, "add", lambda add: add.update(deletionVector=told | {"cardinality": 3}, stats=stats), version=1)
    feed = DeltaTable(tmp_path).changes(starting_version=1).to_arrow()
    assert feed.select(["id", "_change_type"]).to_pylist() == [{"id": 2, "_change_type": "delete"}]


@pytest.mark.parametrize("takes_vectors", ["true", "false"])
def test_marks_of_rows_that_are_not_there_cost_no_row(tmp_path: Path, takes_vectors: str) -> None:
    table = _table(tmp_path, delta__enableDeletionVectors="true")
    table.delete("id = 2")
    vector = DeletionVector(BitMap64([1, 2**40])).inline_descriptor()
    told = {"storageType": "i", "pathOrInlineDv": vector.path_or_inline_dv, "sizeInBytes": vector.size_in_bytes}
    _edit(tmp_path, "add", lambda add: add.update(deletionVector=told | {"cardinality": 2}), version=1)
    table = DeltaTable(tmp_path)
    table.alter().set_properties({"delta.enableDeletionVectors": takes_vectors}).commit()
    table.delete("id = 1")
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [3]


def test_no_feature_is_dropped_at_the_cost_of_rows(tmp_path: Path) -> None:
    table = _table(tmp_path, delta__enableDeletionVectors="true")
    table.delete("id = 2")
    vector = DeletionVector(BitMap64([1, 2**40, 2**41])).inline_descriptor()
    told = {"storageType": "i", "pathOrInlineDv": vector.path_or_inline_dv, "sizeInBytes": vector.size_in_bytes}
    _edit(tmp_path, "add", lambda add: add.update(deletionVector=told | {"cardinality": 3}), version=1)
    table = DeltaTable(tmp_path)
    table.alter().drop_feature("deletionVectors").commit()
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [1, 3]


@pytest.mark.parametrize("stats", [None, "{}", '{"numRecords": 2305843009213693951}'])
def test_rows_that_another_marks_in_a_file_of_unknown_length(tmp_path: Path, stats: str | None) -> None:
    table = _table(tmp_path, delta__enableDeletionVectors="true")
    before = table.append(pa.table({"id": [101, 102], "p": ["x", "y"]})).version
    table.delete("id = 2")
    _edit(tmp_path, "add", lambda add: add.update(stats=stats), version=before + 1)
    with pytest.raises(ConcurrentDeleteReadError):
        DeltaTable(tmp_path).snapshot(before).delete("id = 102")
    assert DeltaTable(tmp_path).snapshot().version == before + 1


def test_statistics_that_lie_about_rows_cost_no_row(tmp_path: Path) -> None:
    for said, gone in ((1, 2), (1, 1), (2, 2), (100_000, 2)):
        root = tmp_path / f"{said} {gone}"
        table = _table(root, delta__enableDeletionVectors="true")
        _edit(root, "add", lambda add, said=said: add.update(stats=json.dumps({"numRecords": said})))
        try:
            DeltaTable(table.uri).delete(f"id = {gone}")
        except DeltaError:
            assert DeltaTable(table.uri).version() == 0
        else:
            left = DeltaTable(table.uri).snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
            assert left == [one for one in (1, 2, 3) if one != gone]
        assert any("statistics say" in p.message for p in DeltaTable(table.uri).fsck(deep=True).problems)


@pytest.mark.parametrize("said", [1, 2, 5, 100_000])
def test_a_file_of_whose_length_statistics_lie_is_written_anew(tmp_path: Path, said: int) -> None:
    table = _table(tmp_path)
    _edit(tmp_path, "add", lambda add: add.update(stats=json.dumps({"numRecords": said})))
    DeltaTable(table.uri).delete("id = 2")
    snapshot = DeltaTable(table.uri).snapshot()
    assert snapshot.scan(["id"]).to_arrow()["id"].to_pylist() == [1, 3]
    assert snapshot.scan().count() == 2


@pytest.mark.parametrize("base", [-1, (1 << 63) - 2])
def test_row_ids_that_are_no_ids(tmp_path: Path, base: int) -> None:
    table = _table(tmp_path / "t", delta__enableRowTracking="true")
    _edit(tmp_path / "t", "add", lambda add: add.update(baseRowId=base))
    for act in (lambda t: t.snapshot().scan(row_tracking=True).plan(), lambda t: t.delete("id = 2")):
        with pytest.raises(ProtocolViolationError, match="no ids"):
            act(DeltaTable(table.uri))
    assert DeltaTable(table.uri).snapshot().scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("columns", [["p", "p"], ["p", "P"], ["q"]])
def test_partition_columns_that_are_none(tmp_path: Path, columns: list[str]) -> None:
    table = _table(tmp_path / "t")
    _edit(tmp_path / "t", "metaData", lambda metadata: metadata.update(partitionColumns=columns))
    for act in (
        lambda t: t.snapshot().partitions(), lambda t: t.snapshot().list_files(), lambda t: t.append(ROWS),
        lambda t: t.snapshot().scan().to_arrow(), lambda t: t.vacuum(), lambda t: t.optimize(),
    ):  # fmt: skip
        with pytest.raises(ProtocolViolationError, match="partition column"):
            act(DeltaTable(table.uri))


@pytest.mark.parametrize("same", ["physicalName", "id"])
def test_columns_that_are_stored_as_one(tmp_path: Path, same: str) -> None:
    table = _table(tmp_path / "t", delta__columnMapping__mode="name")

    def collide(metadata: Any) -> None:
        schema = json.loads(metadata["schemaString"])
        first, second = (field["metadata"] for field in schema["fields"])
        taken = first[f"delta.columnMapping.{same}"]
        second[f"delta.columnMapping.{same}"] = taken.upper() if isinstance(taken, str) else taken
        metadata["schemaString"] = json.dumps(schema)

    _edit(tmp_path / "t", "metaData", collide)
    for act in (lambda t: t.append(ROWS), lambda t: t.snapshot().scan().to_arrow(), lambda t: t.delete("id = 1")):
        with pytest.raises(ProtocolViolationError, match="of another column"):
            act(DeltaTable(table.uri))


@pytest.mark.parametrize("is_partition", [False, True])
def test_columns_that_differ_only_in_case(tmp_path: Path, is_partition: bool) -> None:
    """Spark and the rules of skipping would take one for the other."""
    table = _table(tmp_path / "t")

    def rename(metadata: Any) -> None:
        metadata["schemaString"] = metadata["schemaString"].replace('"p"', '"ID"')
        metadata["partitionColumns"] = ["ID"] if is_partition else []

    _edit(tmp_path / "t", "metaData", rename)
    _edit(tmp_path / "t", "add", lambda add: add.update(partitionValues={"ID": "x"} if is_partition else {}))
    for act in (
        lambda t: t.snapshot().scan(where="id = 2").to_arrow(), lambda t: t.snapshot().scan().count(),
        lambda t: t.delete("id = 2"), lambda t: t.overwrite(ROWS.select(["id"])), lambda t: t.optimize(),
    ):  # fmt: skip
        with pytest.raises(ProtocolViolationError, match="of another column but for case"):
            act(DeltaTable(table.uri))


def test_a_physical_name_that_no_file_can_hold(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", delta__columnMapping__mode="name")

    def cut(metadata: Any) -> None:
        schema = json.loads(metadata["schemaString"])
        schema["fields"][1]["metadata"]["delta.columnMapping.physicalName"] = "p\0q"
        metadata["schemaString"] = json.dumps(schema)

    _edit(tmp_path / "t", "metaData", cut)
    for act in (lambda t: t.append(ROWS), lambda t: t.snapshot().scan().to_arrow(), lambda t: t.update({"p": "'z'"})):
        with pytest.raises(ProtocolViolationError, match="NUL"):
            act(DeltaTable(table.uri))


NINES = "9" * 5000
"""More than Python reads as a number."""


@pytest.mark.parametrize("digits", [NINES, "²", "١"])
@pytest.mark.parametrize(
    "kind", ["decimal({},1)", "decimal(1,{})", "varchar({})", "char({})", "struct<a:decimal({},1)>"]
)
def test_types_whose_numbers_are_none(tmp_path: Path, kind: str, digits: str) -> None:
    table = _table(tmp_path / "t")
    declared = kind.format(digits)
    is_text = kind[0] != "d"

    def declare(metadata: Any) -> None:
        schema = json.loads(metadata["schemaString"])
        if is_text:
            schema["fields"][1]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": declared}
        else:
            schema["fields"][1]["type"] = declared
        metadata["schemaString"] = json.dumps(schema)

    _edit(tmp_path / "t", "metaData", declare)
    for act in (
        lambda t: t.snapshot().scan().to_arrow(), lambda t: t.append(ROWS),
        lambda t: sql("DESCRIBE t", tables={"t": t}), lambda t: sql("SHOW TBLPROPERTIES t", tables={"t": t}),
    ):  # fmt: skip
        try:
            act(DeltaTable(table.uri))
        except DeltaError:
            continue
        assert is_text


def test_an_identity_column_without_a_step(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    told = '"name":"id","type":"long","nullable":true,"metadata":{'

    def begin(metadata: Any) -> None:
        metadata["schemaString"] = metadata["schemaString"].replace(told, f'{told}"delta.identity.start":1')

    _edit(tmp_path / "t", "metaData", begin)
    with pytest.raises(ProtocolViolationError, match="start and step"):
        _ = DeltaTable(table.uri).snapshot().columns


def test_a_name_twice_among_many_is_found_at_once() -> None:
    field = '{"name":"c%d","type":"long","nullable":true,"metadata":{}}'
    fields = ",".join(field % min(i, 19_998) for i in range(20_000))
    started = time.process_time()
    with pytest.raises(ProtocolViolationError, match="c19998"):
        parse_schema(f'{{"type":"struct","fields":[{fields}]}}')
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", [".", "..", ".x", "[0]", ".x.y", "a.b"])
def test_names_that_arrow_takes_for_paths(tmp_path: Path, name: str) -> None:
    """Honest tables may have such columns, too."""
    kind = pa.struct([(name, pa.float64())])
    rows = pa.table(
        {name: ["a", "b", "a"], "s": pa.array([{name: 1.0}, {name: float("nan")}, None], kind), "id": [1, 2, 3]}
    )
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    table = DeltaTable(tmp_path / "t")
    table.append(rows, partition_by=[name], properties=properties)
    assert sorted(table.snapshot().partitions()[name].to_pylist()) == ["a", "b"]
    assert sorted(table.changes(starting_version=0).partitions()[name].to_pylist()) == ["a", "b"]
    assert set(table.snapshot().list_files().column_names) >= {"min"}
    table.overwrite(rows.slice(1, 1), partition_overwrite_mode="dynamic")
    table.delete(f"`s`.`{name}` = 1")
    assert sorted(table.snapshot().scan(["id"], f"`{name}` IS NOT NULL").to_arrow()["id"].to_pylist()) == [2, 3]
    table.optimize(zorder_by=[f"`s`.`{name}`"])
    table.checkpoint()
    assert sorted(DeltaTable(table.uri).snapshot().scan().to_arrow()["id"].to_pylist()) == [2, 3]


@pytest.mark.parametrize(
    "text", ["interval 9223372036854775807 weeks", "interval 9223372036854776 milliseconds", "interval 292278 weeks"]
)
def test_durations_that_no_clock_counts(tmp_path: Path, text: str) -> None:
    names = (
        "delta.deletedFileRetentionDuration",
        "delta.logRetentionDuration",
        "delta.setTransactionRetentionDuration",
    )
    table = _table(tmp_path / "t")
    _edit(tmp_path / "t", "metaData", lambda metadata: metadata.update(configuration=dict.fromkeys(names, text)))
    for act in (lambda t: t.checkpoint(), lambda t: t.cleanup_log(), lambda t: t.vacuum(), lambda t: t.txns()):
        if text.startswith("interval 2"):
            act(DeltaTable(table.uri))
        else:
            with pytest.raises(InvalidPropertyError, match="longer than"):
                act(DeltaTable(table.uri))


def test_vacuum_and_manifests_of_names_that_no_file_has(tmp_path: Path) -> None:
    for path in ("a%00b", "a\0b", "/a%00b", "/a\0b"):
        root = tmp_path / path.encode().hex()
        table = _table(root)
        (root / "left.parquet").write_bytes(b"PAR1")
        os.utime(root / "left.parquet", (0, 0))
        _edit(root, "add", lambda add, path=path: add.update(path=path))
        with pytest.raises(ProtocolViolationError, match="NUL"):
            DeltaTable(table.uri).vacuum(0, enforce_retention=False)
        assert (root / "left.parquet").exists()
    long = _table(tmp_path / "u")
    _edit(tmp_path / "u", "metaData", lambda metadata: metadata.update(partitionColumns=["p"]))
    _edit(tmp_path / "u", "add", lambda add: add.update(partitionValues={"p": "x" * 5000}))
    with pytest.raises(StorageError, match="too long"):
        DeltaTable(long.uri).generate()


def test_a_prefix_as_long_as_memory(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    told = {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "999999999"}
    _edit(tmp_path / "t", "metaData", lambda metadata: metadata.update(configuration=told))
    with pytest.raises(InvalidPropertyError, match="randomPrefixLength"):
        DeltaTable(table.uri).append(ROWS)


@pytest.mark.parametrize(
    "content", [b"x", b"[]", b"{}", b'{"format":1}', b'{"format":1,"schema":1}', b"null", b"[" * 100_000]
)
def test_what_somebody_has_put_among_staged_writes(tmp_path: Path, content: bytes) -> None:
    table = _table(tmp_path / "t")
    own = table.append(ROWS, stage=True).staged
    stranger = tmp_path / "t/_delta_orch/staged/00000000-0000-4000-8000-000000000000.json"
    stranger.write_bytes(content)
    assert [staged.reference for staged in table.staged_writes()] == [own]
    with pytest.raises(InvalidRequestError):
        table.staged(stranger.stem)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("_symlink_format_manifest", lambda t: t.generate()),
        ("_delta_log", lambda t: t.append(ROWS)),
        ("_delta_log", lambda t: t.cleanup_log()),
        ("_delta_log", lambda t: t.checkpoint()),
        ("_delta_log/_sidecars", lambda t: t.checkpoint()),
        ("_delta_orch", lambda t: t.append(ROWS, stage=True)),
        ("_change_data", lambda t: t.update({"id": "9"}, "id = 1")),
        ("p=a", lambda t: t.append(ROWS)),
    ],
)
def test_nothing_behind_a_link_is_written_replaced_or_deleted(
    tmp_path: Path, name: str, act: Callable[[DeltaTable], object]
) -> None:
    table = DeltaTable(tmp_path / "t")
    feed = {"delta.enableChangeDataFeed": "true", "delta.logRetentionDuration": "interval 1 day"}
    table.append(ROWS, partition_by=["p"], properties={"delta.checkpointPolicy": "v2", **feed})
    table.append(ROWS)
    table.checkpoint()
    table.wait_for_upkeep()
    for file in (tmp_path / "t/_delta_log").iterdir():
        os.utime(file, (0, 0))
    table.append(ROWS)
    table.wait_for_upkeep()
    link, foreign = tmp_path / "t" / name, tmp_path / "foreign"
    link.rename(foreign) if link.exists() else foreign.mkdir()
    (foreign / "manifest").write_text("mine")
    link.symlink_to(foreign)
    before = {path: path.stat().st_mtime_ns for path in foreign.rglob("*")}
    with pytest.raises(StorageError, match="symbolic link"):
        act(DeltaTable(table.uri))
    assert {path: path.stat().st_mtime_ns for path in foreign.rglob("*")} == before
    assert DeltaTable(table.uri).snapshot().scan().to_arrow().num_rows == 9


def test_files_of_a_table_inside_are_not_added(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    inner = _table(tmp_path / "inner")
    os.rename(tmp_path / "inner", tmp_path / "t/inner")  # noqa: PTH104
    [path] = (tmp_path / "t/inner").glob("*.parquet")
    for spelled in (f"inner/{path.name}", str(path)):
        with pytest.raises(InvalidRequestError, match="Delta table in inner"):
            table.add_files([spelled])
    assert table.version() == 0 and inner.uri.endswith("inner")


def test_a_slash_behind_a_name_does_not_make_it_garbage(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    [path] = (tmp_path / "t").glob("*.parquet")
    _edit(tmp_path / "t", "add", lambda add: add.update(path=f"{path.name}/"))
    os.utime(path, (0, 0))
    assert DeltaTable(table.uri).vacuum(0, enforce_retention=False).paths == ()
    assert path.exists()


def test_vacuum_deletes_nothing_where_the_log_is_that_of_another_table(tmp_path: Path) -> None:
    """A checkpoint was copied here, and no checksum tells: all files of this table would be garbage."""
    root, other = tmp_path / "t", tmp_path / "o"
    _table(root)
    _table(other).checkpoint()
    name = f"_delta_log/{0:020d}.checkpoint.parquet"
    shutil.copy(other / name, root / name)
    for checksum in root.glob("_delta_log/*.crc"):
        checksum.unlink()
    DeltaTable(root).append(ROWS)
    files = sorted(root.glob("*.parquet"))
    for dry_run in (True, False):
        with pytest.raises(MissingFileError, match="vacuum deletes nothing"):
            DeltaTable(root).vacuum(retention_hours=0, enforce_retention=False, dry_run=dry_run)
    assert sorted(root.glob("*.parquet")) == files
    assert "the metadata" in DeltaTable(root).fsck(deep=True).problems[0].message
    DeltaTable(root).repair()
    assert DeltaTable(root).vacuum(retention_hours=0, enforce_retention=False).num_files == 1


def test_a_negative_number_of_marked_rows_is_not_counted(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _table(root, delta__enableDeletionVectors="true").delete("id = 1")
    _edit(root, "add", lambda add: add["deletionVector"].update(cardinality=-1), version=1)
    with pytest.raises(CorruptDeletionVectorError):
        DeltaTable(root).snapshot().scan().count()
