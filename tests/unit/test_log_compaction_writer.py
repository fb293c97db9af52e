"""Log compactions as written: what is in them, and that nobody reads anything else than the commits say."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError, VersionNotFoundError
from delta_orch.log.files.listing import list_log
from delta_orch.protocol.paths import commit_path, compaction_path
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from delta_orch.verbs.log_files import LogCompactionResult
from tests.harness.results import Snapshot
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew, write_checkpoint


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


def compact(table: DeltaTable, *versions: int | None) -> LogCompactionResult:
    return table.compact_log(*versions)


def described(snapshot: Snapshot) -> Any:
    return (
        snapshot.protocol, snapshot.metadata, snapshot.txn_actions, snapshot.domain_metadata, snapshot.timestamp_ms,
        snapshot.files().sort_by("path").to_pylist(), snapshot.tombstones().sort_by("path").to_pylist(),
    )  # fmt: skip


def busy_table(table: DeltaTable) -> Snapshot:
    properties = {"delta.checkpointInterval": "1000", "delta.feature.domainMetadata": "supported"}
    snapshot = create_table(table, "1", "2", "3", properties=properties)
    for version in range(1, 4):
        transaction = begin(table, snapshot, operation="TEST", txn=[TxnId("a", version), TxnId(f"b{version}", 1)])
        transaction.remove_files(snapshot.files().sort_by("path").slice(0, 1))
        transaction.add_files(day_files(f"x{version}", 'q"\\\n'))
        transaction.set_domain_metadata("kept", str(version))
        transaction.set_domain_metadata("gone", "x", removed=version == 3)
        transaction.commit()
        snapshot = read_anew(table)
    return snapshot


def test_it_says_what_the_commits_say(table: DeltaTable) -> None:
    before = busy_table(table)
    result = compact(table)
    assert (result.skipped, result.start_version, result.end_version) == (False, 0, 3)
    lines = [orjson.loads(line) for line in table.store.read_bytes(compaction_path(0, 3)).splitlines()]
    kinds = [next(iter(line)) for line in lines]
    assert sorted(kinds) == sorted(
        ["protocol", "metaData", *["txn"] * 4, *["domainMetadata"] * 2, *["add"] * 6, *["remove"] * 3]
    )
    assert {"domain": "gone", "configuration": "x", "removed": True} in [line.get("domainMetadata") for line in lines]
    assert [line["txn"]["version"] for line in lines if line.get("txn", {}).get("appId") == "a"] == [3]
    after = read_anew(table)
    assert [c.file.path for c in after.segment.compactions] == [result.path]
    assert described(after) == described(before)


def test_readers_really_take_it(table: DeltaTable) -> None:
    before = described(busy_table(table))
    compact(table)
    for version in range(4):
        table.store.put(commit_path(version), b"{}" if version < 3 else table.store.read_bytes(commit_path(3)))
    assert described(read_anew(table))[:4] == before[:4]
    assert described(read_anew(table))[5:] == before[5:]


def test_by_default_the_commits_since_the_last_checkpoint(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    assert compact(table) == LogCompactionResult(skipped=True)
    append_days(table, read_anew(table), "1")
    assert compact(table).skipped
    append_days(table, read_anew(table), "1")
    before = described(read_anew(table))
    assert (compact(table).start_version, compact(table).end_version) == (4, 5)
    assert described(read_anew(table)) == before


def test_one_that_is_there_stays(table: DeltaTable) -> None:
    busy_table(table)
    assert not compact(table, 1, 2).skipped
    first = table.store.read_bytes(compaction_path(1, 2))
    assert compact(table, 1, 2) == LogCompactionResult(True, 1, 2)
    assert table.store.read_bytes(compaction_path(1, 2)) == first


@pytest.mark.parametrize("versions", [(2, 2), (3, 1), (-1, 2), (0, 4), (0, -1)])
def test_ranges_that_are_none(table: DeltaTable, versions: tuple[int, int]) -> None:
    busy_table(table)
    with pytest.raises(InvalidRequestError):
        compact(table, *versions)
    assert not list_log(table.store).compactions


def test_commits_that_are_gone(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    table.store.delete(commit_path(1))
    with pytest.raises(VersionNotFoundError, match="Commit 1"):
        compact(table, 0, 3)
    assert not list_log(table.store).compactions


def test_commits_of_a_protocol_nobody_here_understands(table: DeltaTable) -> None:
    create_table(table, "1")
    for features in (["ofTomorrow"], ["appendOnly"]):
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
        table.store.put(commit_path(read_anew(table).version + 1), orjson.dumps({"protocol": protocol}))
    with pytest.raises(UnsupportedFeatureError, match="ofTomorrow"):
        compact(table)
    assert not list_log(table.store).compactions


def test_commits_with_nothing_in_them(table: DeltaTable) -> None:
    create_table(table, "1")
    for version in (1, 2):
        table.store.put(commit_path(version), b'{"commitInfo":{}}')
    assert compact(table, 1, 2).skipped
    assert table.store.head(compaction_path(1, 2)) is None


@pytest.mark.parametrize("interval, expected", [("4", [(1, 4), (5, 8), (11, 12)]), (None, []), ("10", [])])
def test_compactions_by_themselves(table: DeltaTable, interval: str | None, expected: list[tuple[int, int]]) -> None:
    """Every so many versions, and none across a checkpoint, behind which nobody would read it."""
    properties = {} if interval is None else {"delta_orch.logCompactionInterval": interval}
    create_table(table, "0", properties=properties)
    for version in range(1, 14):
        append_days(table, read_anew(table), str(version))
    found = [(c.start_version, c.end_version) for c in list_log(table.store).compactions]
    assert sorted(found) == expected
    for version in (4, 8, 12):
        assert table.snapshot(version).num_files == version + 1


def test_an_interval_that_is_none(table: DeltaTable) -> None:
    with pytest.raises(InvalidPropertyError, match="logCompactionInterval"):
        create_table(table, "0", properties={"delta_orch.logCompactionInterval": "1"})
