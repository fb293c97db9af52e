"""Commits: from JSON lines to columns, and every way a commit can be broken."""

from __future__ import annotations

import itertools
import json
from typing import Any

import orjson
import pytest

from delta_orch.errors import CorruptLogError, LogGapError, ProtocolViolationError
from delta_orch.log.files import commit_reader
from delta_orch.log.files.commit_reader import LogFile, parse_log_files, read_commit, read_commits
from delta_orch.log.files.file_columns import ADD_SCHEMA, CDC_SCHEMA, REMOVE_SCHEMA
from delta_orch.protocol.actions import DomainMetadata, Txn
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.base import FileMeta
from delta_orch.storage.memory import MemoryStore

_NAMES = itertools.count()
ADD = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 2, "dataChange": True}


def _file(*lines: dict[str, Any] | bytes, version: int = 7, end: bytes = b"\n") -> LogFile:
    data = end.join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines) + end
    return LogFile(commit_path(version), version, data)


def test_columns() -> None:
    full = {
        "path": "p=x/ü%20",
        "partitionValues": {"p": "x", "q": None},
        "size": 1 << 50,
        "modificationTime": 3,
        "dataChange": False,
        "stats": '{"numRecords":1}',
        "tags": {"t": "v"},
        "deletionVector": {
            "storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40,
            "cardinality": 6,
        },
        "baseRowId": 9,
        "defaultRowCommitVersion": 2,
        "clusteringProvider": "liquid",
        "unheardOf": {"x": 1},
    }  # fmt: skip
    actions = parse_log_files([_file({"add": full}, {"add": ADD}, {"unknownAction": {"x": 1}})])
    assert actions.adds.schema == ADD_SCHEMA
    actions.adds.validate(full=True)
    first, second = actions.adds.to_pylist(maps_as_pydicts="strict")
    assert first == {
        "path": "p=x/ü%20",
        "dv_id": "uab^-aqEH.-t@S}K{vb[*k^@4",
        "partition_values": {"p": "x", "q": None},
        "size": 1 << 50,
        "modification_time": 3,
        "data_change": False,
        "stats": '{"numRecords":1}',
        "tags": {"t": "v"},
        "deletion_vector": {
            "storage_type": "u", "path_or_inline_dv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "size_in_bytes": 40,
            "cardinality": 6,
        },
        "base_row_id": 9,
        "default_row_commit_version": 2,
        "clustering_provider": "liquid",
    }  # fmt: skip
    assert second["dv_id"] is None
    assert second["deletion_vector"] is None
    assert second["partition_values"] == {}
    assert second["stats"] is None


def test_removes_may_lack_almost_everything() -> None:
    actions = parse_log_files(
        [_file({"remove": {"path": "a"}}, {"remove": {"path": "b", "partitionValues": {"p": "1"}}})]
    )
    assert actions.removes.schema == REMOVE_SCHEMA
    rows = actions.removes.to_pylist(maps_as_pydicts="strict")
    assert rows[0]["partition_values"] is None
    assert rows[0]["data_change"] is True
    assert rows[0]["deletion_timestamp"] is None
    assert rows[1]["partition_values"] == {"p": "1"}


def test_removes_apply_before_adds_of_the_same_commit_and_after_older_ones() -> None:
    actions = parse_log_files(
        [_file({"add": ADD}, {"remove": {"path": "a"}}, version=0), _file({"remove": {"path": "a"}}, version=1)]
    )
    (added,) = actions.add_order.to_pylist()
    first_removed, last_removed = actions.remove_order.to_pylist()
    assert first_removed < added < last_removed


def test_the_newest_small_action_wins() -> None:
    actions = parse_log_files(
        [
            _file({"txn": {"appId": "a", "version": 5}}, {"txn": {"appId": "b", "version": 1}}, version=0),
            _file({"txn": {"appId": "a", "version": 3, "lastUpdated": 10}}, version=1),
            _file({"domainMetadata": {"domain": "d", "configuration": "c", "removed": True}}, version=2),
            _file({"commitInfo": {"operation": "X"}}, version=3),
            _file({"metaData": {"id": "m", "schemaString": "{}", "future": 1}}, {"protocol": {"minReaderVersion": 1,
                                                                            "minWriterVersion": 2}}, version=4),
        ]
    )  # fmt: skip
    assert actions.txns == {"a": Txn("a", 3, 10), "b": Txn("b", 1)}
    assert actions.domain_metadata == {"d": DomainMetadata("d", "c", True)}
    assert actions.metadata is not None
    assert actions.metadata.extra == {"future": 1}
    assert actions.commit_info is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b"\n \n"])
def test_line_ends(end: bytes) -> None:
    assert parse_log_files([_file({"add": ADD}, {"add": {**ADD, "path": "b"}}, end=end)]).adds.num_rows == 2


def test_values_some_writers_spell_differently() -> None:
    odd = {
        "path": "a", "partitionValues": {"i": 5, "b": True, "f": 1.5}, "size": "12", "modificationTime": 3.0,
        "dataChange": None, "stats": {"numRecords": 2}, "tags": None, "deletionVector": None,
    }  # fmt: skip
    row = parse_log_files([_file({"add": odd})]).adds.to_pylist(maps_as_pydicts="strict")[0]
    assert row["partition_values"] == {"i": "5", "b": "true", "f": "1.5"}
    assert (row["size"], row["modification_time"], row["data_change"]) == (12, 3, True)
    assert orjson.loads(row["stats"]) == {"numRecords": 2}


@pytest.mark.parametrize("block_bytes", [0, 1, 50, 500, 5000])
def test_large_commits_are_parsed_in_blocks(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    lines = [{"add": {**ADD, "path": f"f{n}"}} for n in range(107)]
    whole = parse_log_files([_file(*lines)])
    monkeypatch.setattr(commit_reader, "_BLOCK_BYTES", block_bytes)
    in_blocks = parse_log_files([_file(*lines)])
    assert in_blocks.adds.to_pylist() == whole.adds.to_pylist()
    with pytest.raises(CorruptLogError):
        parse_log_files([_file(*lines, b'{"add":{"pa')])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"  \r\n",
        b"not json",
        b'{"add":{"path":"a"',
        b'{"add":{}}\n{"commitInfo":{"a":',
        b"[]",
        b"5",
        b'"text"',
        b"null",
        b'{"a":1}\n7',
        b"\x00\x01",
        b'{"a":"\xff"}',
    ],
)
def test_a_broken_commit_names_its_file(data: bytes) -> None:
    with pytest.raises(CorruptLogError) as caught:
        parse_log_files([_file({"add": ADD}, version=6), LogFile(commit_path(7), 7, data)])
    assert caught.value.context["path"] == commit_path(7)
    assert "00000000000000000007.json" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        {"add": {**ADD, "path": None}},
        {"add": {**ADD, "path": 5}},
        {"add": {k: v for k, v in ADD.items() if k != "size"}},
        {"add": {**ADD, "size": "many"}},
        {"add": {**ADD, "size": 1 << 70}},
        {"add": {**ADD, "size": 1.5}},
        {"add": {**ADD, "partitionValues": ["a"]}},
        {"add": {**ADD, "partitionValues": {"a": {"b": 1}}}},
        {"add": {**ADD, "deletionVector": {"storageType": "u"}}},
        {"add": "text"},
        {"add": [1]},
        {"remove": {"size": 1}},
        {"remove": {"path": 1}},
        {"cdc": {"size": 1}},
        {"txn": {"appId": "a"}},
        {"txn": {"appId": "a", "version": 1 << 63}},
        {"metaData": {"schemaString": "{}"}},
        {"protocol": {"minReaderVersion": 1}},
        {"domainMetadata": {}},
    ],
)
def test_a_malformed_action_names_its_file(line: dict[str, Any]) -> None:
    good = [_file({"add": ADD}, {"remove": {"path": "r"}}, version=n) for n in range(7)]
    with pytest.raises(ProtocolViolationError) as caught:
        actions = parse_log_files([*good, _file({"add": ADD}, line, version=7)])
        # A file action is looked at when its columns are asked for, not before.
        assert all(table.num_rows for table in (actions.adds, actions.removes, actions.cdc))
    assert caught.value.context["path"] == commit_path(7)
    assert caught.value.context["action"] == next(iter(line))


@pytest.mark.parametrize(
    "line", [{"add": None}, {"txn": None}, {"commitInfo": 5}, {"add": None, "remove": {"path": "x"}}]
)
def test_null_actions_are_none(line: dict[str, Any]) -> None:
    actions = parse_log_files([_file(line)])
    assert actions.adds.num_rows == 0
    assert actions.removes.num_rows == ("remove" in line)


def test_one_commit() -> None:
    store = MemoryStore(f"commit-{next(_NAMES)}")
    file = _file(
        {"commitInfo": {"operation": "W", "inCommitTimestamp": 12345}},
        {"add": ADD},
        {"remove": {"path": "b"}},
        {"cdc": {"path": "_change_data/c", "partitionValues": {"p": "1"}, "size": 3, "dataChange": False}},
        {"txn": {"appId": "a", "version": 1}},
    )
    meta = store.put(file.path, file.data)
    commit = read_commit(store, meta, 7)
    assert (commit.version, commit.timestamp_ms) == (7, 12345)
    assert commit.commit_info == {"operation": "W", "inCommitTimestamp": 12345}
    assert (commit.adds.num_rows, commit.removes.num_rows, commit.cdc.num_rows) == (1, 1, 1)
    assert (commit.adds.schema, commit.removes.schema, commit.cdc.schema) == (ADD_SCHEMA, REMOVE_SCHEMA, CDC_SCHEMA)
    assert commit.txns == (Txn("a", 1),)
    assert (commit.protocol, commit.metadata, commit.domain_metadata) == (None, None, ())


def test_without_in_commit_timestamp_the_file_tells_the_time() -> None:
    store = MemoryStore(f"commit-{next(_NAMES)}")
    meta = store.put(commit_path(0), orjson.dumps({"commitInfo": {"timestamp": 5}}))
    assert read_commit(store, FileMeta(meta.path, meta.size, 42), 0).timestamp_ms == 42


def test_a_commit_that_vanished_after_it_was_listed() -> None:
    store = MemoryStore(f"commit-{next(_NAMES)}")
    with pytest.raises(LogGapError) as caught:
        list(read_commits(store, [FileMeta(commit_path(3), 1, 1)], [3]))
    assert caught.value.context["version"] == 3


def test_remote_stores_are_read_ahead_in_order() -> None:
    class Remote(MemoryStore):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.uri = f"s3://{name}"

    store = Remote(f"commit-{next(_NAMES)}")
    metas = [store.put(commit_path(n), b"%d" % n) for n in range(50)]
    assert [f.data for f in read_commits(store, metas, range(50))] == [b"%d" % n for n in range(50)]
    store.delete(commit_path(30))
    with pytest.raises(LogGapError):
        list(read_commits(store, metas, range(50)))
