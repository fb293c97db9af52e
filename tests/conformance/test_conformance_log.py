"""What the logs of the cases say, for every table and version, whether or not this release reads its rows.

The gate is left out on purpose: replay itself must be right for deletion vectors, column mapping and all the rest, long
before rows can be read. That the gate refuses what it must is tested with the rows.
"""

from __future__ import annotations

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
from tests.harness.conformance.cases import GOLDEN, conformance_cases, needs_golden
from tests.harness.golden import READ_SINCE, GoldenCase, load_cases


class UngatedSnapshot(Snapshot):
    """Replays whatever features the table has."""

    def _read_configuration(self, protocol: Protocol, metadata: Metadata) -> TableConfiguration:
        return TableConfiguration(protocol, metadata)


CASES = conformance_cases()
TABLES = [case for case in CASES if case.kind != "error"]
ERRORS = [case for case in CASES if case.kind == "error" and case.name not in READ_SINCE]
# Their checkpoints were put there by hand and hold other metadata (id, spacing of the schema) than their commits.
CHECKPOINTS_WITH_OTHER_METADATA = ("krs-parsed-stats", "krs-parquet_row_group_skipping")

# A mark that lies beyond the rows of its file deletes none.
MARKS_WITHOUT_ROWS = {"made-deletion-vectors": 1}


def _log(case: GoldenCase, *, gated: bool = False) -> TableLog:
    return TableLog(LocalStore(case.directory / "table"), Snapshot if gated else UngatedSnapshot)


@needs_golden
def test_the_golden_tables_are_whole() -> None:
    tables = [case for case in load_cases(GOLDEN) if case.kind != "error"]
    assert len(tables) >= 150
    assert sum(1 + len(case.expect.get("versions", {})) for case in tables) >= 390
    assert len(load_cases(GOLDEN, ("error",))) >= 20


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.name)
def test_snapshots(case: GoldenCase) -> None:
    _ensure_snapshot(_log(case).snapshot(), case.expect)
    for version, state in case.expect.get("versions", {}).items():
        _ensure_snapshot(_log(case).snapshot(int(version)), state)


def _ensure_snapshot(snapshot: Snapshot, said: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.name)
def test_files_rows_and_history(case: GoldenCase) -> None:
    log, expect = _log(case), case.expect
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
        deleted -= MARKS_WITHOUT_ROWS.get(case.name, 0)
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


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.name)
def test_advancing_from_the_oldest_version_gives_the_newest(case: GoldenCase) -> None:
    log, expect = _log(case), case.expect
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
    if case.name not in CHECKPOINTS_WITH_OTHER_METADATA:
        assert (advanced.metadata, advanced.protocol) == (fresh.metadata, fresh.protocol)
    assert dict(advanced.txns) == dict(fresh.txns)


_CATEGORIES: dict[str, type[DeltaError]] = {"unsupported_feature": UnsupportedError, "corrupt_log": CorruptLogError}


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.name)
def test_errors(case: GoldenCase) -> None:
    log, expect = _log(case, gated=True), case.expect
    category = _CATEGORIES.get(expect["error"])
    if category is None:
        # Only reading rows fails: the log is in order. (These tables have deletion vectors.)
        assert _log(case).snapshot().files().num_rows > 0
        return
    with pytest.raises(category):
        log.snapshot()
    for version in expect.get("versions_that_load", []):
        assert log.snapshot(int(version)).version == int(version)


@needs_golden
def test_hints_of_other_writers_pass_their_checksum() -> None:
    with_checksum = 0
    for case in load_cases(GOLDEN):
        hint = case.directory / "table" / "_delta_log" / "_last_checkpoint"
        if hint.is_file() and b'"checksum"' in hint.read_bytes():
            parse_last_checkpoint(hint.read_bytes())
            with_checksum += 1
    assert with_checksum >= 5
