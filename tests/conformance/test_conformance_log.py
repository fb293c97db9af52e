"""What the logs of the golden tables say, for every table and version, whether or not this release reads its rows.

The gate is left out on purpose: replay itself must be right for deletion vectors, column mapping and all the rest, long
before rows can be read. That the gate refuses what it must is tested with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest

from delta_orch.errors import CorruptLogError, DeltaError, UnsupportedError, VersionNotFoundError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.last_checkpoint import parse_last_checkpoint
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.schema import parse_schema
from delta_orch.storage.local import LocalStore
from delta_orch.table.configuration import TableConfiguration
from tests.certain import some

ROOT = Path(__file__).parents[2] / ".." / "shared" / "golden"
PRESENT = (ROOT / "index.json").is_file()
NEEDS_GOLDEN = pytest.mark.skipif(not PRESENT, reason=f"the golden tables are not at {ROOT}")


class UngatedSnapshot(Snapshot):
    """Replays whatever features the table has."""

    def _read_configuration(self, protocol: Protocol, metadata: Metadata) -> TableConfiguration:
        return TableConfiguration(protocol, metadata)


def _cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    if not PRESENT:
        return
    for entry in json.loads((ROOT / "index.json").read_bytes()):
        definition = ROOT / entry["path"] / "case.json"
        if definition.is_file() and (definition.parent / "table").is_dir():
            case = json.loads(definition.read_bytes())
            yield entry["path"], case["kind"], case["expect"]


CASES = list(_cases())
# Their checkpoints were put there by hand and hold other metadata (id, spacing of the schema) than their commits.
CHECKPOINTS_WITH_OTHER_METADATA = ("krs-parsed-stats", "krs-parquet_row_group_skipping")
TABLES = [(path, expect) for path, kind, expect in CASES if kind != "error"]
VERSIONS = [
    pytest.param(path, version, said, id=f"{path}@{version or 'newest'}")
    for path, expect in TABLES
    for version, said in [(None, expect), *((int(v), said) for v, said in expect.get("versions", {}).items())]
]
ERRORS = [(path, expect) for path, kind, expect in CASES if kind == "error"]


def _log(path: str, *, gated: bool = False) -> TableLog:
    return TableLog(LocalStore(ROOT / path / "table"), Snapshot if gated else UngatedSnapshot)


@NEEDS_GOLDEN
def test_the_collection_is_there() -> None:
    assert len(TABLES) >= 150
    assert len(VERSIONS) >= 390
    assert len(ERRORS) >= 20


@NEEDS_GOLDEN
@pytest.mark.parametrize(("path", "version", "said"), VERSIONS)
def test_snapshot(path: str, version: int | None, said: dict[str, Any]) -> None:
    snapshot = _log(path).snapshot(version)
    assert snapshot.version == said["version"]
    assert snapshot.num_files == said["num_files"]
    assert snapshot.size_bytes == said["total_bytes"]
    assert snapshot.metadata.id == said["metadata_id"]
    assert snapshot.schema == parse_schema(said["schema"])
    assert list(snapshot.partition_columns) == said["partition_columns"]
    assert snapshot.metadata.configuration == said["configuration"]
    assert _protocol(snapshot) == {
        key: sorted(value) if isinstance(value, list) else value for key, value in said["protocol"].items()
    }
    assert {app_id: txn.version for app_id, txn in _every_txn(snapshot).items()} == said["txn"]
    if snapshot.properties.set_transaction_retention_ms is None:
        assert dict(snapshot.txns) == said["txn"]
    elif "txn_after_retention" in said:
        assert dict(snapshot.txns) == said["txn_after_retention"]
    assert dict(snapshot.domain_metadata) == said["domain_metadata"]


def _protocol(snapshot: Snapshot) -> dict[str, Any]:
    protocol = snapshot.protocol
    values: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.reader_features is not None:
        values["readerFeatures"] = sorted(protocol.reader_features)
    if protocol.writer_features is not None:
        values["writerFeatures"] = sorted(protocol.writer_features)
    return values


def _every_txn(snapshot: Snapshot) -> dict[str, Any]:
    base = {} if snapshot.checkpoint is None else snapshot.checkpoint.txns
    return {**base, **snapshot.tail.txns}


@NEEDS_GOLDEN
@pytest.mark.parametrize(("path", "expect"), TABLES)
def test_files_rows_and_history(path: str, expect: dict[str, Any]) -> None:
    log = _log(path)
    snapshot = log.snapshot()
    files = snapshot.files()
    assert files.num_rows == snapshot.num_files
    if "files" in expect:
        rows = files.select(["path", "partition_values"]).to_pylist(maps_as_pydicts="strict")
        found = sorted((decode_path(row["path"]), sorted(row["partition_values"].items())) for row in rows)
        assert found == sorted((f["path"], sorted(f["partition_values"].items())) for f in expect["files"])
    statistics = [None if text is None else orjson.loads(text) for text in files["stats"].to_pylist()]
    if statistics and all(s is not None and "numRecords" in s for s in statistics):
        deleted = pc.sum(pc.struct_field(files["deletion_vector"], ["cardinality"])).as_py() or 0
        assert sum(some(s)["numRecords"] for s in statistics) - deleted == expect["total_rows"]
    if "history" in expect:
        entries = {entry.version: entry for entry in log.history()}
        for said in expect["history"]:
            info = entries[said["version"]].commit_info
            assert (entries[said["version"]].operation, info.get("timestamp")) == (said["operation"], said["timestamp"])
    assert log.latest_version() == expect["version"]
    assert log.has_version(snapshot.version + 1) is False
    for version, error in expect.get("version_errors", {}).items():
        assert error == "missing_version"
        with pytest.raises(VersionNotFoundError) as caught:
            log.snapshot(int(version))
        assert caught.value.context["version"] == int(version)


@NEEDS_GOLDEN
@pytest.mark.parametrize(("path", "expect"), TABLES)
def test_advancing_from_the_oldest_version_gives_the_newest(path: str, expect: dict[str, Any]) -> None:
    log = _log(path)
    oldest = min([int(v) for v in expect.get("versions", {})], default=expect["version"])
    advanced, fresh = log.snapshot(oldest), log.snapshot()
    if oldest != fresh.version and not log.has_version(oldest + 1):
        pytest.skip("there are no commits between the two: only a checkpoint leads to the newest version")
    advanced.files(["path"])
    advanced = log.advance(advanced)
    if advanced.version != fresh.version:
        assert not log.has_version(advanced.version + 1)
        fresh = log.snapshot(advanced.version)
    keys = ["path", "dv_id", "size"]
    assert sorted(map(str, advanced.files(keys).to_pylist())) == sorted(map(str, fresh.files(keys).to_pylist()))
    if path not in CHECKPOINTS_WITH_OTHER_METADATA:
        assert (advanced.metadata, advanced.protocol) == (fresh.metadata, fresh.protocol)
    assert dict(advanced.txns) == dict(fresh.txns)


_CATEGORIES: dict[str, type[DeltaError]] = {"unsupported_feature": UnsupportedError, "corrupt_log": CorruptLogError}


@NEEDS_GOLDEN
@pytest.mark.parametrize(("path", "expect"), ERRORS)
def test_errors(path: str, expect: dict[str, Any]) -> None:
    log = _log(path, gated=True)
    category = _CATEGORIES.get(expect["error"])
    if category is None:
        # Only reading rows fails: the log is in order. (These tables have deletion vectors.)
        assert _log(path).snapshot().files().num_rows > 0
        return
    with pytest.raises(category):
        log.snapshot()
    for version in expect.get("versions_that_load", []):
        assert log.snapshot(int(version)).version == int(version)


@NEEDS_GOLDEN
def test_hints_of_other_writers_pass_their_checksum() -> None:
    with_checksum = 0
    for path, _kind, _expect in CASES:
        hint = ROOT / path / "table" / "_delta_log" / "_last_checkpoint"
        if hint.is_file() and b'"checksum"' in hint.read_bytes():
            parse_last_checkpoint(hint.read_bytes())
            with_checksum += 1
    assert with_checksum >= 5
