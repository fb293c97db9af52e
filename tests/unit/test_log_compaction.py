"""Log compactions: which ones stand for commits, and when the commits are read after all."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ChecksumMismatchError, CorruptLogError, LogGapError
from delta_orch.log.read.compactions import read_compaction
from delta_orch.log.read.segment import resolve_segment
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.checksum_writer import compute_checksum, write_checksum
from delta_orch.protocol.actions import Add, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn
from delta_orch.protocol.paths import checksum_path, commit_path
from delta_orch.storage.memory import MemoryStore
from tests.harness.fault_store import FaultStore
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()
DOMAINS = Protocol(1, 7, None, ("domainMetadata",))


@pytest.fixture
def builder() -> LogBuilder:
    return LogBuilder(MemoryStore(f"compaction-{next(_NAMES)}"))


def _add(path: str) -> Add:
    return Add(path, {}, 1, 0, True)


def _chosen(builder: LogBuilder, version: int | None = None) -> list[tuple[int, int]]:
    segment = resolve_segment(builder.store, version)
    runs = [versions for _, versions in segment.runs()]
    assert [v for run in runs for v in run] == list(range(segment.first_commit, segment.version + 1))
    assert [f.path for run in runs for f in segment.commits_of(run)] == [f.path for f in segment.commits]
    return [(c.start_version, c.end_version) for c in segment.compactions]


def _table(builder: LogBuilder, num_commits: int) -> None:
    builder.create()
    for n in range(1, num_commits):
        builder.commit(CommitInfo({"operation": "WRITE"}), _add(f"f{n}"))


def _paths(builder: LogBuilder, version: int | None = None) -> list[str]:
    return sorted(TableLog(builder.store).snapshot(version).files(["path"])["path"].to_pylist())


@pytest.mark.parametrize(
    ("compactions", "checkpoint", "version", "chosen"),
    [
        ([(2, 5)], None, None, [(2, 5)]),
        ([(0, 9)], None, None, [(0, 9)]),
        ([(2, 5), (2, 7), (6, 9)], None, None, [(2, 7)]),
        ([(2, 5), (6, 9)], None, None, [(2, 5), (6, 9)]),
        ([(2, 5), (4, 9), (5, 8)], None, None, [(2, 5)]),
        ([(2, 5), (5, 8), (8, 9)], None, None, [(2, 5), (8, 9)]),
        ([(3, 3)], None, None, []),
        ([(2, 12)], None, None, []),
        ([(2, 5), (6, 9)], None, 8, [(2, 5)]),
        ([(2, 5), (6, 9)], 3, None, [(6, 9)]),
        ([(3, 5), (4, 6)], 3, None, [(4, 6)]),
        ([(2, 5)], 9, None, []),
    ],
)
def test_choice(
    builder: LogBuilder,
    compactions: list[tuple[int, int]],
    checkpoint: int | None,
    version: int | None,
    chosen: list[tuple[int, int]],
) -> None:
    _table(builder, 10)
    for start, end in compactions:
        builder.compact(start, end)
    if checkpoint is not None:
        builder.checkpoint(checkpoint)
    assert _chosen(builder, version) == chosen
    assert _paths(builder, version) == sorted(f"f{n}" for n in range(1, (9 if version is None else version) + 1))


def test_commits_that_a_compaction_stands_for_are_not_read(builder: LogBuilder) -> None:
    _table(builder, 10)
    builder.compact(2, 8)
    store = FaultStore(builder.store)
    assert TableLog(store).snapshot().num_files == 9
    read = {c.path for c in store.calls if c.method == "read_bytes"}
    assert {commit_path(v) for v in (0, 1, 9)} < read
    assert not read & {commit_path(v) for v in range(2, 9)}


def test_a_compaction_bridges_no_gap(builder: LogBuilder) -> None:
    _table(builder, 6)
    builder.compact(2, 4)
    builder.store.delete(commit_path(3))
    with pytest.raises(LogGapError):
        TableLog(builder.store).snapshot()


def test_a_snapshot_advances_past_a_compaction(builder: LogBuilder) -> None:
    _table(builder, 6)
    builder.compact(1, 5)
    log = TableLog(builder.store)
    snapshot = log.snapshot()
    builder.commit(Remove("f1", True), _add("g"))
    advanced = log.advance(snapshot)
    assert sorted(advanced.files(["path"])["path"].to_pylist()) == ["f2", "f3", "f4", "f5", "g"]
    assert [(c.start_version, c.end_version) for c in advanced.segment.compactions] == [(1, 5)]


def _unreadable(builder: LogBuilder) -> bytes:
    return builder.store.read_bytes(f"_delta_log/{1:020d}.{3:020d}.compacted.json") + b"{"


@pytest.mark.parametrize("content", [_unreadable, b"not json", b"[1]", b"\n", b'{"add":{"size":1}}'])
def test_what_cannot_be_read_is_replaced_by_the_commits(
    builder: LogBuilder, content: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _table(builder, 4)
    builder.compact(1, 3)
    data = content if isinstance(content, bytes) else content(builder)
    builder.store.put(f"_delta_log/{1:020d}.{3:020d}.compacted.json", data)
    with caplog.at_level(logging.WARNING, "delta_orch"):
        assert _paths(builder) == ["f1", "f2", "f3"]
    assert "Reading the commits instead of a log compaction" in caplog.text


@pytest.mark.parametrize(
    "twice",
    [
        [_add("/x"), Remove("file:/x", True)],
        [Txn("app", 2), Txn("app", 1)],
        [DomainMetadata("d", "new"), DomainMetadata("d", "old")],
        [Protocol(1, 2), Protocol(1, 1)],
        [Metadata("table", "{}"), Metadata("table", "{}")],
    ],
)
def test_a_compaction_that_was_not_reconciled_is_none(builder: LogBuilder, twice: list[Any]) -> None:
    builder.create()
    builder.commit(twice[0])
    builder.commit(twice[1])
    builder.compact(1, 2, reconcile=False)
    (compaction,) = resolve_segment(builder.store).compactions
    with pytest.raises(CorruptLogError, match=r"not reconciled|differ"):
        read_compaction(builder.store, compaction)


def test_domains_that_a_compaction_forgets_do_not_come_back(builder: LogBuilder) -> None:
    builder.create(protocol=DOMAINS)
    builder.commit(DomainMetadata("kept", "k"), DomainMetadata("gone", "g"))
    builder.checkpoint(1)
    builder.commit(DomainMetadata("gone", "", removed=True))
    builder.commit(_add("a"))
    builder.compact(2, 3, keep_removed_domains=False)
    assert dict(TableLog(builder.store).snapshot().domain_metadata) == {"kept": "k"}


def test_the_last_commit_dates_a_compacted_version(builder: LogBuilder) -> None:
    ict = {"delta.enableInCommitTimestamps": "true"}
    builder.commit(
        CommitInfo({"inCommitTimestamp": 7000}),
        Protocol(1, 7, None, ("inCommitTimestamp",)),
        Metadata("table", '{"type":"struct","fields":[]}', configuration=ict),
    )
    builder.commit(CommitInfo({"inCommitTimestamp": 8000}), _add("a"))
    builder.commit(CommitInfo({"inCommitTimestamp": 9000}), _add("b"))
    builder.compact(1, 2)
    path = f"_delta_log/{1:020d}.{2:020d}.compacted.json"
    # A commitInfo in there belongs to nothing.
    builder.store.put(path, builder.store.read_bytes(path) + b'{"commitInfo":{"inCommitTimestamp":1}}\n')
    log = TableLog(builder.store)
    assert [log.snapshot(v).timestamp_ms for v in (0, 1, 2)] == [7000, 8000, 9000]
    assert log.snapshot().segment.compactions


def _eventful(builder: LogBuilder, *, v2: bool | None = None) -> None:
    """Ten versions with everything that a compaction of 4 to 8 can leave out; a checkpoint of version 3, or none."""
    builder.create(protocol=DOMAINS)
    builder.commit(_add("a"), _add("b"), _add("c"), Txn("old", 1), DomainMetadata("d", "1"))
    builder.commit(_add("e"), Txn("app", 1))
    builder.commit(_add("f"))
    builder.commit(_add("g"), Txn("app", 2), DomainMetadata("d", "2"))
    builder.commit(Remove("a", True), _add("h"))
    builder.commit(Remove("h", True), Protocol(1, 7, None, ("domainMetadata", "appendOnly")))
    builder.commit(Metadata("table", '{"type":"struct","fields":[]}', configuration={"k": "v"}))
    builder.commit(_add("i"), Txn("new", 7))
    builder.commit(_add("j"))
    for version in (3, 8):
        write_checksum(builder.store, version, compute_checksum(TableLog(builder.store).snapshot(version)))
    if v2 is not None:
        builder.checkpoint_v2(3, file_format="json") if v2 else builder.checkpoint(3)


def _seen(builder: LogBuilder) -> dict[str, Any]:
    snapshot = TableLog(builder.store).snapshot()
    return {
        "paths": sorted(snapshot.files(["path"])["path"].to_pylist()),
        "txns": dict(snapshot.txns),
        "domains": dict(snapshot.domain_metadata),
        "metadata": snapshot.metadata,
        "protocol": snapshot.protocol,
    }


@pytest.mark.parametrize("v2", [None, False, True])
def test_what_a_compaction_leaves_out_is_not_lost(builder: LogBuilder, v2: bool | None) -> None:
    _eventful(builder, v2=v2)
    right = _seen(builder)
    assert right["paths"] == ["b", "c", "e", "f", "g", "i", "j"]
    builder.compact(4, 8)
    assert _seen(builder) == right
    path = f"_delta_log/{4:020d}.{8:020d}.compacted.json"
    lines = builder.store.read_bytes(path).splitlines(keepends=True)
    assert len(lines) >= 8
    for left_out in range(len(lines)):
        builder.store.put(path, b"".join(lines[:left_out] + lines[left_out + 1 :]))
        assert _seen(builder) == right, lines[left_out]
    # Neither the number of files alone, nor their bytes alone, tells what was put in the place of another file.
    builder.store.put(path, b"".join(line.replace(b'"size":1', b'"size":2') for line in lines))
    assert _seen(builder) == right


@pytest.mark.parametrize("content", [b"{}\n", b'{"txn":{"appId":"a","version":1}}\n'])
def test_a_compaction_that_names_no_file(builder: LogBuilder, content: bytes) -> None:
    _table(builder, 8)
    right = _paths(builder)
    write_checksum(builder.store, 6, compute_checksum(TableLog(builder.store).snapshot(6)))
    builder.compact(2, 6)
    builder.store.put(f"_delta_log/{2:020d}.{6:020d}.compacted.json", content)
    assert _paths(builder) == right


def test_a_compaction_that_no_checksum_vouches_for_is_not_opened(tmp_path: Path) -> None:
    """It drops a file, and vacuum would delete that one."""
    table = DeltaTable(tmp_path)
    for n in range(4):
        table.append(pa.table({"id": [n]}))
    compaction = Path(tmp_path, table.compact_log(1, 3).path or "")
    compaction.write_bytes(b"".join(compaction.read_bytes().splitlines(keepends=True)[1:]))
    for checksum in tmp_path.glob("_delta_log/*.crc"):
        checksum.unlink()
    table = DeltaTable(tmp_path)
    table.vacuum(retention_hours=0, enforce_retention=False)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


def test_a_compaction_brings_the_checksum_that_vouches_for_it(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    for n in range(4):
        table.append(pa.table({"id": [n]}))
    for checksum in tmp_path.glob("_delta_log/*.crc"):
        checksum.unlink()
    table.compact_log(1, 3)
    assert [(c.start_version, c.end_version) for c in resolve_segment(table.store).compactions] == [(1, 3)]
    assert table.fsck().problems == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"numFiles":"x"}'])
def test_a_checksum_that_cannot_be_read_decides_nothing(builder: LogBuilder, content: bytes) -> None:
    _eventful(builder, v2=False)
    right = _seen(builder)
    builder.compact(4, 8)
    for version in (3, 8):
        builder.store.put(checksum_path(version), content)
    assert _seen(builder) == right


@pytest.mark.parametrize("kind", ["classic", "parts", "parquet", "json"])
def test_a_checkpoint_with_other_files_than_its_checksum_is_refused(builder: LogBuilder, kind: str) -> None:
    _eventful(builder)
    # Somebody's checkpoint without the file "b".
    builder.versions[1] = [a for a in builder.versions[1] if a != _add("b")]
    if kind in ("classic", "parts"):
        builder.checkpoint(3, parts=2 if kind == "parts" else 1)
    else:
        builder.checkpoint_v2(3, file_format=kind)
    snapshot = TableLog(builder.store).snapshot()
    for _ in range(2):
        with pytest.raises(ChecksumMismatchError, match="has 4 files, and the checksum says 5"):
            snapshot.files(["path"])
    with pytest.raises(ChecksumMismatchError):
        list(snapshot.iter_files())
    # An append needs no list of files, and makes nothing worse.
    assert snapshot.txn_version("new") == 7


def test_the_checkpoint_of_another_table_is_refused_before_vacuum_goes_by_it(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        table = DeltaTable(tmp_path / name)
        table.append(pa.table({"id": [1]}))
        table.checkpoint()
    (checkpoint,) = (tmp_path / "theirs/_delta_log").glob("*.checkpoint.parquet")
    shutil.copy(checkpoint, tmp_path / "mine/_delta_log")
    with pytest.raises(ChecksumMismatchError, match="is of the table with the id"):
        DeltaTable(tmp_path / "mine").vacuum(retention_hours=0, enforce_retention=False)
    (tmp_path / "mine/_delta_log" / checkpoint.name).unlink()
    assert DeltaTable(tmp_path / "mine").snapshot().scan().to_arrow().to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("policy", ["classic", "v2"])
@pytest.mark.parametrize("lie", [{"numFiles": 9}, {"metadata": {"id": "another"}}])
def test_no_checkpoint_is_written_that_readers_refuse_for_a_wrong_checksum(
    tmp_path: Path, policy: str, lie: dict[str, Any]
) -> None:
    """Published tables have such checksums. Those of the next versions are derived from them."""
    root = tmp_path / "t"
    rows = pa.table({"id": [1]})
    table = DeltaTable(root)
    table.append(rows, properties={"delta.checkpointPolicy": policy, "delta.checkpointInterval": "3"})
    checksum = root / "_delta_log" / f"{0:020d}.crc"
    checksum.write_text(json.dumps({**json.loads(checksum.read_text()), **lie}))
    for _ in range(4):
        DeltaTable(root).append(rows)
    assert DeltaTable(root).snapshot().scan().to_arrow().num_rows == 5
    if "numFiles" in lie:
        with pytest.raises(ChecksumMismatchError, match="has 5 files, and the checksum says 13"):
            DeltaTable(root).checkpoint()
        (root / "_delta_log" / f"{4:020d}.crc").unlink()
    DeltaTable(root).checkpoint()
    assert DeltaTable(root).snapshot().checkpoint is not None
    assert DeltaTable(root).snapshot().scan().to_arrow().num_rows == 5
