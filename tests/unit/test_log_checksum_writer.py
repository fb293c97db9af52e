"""Version checksums as written: derived from the one before, computed from the whole state, and never wrong."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.log.read.checksum_file import read_version_checksum
from delta_orch.log.upkeep.checksum_writer import compute_checksum, write_checksum
from delta_orch.protocol.paths import checksum_path
from delta_orch.protocol.version_checksum import VersionChecksum, parse_version_checksum, serialize_version_checksum
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore
from tests.harness.results import Snapshot
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew, write_checkpoint

ALWAYS = {
    "txnId", "numFiles", "tableSizeBytes", "numMetadata", "numProtocol", "metadata", "protocol", "setTransactions",
    "domainMetadata", "fileSizeHistogram",
}  # fmt: skip
OF_VECTORS = {"numDeletedRecordsOpt", "numDeletionVectorsOpt", "deletedRecordCountsHistogramOpt"}


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


def checked(table: DeltaTable) -> set[str]:
    """The fields of the newest version's checksum, all of which agree with its state."""
    fields = read_anew(table).validate().checked
    assert fields, "there is no checksum"
    return set(fields)


def sized_files(*sizes: int) -> pa.Table:
    files = day_files(*("1" for _ in sizes))
    index = files.schema.get_field_index("size")
    return files.set_column(index, files.schema.field(index), pa.array(sizes, pa.int64()))


def with_vectors(files: pa.Table, *deleted: int) -> pa.Table:
    vectors = [
        {"storage_type": "u", "path_or_inline_dv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": n, "size_in_bytes": 34,
         "cardinality": count}
        for n, count in enumerate(deleted)
    ]  # fmt: skip
    ids = [f"uab^-aqEH.-t@S}}K{{vb[*k^@{n}" for n in range(len(deleted))]
    for name, values in (("deletion_vector", vectors), ("dv_id", ids)):
        field = files.schema.field(name)
        files = files.set_column(files.schema.get_field_index(name), field, pa.array(values, field.type))
    return files


def commit(table: DeltaTable, *, adds: pa.Table | None = None, removes: pa.Table | None = None,
           txn: TxnId | None = None, domains: dict[str, str | None] | None = None) -> Snapshot:  # fmt: skip
    transaction = begin(table, read_anew(table), operation="TEST", txn=[txn] if txn else ())
    if adds is not None:
        transaction.add_files(adds)
    if removes is not None:
        transaction.remove_files(removes)
    for domain, text in (domains or {}).items():
        transaction.set_domain_metadata(domain, text or "", removed=text is None)
    transaction.commit()
    return read_anew(table)


def test_every_commit_gets_one(table: DeltaTable) -> None:
    create_table(table, "1", "2")
    assert checked(table) == ALWAYS
    for _ in range(3):
        append_days(table, read_anew(table), "3")
        assert checked(table) == ALWAYS
    checksum = read_version_checksum(table.store, 3)
    assert checksum is not None
    assert (checksum.num_files, checksum.table_size_bytes) == (5, 500)


def test_what_commits_change(table: DeltaTable) -> None:
    create_table(table, properties={"delta.feature.domainMetadata": "supported"})
    commit(table, adds=sized_files(0, 8191, 8192, 1 << 40), txn=TxnId("a", 1), domains={"d": "1", "e": "1"})
    checksum = read_version_checksum(table.store, 1)
    assert checksum is not None
    assert checksum.file_size_histogram is not None
    assert checksum.file_size_histogram.file_counts == (2, 1, *(0,) * 92, 1)
    assert checked(table) == ALWAYS
    commit(table, removes=read_anew(table).files().slice(1, 2), txn=TxnId("a", 2), domains={"e": None})
    assert checked(table) == ALWAYS
    transaction = begin(table, read_anew(table), operation="TEST")
    transaction.update_metadata(replace(read_anew(table).metadata, name="renamed"))
    transaction.commit()
    assert checked(table) == ALWAYS


def test_deletion_vectors_are_counted(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.enableDeletionVectors": "true"})
    assert checked(table) == ALWAYS | OF_VECTORS
    before = commit(table, adds=with_vectors(day_files("1", "2", "3"), 1, 9, 10)).files().sort_by("path")
    assert checked(table) == ALWAYS | OF_VECTORS
    checksum = read_version_checksum(table.store, 1)
    assert checksum is not None
    assert (checksum.num_deletion_vectors, checksum.num_deleted_records) == (3, 20)
    assert checksum.deleted_record_counts == (1, 2, 1, *(0,) * 7)
    commit(table, removes=before.slice(0, 2), adds=with_vectors(day_files("4"), 5))
    assert checked(table) == ALWAYS | OF_VECTORS


def test_the_time_of_the_commit_is_told(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.enableInCommitTimestamps": "true"})
    for _ in range(2):
        append_days(table, read_anew(table), "1")
        assert checked(table) == ALWAYS | {"inCommitTimestampOpt"}


def test_expired_identifiers_are_left_out(table: DeltaTable) -> None:
    create_table(table, properties={"delta.setTransactionRetentionDuration": "interval 1 second"})
    commit(table, adds=day_files("1"), txn=TxnId("old", 1))
    time.sleep(1.1)
    commit(table, adds=day_files("1"), txn=TxnId("new", 1))
    checksum = read_version_checksum(table.store, 2)
    assert checksum is not None
    assert [txn.app_id for txn in checksum.txns or ()] == ["new"]
    assert checked(table) == ALWAYS


def test_many_identifiers_are_not_repeated_with_every_commit(table: DeltaTable) -> None:
    create_table(table)
    transaction = begin(table, read_anew(table), operation="TEST", txn=[TxnId(f"{n}", 1) for n in range(101)])
    transaction.add_files(day_files("1"))
    transaction.commit()
    assert checked(table) == ALWAYS - {"setTransactions"}


# Where it cannot be told for certain


def read_fields(table: DeltaTable, version: int) -> VersionChecksum | None:
    return read_version_checksum(table.store, version)


def test_without_one_before_there_is_none_until_the_next_checkpoint(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.checkpointInterval": "4"})
    table.store.delete(checksum_path(0))
    for _ in range(5):
        append_days(table, read_anew(table), "1")
    assert [read_fields(table, version) is not None for version in range(6)] == [False, False, False, False, True, True]
    assert checked(table) == ALWAYS


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"numFiles": 1, "tableSizeBytes": 100, "numMetadata": 1, "numProtocol": 1}']
)
def test_one_that_does_not_fit_is_not_built_upon(table: DeltaTable, content: bytes) -> None:  # fmt: skip
    create_table(table, "1")
    table.store.put(checksum_path(0), content)
    append_days(table, read_anew(table), "1")
    assert read_fields(table, 1) is None
    assert read_anew(table).num_files == 2


def test_one_of_another_table_is_not_built_upon(table: DeltaTable) -> None:
    other = open_table(open_store(f"memory://{uuid.uuid4()}"))
    create_table(other, "1", "2")
    create_table(table, "1")
    table.store.put(checksum_path(0), other.store.read_bytes(checksum_path(0)))
    append_days(table, read_anew(table), "1")
    assert read_fields(table, 1) is None


def test_files_that_are_added_again_cannot_be_counted(table: DeltaTable) -> None:
    """As when files are given row ids or statistics that they lack."""
    snapshot = create_table(table, "1", "2")
    files = snapshot.files()
    index = files.schema.get_field_index("data_change")
    commit(table, adds=files.set_column(index, "data_change", pa.array([False, False])))
    assert read_anew(table).num_files == 2
    assert read_fields(table, 1) is None


def test_nothing_is_overwritten(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    before = table.store.read_bytes(checksum_path(0))
    assert not write_checksum(table.store, 0, replace(compute_checksum(snapshot), num_files=7))
    assert table.store.read_bytes(checksum_path(0)) == before


def test_a_checksum_that_cannot_be_written_does_not_fail_the_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultStore(open_store(tmp_path))
    table = open_table(store)
    snapshot = create_table(table, "1")
    store.forget_calls()
    store.at_call(3, "before", do=store.fail)
    assert append_days(table, snapshot, "1").version == 1
    assert store.calls[3].path == checksum_path(1)
    assert "Could not write the checksum of version 1" in caplog.text
    assert read_anew(table).num_files == 2


# From the whole state


def test_computed_and_derived_are_the_same(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "100"})
    commit(table, adds=with_vectors(sized_files(1, 20_000, 300_000), 1, 2, 300), txn=TxnId("a", 1))
    write_checkpoint(table, read_anew(table))
    commit(table, removes=read_anew(table).files().slice(1, 2), adds=sized_files(77))
    snapshot = open_table(table.store).snapshot()
    assert snapshot.checkpoint is not None
    derived = read_version_checksum(table.store, 2)
    computed = compute_checksum(snapshot)
    assert derived == replace(computed, txns=derived.txns if derived else None)
    assert derived is not None
    assert {t.app_id for t in derived.txns or ()} == {t.app_id for t in computed.txns or ()}


def test_the_state_of_a_checkpoint_whose_commit_is_gone(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2")
    write_checkpoint(table, snapshot)
    for name in ("json", "crc"):
        table.store.delete(f"_delta_log/{0:020d}.{name}")
    snapshot = open_table(table.store).snapshot()
    write_checksum(table.store, 0, compute_checksum(snapshot))
    assert checked(table) == ALWAYS - {"txnId"}


def test_content_comes_back_as_it_was(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.enableDeletionVectors": "true"})
    checksum = replace(compute_checksum(read_anew(table)), extra={"tomorrow": [1]}, all_files=({"path": "x"},))
    data = serialize_version_checksum(checksum)
    assert parse_version_checksum(data, "x.crc") == checksum
    assert None not in orjson.loads(data).values()


def test_a_checkpoint_counts_what_passes_by(tmp_path: Path) -> None:
    """Where nothing is near, versions with a checkpoint alone have a checksum, and nothing is decoded twice."""
    store = FaultStore(open_store(tmp_path))
    store.uri = "far://away"
    table = open_table(store)
    create_table(table, "1", properties={"delta.checkpointInterval": "3"})
    for _ in range(7):
        append_days(table, table.snapshot(), "1")
    assert [version for version in range(8) if read_fields(table, version) is not None] == [3, 6]
    assert table.snapshot(6).validate().checked
    assert table.snapshot(3).validate().checked


def test_a_v2_checkpoint_of_few_files_is_counted_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_orch.log.upkeep.checkpoint_writer.SIDECAR_ROWS", 4)
    monkeypatch.setattr("delta_orch.log.upkeep.sidecar_reuse._SMALL_ROWS", 2)
    for few, expected in ((100, [3, 6, 9]), (2, [3])):
        monkeypatch.setattr("delta_orch.log.upkeep.post_commit._FEW_FILES", few)
        store = FaultStore(open_store(tmp_path / str(few)))
        store.uri = "far://away"
        table = open_table(store)
        properties = {"delta.checkpointInterval": "3", "delta.checkpointPolicy": "v2"}
        create_table(table, *"12345", properties=properties)
        for _ in range(9):
            append_days(table, read_anew(table), "1")
        assert [version for version in range(10) if read_fields(table, version) is not None] == expected
        for version in expected:
            assert table.snapshot(version).validate().checked
