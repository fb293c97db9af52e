"""`fsck`: what it finds in tables that were damaged on purpose, and that it finds nothing in whole ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import (
    InvalidRequestError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.protocol.actions import Add, CommitInfo, DeletionVectorDescriptor, Metadata, Protocol
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, checkpoint_path, checksum_path, commit_path
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from delta_orch.testing import open_table
from delta_orch.verbs.fsck import FsckReport
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()


@pytest.fixture
def builder() -> LogBuilder:
    """Six versions with a file each but the first, and a checkpoint of version 3."""
    builder = LogBuilder(MemoryStore(f"fsck-{next(_NAMES)}"))
    builder.create()
    for n in range(1, 6):
        builder.store.put(f"f {n}", b"x" * n)
        builder.commit(CommitInfo({"operation": "WRITE"}), Add(f"f%20{n}", {}, n, 0, True))
    builder.checkpoint(3)
    return builder


def _fsck(builder: LogBuilder, version: int | None = None, *, check_files: bool = True) -> FsckReport:
    return open_table(builder.store).fsck(version, check_files)


def _codes(report: FsckReport) -> list[tuple[str, str]]:
    return [(p.severity, p.code) for p in report.problems]


def test_a_whole_table(builder: LogBuilder) -> None:
    builder.compact(1, 2)
    report = _fsck(builder)
    assert (report.ok, report.problems) == (True, ())
    assert (report.version, report.oldest_version, report.num_commits) == (5, 0, 6)
    assert (report.num_checkpoints, report.num_compactions) == (1, 1)
    assert (report.num_files, report.size_bytes, report.num_deletion_vectors) == (5, 15, 0)
    assert report.files_checked
    assert _fsck(builder, 2).num_files == 2


def test_it_changes_nothing(builder: LogBuilder) -> None:
    before = sorted((m.path, m.modification_time_ms) for m in builder.store.list_recursive())
    _fsck(builder)
    assert sorted((m.path, m.modification_time_ms) for m in builder.store.list_recursive()) == before


def test_files_are_only_looked_up_on_request(builder: LogBuilder) -> None:
    builder.store.delete("f 1")
    report = _fsck(builder, check_files=False)
    assert (report.ok, report.files_checked) == (True, False)


def test_missing_and_cut_files_are_named(builder: LogBuilder) -> None:
    builder.store.delete("f 1")
    builder.store.put("f 4", b"xx")
    report = _fsck(builder)
    assert not report.ok
    assert {(p.code, p.path) for p in report.problems} == {("MISSING_FILE", "f%201"), ("CORRUPT_DATA", "f%204")}
    assert any("has 2 bytes.\nThe log says 4." in p.message for p in report.problems)


def test_a_path_that_leaves_the_table_is_an_error(builder: LogBuilder) -> None:
    builder.commit(Add("../elsewhere", {}, 1, 0, True))
    assert _codes(_fsck(builder)) == [("error", "PROTOCOL_VIOLATION")]


@pytest.mark.parametrize("path", ["http://127.0.0.1:1/x", "s3://elsewhere/x", "x" * 5000, "f%201/below"])
def test_a_path_the_store_knows_nothing_of(tmp_path: Path, path: str) -> None:
    local = LogBuilder(LocalStore(tmp_path / "t"))
    local.create()
    local.store.put("f 1", b"x")
    local.commit(Add("f%201", {}, 1, 0, True), Add(path, {}, 1, 0, True))
    report = _fsck(local)
    assert [p.path for p in report.problems] == [path]
    assert report.problems[0].severity == "error"


def test_more_files_than_are_looked_up_at_once(builder: LogBuilder) -> None:
    builder.commit(*(Add(f"g{n}", {}, 1, 0, True) for n in range(1500)))
    for n in range(0, 1500, 2):
        builder.store.put(f"g{n}", b"x")
    report = _fsck(builder)
    assert sorted(p.path or "" for p in report.problems) == sorted(f"g{n}" for n in range(1, 1500, 2))


@pytest.mark.parametrize(
    ("version", "expected"), [(None, [("warning", "LOG_GAP")]), (3, [("warning", "LOG_GAP")]), (2, None)]
)
def test_a_gap_before_the_checkpoint(builder: LogBuilder, version: int | None, expected: Any) -> None:
    builder.store.delete(commit_path(2))
    if expected is None:
        with pytest.raises(VersionNotFoundError):
            _fsck(builder, version)
        return
    report = _fsck(builder, version)
    assert report.ok
    assert _codes(report) == expected
    assert report.problems[0].message.startswith("Commit 2 is missing")


def test_a_gap_after_the_checkpoint(builder: LogBuilder) -> None:
    builder.store.delete(commit_path(4))
    report = _fsck(builder)
    assert (report.ok, report.num_files, report.files_checked) == (False, None, False)
    assert _codes(report) == [("error", "LOG_GAP")]
    assert report.problems[0].path == commit_path(4)


def test_a_log_that_was_cleaned_up_is_whole(builder: LogBuilder) -> None:
    builder.delete_commits(3)
    report = _fsck(builder)
    assert (report.ok, report.problems, report.oldest_version) == (True, (), 3)


def _cut_checkpoint(builder: LogBuilder) -> None:
    data = builder.store.read_bytes(checkpoint_path(3))
    builder.store.put(checkpoint_path(3), data[:-10])


def _no_metadata(builder: LogBuilder) -> None:
    bare = LogBuilder(MemoryStore(f"fsck-{next(_NAMES)}"))
    bare.versions = [[Protocol(1, 2)]]
    bare.checkpoint(0)
    builder.store.put(checkpoint_path(3), bare.store.read_bytes(checkpoint_path(0)))


@pytest.mark.parametrize("damage", [_cut_checkpoint, _no_metadata])
def test_a_damaged_checkpoint(builder: LogBuilder, damage: Callable[[LogBuilder], None]) -> None:
    damage(builder)
    report = _fsck(builder)
    assert not report.ok
    assert {p.severity for p in report.problems} == {"error"}
    # The version before it does not need it.
    report = _fsck(builder, 2)
    assert report.ok
    assert _codes(report) == [("warning", "CORRUPT_LOG")]
    assert report.problems[0].path == checkpoint_path(3)


def test_sidecars(builder: LogBuilder) -> None:
    builder.checkpoint_v2(5)
    assert _fsck(builder).problems == ()
    sidecar = "_delta_log/_sidecars/5-1.parquet"
    data = builder.store.read_bytes(sidecar)
    builder.store.put(sidecar, data + b" ")
    report = _fsck(builder)
    assert {p.path for p in report.problems} == {sidecar}
    assert not report.ok
    builder.store.delete(sidecar)
    report = _fsck(builder)
    assert _codes(report) == [("error", "INCOMPLETE_CHECKPOINT")]
    assert _codes(_fsck(builder, 4)) == [("warning", "INCOMPLETE_CHECKPOINT")]


def _compaction(builder: LogBuilder) -> str:
    builder.compact(4, 5)
    return f"_delta_log/{4:020d}.{5:020d}.compacted.json"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[1:], "files that it lacks: 1 "),
        (lambda lines: [*lines, lines[0].replace(b"f%204", b"g")], "files that it adds: 1 "),
        (lambda lines: [line.replace(b'"size":4', b'"size":9') for line in lines], "the sizes of: 1 "),
        (lambda lines: [*lines, b'{"remove":{"path":"f%201","dataChange":true}}'], "the removal of 1 "),
        (lambda lines: [*lines, b'{"txn":{"appId":"a","version":1}}'], "transaction identifiers"),
        (lambda lines: [*lines, b'{"protocol":{"minReaderVersion":1,"minWriterVersion":3}}'], "the protocol"),
        (lambda lines: [b"{}"], "files that it lacks: 2 "),
    ],
)  # fmt: skip
def test_a_log_compaction_that_disagrees_with_its_commits(
    builder: LogBuilder, change: Callable[[list[bytes]], list[bytes]], told: str
) -> None:
    path = _compaction(builder)
    assert _fsck(builder).problems == ()
    lines = [line for line in builder.store.read_bytes(path).splitlines() if b"commitInfo" not in line]
    builder.store.put(path, b"\n".join(change(lines)))
    [found] = [p for p in _fsck(builder).problems if p.path == path]
    assert found.severity == "error" and told in found.message and "Delete the file" in found.message
    # At a version that is not read from it, nobody is told wrong.
    [found] = _fsck(builder, 4).problems
    assert found.severity == "warning"


@pytest.mark.parametrize("lost", ["f%201", None])
def test_a_checkpoint_that_disagrees_with_its_commits(builder: LogBuilder, lost: str | None) -> None:
    builder.versions[1] = [
        action for action in builder.versions[1] if not isinstance(action, Add) or action.path != lost
    ]
    if lost is None:
        builder.versions[0] = [
            Protocol(1, 3) if isinstance(action, Protocol) else action for action in builder.versions[0]
        ]
    builder.checkpoint(3)
    assert _fsck(builder).problems == ()
    [found] = open_table(builder.store).fsck(deep=True).problems[:1]
    assert found.severity == "error" and "contradicts the commits before it" in found.message
    assert ("files that it lacks: 1" if lost else "the protocol") in found.message


def test_an_old_checkpoint_that_disagrees_with_its_checksum(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for n in range(3):
        table.append(pa.table({"id": [n]}))
        table.checkpoint()
    table.wait_for_upkeep()
    assert table.fsck(deep=True).problems == ()
    checksum = tmp_path / "t" / checksum_path(1)
    said = json.loads(checksum.read_text())
    checksum.write_text(json.dumps({**said, "metadata": {**said["metadata"], "name": "other"}}))
    [found] = table.fsck().problems
    assert (found.severity, found.code, found.version) == ("warning", "CHECKSUM_MISMATCH", 1)


def test_what_readers_pass_over_is_a_warning(builder: LogBuilder) -> None:
    builder.checkpoint(5, parts=3)
    builder.store.delete(f"_delta_log/{5:020d}.checkpoint.{2:010d}.{3:010d}.parquet")
    builder.store.put(checkpoint_path(4), b"")
    builder.store.put(f"_delta_log/{1:020d}.{2:020d}.compacted.json", b"garbage")
    report = _fsck(builder)
    assert report.ok
    assert {(p.severity, p.code, p.version) for p in report.problems} == {
        ("warning", "INCOMPLETE_CHECKPOINT", 5),
        ("warning", "INCOMPLETE_CHECKPOINT", 4),
        ("warning", "CORRUPT_LOG", 2),
    }
    builder.store.put(LAST_CHECKPOINT_PATH, b"garbage")
    paths = [p.path for p in _fsck(builder).problems]
    assert LAST_CHECKPOINT_PATH in paths


def test_the_checksum(builder: LogBuilder) -> None:
    needed = {"tableSizeBytes": 15, "numFiles": 5, "numMetadata": 1, "numProtocol": 1}
    builder.store.put(checksum_path(5), json.dumps(needed).encode())
    assert set(_fsck(builder).checksum_fields) == set(needed)
    builder.store.put(checksum_path(5), json.dumps({**needed, "numFiles": 6}).encode())
    report = _fsck(builder)
    assert (_codes(report), report.checksum_fields) == ([("error", "CHECKSUM_MISMATCH")], ())
    builder.store.put(checksum_path(5), b"garbage")
    assert _codes(_fsck(builder)) == [("error", "CORRUPT_LOG")]
    assert _fsck(builder, 4).ok


def test_a_damaged_commit(builder: LogBuilder) -> None:
    builder.store.put(commit_path(5), b'{"add":')
    report = _fsck(builder)
    assert _codes(report) == [("error", "CORRUPT_LOG")]
    assert report.problems[0].path == commit_path(5)
    assert _fsck(builder, 4).ok


def test_deletion_vectors(builder: LogBuilder) -> None:
    store = builder.store
    vectors = Protocol(3, 7, ("deletionVectors",), ("deletionVectors",))
    # Rows 3, 4, 7, 11, 18 and 29.
    inline = DeletionVectorDescriptor("i", "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 44, 6)
    store.put("a", b"a")
    builder.commit(vectors, Add("a", {}, 1, 0, True, deletion_vector=inline))
    report = _fsck(builder)
    assert (report.problems, report.num_deletion_vectors) == ((), 1)
    wrong = DeletionVectorDescriptor("i", inline.path_or_inline_dv, 44, 7)
    gone = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 1)
    store.put("b", b"b")
    store.put("c", b"c")
    builder.commit(
        Add("b", {}, 1, 0, True, deletion_vector=wrong),
        Add("c", {}, 1, 0, True, deletion_vector=gone),
        Add("a", {}, 1, 0, True),
    )
    report = _fsck(builder)
    assert sorted(_codes(report)) == [
        ("error", "CORRUPT_DELETION_VECTOR"),
        ("error", "MISSING_FILE"),
        ("error", "PROTOCOL_VIOLATION"),
    ]
    assert any("a is in the table 2 times" in p.message for p in report.problems)


@pytest.mark.parametrize(
    ("path", "code"), [("http://127.0.0.1:1/x", "UNSUPPORTED_STORE"), ("/" + "x" * 5000, "STORAGE_ERROR")]
)
def test_a_deletion_vector_no_store_can_read(tmp_path: Path, path: str, code: str) -> None:
    local = LogBuilder(LocalStore(tmp_path / "t"))
    local.create(protocol=Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)))
    local.store.put("a", b"x")
    vector = DeletionVectorDescriptor("p", path, 40, 6, 1)
    local.commit(Add("a", {}, 1, 0, True, deletion_vector=vector))
    assert _codes(_fsck(local)) == [("error", code)]


def test_what_cannot_be_checked_is_an_error(builder: LogBuilder, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        DeltaTable(tmp_path / "nothing").fsck()
    with pytest.raises(VersionNotFoundError):
        _fsck(builder, 6)
    with pytest.raises(InvalidRequestError):
        DeltaTable(tmp_path / "nothing").fsck(-1)
    builder.commit(Protocol(3, 7, ("fromTheFuture",), ("fromTheFuture",)), Metadata("table", "{}"))
    with pytest.raises(UnsupportedFeatureError):
        _fsck(builder)


# The command


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2, 3]}))
    table.append(pa.table({"id": [4]}))
    return str(tmp_path / "t")


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        run(["fsck", *arguments])
    return exit.value.code or 0, capsys.readouterr().out  # type: ignore[return-value]


def test_command_on_a_whole_table(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _run(capsys, uri, "--check")
    assert (code, "in order" in text) == (0, True)
    code, text = _run(capsys, uri, "--version", "0", "--json")
    described = json.loads(text)
    assert code == 0
    assert (described["ok"], described["version"], described["num_files"], described["problems"]) == (True, 0, 1, [])


def test_command_on_a_damaged_table(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = DeltaTable(uri).snapshot().files(["path"])["path"][0].as_py()
    Path(uri, path).unlink()
    assert _run(capsys, uri)[0] == 0
    code, text = _run(capsys, uri, "--check")
    assert code == 1
    assert "damaged" in text
    assert path in text
    code, text = _run(capsys, uri, "--check", "--json")
    problems = json.loads(text)["problems"]
    assert (code, [(p["severity"], p["code"], p["path"]) for p in problems]) == (1, [("error", "MISSING_FILE", path)])
    code, text = _run(capsys, uri, "--version", "9", "--json")
    assert (code, json.loads(text)["error"]["code"]) == (1, "VERSION_NOT_FOUND")
