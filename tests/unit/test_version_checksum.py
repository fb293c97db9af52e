"""Version checksums: parsed whatever their age, and held against the state field by field."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from typing import Any

import numpy as np
import pytest

from delta_orch.errors import ChecksumMismatchError, CorruptLogError
from delta_orch.log.read.checksum_file import file_size_histogram, histogram_counts, read_version_checksum
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.actions import (
    Add,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from delta_orch.protocol.paths import checksum_path
from delta_orch.protocol.version_checksum import DELETED_RECORD_BOUNDARIES, parse_version_checksum
from delta_orch.storage.memory import MemoryStore
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()
SCHEMA = '{"type":"struct","fields":[]}'
VECTOR = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 34, 12, 1)
NEEDED: dict[str, Any] = {"tableSizeBytes": 0, "numFiles": 0, "numMetadata": 1, "numProtocol": 1}


@pytest.fixture
def builder() -> LogBuilder:
    builder = LogBuilder(MemoryStore(f"checksum-{next(_NAMES)}"))
    builder.commit(
        CommitInfo({"txnId": "first", "inCommitTimestamp": 5000}),
        Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata", "inCommitTimestamp")),
        Metadata("table", SCHEMA, configuration={"delta.enableInCommitTimestamps": "true"}, created_time=7),
    )
    builder.commit(
        CommitInfo({"txnId": "second", "inCommitTimestamp": 6000}),
        Add("p=1/a%20b", {"p": "1"}, 100, 11, True, base_row_id=4),
        Add("p=2/c", {"p": "2"}, 5000, 12, True, deletion_vector=VECTOR),
        Add("p=2/d", {"p": "2"}, 5000, 12, True),
        Txn("app", 3, 77),
        Txn("other", 4),
        DomainMetadata("d", "{}"),
        DomainMetadata("gone", "", removed=True),
    )
    builder.commit(CommitInfo({"txnId": "third", "inCommitTimestamp": 7000}), Remove("p=2/d", True))
    return builder


def _checksum() -> dict[str, Any]:
    """Of version 2, with every field the protocol knows."""
    return {
        "txnId": "third",
        "tableSizeBytes": 5100,
        "numFiles": 2,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": 7000,
        "setTransactions": [{"appId": "other", "version": 4}, {"appId": "app", "version": 3, "lastUpdated": 77}],
        "domainMetadata": [{"domain": "d", "configuration": "{}", "removed": False}],
        "metadata": {
            "id": "table",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": '{"fields": [], "type": "struct"}',
            "partitionColumns": [],
            "configuration": {"delta.enableInCommitTimestamps": "true"},
            "createdTime": 7,
        },
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["inCommitTimestamp", "domainMetadata", "deletionVectors"],
        },
        "fileSizeHistogram": {
            "sortedBinBoundaries": [0, 100, 4096], "fileCounts": [0, 1, 1], "totalBytes": [0, 100, 5000]
        },
        "allFiles": [
            {"path": "p=2/c", "partitionValues": {"p": "2"}, "size": 5000, "modificationTime": 12, "dataChange": False,
             "deletionVector": {"storageType": "u", "pathOrInlineDv": VECTOR.path_or_inline_dv, "offset": 1,
                                "sizeInBytes": 34, "cardinality": 12}},
            {"path": "p=1/a%20b", "partitionValues": {"p": "1"}, "size": 100, "modificationTime": 11,
             "dataChange": True, "baseRowId": 4, "tags": {"x": "y"}, "stats": "{}"},
        ],
        "numDeletedRecordsOpt": 12,
        "numDeletionVectorsOpt": 1,
        "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [1, 0, 1, 0, 0, 0, 0, 0, 0, 0]},
    }  # fmt: skip


def _put(builder: LogBuilder, content: dict[str, Any], version: int = 2) -> None:
    builder.store.put(checksum_path(version), json.dumps(content).encode())


def test_every_field_is_compared(builder: LogBuilder) -> None:
    checksum = _checksum()
    _put(builder, {**checksum, "aFieldOfTomorrow": {"x": 1}})
    result = TableLog(builder.store).snapshot().validate()
    assert (result.version, result.path) == (2, checksum_path(2))
    assert set(result.checked) == set(checksum)
    parsed = read_version_checksum(builder.store, 2)
    assert parsed is not None
    assert parsed.extra == {"aFieldOfTomorrow": {"x": 1}}


def test_the_state_may_come_from_a_checkpoint_whose_commit_is_gone(builder: LogBuilder) -> None:
    checksum = _checksum()
    _put(builder, checksum)
    builder.checkpoint(2)
    assert set(TableLog(builder.store).snapshot().validate().checked) == set(checksum)
    builder.delete_commits(3)
    checked = TableLog(builder.store).snapshot().validate().checked
    assert set(checked) == set(checksum) - {"txnId", "inCommitTimestampOpt"}


def test_a_version_without_checksum_is_no_error(builder: LogBuilder) -> None:
    result = TableLog(builder.store).snapshot().validate()
    assert (result.version, result.path, result.checked) == (2, None, ())


def test_a_snapshot_is_made_without_looking_at_the_checksum(builder: LogBuilder) -> None:
    builder.store.put(checksum_path(2), b"garbage")
    assert TableLog(builder.store).snapshot().num_files == 2


def _changed(**fields: Any) -> dict[str, Any]:
    return {**_checksum(), **fields}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("txnId", "second"),
        ("tableSizeBytes", 5101),
        ("numFiles", 3),
        ("numMetadata", 2),
        ("numProtocol", 0),
        ("inCommitTimestampOpt", 6000),
        ("setTransactions", [{"appId": "app", "version": 3}]),
        ("setTransactions", [{"appId": "app", "version": 3}, {"appId": "other", "version": 5}]),
        ("setTransactions", [{"appId": "app", "version": 3, "lastUpdated": 78}, {"appId": "other", "version": 4}]),
        ("domainMetadata", []),
        ("domainMetadata", [{"domain": "d", "configuration": "{x}", "removed": False}]),
        ("metadata", {**_checksum()["metadata"], "id": "elsewhere"}),
        ("metadata", {**_checksum()["metadata"], "configuration": {}}),
        ("metadata", {**_checksum()["metadata"], "schemaString": "{}"}),
        ("metadata", {**_checksum()["metadata"], "partitionColumns": ["p"]}),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}),
        ("fileSizeHistogram", {"sortedBinBoundaries": [0], "fileCounts": [2], "totalBytes": [5000]}),
        ("fileSizeHistogram", {"sortedBinBoundaries": [0, 101], "fileCounts": [0, 2], "totalBytes": [0, 5100]}),
        ("allFiles", _checksum()["allFiles"][:1]),
        ("allFiles", [{**_checksum()["allFiles"][0], "deletionVector": None}, _checksum()["allFiles"][1]]),
        ("allFiles", [_checksum()["allFiles"][0], {**_checksum()["allFiles"][1], "partitionValues": {"p": "9"}}]),
        ("allFiles", [_checksum()["allFiles"][0], {**_checksum()["allFiles"][1], "size": 99}]),
        ("numDeletedRecordsOpt", 0),
        ("numDeletionVectorsOpt", 2),
        ("deletedRecordCountsHistogramOpt", {"deletedRecordCounts": [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]}),
    ],
)
def test_a_mismatch_is_named(builder: LogBuilder, field: str, wrong: Any) -> None:
    _put(builder, _changed(**{field: wrong}))
    with pytest.raises(ChecksumMismatchError) as caught:
        TableLog(builder.store).snapshot().validate()
    assert [m.field for m in caught.value.context["mismatches"]] == [field]
    assert f"{field}: recorded " in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).context == caught.value.context


def test_all_mismatches_are_named(builder: LogBuilder) -> None:
    _put(builder, _changed(numFiles=9, tableSizeBytes=1, protocol={"minReaderVersion": 1, "minWriterVersion": 2}))
    with pytest.raises(
        ChecksumMismatchError, match=r"numFiles: recorded 9, computed 2; tableSizeBytes: .*; protocol: "
    ):
        TableLog(builder.store).snapshot().validate()


def test_transactions_that_have_expired_since_may_be_recorded(builder: LogBuilder) -> None:
    now_ms = time.time_ns() // 1_000_000
    builder.commit(
        Metadata("table", SCHEMA, configuration={"delta.setTransactionRetentionDuration": "interval 1 hour"}),
        Txn("fresh", 1, now_ms),
    )
    needed = {**NEEDED, "numFiles": 2, "tableSizeBytes": 5100}
    log = TableLog(builder.store)
    expired, fresh, undated = (
        {"appId": "app", "version": 3, "lastUpdated": 77},
        {"appId": "fresh", "version": 1, "lastUpdated": now_ms},
        {"appId": "other", "version": 4},
    )
    for recorded in ([expired, fresh, undated], [fresh, undated]):
        _put(builder, {**needed, "setTransactions": recorded}, 3)
        log.snapshot().validate()
    for recorded in ([expired, undated], [{**expired, "version": 2}, fresh, undated]):
        _put(builder, {**needed, "setTransactions": recorded}, 3)
        with pytest.raises(ChecksumMismatchError, match="setTransactions"):
            log.snapshot().validate()


def test_early_writers_left_much_out() -> None:
    parsed = parse_version_checksum(json.dumps({**NEEDED, "numTransactions": 0}).encode(), "x.crc")
    assert (parsed.metadata, parsed.protocol, parsed.txns, parsed.all_files) == (None, None, None, None)
    assert parsed.extra == {"numTransactions": 0}
    histogram = {"sortedBinBoundaries": [0, 1], "fileCounts": [0, 1], "totalBytes": [0, 5]}
    parsed = parse_version_checksum(json.dumps({**NEEDED, "histogramOpt": histogram}).encode(), "x.crc")
    assert parsed.file_size_histogram is not None
    assert parsed.file_size_histogram.total_bytes == (0, 5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}\n{}",
        b"[" * 100_000,
        {k: v for k, v in NEEDED.items() if k != "numFiles"},
        {**NEEDED, "numFiles": "2"},
        {**NEEDED, "numFiles": True},
        {**NEEDED, "numFiles": 1.5},
        {**NEEDED, "numFiles": 1 << 63},
        {**NEEDED, "metadata": {"name": "no id"}},
        {**NEEDED, "metadata": 7},
        {**NEEDED, "metadata": {"id": "x", "format": 3}},
        {**NEEDED, "protocol": []},
        {**NEEDED, "setTransactions": {"appId": "x"}},
        {**NEEDED, "setTransactions": [None]},
        {**NEEDED, "domainMetadata": [{"configuration": ""}]},
        {**NEEDED, "allFiles": [1]},
        {**NEEDED, "txnId": 1},
        {**NEEDED, "fileSizeHistogram": {"sortedBinBoundaries": [0], "fileCounts": [0, 1], "totalBytes": [0]}},
        {**NEEDED, "fileSizeHistogram": {"sortedBinBoundaries": [1], "fileCounts": [0], "totalBytes": [0]}},
        {**NEEDED, "fileSizeHistogram": {"sortedBinBoundaries": [0, 0], "fileCounts": [0, 0], "totalBytes": [0, 0]}},
        {**NEEDED, "fileSizeHistogram": {}},
        {**NEEDED, "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [1]}},
    ],
)
def test_what_cannot_be_parsed(content: Any) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(CorruptLogError, match=r"Version checksum 7\.crc cannot be read"):
        parse_version_checksum(data, "_delta_log/7.crc")


def test_a_malformed_file_in_a_checksum(builder: LogBuilder) -> None:
    _put(builder, _changed(allFiles=[{"size": 3}]))
    with pytest.raises(CorruptLogError, match=r"Version checksum .* cannot be read"):
        TableLog(builder.store).snapshot().validate()


def test_bins() -> None:
    counts = histogram_counts(np.array([0, 0, 1, 9, 10, 99, 10_000_000, 2_147_483_646, 2_147_483_647, 1 << 40]),
                              DELETED_RECORD_BOUNDARIES)  # fmt: skip
    assert counts == (2, 2, 2, 0, 0, 0, 0, 0, 2, 2)
    histogram = file_size_histogram(np.array([0, 1023, 1024, 1 << 60, (1 << 60) + 1]), (0, 1024, 4096))
    assert histogram.file_counts == (2, 1, 2)
    assert histogram.total_bytes == (1023, 1024, (1 << 61) + 1)
    assert file_size_histogram(np.array([], np.int64), (0,)).file_counts == (0,)
