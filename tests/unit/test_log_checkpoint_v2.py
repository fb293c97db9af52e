"""V2 checkpoints as written: what is in them, what is taken over from the one before, and what others see meanwhile."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import InvalidRequestError, ProtocolViolationError, StorageError
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.upkeep import sidecar_reuse
from delta_orch.protocol.last_checkpoint import checksum_json, parse_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, SIDECAR_DIRECTORY, checkpoint_path, commit_path
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment
from tests.harness.results import Snapshot
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew, write_checkpoint

V2 = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "1000"}


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


@pytest.fixture
def small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four actions fill a sidecar, and one with less than two is written again."""
    monkeypatch.setattr("delta_orch.log.upkeep.checkpoint_writer.SIDECAR_ROWS", 4)
    monkeypatch.setattr(sidecar_reuse, "_SMALL_ROWS", 2)


def named(table: DeltaTable, kind: str) -> list[str]:
    """Checkpoint files, by `uuid` or `classic` name."""
    names = [f.path.rpartition("/")[2] for f in table.store.list_from("_delta_log") if ".checkpoint." in f.path]
    return [name for name in names if (len(name) > len(f"{0:020d}.checkpoint.parquet")) is (kind == "uuid")]


def sidecars(table: DeltaTable) -> set[str]:
    return {f.path.rpartition("/")[2] for f in table.store.list_from(SIDECAR_DIRECTORY)}


def referred(table: DeltaTable) -> list[str]:
    checkpoint = read_anew(table).checkpoint
    assert checkpoint is not None
    return [sidecar.path for sidecar in checkpoint.sidecars]


def ensure_same_table(left: Snapshot, right: Snapshot) -> None:
    assert (left.version, left.protocol, left.metadata) == (right.version, right.protocol, right.metadata)
    assert left.txn_actions == right.txn_actions
    assert left.domain_metadata == right.domain_metadata
    columns = [name for name in ADD_SCHEMA.names if name != "data_change"]
    assert left.files(columns).sort_by("path").to_pylist() == right.files(columns).sort_by("path").to_pylist()
    names = ["path", "size", "deletion_timestamp"]
    assert left.tombstones(names).sort_by("path").to_pylist() == right.tombstones(names).sort_by("path").to_pylist()


def busy_table(table: DeltaTable, **properties: str) -> Snapshot:
    snapshot = create_table(table, "1", "2", "3", properties={**V2, **properties})
    transaction = begin(table, snapshot, operation="TEST", txn=[TxnId("a", 1), TxnId("b", 2)])
    transaction.remove_files(snapshot.files().slice(0, 1))
    transaction.add_files(day_files("4"))
    transaction.commit()
    return read_anew(table)


def test_the_policy_brings_the_feature(table: DeltaTable) -> None:
    snapshot = create_table(table, properties=V2)
    assert snapshot.protocol.reader_features == ("v2Checkpoint",)
    assert "v2Checkpoint" in (snapshot.protocol.writer_features or ())
    assert create_table(open_table(open_store(f"memory://{uuid.uuid4()}")), properties={"delta.checkpointPolicy": "classic"}).protocol.min_reader_version == 1  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("v2_format", ["json", "parquet"])
def test_a_checkpoint_holds_the_whole_table(table: DeltaTable, v2_format: Any) -> None:
    before = busy_table(table)
    write_checkpoint(table, before, v2_format=v2_format)
    (name,) = named(table, "uuid")
    assert name.endswith(v2_format)
    for version in (0, 1):
        table.store.delete(f"_delta_log/{version:020d}.json")
    after = read_anew(table)
    assert after.checkpoint is not None
    assert len(after.checkpoint.sidecars) == 2
    ensure_same_table(before, after)


@pytest.mark.parametrize("v2_format", ["json", "parquet"])
def test_a_checkpoint_of_another_version_is_none(table: DeltaTable, v2_format: Any) -> None:
    """Somebody has copied it under the name of this version."""
    write_checkpoint(table, busy_table(table), v2_format=v2_format)
    path = f"_delta_log/{named(table, 'uuid')[0]}"
    table.store.put(path.replace(f"{1:020d}", f"{2:020d}"), table.store.read_bytes(path))
    table.store.put(commit_path(2), b'{"commitInfo":{}}')
    with pytest.raises(ProtocolViolationError, match="of version 1"):
        read_anew(table)


def test_what_is_in_the_files(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    (name,) = named(table, "uuid")
    lines = [orjson.loads(line) for line in table.store.read_bytes(f"_delta_log/{name}").splitlines()]
    kinds = [next(iter(line)) for line in lines]
    assert kinds[:3] == ["checkpointMetadata", "metaData", "protocol"]
    assert sorted(kinds[3:]) == ["sidecar", "sidecar", "txn", "txn"]
    described = lines[0]["checkpointMetadata"]
    listed = [line["sidecar"] for line in lines if "sidecar" in line]
    total = sum(sidecar["sizeInBytes"] for sidecar in listed)
    assert described == {
        "version": 1,
        "tags": {"numOfAddFiles": "3", "sidecarNumActions": "4", "sidecarSizeInBytes": str(total)},
    }
    assert {sidecar["path"] for sidecar in listed} == sidecars(table)
    for sidecar in listed:
        file = table.store.head(f"{SIDECAR_DIRECTORY}/{sidecar['path']}")
        assert file is not None
        assert (file.size, file.modification_time_ms) == (sidecar["sizeInBytes"], sidecar["modificationTime"])
        assert pq.read_schema(table.store.open_input(file.path)).names == ["add", "remove"]


def test_the_pointer_repeats_the_checkpoint(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    data = table.store.read_bytes(LAST_CHECKPOINT_PATH)
    last = parse_last_checkpoint(data)
    assert orjson.loads(data)["checksum"] == checksum_json(data.decode())
    (name,) = named(table, "uuid")
    file = table.store.head(f"_delta_log/{name}")
    assert file is not None
    embedded = last.extra["v2Checkpoint"]
    assert (embedded["path"], embedded["sizeInBytes"], embedded["modificationTime"]) == (
        name, file.size, file.modification_time_ms,
    )  # fmt: skip
    lines = [orjson.loads(line) for line in table.store.read_bytes(file.path).splitlines()]
    assert embedded["nonFileActions"] == [line for line in lines if "sidecar" not in line]
    assert embedded["sidecarFiles"] == [line["sidecar"] for line in lines if "sidecar" in line]
    total = sum(sidecar["sizeInBytes"] for sidecar in embedded["sidecarFiles"])
    assert (last.version, last.num_of_add_files, last.size_in_bytes) == (1, 3, file.size + total)
    assert last.size == 4 + len(lines)


def test_what_is_long_is_not_repeated(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_orch.log.upkeep.checkpoint_writer._MAX_EMBEDDED_ACTIONS", 1)
    write_checkpoint(table, busy_table(table))
    assert set(parse_last_checkpoint(table.store.read_bytes(LAST_CHECKPOINT_PATH)).extra["v2Checkpoint"]) == {
        "path", "sizeInBytes", "modificationTime",
    }  # fmt: skip


def test_an_empty_table_needs_no_sidecar(table: DeltaTable) -> None:
    before = create_table(table, properties=V2)
    write_checkpoint(table, before)
    assert not sidecars(table)
    ensure_same_table(before, read_anew(table))


def test_writing_it_twice_changes_nothing(table: DeltaTable) -> None:
    snapshot = busy_table(table)
    write_checkpoint(table, snapshot)
    first = {f.path: table.store.read_bytes(f.path) for f in table.store.list_recursive()}
    write_checkpoint(table, read_anew(table))
    write_checkpoint(table, snapshot)
    assert {f.path: table.store.read_bytes(f.path) for f in table.store.list_recursive()} == first


def test_only_tables_with_the_feature_have_them(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    with pytest.raises(InvalidRequestError, match="V2"):
        write_checkpoint(table, snapshot, "v2")
    assert not named(table, "uuid")


def test_a_classic_checkpoint_of_such_a_table(table: DeltaTable) -> None:
    before = busy_table(table)
    write_checkpoint(table, before, "classic")
    assert not sidecars(table)
    assert named(table, "classic") == [f"{1:020d}.checkpoint.parquet"]
    ensure_same_table(before, read_anew(table))


# The copy by the classic name


def test_one_of_ten_checkpoints_has_a_copy_by_the_classic_name(table: DeltaTable) -> None:
    create_table(table, "1", properties={**V2, "delta.checkpointInterval": "2"})
    for _ in range(44):
        append_days(table, read_anew(table), "1")
    assert len(named(table, "uuid")) == 22
    assert [int(name[:20]) for name in named(table, "classic")] == [2, 22, 42]


def test_the_copy_says_the_same(table: DeltaTable) -> None:
    before = busy_table(table)
    write_checkpoint(table, before)
    (name,) = named(table, "uuid")
    table.store.delete(f"_delta_log/{name}")
    after = read_anew(table)
    assert after.checkpoint is not None
    assert after.checkpoint.files.files[0].path == checkpoint_path(1)
    ensure_same_table(before, after)


# Sidecars that are taken over


def appended(table: DeltaTable, *days: str) -> Snapshot:
    append_days(table, read_anew(table), *days)
    return read_anew(table)


def test_untouched_sidecars_are_taken_over(table: DeltaTable, small_sidecars: None) -> None:
    write_checkpoint(table, create_table(table, *"123456789", properties=V2))
    first = referred(table)
    assert len(first) == 3
    before = appended(table, "a")
    write_checkpoint(table, before)
    second = referred(table)
    # The one with a single file is written again, with the new one.
    assert second[:2] == first[:2]
    assert len(second) == 3
    assert len(sidecars(table)) == 4
    ensure_same_table(before, read_anew(table))


def removed(table: DeltaTable, row: int) -> Snapshot:
    snapshot = read_anew(table)
    transaction = begin(table, snapshot, operation="TEST")
    transaction.remove_files(snapshot.files().slice(row, 1))
    transaction.commit()
    return read_anew(table)


def test_a_sidecar_that_lost_a_file_is_written_again(table: DeltaTable, small_sidecars: None) -> None:
    write_checkpoint(table, create_table(table, *"12345678", properties=V2))
    first = referred(table)
    before = removed(table, 5)
    write_checkpoint(table, before)
    second = referred(table)
    assert first[0] in second
    assert first[1] not in second
    table.store.delete(f"_delta_log/{0:020d}.json")
    ensure_same_table(before, read_anew(table))


def test_a_removed_file_that_comes_back(table: DeltaTable, small_sidecars: None) -> None:
    """Its tombstone lies in a sidecar, which must not be taken over."""
    snapshot = create_table(table, *"12345678", properties=V2)
    files = snapshot.files()
    for row in (0, 0):
        removed(table, row)
    write_checkpoint(table, read_anew(table))
    transaction = begin(table, read_anew(table), operation="TEST")
    transaction.add_files(files.slice(0, 1))
    transaction.commit()
    before = read_anew(table)
    assert before.tombstones().num_rows == 1
    write_checkpoint(table, before)
    ensure_same_table(before, read_anew(table))


def with_vector(files: pa.Table, path: str) -> pa.Table:
    vector = {"storage_type": "u", "path_or_inline_dv": path, "offset": 1, "size_in_bytes": 4, "cardinality": 1}
    for name, value in (("deletion_vector", vector), ("dv_id", f"u{path}@1")):
        field = files.schema.field(name)
        files = files.set_column(files.schema.get_field_index(name), field, pa.array([value] * len(files), field.type))
    return files


def test_the_same_path_with_another_deletion_vector(table: DeltaTable, small_sidecars: None) -> None:
    snapshot = create_table(table, *"12345678", properties=V2)
    write_checkpoint(table, snapshot)
    first = referred(table)
    for text in ("ab", "cd"):
        # The second time the sidecar holds a vector that the commit replaces.
        snapshot = read_anew(table)
        victim = snapshot.files().sort_by("path").slice(0, 1)
        transaction = begin(table, snapshot, operation="DELETE")
        transaction.remove_files(victim)
        transaction.add_files(with_vector(victim, text))
        transaction.commit()
        before = read_anew(table)
        write_checkpoint(table, before)
        assert len(set(first) & set(referred(table))) == 1
        ensure_same_table(before, read_anew(table))


def test_expired_tombstones_are_not_taken_over(table: DeltaTable, small_sidecars: None) -> None:
    create_table(table, *"12345678", properties={**V2, "delta.deletedFileRetentionDuration": "interval 2 seconds"})
    for _ in range(4):
        removed(table, 0)
    write_checkpoint(table, read_anew(table))
    first = referred(table)
    assert len(first) == 2
    time.sleep(2.1)
    write_checkpoint(table, appended(table, "x"))
    assert read_anew(table).tombstones().num_rows == 0
    assert len(set(first) & set(referred(table))) == 1


def change_property(table: DeltaTable, key: str, value: str) -> Snapshot:
    from dataclasses import replace

    snapshot = read_anew(table)
    transaction = begin(table, snapshot, operation="TEST")
    configuration = {**snapshot.metadata.configuration, key: value}
    transaction.update_metadata(replace(snapshot.metadata, configuration=configuration))
    transaction.commit()
    return read_anew(table)


def test_other_columns_than_before(table: DeltaTable, small_sidecars: None) -> None:
    write_checkpoint(table, create_table(table, *"12345678", properties=V2))
    first = referred(table)
    before = change_property(table, "delta.checkpoint.writeStatsAsStruct", "true")
    write_checkpoint(table, before)
    assert not set(first) & set(referred(table))
    ensure_same_table(before, read_anew(table))
    second = referred(table)
    write_checkpoint(table, appended(table, "9"))
    # Types with parsed statistics and partition values are recognised again, too.
    assert set(second) <= set(referred(table))


def test_sidecars_that_may_soon_be_cleaned_up_are_not_taken_over(tmp_path: Path, small_sidecars: None) -> None:
    table = open_table(open_store(tmp_path))
    write_checkpoint(table, create_table(table, *"12345678", properties=V2))
    first = referred(table)
    old = time.time() - 29.5 * 86_400
    os.utime(tmp_path / f"_delta_log/{0:020d}.json", (old, old))
    before = appended(table, "9")
    write_checkpoint(table, before)
    assert not set(first) & set(referred(table))
    ensure_same_table(before, read_anew(table))


def test_the_number_of_sidecars_stays_in_proportion(table: DeltaTable, small_sidecars: None) -> None:
    create_table(table, "0", properties={**V2, "delta.checkpointInterval": "1"})
    for day in range(40):
        append_days(table, read_anew(table), str(day))
    assert read_anew(table).num_files == 41
    assert len(referred(table)) <= 41 / 2 + 1


# Failures


def failing_calls(table: FaultStore) -> Iterator[int]:
    yield from range(len(table.calls))


def test_every_call_of_a_checkpoint_may_fail(tmp_path: Path, small_sidecars: None) -> None:
    """Each once, before and after it took effect: the table reads, and the next attempt succeeds."""
    store = FaultStore(open_store(tmp_path / "rehearsal"))
    rehearsal = open_table(store)
    busy_table(rehearsal)
    snapshot = rehearsal.snapshot()
    store.forget_calls()
    write_checkpoint(rehearsal, snapshot)
    writes = [n for n, call in enumerate(store.calls) if call.method in ("put_if_absent", "put")]
    assert len(writes) == 5
    # What is read is a pointer and a checksum, which nothing depends on.
    for number, is_hint in enumerate([call.method == "read_bytes" for call in store.calls]):
        for when in ("before", "after"):
            store = FaultStore(open_store(tmp_path / f"{number}-{when}"))
            table = open_table(store)
            before = busy_table(table)
            store.forget_calls()
            store.at_call(number, when, do=store.fail if when == "before" else store.lose_answer)
            with nullcontext() if is_hint else pytest.raises(StorageError):
                write_checkpoint(table, before)
            ensure_same_table(before, read_anew(table))
            write_checkpoint(table, read_anew(table))
            ensure_same_table(before, read_anew(table))
            assert read_anew(table).checkpoint is not None


def test_two_writers_of_one_checkpoint(tmp_path: Path) -> None:
    store = FaultStore(open_store(tmp_path))
    table = open_table(store)
    before = busy_table(table)
    store.at(Moment.POINTER_PUT, "before", do=lambda call: write_checkpoint(open_table(store.inner), before))
    write_checkpoint(table, before)
    ensure_same_table(before, read_anew(table))
    assert parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH)).version == 1


def test_where_paths_lie_proves_as_much_as_looking_at_them(
    table: DeltaTable, small_sidecars: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of other days: the footers alone tell that sidecars are untouched."""
    write_checkpoint(table, create_table(table, *"12345678", properties=V2))
    first = referred(table)
    looked_at: list[int] = []
    real: Any = vars(sidecar_reuse)["live_mask"]

    def looking(*args: Any) -> Any:
        looked_at.append(1)
        return real(*args)

    monkeypatch.setattr(sidecar_reuse, "live_mask", looking)
    before = appended(table, "9")
    write_checkpoint(table, before)
    assert not looked_at
    assert set(first) <= set(referred(table))
    ensure_same_table(before, read_anew(table))
    before = appended(table, "2")
    write_checkpoint(table, before)
    assert looked_at
    ensure_same_table(before, read_anew(table))
