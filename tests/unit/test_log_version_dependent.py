"""What of a commit depends on its version: in-commit timestamps, row ids, images of removed domains."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ConcurrentAppendError,
    InvalidPropertyError,
    InvalidRequestError,
    ProtocolChangedError,
    ProtocolViolationError,
)
from delta_orch.log.files.file_columns import record_counts
from delta_orch.log.write.commit_base import assign_row_ids
from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.arrow_building import bool_array, int64_array
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.open import open_store
from delta_orch.table.row_tracking import parse_high_water_mark, serialize_high_water_mark
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment
from tests.harness.results import Snapshot, Transaction
from tests.harness.table_builder import (
    WITH_DOMAINS,
    append_days,
    begin,
    begin_creation,
    create_table,
    day_files,
    new_metadata,
    read_anew,
)

TIMES = {"delta.enableInCommitTimestamps": "true"}
TRACKED = {"delta.enableRowTracking": "true"}
SUPPORTED = {"delta.feature.rowTracking": "supported"}


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(open_store(f"memory://{uuid.uuid4()}"))


@pytest.fixture
def table(store: FaultStore) -> DeltaTable:
    return open_table(store)


def lines(table: DeltaTable, version: int) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in table.store.read_bytes(commit_path(version)).splitlines()]


def info_of(table: DeltaTable, version: int) -> dict[str, Any]:
    first = lines(table, version)[0]
    assert list(first) == ["commitInfo"]
    found: dict[str, Any] = first["commitInfo"]
    return found


def in_commit_ms(table: DeltaTable, version: int) -> int:
    found: int = info_of(table, version)["inCommitTimestamp"]
    return found


def metadata_in(table: DeltaTable, version: int) -> dict[str, str]:
    (found,) = [line["metaData"]["configuration"] for line in lines(table, version) if "metaData" in line]
    configuration: dict[str, str] = found
    return configuration


# In-commit timestamps


def test_commits_carry_strictly_growing_times(table: DeltaTable, monkeypatch: Any) -> None:
    snapshot = create_table(table, "1", properties=TIMES)
    assert "delta.inCommitTimestampEnablementVersion" not in metadata_in(table, 0)
    now_ns = time.time_ns()
    # A clock that stands still, and one that is turned back.
    for shift in (0, 0, -10_000_000_000):
        monkeypatch.setattr(time, "time_ns", lambda shift=shift: now_ns + shift)
        result = append_days(table, read_anew(table), "2")
        assert result.timestamp_ms == in_commit_ms(table, result.version) == read_anew(table).timestamp_ms
    times = [in_commit_ms(table, version) for version in range(4)]
    assert times[1] == max(now_ns // 1_000_000, times[0] + 1)
    assert times[2:] == [times[1] + 1, times[1] + 2]
    assert snapshot.timestamp_ms == times[0]
    assert table.log.snapshot(timestamp_ms=times[2]).version == 2
    assert [entry.timestamp_ms for entry in table.history()] == times[::-1]


def test_times_follow_the_winner_on_rebase(table: DeltaTable, monkeypatch: Any) -> None:
    snapshot = create_table(table, "1", properties=TIMES)
    now_ns = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    late = begin(table, snapshot, operation="TEST")
    late.add_files(day_files("2"))
    ahead_ms = now_ns // 1_000_000 + 5_000
    line = orjson.dumps({"commitInfo": {"inCommitTimestamp": ahead_ms, "isBlindAppend": True}})
    table.store.put_if_absent(commit_path(1), line + b"\n")
    result = late.commit()
    assert (result.version, result.timestamp_ms, in_commit_ms(table, 2)) == (2, ahead_ms + 1, ahead_ms + 1)


@pytest.mark.parametrize("rivals", [0, 2])
def test_enabling_them_notes_since_when(store: FaultStore, table: DeltaTable, rivals: int) -> None:
    snapshot = create_table(table, "1")
    enable = begin(table, snapshot, operation="SET TBLPROPERTIES")
    features = ("appendOnly", "inCommitTimestamp", "invariants")
    enable.update_protocol(Protocol(1, 7, None, features))
    enable.update_metadata(replace(snapshot.metadata, configuration=TIMES))
    for _ in range(rivals):
        append_days(open_table(store.inner), open_table(store.inner).snapshot(), "1")
    version = enable.commit().version
    assert version == 1 + rivals
    before_ms = store.head(commit_path(version - 1)).modification_time_ms  # type: ignore[union-attr]
    assert in_commit_ms(table, version) > before_ms
    assert metadata_in(table, version) == {
        **TIMES,
        "delta.inCommitTimestampEnablementVersion": str(version),
        "delta.inCommitTimestampEnablementTimestamp": str(in_commit_ms(table, version)),
    }
    since = metadata_in(table, version)
    changed = read_anew(table).metadata
    again = begin(table, read_anew(table), operation="SET TBLPROPERTIES")
    again.update_metadata(replace(changed, configuration={**changed.configuration, "mine": "1"}))
    again.commit()
    assert metadata_in(table, version + 1) == {**since, "mine": "1"}


def test_a_lost_answer_tells_the_time_of_the_commit_that_took_effect(store: FaultStore, table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=TIMES)
    store.at(Moment.COMMIT_PUT, "after", do=store.lose_answer)
    result = append_days(table, snapshot, "1")
    assert (result.version, result.timestamp_ms) == (1, in_commit_ms(table, 1))


# Row ids


def ids_in(snapshot: Snapshot) -> list[tuple[int | None, int | None]]:
    files = snapshot.files(["base_row_id", "default_row_commit_version"])
    return sorted(zip(*(column.to_pylist() for column in files.columns), strict=True))


def mark_of(snapshot: Snapshot) -> int:
    return parse_high_water_mark(snapshot.domain_metadata.get("delta.rowTracking"))


@pytest.mark.parametrize("properties", [TRACKED, SUPPORTED], ids=["enabled", "supported"])
def test_files_get_ids_from_commit_to_commit(table: DeltaTable, properties: dict[str, str]) -> None:
    snapshot = create_table(table, "1", "2", properties=properties)
    assert (ids_in(snapshot), mark_of(snapshot)) == ([(0, 0), (10, 0)], 19)
    append_days(table, snapshot, "3")
    late = begin(table, snapshot, operation="TEST")
    late.add_files(day_files("4", "5"))
    assert late.commit().version == 2
    snapshot = read_anew(table)
    assert ids_in(snapshot) == [(0, 0), (10, 0), (20, 1), (30, 2), (40, 2)]
    assert mark_of(snapshot) == 49
    assert info_of(table, 2)["tags"] == {"delta.rowTracking.preserved": "true"}
    removal = begin(table, snapshot, operation="TEST")
    removal.remove_files(snapshot.files())
    removal.commit()
    assert not [line for line in lines(table, 3) if "domainMetadata" in line]
    removes = [line["remove"] for line in lines(table, 3) if "remove" in line]
    assert sorted((r["baseRowId"], r["defaultRowCommitVersion"]) for r in removes) == ids_in(snapshot)
    append_days(table, read_anew(table), "6")
    assert ids_in(read_anew(table)) == [(50, 4)]


def test_the_columns_of_copied_rows_get_names_once(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=TRACKED)
    names = {k: v for k, v in snapshot.metadata.configuration.items() if k.startswith("delta.rowTracking.")}
    assert sorted(names) == [
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        "delta.rowTracking.materializedRowIdColumnName",
    ]
    assert len(set(names.values())) == 2
    change = begin(table, snapshot, operation="TEST")
    change.update_metadata(replace(snapshot.metadata, configuration={**snapshot.metadata.configuration, "mine": "1"}))
    change.commit()
    assert read_anew(table).metadata.configuration == {**TRACKED, **names, "mine": "1"}


def test_two_creators_of_a_tracked_table_join(table: DeltaTable) -> None:
    late = begin_creation(table, new_metadata(properties=TRACKED))
    late.add_files(day_files("2"))
    first = create_table(table, "1", properties=TRACKED)
    assert late.commit().version == 1
    joined = read_anew(table)
    assert joined.metadata == first.metadata
    assert ids_in(joined) == [(0, 0), (10, 1)]


def test_suspended_tables_give_no_ids(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties={**SUPPORTED, "delta.rowTrackingSuspended": "true"})
    assert ids_in(snapshot) == [(None, None)]
    assert "delta.rowTracking" not in snapshot.domain_metadata
    assert "tags" not in info_of(table, 0)
    with pytest.raises(InvalidPropertyError, match="enabled and suspended"):
        create_table(
            open_table(open_store(f"memory://{uuid.uuid4()}")),
            "1",
            properties={**TRACKED, "delta.rowTrackingSuspended": "true"},
        )


def test_files_without_a_number_of_records_are_refused(table: DeltaTable) -> None:
    snapshot = create_table(table, properties=TRACKED)
    transaction = begin(table, snapshot, operation="TEST")
    transaction.add_files(day_files("1", ids=None))
    with pytest.raises(InvalidRequestError, match="how many records"):
        transaction.commit()
    assert read_anew(table).version == 0


def test_a_damaged_mark_stops_writers(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=TRACKED)
    for configuration in ("{}", "nonsense", '{"rowIdHighWaterMark":"7"}'):
        damage = begin(table, snapshot, operation="TEST")
        damage.set_domain_metadata("delta.rowTracking", configuration)
        damage.commit()
        snapshot = read_anew(table)
        with pytest.raises(ProtocolViolationError, match="row ids are taken"):
            append_days(table, snapshot, "2")
    assert read_anew(table).version == 3


def test_marks_of_other_writers() -> None:
    assert parse_high_water_mark('{"rowIdHighWaterMark":9,"domainName":"delta.rowTracking"}') == 9
    assert parse_high_water_mark('{"highWaterMark":7}') == 7
    assert parse_high_water_mark(None) == -1
    assert parse_high_water_mark(serialize_high_water_mark(3)) == 3


def test_ids_run_out() -> None:
    with pytest.raises(ProtocolViolationError, match="used up"):
        assign_row_ids([day_files("1")], (1 << 63) - 5, 1)


def test_files_added_again_keep_their_ids() -> None:
    files = day_files("1", "2", "3")
    kept = files.set_column(
        files.schema.get_field_index("base_row_id"), files.schema.field("base_row_id"), int64_array([None, 4, None])
    )
    kept = kept.set_column(
        kept.schema.get_field_index("default_row_commit_version"),
        files.schema.field("default_row_commit_version"),
        int64_array([None, 2, None]),
    )
    (assigned,), mark = assign_row_ids([kept], 99, 7)
    assert assigned["base_row_id"].to_pylist() == [100, 4, 110]
    assert assigned["default_row_commit_version"].to_pylist() == [7, 2, 7]
    assert mark == 119
    plain = files.select(["path", "partition_values", "size", "stats"])
    assert assign_row_ids([plain], -1, 0)[0][0]["base_row_id"].to_pylist() == [0, 10, 20]


@pytest.mark.parametrize("count", [3, 1000])
def test_record_counts_are_those_of_the_file_and_no_columns(count: int) -> None:
    stats = ['{"minValues":{"numRecords":7},"numRecords":12}', None, '{"numRecords":"x"}', "{}", '{"numRecords":5}']
    texts = (stats * count)[:count] if count > 3 else stats[:3]
    counts = record_counts(pa.table({"stats": pa.chunked_array([texts, texts], pa.string())})).to_pylist()
    expected = ([12, None, None, None, 5] * count)[:count] if count > 3 else [12, None, None]
    assert counts == expected * 2


TRACKING_PROTOCOL = Protocol(1, 7, None, ("appendOnly", "domainMetadata", "invariants", "rowTracking"))


def begin_tracking(table: DeltaTable, snapshot: Snapshot) -> Transaction:
    enable = begin(table, snapshot, operation="TEST")
    enable.update_protocol(TRACKING_PROTOCOL)
    enable.update_metadata(replace(snapshot.metadata, configuration=TRACKED))
    return enable


def with_ids_for_all(transaction: Transaction, snapshot: Snapshot) -> Transaction:
    transaction.read_files(snapshot.files())
    transaction.add_files(snapshot.files())
    return transaction


def test_enabling_needs_ids_for_all_rows(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2")
    with pytest.raises(InvalidRequestError, match="2 files of the table have no row ids yet"):
        begin_tracking(table, snapshot).commit()
    late = with_ids_for_all(begin_tracking(table, snapshot), snapshot)
    append_days(table, snapshot, "3")
    with pytest.raises(ConcurrentAppendError, match="without row ids"):
        late.commit()
    snapshot = read_anew(table)
    with_ids_for_all(begin_tracking(table, snapshot), snapshot).commit()
    tracked = read_anew(table)
    assert ids_in(tracked) == [(0, 2), (10, 2), (20, 2)]
    assert tracked.properties.enable_row_tracking
    assert tracked.num_files == 3


def test_writers_from_before_conflict_with_enabling(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    stale = begin(table, snapshot, operation="TEST")
    stale.add_files(day_files("3"))
    with_ids_for_all(begin_tracking(table, snapshot), snapshot).commit()
    with pytest.raises(ProtocolChangedError):
        stale.commit()


def test_ids_that_two_writers_give_to_one_file_are_given_once(table: DeltaTable) -> None:
    """Two backfills at once: the second finds its file described anew, and has to look again."""
    snapshot = create_table(table, "1", "2", properties=SUPPORTED)
    stripped = snapshot.files().drop_columns(["base_row_id", "default_row_commit_version", "data_change"])
    stripped = stripped.append_column("data_change", bool_array([False, False]))

    def begin_backfill(files: pa.Table) -> Transaction:
        transaction = begin(table, snapshot, operation="ROW TRACKING BACKFILL")
        transaction.read_files(files)
        transaction.add_files(files)
        return transaction

    both, second, other = (begin_backfill(part) for part in (stripped, stripped.slice(1), stripped.slice(0, 1)))
    second.commit()
    with pytest.raises(ConcurrentAppendError, match="again, as this one would"):
        both.commit()
    assert other.commit().version == 2
    assert ids_in(read_anew(table)) == [(20, 1), (30, 2)]


# Metadata domains


def test_the_image_of_a_removed_domain_is_that_of_the_version_before(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=WITH_DOMAINS)
    change = begin(table, snapshot, operation="TEST")
    change.set_domain_metadata("app", "one")
    change.commit()
    removal = begin(table, read_anew(table), operation="TEST")
    removal.set_domain_metadata("app", "", removed=True)
    removal.commit()
    assert lines(table, 2)[1]["domainMetadata"] == {"domain": "app", "configuration": "one", "removed": True}
    assert read_anew(table).domain_metadata == {}


def test_domains_need_their_feature(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    change = begin(table, snapshot, operation="TEST")
    change.set_domain_metadata("app", "one")
    with pytest.raises(InvalidRequestError, match="no metadata domains"):
        change.commit()


# Dry runs


def test_a_dry_run_writes_nothing_and_shows_everything(store: FaultStore, table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties={**TRACKED, **TIMES})
    store.forget_calls()
    transaction = begin(table, snapshot, operation="TEST", dry_run=True, operation_metrics={"mine": 3})
    transaction.add_files(day_files("2"))
    transaction.remove_files(snapshot.files())
    transaction.set_operation_metrics({"numFiles": 1})
    result = transaction.commit()
    assert not store.count("put_if_absent") and not store.count("stage") and not store.count("put")
    assert not table.log.has_version(1)
    preview = result.preview
    assert preview is not None
    assert (result.version, result.skipped, result.attempts, preview.version) == (1, False, 0, 1)
    assert result.operation_metrics == {"mine": 3, "numFiles": 1}
    assert [type(action).__name__ for action in preview.actions()] == ["CommitInfo", "DomainMetadata", "Remove", "Add"]
    assert [files.num_rows for files in (*preview.adds, *preview.removes)] == [1, 1]
