"""Log cleanup: exactly what has expired goes, whatever is in the way stays readable."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    FileMissingInStoreError,
    LogGapError,
    StorageError,
    TimestampOutOfRangeError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.log.upkeep import post_commit, sidecar_reuse
from delta_orch.log.upkeep.log_cleanup import CleanupResult, clean_up_log
from delta_orch.storage.open import open_store
from delta_orch.testing import FailingStore, Moment, open_table
from delta_orch.testing.failing_store import StoreCall
from tests.harness.fault_store import FaultStore
from tests.harness.results import Snapshot
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew, write_checkpoint

DAY_S = 86_400
NOW = datetime(2026, 5, 20, 15, 30, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MIDNIGHT_S = datetime(2026, 5, 20, tzinfo=UTC).timestamp()
MONTH = {"delta.logRetentionDuration": "interval 30 days", "delta.checkpointInterval": "1000"}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return open_table(open_store(tmp_path))


def make(
    table: DeltaTable, days_old: Iterable[float], checkpoints: Iterable[int] = (), /, **properties: str
) -> Snapshot:
    """One version for each age, in days before the last midnight; all its files are of that age."""
    checkpoints = set(checkpoints)
    ages = list(days_old)
    snapshot = create_table(table, "0", properties={**MONTH, **properties})
    for version in range(1, len(ages)):
        append_days(table, snapshot, str(version))
        snapshot = read_anew(table)
        if version in checkpoints:
            write_checkpoint(table, snapshot)
    if 0 in checkpoints:
        write_checkpoint(table, table.snapshot(0))
    for version, age in enumerate(ages):
        date(table, f"{version:020d}.*", age)
    return read_anew(table)


def date(table: DeltaTable, pattern: str, days_old: float) -> None:
    seconds = MIDNIGHT_S - days_old * DAY_S
    for file in Path(table.store.uri.removeprefix("file://"), "_delta_log").glob(pattern):
        os.utime(file, (seconds, seconds))


def put(table: DeltaTable, name: str, days_old: float = 0, data: bytes = b"x") -> None:
    table.store.put(f"_delta_log/{name}", data)
    date(table, name, days_old)


def clean(table: DeltaTable, **options: Any) -> CleanupResult:
    return clean_up_log(table.log, read_anew(table), now_ms=NOW_MS, **options)


def versions(table: DeltaTable, suffix: str = ".json") -> list[int]:
    names = [f.path.rpartition("/")[2] for f in table.store.list_from("_delta_log")]
    return [int(name[:20]) for name in names if name[20:] == suffix]


def all_files(table: DeltaTable) -> set[str]:
    return {f.path for f in table.store.list_recursive("_delta_log")}


# What goes, and what stays


def test_what_lies_before_the_cut_off_checkpoint_goes(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (5, 12, 18, 30))
    before = read_anew(table).num_files
    result = clean(table)
    # Version 20 is of the cut-off day; the newest checkpoint that is not newer is 18.
    assert result.cut_off_ms == int((MIDNIGHT_S - 30 * DAY_S) * 1000)
    assert result.earliest_version == 18
    assert versions(table) == list(range(18, 50))
    assert versions(table, ".checkpoint.parquet") == [18, 30]
    assert versions(table, ".crc") == list(range(18, 50))
    assert len(result.paths) == 18 + 18 + 2
    assert read_anew(table).num_files == before
    assert [table.snapshot(version).num_files for version in range(18, 50)] == list(range(19, 51))


def test_a_commit_of_midnight_is_an_acceptable_cut_off(table: DeltaTable) -> None:
    make(table, (32, 31, 30, 29), (1, 2))
    assert clean(table).earliest_version == 2
    assert versions(table) == [2, 3]


def test_a_commit_right_after_midnight_is_not(table: DeltaTable) -> None:
    make(table, (32, 31, 30 - 1 / DAY_S, 29), (1, 2))
    assert clean(table).earliest_version == 1
    assert versions(table) == [1, 2, 3]


def test_the_time_of_day_does_not_count(table: DeltaTable) -> None:
    make(table, (32, 31, 30, 29), (1, 2))
    early = clean_up_log(table.log, read_anew(table), now_ms=int(MIDNIGHT_S * 1000), dry_run=True)
    late = clean_up_log(table.log, read_anew(table), now_ms=int((MIDNIGHT_S + DAY_S) * 1000) - 1, dry_run=True)
    assert early == late
    assert early.earliest_version == 2


@pytest.mark.parametrize("checkpoints", [(), (3,)])
def test_without_a_checkpoint_old_enough_nothing_goes(table: DeltaTable, checkpoints: tuple[int, ...]) -> None:
    make(table, (90, 60, 40, 1), checkpoints)
    before = all_files(table)
    result = clean(table)
    assert (result.paths, result.earliest_version) == ((), None)
    assert all_files(table) == before


def test_the_retention_is_the_tables(table: DeltaTable) -> None:
    make(table, (9, 8, 7, 6, 5), (1, 2, 3), **{"delta.logRetentionDuration": "interval 1 week"})
    assert clean(table).earliest_version == 2


def test_times_out_of_order_never_remove_more(table: DeltaTable) -> None:
    """A copied file counts as no older than the one before it."""
    make(table, (50, 10, 49, 48, 5), (2, 3))
    assert clean(table).paths == ()


def test_compactions_that_begin_before_the_checkpoint_go(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (18,))
    for start, end in ((0, 3), (10, 25), (18, 20), (19, 22)):
        put(table, f"{start:020d}.{end:020d}.compacted.json")
    clean(table)
    assert [f.path[-35:-15] for f in table.store.list_from("_delta_log") if "compacted" in f.path] == [f"{22:020d}"]


def test_other_files_are_left_alone(table: DeltaTable) -> None:
    make(table, (50, 49, 48, 1), (2,))
    others = ("_last_checkpoint.old", "notes.txt", "0.json", "00000000000000000000.json.bak", ".hidden", "x.crc")
    for name in others:
        put(table, name, 90)
    clean(table)
    assert {f"_delta_log/{name}" for name in others} <= all_files(table)
    assert versions(table) == [2, 3]


def test_a_dry_run_removes_nothing_and_tells_all(table: DeltaTable) -> None:
    make(table, (50, 49, 48, 1), (1, 2))
    before = all_files(table)
    planned = clean(table, dry_run=True)
    assert all_files(table) == before
    assert planned.dry_run
    done = clean(table)
    assert (done.paths, done.size_bytes) == (planned.paths, planned.size_bytes)
    assert before - all_files(table) == set(done.paths)
    assert clean(table).paths == ()


def test_a_damaged_checkpoint_stands_for_nothing(table: DeltaTable) -> None:
    make(table, (50, 49, 48, 47, 1), (1, 3))
    snapshot = read_anew(table)
    put(table, f"{3:020d}.checkpoint.parquet", 47, b"PAR1 but no more")
    assert clean_up_log(table.log, snapshot, now_ms=NOW_MS).earliest_version == 1
    assert versions(table) == [1, 2, 3, 4]


def test_a_checkpoint_that_its_checksum_contradicts_stands_for_nothing(table: DeltaTable) -> None:
    """Only the commits tell what it lacks."""
    make(table, range(50, 0, -1), (8, 15))
    name = f"_delta_log/{15:020d}.checkpoint.parquet"
    table.store.put(name, table.store.read_bytes(f"_delta_log/{8:020d}.checkpoint.parquet"))
    assert clean(table).earliest_version == 8
    table.store.delete(name)
    assert table.log.snapshot(15).num_files == 16


@pytest.mark.parametrize("lying", [(15,), (8, 15)])
def test_a_checkpoint_without_a_checksum_is_held_against_the_log(table: DeltaTable, lying: tuple[int, ...]) -> None:
    """The commits are all that tells what it lacks, and they would go."""
    make(table, range(50, 0, -1), (3, 8, 15))
    for checksum in (Path(table.store.uri.removeprefix("file://")) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    read = table.store.read_bytes
    for version in lying:
        table.store.put(
            f"_delta_log/{version:020d}.checkpoint.parquet", read(f"_delta_log/{3:020d}.checkpoint.parquet")
        )
    assert clean(table).earliest_version == (3 if 8 in lying else 8)
    assert versions(table) == list(range(3 if 8 in lying else 8, 50))


def test_a_checkpoint_that_forgets_an_identifier_stands_for_nothing(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (3, 8))
    commit = f"_delta_log/{5:020d}.json"
    txn = {"txn": {"appId": "step", "version": 7}}
    table.store.put(commit, table.store.read_bytes(commit) + b"\n" + orjson.dumps(txn))
    for checksum in (Path(table.store.uri.removeprefix("file://")) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    date(table, f"{5:020d}.json", 45)
    assert clean(table).earliest_version == 3
    table.store.delete(f"_delta_log/{8:020d}.checkpoint.parquet")
    assert table.log.snapshot(8).txns == {"step": 7}


def test_incomplete_checkpoints_go_with_their_versions(table: DeltaTable) -> None:
    make(table, (50, 49, 48, 1), (2,))
    put(table, f"{1:020d}.checkpoint.{1:010d}.{2:010d}.parquet", 49)
    put(table, f"{0:020d}.checkpoint.parquet", 49, b"")
    clean(table)
    assert all(int(path[11:31]) >= 2 for path in all_files(table) if path[11:31].isdigit())


# What readers are told


def test_what_is_gone_is_told_clearly(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (18,))
    clean(table)
    for version in (0, 10, 17):
        with pytest.raises(VersionNotFoundError, match="Versions 18 to 49 are there"):
            table.snapshot(version)
    with pytest.raises(TimestampOutOfRangeError, match="before the oldest version"):
        table.log.snapshot(timestamp_ms=int((MIDNIGHT_S - 45 * DAY_S) * 1000))
    assert table.log.snapshot(timestamp_ms=int((MIDNIGHT_S - 31.5 * DAY_S) * 1000)).version == 18
    with pytest.raises(VersionNotFoundError):
        table.log.read_commit(17)
    assert table.log.read_commit(18).version == 18
    assert table.history()[-1].version == 18


def test_a_history_that_is_read_meanwhile_has_what_is_left(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (18,))
    store = FailingStore(table.store)
    store.at(Moment.LOG_LIST, "after", do=lambda call: clean(table))
    assert [entry.version for entry in open_table(store).history()] == list(range(49, 17, -1))


def test_a_commit_that_is_listed_and_never_found_is_a_gap(table: DeltaTable) -> None:
    make(table, range(5, 0, -1))

    def lose(call: StoreCall) -> None:
        raise FileMissingInStoreError("Injected", path=call.path)

    store = FailingStore(table.store)
    store.at(Moment.COMMIT_READ, "before", do=lose, times=100)
    with pytest.raises(LogGapError, match="Commit 4"):
        open_table(store).history()


# Leftovers


def test_leftovers_of_killed_writers_go_once_they_are_old(table: DeltaTable) -> None:
    make(table, (5, 4))
    put(table, ".0123456789abcdef.tmp", 1.1)
    put(table, ".fedcba9876543210.tmp", 0.9)
    put(table, ".mine.tmp", 90)
    put(table, ".0000000000000000.tmp.keep", 90)
    table.store.put("_delta_log/_sidecars/.00112233445566aa.tmp", b"x")
    date(table, "_sidecars/.00112233445566aa.tmp", 2)
    assert set(clean(table).paths) == {
        "_delta_log/.0123456789abcdef.tmp", "_delta_log/_sidecars/.00112233445566aa.tmp"
    }  # fmt: skip
    assert versions(table) == [0, 1]


# V2 checkpoints and sidecars


@pytest.fixture
def small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_orch.log.upkeep.checkpoint_writer.SIDECAR_ROWS", 4)
    monkeypatch.setattr(sidecar_reuse, "_SMALL_ROWS", 2)


def sidecars(table: DeltaTable) -> set[str]:
    return {f.path for f in table.store.list_recursive("_delta_log/_sidecars")}


def test_sidecars_go_unless_a_checkpoint_refers_to_them(table: DeltaTable, small_sidecars: None) -> None:
    make(table, [50 - v / 10 for v in range(20)], (5, 9, 14), **{"delta.checkpointPolicy": "v2"})
    date(table, "_sidecars/*", 45)
    kept = read_anew(table)
    assert kept.checkpoint is not None
    table.store.put("_delta_log/_sidecars/orphan.parquet", b"x")
    date(table, "_sidecars/orphan.parquet", 45)
    table.store.put("_delta_log/_sidecars/young.parquet", b"x")
    date(table, "_sidecars/young.parquet", 0.9)
    clean(table)
    young = "_delta_log/_sidecars/young.parquet"
    assert sidecars(table) == {*kept.checkpoint.sidecar_paths, young}
    assert read_anew(table).num_files == 20
    assert table.snapshot(14).num_files == 15


def test_a_checkpoint_that_does_not_tell_its_sidecars_keeps_them_all(table: DeltaTable, small_sidecars: None) -> None:
    make(table, (50, 49, 48, 47), (1, 2), **{"delta.checkpointPolicy": "v2"})
    date(table, "_sidecars/*", 45)
    put(table, f"{3:020d}.checkpoint.00000000-0000-0000-0000-000000000000.json", 1, b"{")
    before = sidecars(table)
    clean_up_log(table.log, table.snapshot(2), now_ms=NOW_MS)
    assert sidecars(table) == before
    assert versions(table) == [2, 3]


@pytest.mark.parametrize("name", [".0123456789abcdef.tmp", ".x.parquet.crc", "_x", "a b.tmp", ".tmp"])
def test_a_sidecar_that_a_checkpoint_refers_to_stays_whatever_it_is_called(
    table: DeltaTable, small_sidecars: None, name: str
) -> None:
    snapshot = make(table, [50 - v / 10 for v in range(8)], **{"delta.checkpointPolicy": "v2"})
    write_checkpoint(table, snapshot)
    log = Path(table.store.uri.removeprefix("file://"), "_delta_log")
    checkpoint = read_anew(table).checkpoint
    assert checkpoint is not None
    manifest, sidecar = Path(log.parent, checkpoint.files.files[0].path), Path(checkpoint.sidecar_paths[0]).name
    manifest.write_text(manifest.read_text("utf-8").replace(sidecar, name.replace(" ", "%20")), "utf-8")
    (log / "_sidecars" / sidecar).rename(log / "_sidecars" / name)
    put(table, "_sidecars/.00112233445566aa.tmp", 45)
    for pattern in ("*", "_sidecars/*", "_sidecars/.*"):
        date(table, pattern, 45)
    result = clean(table)
    assert f"_delta_log/_sidecars/{name}" not in result.paths
    assert "_delta_log/_sidecars/.00112233445566aa.tmp" in result.paths
    assert read_anew(table).num_files == snapshot.num_files


def test_a_classic_name_is_left_for_readers_that_know_no_other(table: DeltaTable) -> None:
    make(table, range(50, 0, -1), (5, 18, 25), **{"delta.checkpointPolicy": "v2"})
    date(table, "_sidecars/*", 1)
    assert versions(table, ".checkpoint.parquet") == [5]
    clean(table)
    assert versions(table, ".checkpoint.parquet") == [25]
    for file in table.store.list_from("_delta_log"):
        if ".checkpoint." in file.path and file.path != f"_delta_log/{25:020d}.checkpoint.parquet":
            table.store.delete(file.path)
    snapshot = read_anew(table)
    assert snapshot.segment.checkpoint is not None
    assert snapshot.num_files == 50


# Protection


def protected(table: DeltaTable, before_version: int) -> None:
    snapshot = make(table, range(50, 0, -1), (5, 18, 30))
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkpointProtection"]}},
        {
            "metaData": {
                "id": snapshot.metadata.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": snapshot.metadata.schema_string,
                "partitionColumns": ["day"],
                "configuration": {**MONTH, "delta.requireCheckpointProtectionBeforeVersion": str(before_version)},
            }
        },
    ]
    table.store.put("_delta_log/00000000000000000050.json", b"\n".join(map(orjson.dumps, actions)))


def test_protected_history_does_not_go_in_part(table: DeltaTable) -> None:
    protected(table, 19)
    before = all_files(table)
    assert clean(table).paths == ()
    assert all_files(table) == before


def test_protected_history_goes_in_one_piece_commits_first(table: DeltaTable) -> None:
    protected(table, 18)
    result = clean(table)
    assert result.earliest_version == 18
    kinds = ["checkpoint" in path for path in result.paths]
    assert kinds == sorted(kinds)
    assert versions(table) == list(range(18, 51))


def test_a_table_that_must_not_be_written_is_not_cleaned_up(table: DeltaTable) -> None:
    make(table, (50, 49, 48), (1,))
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTomorrow"]}
    table.store.put("_delta_log/00000000000000000003.json", orjson.dumps({"protocol": protocol}))
    before = all_files(table)
    with pytest.raises(UnsupportedFeatureError):
        clean(table)
    assert all_files(table) == before


# Interrupted, and in company


@pytest.mark.long
def test_interrupted_anywhere_the_table_reads_and_the_next_cleanup_goes_on(
    tmp_path: Path, small_sidecars: None
) -> None:
    def fresh(name: str) -> FaultStore:
        store = FaultStore(open_store(tmp_path / name))
        make(open_table(store), [50 - v / 2 for v in range(16)], (3, 6, 9), **{"delta.checkpointPolicy": "v2"})
        date(open_table(store), "_sidecars/*", 40)
        store.forget_calls()
        return store

    rehearsal = fresh("rehearsal")
    clean(open_table(rehearsal))
    calls = list(rehearsal.calls)
    expected = sorted(
        path.rpartition("/")[2][:20] for path in all_files(open_table(rehearsal)) if "_sidecars" not in path
    )
    deletes = [call.number for call in calls if call.method in ("delete", "put_if_absent")]
    assert len(deletes) > 20
    for number in deletes:
        store = fresh(str(number))
        table = open_table(store)
        store.at_call(number, "before", do=store.fail)
        with pytest.raises(StorageError):
            clean(table)
        assert read_anew(table).num_files == 16
        for version in range(16):
            try:
                assert table.snapshot(version).num_files == version + 1
            except VersionNotFoundError:
                assert version < 9
        clean(table)
        left = sorted(path.rpartition("/")[2][:20] for path in all_files(table) if "_sidecars" not in path)
        assert left == expected
        assert len(sidecars(table)) == len(sidecars(open_table(rehearsal)))


def test_readers_and_writers_go_on_meanwhile(table: DeltaTable) -> None:
    make(table, range(60, 0, -1), (5, 12, 18, 30))
    # A checkpoint of the last old version would expire, too.
    append_days(table, read_anew(table), "9")
    stop, failures = threading.Event(), list[BaseException]()

    def work(act: Any) -> None:
        while not stop.is_set():
            try:
                act()
            except BaseException as e:
                failures.append(e)
                raise

    def read() -> None:
        snapshot = read_anew(table)
        assert snapshot.num_files == snapshot.version + 1

    threads = [threading.Thread(target=work, args=(act,)) for act in (read, lambda: append_days(table, read_anew(table), "9"))]  # noqa: E501  # fmt: skip
    for thread in threads:
        thread.start()
    for days in range(0, 60, 3):
        clean_up_log(table.log, read_anew(table), now_ms=NOW_MS + days * DAY_S * 1000)
        write_checkpoint(table, read_anew(table))
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert versions(table)[0] == 30
    assert read_anew(table).num_files == read_anew(table).version + 1


# After a commit


@pytest.fixture
def as_if_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_commit, "_cleaned_up", {})


def age_in_real_time(table: DeltaTable, end: int) -> None:
    for version in range(end):
        seconds = time.time() - (60 - version) * DAY_S
        for file in Path(table.store.uri.removeprefix("file://"), "_delta_log").glob(f"{version:020d}.*"):
            os.utime(file, (seconds, seconds))


@pytest.mark.parametrize(("enabled", "kept"), [("true", [3, 4, 5, 6]), ("false", [0, 1, 2, 3, 4, 5, 6])])
def test_a_checkpoint_is_followed_by_a_cleanup(
    table: DeltaTable, as_if_new_process: None, enabled: str, kept: list[int]
) -> None:
    create_table(table, properties={"delta.checkpointInterval": "3", "delta.enableExpiredLogCleanup": enabled})
    post_commit._cleaned_up.clear()
    for _ in range(4):
        append_days(table, read_anew(table), "1")
    post_commit._cleaned_up.clear()
    age_in_real_time(table, 5)
    for _ in range(2):
        append_days(table, read_anew(table), "1")
    assert versions(table) == kept


def test_once_a_day_is_enough(tmp_path: Path, as_if_new_process: None) -> None:
    store = FaultStore(open_store(tmp_path))
    table = open_table(store)
    create_table(table, properties={"delta.checkpointInterval": "2"})
    for _ in range(8):
        append_days(table, read_anew(table), "1")
    assert store.count("list_recursive") == 1


def test_a_failing_cleanup_does_not_fail_the_commit(
    tmp_path: Path, as_if_new_process: None, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultStore(open_store(tmp_path))
    table = open_table(store)
    create_table(table, properties={"delta.checkpointInterval": "1"})

    def fail_listing(call: Any) -> None:
        if call.method == "list_recursive":
            store.fail(call)

    for number in range(len(store.calls), len(store.calls) + 60):
        store.at_call(number, "before", do=fail_listing)
    assert append_days(table, read_anew(table), "1").version == 1
    assert "Could not clean up the log of version 1" in caplog.text
    assert read_anew(table).num_files == 1


def test_a_writer_whose_checkpoint_was_cleaned_up_loads_the_table_again(
    table: DeltaTable, as_if_new_process: None
) -> None:
    make(table, range(50, 45, -1), (1,), **{"delta.checkpointInterval": "6"})
    held = table.log.advance(table.snapshot(2))
    assert held.checkpoint is not None
    assert (held.version, held.checkpoint.version) == (4, 1)
    write_checkpoint(table, read_anew(table))
    date(table, f"{4:020d}.*", 46)
    clean(table)
    transaction = begin(table, held, operation="TEST")
    transaction.add_files(day_files("1"))
    assert transaction.commit().version == 5
    transaction = begin(table, held, operation="TEST")
    transaction.add_files(day_files("1"))
    assert transaction.commit().version == 6
    assert versions(table, ".checkpoint.parquet") == [4, 6]
    assert read_anew(table).num_files == 7
