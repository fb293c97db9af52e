"""The log as a whole: polling, advancing, time travel, history, transaction identifiers."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from delta_orch.errors import (
    CorruptLogError,
    InvalidRequestError,
    LogGapError,
    ProtocolViolationError,
    TableNotFoundError,
    TimestampOutOfRangeError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.log.read import table_log
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.actions import Add, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from tests.harness.fault_store import FaultStore
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()


@pytest.fixture
def builder() -> LogBuilder:
    return LogBuilder(MemoryStore(f"log-{next(_NAMES)}"))


@pytest.fixture
def local(tmp_path: Path) -> LogBuilder:
    return LogBuilder(LocalStore(tmp_path / "table"))


def _add(path: str, **fields: Any) -> Add:
    return Add(path, **{"partition_values": {}, "size": 1, "modification_time": 0, "data_change": True, **fields})


def _paths(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files(["path"])["path"].to_pylist())


# Polling and advancing


def test_nothing_new_costs_one_look_and_gives_the_same_object(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(_add("a"))
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    store.forget_calls()
    assert log.advance(snapshot) is snapshot
    assert [(c.method, c.path) for c in store.calls] == [("head", commit_path(2))]
    store.forget_calls()
    assert log.has_version(2) is False
    assert log.has_version(1) is True
    assert store.counts() == {"head": 2}


def test_advancing_reads_only_what_is_new(builder: LogBuilder) -> None:
    builder.create()
    for n in range(10):
        builder.commit(_add(f"f{n}"))
    builder.checkpoint(8)
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    snapshot.files(["path", "size"])
    builder.commit(_add("new"), Remove("f1", True, 1))
    builder.commit(_add("newer"), Remove("f9", True, 1))
    store.forget_calls()
    advanced = log.advance(snapshot)
    assert advanced.version == 12
    assert _paths(advanced) == sorted(["f0", *(f"f{n}" for n in range(2, 9)), "new", "newer"])
    assert store.counts() == {"head": 3, "read_bytes": 2}
    assert _paths(snapshot) == sorted(f"f{n}" for n in range(10))
    assert type(advanced) is Snapshot


def test_far_behind_it_lists_instead_of_probing(builder: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "_MAX_PROBES", 4)
    builder.create()
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    for n in range(30):
        builder.commit(_add(f"f{n}"))
    store.forget_calls()
    advanced = log.advance(snapshot)
    assert (advanced.version, advanced.num_files) == (30, 30)
    assert store.count("head") <= 5
    assert store.count("list_from") == 1


def test_a_long_lived_reader_moves_to_newer_checkpoints(builder: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "_REBASE_COMMITS", 5)
    builder.create()
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    bases = []
    for version in range(1, 23):
        builder.commit(_add(f"f{version}"))
        if version % 4 == 0:
            builder.checkpoint(version)
        store.forget_calls()
        snapshot = log.advance(snapshot)
        assert (snapshot.version, snapshot.num_files) == (version, version)
        bases.append(None if snapshot.segment.checkpoint is None else snapshot.segment.checkpoint.version)
        if store.count("list_from") == 0:
            assert store.count("read_bytes") <= 2
        assert len(snapshot.segment.commits) < 2 * 5
    assert sorted({base for base in bases if base is not None}) == [4, 8, 12, 16, 20]
    # Cleanup may take the checkpoints it has left behind.
    builder.delete_commits(20)
    assert _paths(log.advance(snapshot)) == _paths(log.snapshot())


def test_without_newer_checkpoints_a_reader_stays_where_it_is(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "_REBASE_COMMITS", 5)
    builder.create()
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    store.forget_calls()
    for version in range(1, 12):
        builder.commit(_add(f"f{version}"))
        snapshot = log.advance(snapshot)
    assert snapshot.num_files == 11
    assert store.count("list_from") == 0
    assert store.count("read_bytes", "*_last_checkpoint") == 2


def test_a_file_that_comes_and_goes(builder: LogBuilder) -> None:
    builder.create()
    log = TableLog(builder.store)
    snapshot = log.snapshot()
    seen = []
    for n in range(6):
        builder.commit(_add("a", size=n) if n % 2 == 0 else Remove("a", True, n))
        if n == 2:
            builder.checkpoint(n + 1)
        snapshot = log.advance(snapshot)
        seen.append((_paths(snapshot), snapshot.size_bytes, snapshot.tombstones().num_rows))
    assert seen == [(["a"], n, 0) if n % 2 == 0 else ([], 0, 1) for n in range(6)]
    fresh = log.snapshot()
    assert (_paths(fresh), fresh.tombstones().num_rows) == ([], 1)


def test_files_nobody_asked_for_are_reconciled_later(builder: LogBuilder) -> None:
    builder.create()
    log = TableLog(builder.store)
    snapshot = log.snapshot()
    for n in range(150):
        builder.commit(_add("a", size=n), _add(f"f{n}") if n % 2 == 0 else Remove(f"f{n - 1}", True, n))
        if n % 3 == 0:
            builder.commit(Remove("a", True, n))
        snapshot = log.advance(snapshot)
    fresh = log.snapshot()
    assert _paths(snapshot) == _paths(fresh) == ["a"]
    assert snapshot.size_bytes == fresh.size_bytes == 149
    assert snapshot.tombstones().num_rows == fresh.tombstones().num_rows == 75


def test_moving_to_a_newer_checkpoint_does_not_read_it(builder: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "_REBASE_COMMITS", 5)
    builder.create()
    store = FaultStore(builder.store)
    log = TableLog(store)
    snapshot = log.snapshot()
    for version in range(1, 9):
        metadata = [Metadata("t", '{"type":"struct","fields":[]}', configuration={"k": "v"})] if version == 3 else []
        builder.commit(_add(f"f{version}"), *metadata)
        if version == 4:
            builder.checkpoint(version)
        snapshot = log.advance(snapshot)
        assert snapshot.metadata.configuration == ({"k": "v"} if version >= 3 else {})
    assert snapshot.segment.checkpoint is not None
    assert store.count("open_input") == 0
    assert _paths(snapshot) == [f"f{version}" for version in range(1, 9)]
    assert store.count("open_input") > 0


def test_a_subclass_stays_what_it_is(builder: LogBuilder) -> None:
    class Mine(Snapshot):
        pass

    builder.create()
    log = TableLog(builder.store, Mine)
    snapshot = log.snapshot()
    builder.commit(_add("a"))
    assert type(snapshot) is Mine
    assert type(log.advance(snapshot)) is Mine


def test_features_are_checked_for_the_version_that_is_read(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(_add("a"))
    log = TableLog(builder.store)
    before = log.snapshot()
    builder.commit(Protocol(3, 7, ("fromTheFuture",), ("fromTheFuture",)))
    builder.commit(Protocol(1, 2))
    for version, readable in ((0, True), (1, True), (2, False), (3, True)):
        if readable:
            assert log.snapshot(version).version == version
        else:
            with pytest.raises(UnsupportedFeatureError) as caught:
                log.snapshot(version)
            assert caught.value.context["features"] == ["fromTheFuture"]
    assert log.advance(before).version == 3


def test_exists_and_versions(builder: LogBuilder) -> None:
    log = TableLog(builder.store)
    assert not log.exists()
    for method in (log.latest_version, log.earliest_version, log.history, log.snapshot):
        with pytest.raises(TableNotFoundError):
            method()
    builder.create()
    for n in range(9):
        builder.commit(_add(f"f{n}"))
    builder.checkpoint(5, hint=False)
    assert (log.exists(), log.earliest_version(), log.latest_version()) == (True, 0, 9)
    builder.delete_commits(4)
    assert (log.exists(), log.earliest_version(), log.latest_version()) == (True, 5, 9)
    store = FaultStore(builder.store)
    assert TableLog(store).latest_version() == 9
    assert store.count("read_bytes", "*.json") == 0


# Commits


def test_commits(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(_add("a"), Txn("x", 1))
    builder.commit(Remove("a", True, 5), DomainMetadata("d", "{}"))
    log = TableLog(builder.store)
    read = list(log.commits(0, 2))
    assert [c.version for c in read] == [0, 1, 2]
    assert read[0].metadata is not None
    assert read[1].txns == (Txn("x", 1),)
    assert read[2].removes["path"].to_pylist() == ["a"]
    with pytest.raises(VersionNotFoundError):
        log.read_commit(3)
    several = log.commits(1, 5)
    assert [next(several).version, next(several).version] == [1, 2]
    with pytest.raises(VersionNotFoundError):
        next(several)


@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_a_log_without_protocol_or_metadata(builder: LogBuilder, missing: str) -> None:
    builder.commit(Metadata("x", '{"type":"struct","fields":[]}') if missing == "protocol" else Protocol(1, 2))
    with pytest.raises(ProtocolViolationError, match=missing):
        TableLog(builder.store).snapshot()


@pytest.mark.parametrize("damage", ["", "{", "nothing of the kind"])
def test_a_corrupt_commit_spoils_only_later_versions(builder: LogBuilder, damage: str) -> None:
    builder.create()
    builder.commit(_add("a"))
    builder.commit(_add("b"))
    builder.store.put(commit_path(2), damage.encode())
    log = TableLog(builder.store)
    with pytest.raises(CorruptLogError, match=r"00000000000000000002\.json"):
        log.snapshot()
    older = log.snapshot(1)
    assert _paths(older) == ["a"]
    with pytest.raises(CorruptLogError):
        log.advance(older)


def test_a_missing_commit(builder: LogBuilder) -> None:
    builder.create()
    for n in range(4):
        builder.commit(_add(f"f{n}"))
    builder.delete_commits(3, 2)
    log = TableLog(builder.store)
    with pytest.raises(LogGapError, match="Commit 2 "):
        log.snapshot()
    assert log.snapshot(1).version == 1


# Time


def _date(local: LogBuilder, version: int, timestamp_ms: int) -> None:
    path = Path(str(local.store.root)) / commit_path(version)
    os.utime(path, ns=(timestamp_ms * 1_000_000, timestamp_ms * 1_000_000))


def test_time_travel_by_file_times(local: LogBuilder) -> None:
    local.create()
    for n in range(4):
        local.commit(_add(f"f{n}"))
    # Version 2 is dated before version 1: it counts as a millisecond later.
    for version, timestamp_ms in enumerate([1000, 5000, 3000, 9000, 12_000]):
        _date(local, version, timestamp_ms)
    log = TableLog(local.store)
    expected = {1000: 0, 4999: 0, 5000: 1, 5001: 2, 8999: 2, 9000: 3, 11_999: 3, 12_000: 4}
    assert {ms: log.snapshot(timestamp_ms=ms).version for ms in expected} == expected
    assert log.snapshot().timestamp_ms == 12_000
    assert (log.snapshot(2).timestamp_ms, log.snapshot(2).recorded_timestamp_ms) == (5001, 3000)
    for outside in (0, 999, 12_001):
        with pytest.raises(TimestampOutOfRangeError) as caught:
            log.snapshot(timestamp_ms=outside)
        assert (caught.value.context["earliest_ms"], caught.value.context["latest_ms"]) == (1000, 12_000)
    with pytest.raises(InvalidRequestError):
        log.snapshot(version=1, timestamp_ms=1)


def _in_commit(timestamp_ms: int) -> CommitInfo:
    return CommitInfo({"inCommitTimestamp": timestamp_ms, "operation": "WRITE"})


def test_time_travel_by_in_commit_timestamps(local: LogBuilder) -> None:
    """Enabled in version 2: before it files tell the time, from then on the commits do."""
    local.create()
    local.commit(_add("a"))
    enabled = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": "50000",
    }
    metadata = Metadata("t", '{"type":"struct","fields":[]}', configuration=enabled)
    local.commit(_in_commit(50_000), Protocol(1, 7, None, ("inCommitTimestamp",)), metadata)
    for n in range(20):
        local.commit(_in_commit(60_000 + 1000 * n), _add(f"f{n}"))
    for version in range(23):
        _date(local, version, 1000 + version)
    store = FaultStore(local.store)
    log = TableLog(store)
    expected = {1000: 0, 1001: 1, 49_999: 1, 50_000: 2, 59_999: 2, 60_000: 3, 65_500: 8, 79_000: 22}
    assert {ms: log.snapshot(timestamp_ms=ms).version for ms in expected} == expected
    for outside in (999, 79_001):
        with pytest.raises(TimestampOutOfRangeError):
            log.snapshot(timestamp_ms=outside)
    assert (log.snapshot(5).timestamp_ms, log.snapshot(1).timestamp_ms) == (62_000, 1001)
    assert [e.timestamp_ms for e in log.history(2)] == [79_000, 78_000]
    local.checkpoint(22)
    assert log.snapshot().timestamp_ms == 79_000
    local.delete_commits(23)
    assert log.snapshot().timestamp_ms == log.snapshot().segment.version_file.modification_time_ms


# History


def test_history(builder: LogBuilder) -> None:
    builder.create()
    info = {
        "timestamp": 7, "operation": "WRITE", "operationParameters": {"mode": "Append"},
        "operationMetrics": {"numFiles": "1"}, "userMetadata": "why", "engineInfo": "me", "own": [1],
    }  # fmt: skip
    builder.commit(_add("a"), CommitInfo(info))
    builder.commit(_add('x{"commitInfo":{"operation":"FAKE"}}'))
    builder.store.put(commit_path(3), b' { "commitInfo" : {"operation":"SPACED"} }\n{"add":')
    log = TableLog(builder.store)
    newest, third, second, first = log.history()
    assert (newest.version, newest.operation) == (3, "SPACED")
    assert (third.operation, third.commit_info, third.operation_parameters) == (None, {}, {})
    assert second.commit_info == info
    assert (second.operation, second.operation_parameters, second.operation_metrics) == (
        "WRITE", {"mode": "Append"}, {"numFiles": "1"},
    )  # fmt: skip
    assert (second.user_metadata, second.engine_info) == ("why", "me")
    assert (first.version, first.operation) == (0, "CREATE TABLE")
    assert [e.version for e in log.history(2)] == [3, 2]
    assert log.history(0) == []
    # Actions a line does not hold may be spelled as null.
    nulls = b'{"commitInfo":null,"txn":{}}\n{"txn":null, "add" : null,"commitInfo":{"operation":"X"}}'
    builder.store.put(commit_path(4), nulls)
    assert log.history()[0].operation == "X"
    builder.store.delete(commit_path(4))
    builder.store.put(commit_path(3), b'{"commitInfo":{"operation":"CUT')
    with pytest.raises(CorruptLogError, match=r"00000000000000000003\.json"):
        log.history()


def test_history_reads_no_more_commits_than_asked_for(builder: LogBuilder) -> None:
    builder.create()
    for n in range(30):
        builder.commit(_add(f"f{n}"))
    store = FaultStore(builder.store)
    assert len(TableLog(store).history(3)) == 3
    assert store.counts() == {"list_from": 1, "read_bytes": 3}


# Transaction identifiers


def test_expired_transaction_identifiers_are_hidden(builder: LogBuilder) -> None:
    now_ms = time.time_ns() // 1_000_000
    builder.create(configuration={"delta.setTransactionRetentionDuration": "interval 1 hour"})
    builder.commit(Txn("old", 1, now_ms - 3_700_000), Txn("fresh", 2, now_ms - 60_000), Txn("undated", 3))
    for at_checkpoint in (False, True):
        if at_checkpoint:
            builder.checkpoint(1)
        snapshot = TableLog(builder.store).snapshot()
        assert dict(snapshot.txns) == {"fresh": 2, "undated": 3}
        assert {a: snapshot.txn_version(a) for a in ("old", "fresh", "undated", "never")} == {
            "old": None, "fresh": 2, "undated": 3, "never": None,
        }  # fmt: skip
        assert snapshot.txn_actions["fresh"].last_updated == now_ms - 60_000


def test_the_newest_version_of_an_app_wins_even_if_it_is_lower(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(Txn("a", 5), Txn("b", 1))
    builder.checkpoint(1)
    builder.commit(Txn("a", 3))
    snapshot = TableLog(builder.store).snapshot()
    assert dict(snapshot.txns) == {"a": 3, "b": 1}
    assert (snapshot.txn_version("a"), snapshot.txn_version("b")) == (3, 1)


def test_removed_domains_are_gone(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(DomainMetadata("d", "1"), DomainMetadata("e", "2"))
    builder.checkpoint(1)
    builder.commit(DomainMetadata("d", "1", removed=True))
    assert dict(TableLog(builder.store).snapshot().domain_metadata) == {"e": "2"}


def test_one_log_in_many_threads(builder: LogBuilder) -> None:
    builder.create()
    for n in range(40):
        builder.commit(_add(f"f{n}"))
    builder.checkpoint(30, row_group_rows=5)
    log = TableLog(builder.store)
    shared = log.snapshot()
    found: list[list[str]] = []

    def look() -> None:
        found.append(_paths(shared))
        found.append(_paths(log.snapshot()))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(paths == found[0] for paths in found)


# One application's identifier


@pytest.mark.parametrize("app_id", ["a", 'quo"te', "sla/sh", "umlaut ä", "back\\slash", "line\nbreak"])
@pytest.mark.parametrize("escape", [False, True])
def test_the_last_txn_is_found_however_its_id_is_spelled(builder: LogBuilder, app_id: str, escape: bool) -> None:
    builder.create()
    builder.commit(_add("x", tags={"txn": app_id}), Txn(app_id, 3, 7))
    builder.commit(_add("y"), Txn("other", 9))
    if escape:
        version = builder.commit(_add("z"))
        spelled = "".join(f"\\u{ord(c):04x}" for c in app_id)
        line = b'{"txn" : {"appId":"%s","version":4}}\n' % spelled.encode()
        builder.store.put(commit_path(version), b'{"commitInfo":{"txn":1}}\n\n' + line)
    log = TableLog(builder.store)
    assert log.last_txn(app_id) == log.snapshot().every_txn[app_id]
    assert log.last_txn("nobody") is None


def test_the_last_txn_may_lie_in_the_checkpoint_or_before_a_lower_one(builder: LogBuilder) -> None:
    builder.create()
    builder.commit(Txn("old", 1), Txn("new", 8))
    builder.checkpoint(1)
    builder.commit(_add("a"), Txn("new", 2))
    for hint in (True, False):
        if not hint:
            builder.store.delete("_delta_log/_last_checkpoint")
        log = TableLog(builder.store)
        assert log.last_txn("old") == Txn("old", 1)
        assert log.last_txn("new") == Txn("new", 2)
        assert log.last_txn("none") is None


def test_the_last_txn_is_found_without_reading_what_is_older(local: LogBuilder) -> None:
    local.create()
    for number in range(40):
        local.commit(_add(f"f{number}"), Txn("app", number))
    for version in range(1, 30):
        local.store.put(commit_path(version), b"damaged")
    assert TableLog(local.store).last_txn("app") == Txn("app", 39)


def test_the_last_txn_of_a_broken_log_is_an_error(local: LogBuilder) -> None:
    with pytest.raises(TableNotFoundError):
        TableLog(local.store).last_txn("app")
    local.create()
    for number in range(3):
        local.commit(_add(f"f{number}"), Txn("app", number))
    local.store.delete(commit_path(2))
    with pytest.raises(LogGapError):
        TableLog(local.store).last_txn("app")
