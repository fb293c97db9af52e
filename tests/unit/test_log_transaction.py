"""What a transaction writes, and what it refuses before it writes anything."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch._version import ENGINE_INFO
from delta_orch.errors import ConflictError, DeltaError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.protocol.actions import Protocol, Txn
from delta_orch.protocol.paths import commit_path
from delta_orch.protocol.types import STRING
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.table_builder import (
    WITH_DOMAINS,
    append_days,
    begin,
    begin_creation,
    create_table,
    day_files,
    new_metadata,
    read_anew,
    write_checkpoint,
)


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


def lines(table: DeltaTable, version: int) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in table.store.read_bytes(commit_path(version)).splitlines()]


def test_commit_info_comes_first_and_says_everything(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    transaction = begin(
        table,
        snapshot,
        operation="WRITE",
        operation_parameters={"mode": "Append", "partitionBy": ["day"]},
        user_metadata="by hand",
        commit_info={"dagster": {"run_id": "r1"}},
    )
    transaction.add_files(day_files("2"))
    transaction.set_operation_metrics({"numFiles": 1})
    result = transaction.commit()
    info = lines(table, 1)[0]["commitInfo"]
    assert isinstance(info.pop("timestamp"), int)
    assert uuid.UUID(info.pop("txnId"))
    assert info == {
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
        "operationMetrics": {"numFiles": "1"},
        "readVersion": 0,
        "isolationLevel": "WriteSerializable",
        "isBlindAppend": True,
        "effect": {"rowsAdded": 10, "rowsRemoved": 0, "rowsMoved": 0, "predicate": None},
        "engineInfo": ENGINE_INFO,
        "userMetadata": "by hand",
        "dagster": {"run_id": "r1"},
    }
    assert result.timestamp_ms == read_anew(table).recorded_timestamp_ms
    assert result.operation_metrics == {"numFiles": 1}


def test_blind_is_only_what_read_and_removed_nothing(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    stages = {
        "read_whole_table": lambda t: t.read_whole_table(),
        "read_where": lambda t: t.read_where(Comparison("=", Column(("day",)), Literal("1", STRING))),
        "read_partitions": lambda t: t.read_partitions(pa.table({"day": ["7"]})),
        "read_files": lambda t: t.read_files(snapshot.files(["path"])),
        "remove_files": lambda t: t.remove_files(snapshot.files()),
    }
    for stage in stages.values():
        transaction = begin(table, read_anew(table), operation="TEST")
        transaction.add_files(day_files("2"))
        stage(transaction)
        version = transaction.commit().version
        assert lines(table, version)[0]["commitInfo"]["isBlindAppend"] is False


def test_identifiers_are_recorded_with_their_time(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    append_days(table, snapshot, "1", txns=[TxnId("a", 3), TxnId("b", 0)])
    commit = table.log.read_commit(1)
    assert [(t.app_id, t.version) for t in commit.txns] == [("a", 3), ("b", 0)]
    info = commit.commit_info
    assert info is not None
    assert all(t.last_updated == info["timestamp"] for t in commit.txns)
    assert isinstance(commit.txns[0], Txn)


def test_stale_identifiers_are_known_before_any_work(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    append_days(table, snapshot, "1", txns=[TxnId("a", 3)])
    snapshot = read_anew(table)
    for version, stale in ((2, True), (3, True), (4, False)):
        transaction = begin(table, snapshot, operation="TEST", txn=[TxnId("a", version)])
        assert bool(transaction.stale_txns()) is stale
        result = transaction.commit() if stale else None
        assert result is None or (result.skipped and result.attempts == 0 and result.version == 1)
    assert begin(table, None, operation="TEST", txn=[TxnId("a", 1)]).stale_txns() == ()
    assert read_anew(table).version == 1


def test_one_stale_identifier_without_scope_skips_all(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    append_days(table, snapshot, "1", txns=[TxnId("a", 3)])
    result = append_days(table, read_anew(table), "1", txns=[TxnId("a", 3), TxnId("b", 1)])
    assert result.skipped
    assert read_anew(table).txns == {"a": 3}


def test_a_lower_version_after_all_can_be_recorded_by_nobody(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    append_days(table, snapshot, "1", txns=[TxnId("a", 3)])
    assert append_days(table, read_anew(table), "1", txns=[TxnId("a", 1)]).skipped
    append_days(table, read_anew(table), "1", txns=[TxnId("a", 4)])
    assert read_anew(table).txns == {"a": 4}


def test_removes_come_before_adds_and_keep_what_is_known(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=WITH_DOMAINS)
    transaction = begin(table, snapshot, operation="TEST")
    transaction.add_files(day_files("1"))
    transaction.remove_files(snapshot.files())
    transaction.set_domain_metadata("app", '{"x":1}')
    transaction.commit()
    written = lines(table, 1)
    assert [next(iter(line)) for line in written] == ["commitInfo", "domainMetadata", "remove", "add"]
    remove = written[2]["remove"]
    assert remove.pop("deletionTimestamp") == written[0]["commitInfo"]["timestamp"]
    assert remove == {
        "path": snapshot.files()["path"][0].as_py(),
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"day": "1"},
        "size": 100,
    }


def test_metadata_and_domains_change(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties=WITH_DOMAINS)
    transaction = begin(table, snapshot, operation="SET TBLPROPERTIES")
    transaction.update_metadata(replace(snapshot.metadata, configuration={"delta.checkpointInterval": "2"}))
    transaction.set_domain_metadata("app", "one")
    transaction.commit()
    transaction = begin(table, read_anew(table), operation="DROP DOMAIN")
    transaction.set_domain_metadata("app", "", removed=True)
    transaction.commit()
    assert lines(table, 2)[1]["domainMetadata"] == {"domain": "app", "configuration": "one", "removed": True}
    snapshot = read_anew(table)
    assert snapshot.properties.checkpoint_interval == 2
    assert snapshot.domain_metadata == {}
    assert table.store.head("_delta_log/00000000000000000002.checkpoint.parquet") is not None


REFUSED: dict[str, Any] = {
    "no columns": pa.table({"path": ["a"]}),
    "null path": day_files("1").set_column(0, "path", pa.nulls(1, pa.string())),
    "wrong type": day_files("1").set_column(3, "size", pa.array(["many"])),
    "null size": day_files("1").set_column(3, "size", pa.nulls(1, pa.int64())),
}


@pytest.mark.parametrize("files", REFUSED.values(), ids=REFUSED.keys())
def test_malformed_files_are_refused_when_staged(table: DeltaTable, files: pa.Table) -> None:
    transaction = begin(table, create_table(table, "1"), operation="TEST")
    with pytest.raises(InvalidRequestError):
        transaction.add_files(files)
    with pytest.raises(InvalidRequestError):
        transaction.remove_files(files)


def test_files_must_have_one_value_a_partition_column(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    for values in ([], [("day", "1"), ("hour", "2")]):
        files = day_files("1", "2")
        column = pa.array([[("day", "1")], values], files.schema.field("partition_values").type)
        transaction = begin(table, snapshot, operation="TEST")
        transaction.add_files(files.set_column(2, "partition_values", column))
        with pytest.raises(InvalidRequestError, match="one value for each partition column"):
            transaction.commit()
    assert read_anew(table).version == 0


def test_a_file_named_twice_is_refused(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    files = day_files("1")
    for stage in (
        lambda t: (t.add_files(files), t.add_files(files)),
        lambda t: (t.remove_files(snapshot.files()), t.remove_files(snapshot.files())),
        lambda t: (t.remove_files(snapshot.files()), t.add_files(snapshot.files())),
    ):
        transaction = begin(table, snapshot, operation="TEST")
        stage(transaction)
        with pytest.raises(InvalidRequestError, match="twice"):
            transaction.commit()
    assert read_anew(table).version == 0


def test_misuse_is_refused(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    with pytest.raises(InvalidRequestError, match="application id 'a' twice"):
        begin(table, snapshot, operation="TEST", txn=[TxnId("a", 1), TxnId("a", 2)])
    with pytest.raises(InvalidRequestError, match="isolation level"):
        begin(table, snapshot, operation="TEST", isolation_level="Chaos")
    transaction = begin(table, snapshot, operation="TEST")
    transaction.commit()
    with pytest.raises(InvalidRequestError, match="commits once"):
        transaction.commit()
    other = open_table(open_store(f"memory://{uuid.uuid4()}"))
    with pytest.raises(InvalidRequestError, match="needs metadata and protocol"):
        begin(other, None, operation="TEST").commit()
    with pytest.raises(InvalidRequestError, match="no files to remove"):
        begin_creation(other).remove_files(day_files("1"))
    assert not other.exists()


def test_a_table_that_this_release_cannot_write_is_refused_by_feature(table: DeltaTable) -> None:
    create_table(table, "1")
    protocol = Protocol(1, 7, None, ("catalogManaged", "domainMetadata"))
    line = orjson.dumps(
        {
            "protocol": {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": list(protocol.writer_features or ()),
            }
        }
    )
    table.store.put_if_absent(commit_path(1), line)
    with pytest.raises(UnsupportedFeatureError) as caught:
        begin(table, read_anew(table), operation="TEST")
    assert caught.value.context["features"] == ["catalogManaged"]


def test_a_table_that_nobody_could_write_is_not_created(table: DeltaTable) -> None:
    transaction = begin_creation(table, new_metadata())
    transaction.update_protocol(Protocol(1, 7, None, ("catalogManaged", "domainMetadata")))
    with pytest.raises(UnsupportedFeatureError):
        transaction.commit()
    assert not table.exists()


def test_a_failing_transaction_leaves_nothing(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    transaction = begin(table, snapshot, operation="TEST")
    transaction.update_metadata(replace(snapshot.metadata, configuration={"delta.checkpointInterval": "-3"}))
    with pytest.raises(DeltaError):
        transaction.commit()
    assert read_anew(table).version == 0


def test_a_commit_loads_no_pandas(tmp_path: Any) -> None:
    """It would cost a cold process more than the commit (`log.arrow_building`)."""
    script = (
        "import sys\n"
        "from delta_orch import DeltaTable\n"
        "from tests.harness.table_builder import append_days, create_table\n"
        f"table = DeltaTable({str(tmp_path / 't')!r})\n"
        "create_table(table, '1')\n"
        "for _ in range(11): append_days(table, table.snapshot(0), '1')\n"
        "assert table.snapshot().num_files == 12\n"
        "bad = {'pandas', 'pyspark', 'duckdb', 'dagster', 'airflow', 'polars'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_a_caller_adds_to_commit_info_must_be_json(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    with pytest.raises(InvalidRequestError, match="JSON"):
        begin(table, snapshot, operation="TEST", commit_info={"when": object()})
    for not_a_number in ({"n": float("nan")}, {"n": [{"deep": (1.0, float("-inf"))}]}):
        with pytest.raises(InvalidRequestError, match="JSON"):
            begin(table, snapshot, operation="TEST", commit_info=not_a_number)
    # What cannot be kept is refused; it was left out before.
    for taken in ("operation", "readVersion", "timestamp", "inCommitTimestamp", "engineInfo", "userMetadata"):
        with pytest.raises(InvalidRequestError, match=taken):
            begin(table, snapshot, operation="TEST", commit_info={taken: 9, "mine": 1})
    transaction = begin(
        table, snapshot, operation="TEST", operation_parameters={"huge": 2**70, "odd": {1, 2}}, commit_info={"n": 1.5}
    )
    transaction.commit()
    info = lines(table, 1)[0]["commitInfo"]
    assert info["operationParameters"]["huge"] == str(2**70)
    assert (info["readVersion"], info["n"]) == (0, 1.5)


@dataclass
class Login:
    password: str


def test_credentials_in_values_that_json_spells_otherwise_are_not_kept(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    info: dict[str, Any] = {
        "tuple": ({"password": "hunter2abc"}, "https://me:hunter2abc@host/x"),
        "dataclass": Login("hunter2abc"),
        "mine": {"list": [1]},
    }
    transaction = begin(table, snapshot, operation="TEST", commit_info=info)
    info["mine"]["password"] = "hunter2abc"  # what is said after that is not looked at any more
    transaction.commit()
    commit = lines(table, 1)[0]["commitInfo"]
    assert commit["tuple"] == [{"password": "***"}, "https://***@host/x"]
    assert (commit["dataclass"], commit["mine"]) == ({"password": "***"}, {"list": [1]})
    assert b"hunter2abc" not in table.store.read_bytes(commit_path(1))


def test_a_version_of_the_past_is_never_written_again(table: DeltaTable) -> None:
    """A writer that slept longer than the log is kept: the name after its version is free again."""
    old = create_table(table, "1", properties={"delta.logRetentionDuration": "interval 1 millisecond"})
    late = begin(table, old, operation="WRITE")
    late.add_files(day_files("9"))
    snapshot = old
    for _ in range(10):
        append_days(table, snapshot, "1")
        snapshot = table.snapshot()
    for version in range(10):
        table.store.delete(commit_path(version))
    time.sleep(0.01)
    with pytest.raises(ConflictError, match="is too old") as caught:
        late.commit()
    assert caught.value.retryable
    assert not table.log.has_version(1)
    assert append_days(table, read_anew(table), "9").version == 11


def test_an_idle_table_whose_log_is_one_checkpoint_can_be_written(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties={"delta.logRetentionDuration": "interval 1 millisecond"})
    write_checkpoint(table, snapshot)
    table.store.delete(commit_path(0))
    time.sleep(0.01)
    assert append_days(table, read_anew(table), "2").version == 1
    assert read_anew(table).num_files == 2
