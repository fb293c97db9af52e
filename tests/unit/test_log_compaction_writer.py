"""Log compactions as written: what is in them, and that nobody reads anything else than the commits say."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pytest

from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError, VersionNotFoundError
from delta_orch.log.files.listing import list_log
from delta_orch.log.files.txn import TxnId
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.paths import commit_path, compaction_path
from delta_orch.storage.open import open_store
from delta_orch.verbs.log_files import LogCompactionResult, compact_log
from tests.harness.table_builder import append_days, create_table, day_files, kept_log


@pytest.fixture
def log() -> TableLog:
    return kept_log(open_store(f"memory://{uuid.uuid4()}"))


def compact(log: TableLog, *versions: int | None) -> LogCompactionResult:
    return compact_log(log, log.snapshot(), *versions)


def described(snapshot: Snapshot) -> Any:
    return (
        snapshot.protocol, snapshot.metadata, snapshot.txn_actions, snapshot.domain_metadata, snapshot.timestamp_ms,
        snapshot.files().sort_by("path").to_pylist(), snapshot.tombstones().sort_by("path").to_pylist(),
    )  # fmt: skip


def busy_table(log: TableLog) -> Snapshot:
    properties = {"delta.checkpointInterval": "1000", "delta.feature.domainMetadata": "supported"}
    snapshot = create_table(log, "1", "2", "3", properties=properties)
    for version in range(1, 4):
        transaction = Transaction(log, snapshot, operation="TEST", txn=[TxnId("a", version), TxnId(f"b{version}", 1)])
        transaction.remove_files(snapshot.files().sort_by("path").slice(0, 1))
        transaction.add_files(day_files(f"x{version}", 'q"\\\n'))
        transaction.set_domain_metadata("kept", str(version))
        transaction.set_domain_metadata("gone", "x", removed=version == 3)
        transaction.commit()
        snapshot = log.snapshot()
    return snapshot


def test_it_says_what_the_commits_say(log: TableLog) -> None:
    before = busy_table(log)
    result = compact(log)
    assert (result.skipped, result.start_version, result.end_version) == (False, 0, 3)
    lines = [orjson.loads(line) for line in log.store.read_bytes(compaction_path(0, 3)).splitlines()]
    kinds = [next(iter(line)) for line in lines]
    assert sorted(kinds) == sorted(
        ["protocol", "metaData", *["txn"] * 4, *["domainMetadata"] * 2, *["add"] * 6, *["remove"] * 3]
    )
    assert {"domain": "gone", "configuration": "x", "removed": True} in [line.get("domainMetadata") for line in lines]
    assert [line["txn"]["version"] for line in lines if line.get("txn", {}).get("appId") == "a"] == [3]
    after = log.snapshot()
    assert [c.file.path for c in after.segment.compactions] == [result.path]
    assert described(after) == described(before)


def test_readers_really_take_it(log: TableLog) -> None:
    before = described(busy_table(log))
    compact(log)
    for version in range(4):
        log.store.put(commit_path(version), b"{}" if version < 3 else log.store.read_bytes(commit_path(3)))
    assert described(log.snapshot())[:4] == before[:4]
    assert described(log.snapshot())[5:] == before[5:]


def test_by_default_the_commits_since_the_last_checkpoint(log: TableLog) -> None:
    write_checkpoint(log, busy_table(log))
    assert compact(log) == LogCompactionResult(skipped=True)
    append_days(log, log.snapshot(), "1")
    assert compact(log).skipped
    append_days(log, log.snapshot(), "1")
    before = described(log.snapshot())
    assert (compact(log).start_version, compact(log).end_version) == (4, 5)
    assert described(log.snapshot()) == before


def test_one_that_is_there_stays(log: TableLog) -> None:
    busy_table(log)
    assert not compact(log, 1, 2).skipped
    first = log.store.read_bytes(compaction_path(1, 2))
    assert compact(log, 1, 2) == LogCompactionResult(True, 1, 2)
    assert log.store.read_bytes(compaction_path(1, 2)) == first


@pytest.mark.parametrize("versions", [(2, 2), (3, 1), (-1, 2), (0, 4), (0, -1)])
def test_ranges_that_are_none(log: TableLog, versions: tuple[int, int]) -> None:
    busy_table(log)
    with pytest.raises(InvalidRequestError):
        compact(log, *versions)
    assert not list_log(log.store).compactions


def test_commits_that_are_gone(log: TableLog) -> None:
    write_checkpoint(log, busy_table(log))
    log.store.delete(commit_path(1))
    with pytest.raises(VersionNotFoundError, match="Commit 1"):
        compact(log, 0, 3)
    assert not list_log(log.store).compactions


def test_commits_of_a_protocol_nobody_here_understands(log: TableLog) -> None:
    create_table(log, "1")
    for features in (["ofTomorrow"], ["appendOnly"]):
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
        log.store.put(commit_path(log.snapshot().version + 1), orjson.dumps({"protocol": protocol}))
    with pytest.raises(UnsupportedFeatureError, match="ofTomorrow"):
        compact(log)
    assert not list_log(log.store).compactions


def test_commits_with_nothing_in_them(log: TableLog) -> None:
    create_table(log, "1")
    for version in (1, 2):
        log.store.put(commit_path(version), b'{"commitInfo":{}}')
    assert compact(log, 1, 2).skipped
    assert log.store.head(compaction_path(1, 2)) is None


@pytest.mark.parametrize("interval, expected", [("4", [(1, 4), (5, 8), (11, 12)]), (None, []), ("10", [])])
def test_compactions_by_themselves(log: TableLog, interval: str | None, expected: list[tuple[int, int]]) -> None:
    """Every so many versions, and none across a checkpoint, behind which nobody would read it."""
    properties = {} if interval is None else {"delta_orch.logCompactionInterval": interval}
    create_table(log, "0", properties=properties)
    for version in range(1, 14):
        append_days(log, log.snapshot(), str(version))
    found = [(c.start_version, c.end_version) for c in list_log(log.store).compactions]
    assert sorted(found) == expected
    for version in (4, 8, 12):
        assert log.snapshot(version).num_files == version + 1


def test_an_interval_that_is_none(log: TableLog) -> None:
    with pytest.raises(InvalidPropertyError, match="logCompactionInterval"):
        create_table(log, "0", properties={"delta_orch.logCompactionInterval": "1"})
