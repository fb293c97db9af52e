"""Pairs of transactions that start from one snapshot: which of the second may follow the first, and which may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    AppendOnlyError,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainMetadataError,
    ConcurrentTransactionError,
    ConflictError,
    MetadataChangedError,
    ProtocolChangedError,
    UnsupportedFeatureError,
)
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.types import LONG, STRING
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.results import Snapshot, Transaction
from tests.harness.table_builder import WITH_DOMAINS, begin, create_table, day_files, read_anew

Stage = Callable[[Transaction, Snapshot], None]


def day_is(day: str) -> Expression:
    return Comparison("=", Column(("day",)), Literal(day, STRING))


def id_above(value: int) -> Expression:
    return Comparison(">", Column(("id",)), Literal(value, LONG))


def files_of(snapshot: Snapshot, day: str) -> pa.Table:
    files = snapshot.files()
    return files.filter(string_mask(files, day))


def string_mask(files: pa.Table, day: str) -> pa.Array:
    return pa.array([dict(values)["day"] == day for values in files["partition_values"].to_pylist()])


# What a transaction may do, staged on a snapshot of a table with one file for each of the days 1, 2 and 3.


def append(day: str) -> Stage:
    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        transaction.add_files(day_files(day))

    return stage


def replace_day(day: str) -> Stage:
    """Replace a partition, by a predicate."""

    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        transaction.read_where(day_is(day))
        transaction.remove_files(files_of(snapshot, day))
        transaction.add_files(day_files(day))

    return stage


def overwrite_partition(day: str) -> Stage:
    """Replace a partition, by its value (dynamic partition overwrite)."""

    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        transaction.read_partitions(pa.table({"day": pa.array([day])}))
        transaction.remove_files(files_of(snapshot, day))
        transaction.add_files(day_files(day))

    return stage


def delete_file(day: str) -> Stage:
    """Delete a file without having looked at anything else."""

    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        transaction.read_files(files_of(snapshot, day))
        transaction.remove_files(files_of(snapshot, day))

    return stage


def rewrite_where_id(minimum: int) -> Stage:
    """Rewrite rows by a predicate over a data column: what it reads is known by statistics only."""

    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        transaction.read_where(id_above(minimum))
        transaction.add_files(day_files("9"))

    return stage


def overwrite_all(transaction: Transaction, snapshot: Snapshot) -> None:
    transaction.read_whole_table()
    transaction.remove_files(snapshot.files())
    transaction.add_files(day_files("1"))


def compact(day: str) -> Stage:
    def stage(transaction: Transaction, snapshot: Snapshot) -> None:
        files = files_of(snapshot, day)
        transaction.read_files(files)
        transaction.remove_files(files, data_change=False)
        transaction.add_files(day_files(day, data_change=False))

    return stage


def set_property(transaction: Transaction, snapshot: Snapshot) -> None:
    transaction.update_metadata(replace(snapshot.metadata, configuration={"delta.appendOnly": "false"}))


def upgrade_protocol(transaction: Transaction, snapshot: Snapshot) -> None:
    transaction.update_protocol(Protocol(1, 7, None, ("appendOnly", "domainMetadata", "invariants")))


def set_domain(transaction: Transaction, snapshot: Snapshot) -> None:
    transaction.set_domain_metadata("app", "{}")


REBASES = [
    (append("1"), append("1")),
    (append("1"), append("4")),
    (append("1"), replace_day("1")),  # a blind append may be ordered after what it did not see
    (append("1"), overwrite_all),
    (append("1"), overwrite_partition("1")),
    (replace_day("1"), append("1")),
    (replace_day("1"), replace_day("2")),
    (overwrite_partition("1"), overwrite_partition("2")),
    (overwrite_partition("4"), overwrite_partition("5")),
    (delete_file("1"), delete_file("2")),
    (delete_file("1"), append("1")),
    (overwrite_partition("1"), delete_file("2")),
    (append("1"), compact("1")),
    (compact("1"), append("1")),
    (compact("1"), compact("2")),
    (compact("1"), replace_day("2")),
    (compact("1"), replace_day("1")),  # the rows it replaces have only moved
    (compact("1"), delete_file("1")),
    (compact("1"), overwrite_partition("1")),
    (compact("1"), overwrite_all),
    (replace_day("1"), compact("2")),
    (compact("1"), rewrite_where_id(0)),  # the same rows in other files
    (append("1"), set_property),
    (delete_file("1"), rewrite_where_id(100)),  # a `remove` carries no statistics, but the snapshot has them
    (set_domain, append("1")),
]

CONFLICTS = [
    (replace_day("1"), replace_day("1"), ConcurrentDeleteDeleteError),
    (replace_day("4"), replace_day("4"), ConcurrentAppendError),
    (overwrite_partition("1"), overwrite_partition("1"), ConcurrentDeleteDeleteError),
    (overwrite_partition("4"), overwrite_partition("4"), ConcurrentAppendError),
    (overwrite_partition("4"), replace_day("4"), ConcurrentAppendError),
    (replace_day("4"), overwrite_all, ConcurrentAppendError),
    (delete_file("1"), delete_file("1"), ConcurrentDeleteDeleteError),
    (delete_file("1"), replace_day("1"), ConcurrentDeleteDeleteError),
    (delete_file("1"), rewrite_where_id(5), ConcurrentDeleteReadError),
    (replace_day("1"), rewrite_where_id(5), ConcurrentAppendError),
    (delete_file("1"), compact("1"), ConcurrentDeleteDeleteError),
    (compact("1"), compact("1"), ConcurrentDeleteDeleteError),
    (set_property, append("1"), MetadataChangedError),
    (set_property, set_property, MetadataChangedError),
    (upgrade_protocol, upgrade_protocol, ProtocolChangedError),
    (upgrade_protocol, append("1"), ProtocolChangedError),
    (set_domain, set_domain, ConcurrentDomainMetadataError),
]


@pytest.fixture
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    return open_table(open_store(tmp_path_factory.mktemp("conflicts") / "table"))


def begin_stage(table: DeltaTable, snapshot: Snapshot, stage: Stage, **options: Any) -> Transaction:
    transaction = begin(table, snapshot, operation="TEST", **options)
    stage(transaction, snapshot)
    return transaction


def name_of(stage: object) -> str:
    return getattr(stage, "__qualname__", str(stage)).removesuffix(".<locals>.stage")


@pytest.mark.parametrize(("first", "second"), REBASES, ids=name_of)
def test_the_second_is_ordered_after_the_first(table: DeltaTable, first: Stage, second: Stage) -> None:
    snapshot = create_table(table, "1", "2", "3", properties=WITH_DOMAINS)
    late = begin_stage(table, snapshot, second)
    begin_stage(table, snapshot, first).commit()
    result = late.commit()
    assert (result.version, result.rebased_versions, result.attempts) == (2, (1,), 2)
    both = read_anew(table)
    alone = expected_files(first, second)
    assert sorted(dict(v)["day"] for v in both.files(["partition_values"])["partition_values"].to_pylist()) == alone


def expected_files(first: Stage, second: Stage) -> list[str]:
    """The days of the files after both, one after the other, with nobody else about."""
    table = open_table(open_store(f"memory://{id(first)}-{id(second)}-{name_of(first)}"))
    snapshot = create_table(table, "1", "2", "3", properties=WITH_DOMAINS)
    days = ["1", "2", "3"]
    for stage in (first, second):
        transaction = begin_stage(table, snapshot, stage)
        staged = transaction._staged
        for files, _ in staged.removes:
            for values in files["partition_values"].to_pylist():
                days.remove(dict(values)["day"])
        days += [dict(v)["day"] for files in staged.adds for v in files["partition_values"].to_pylist()]
    return sorted(days)


@pytest.mark.parametrize(("first", "second", "error"), CONFLICTS, ids=name_of)
def test_the_second_conflicts_with_the_first(
    table: DeltaTable, first: Stage, second: Stage, error: type[ConflictError]
) -> None:
    snapshot = create_table(table, "1", "2", "3", properties=WITH_DOMAINS)
    late = begin_stage(table, snapshot, second)
    begin_stage(table, snapshot, first).commit()
    with pytest.raises(error) as caught:
        late.commit()
    assert type(caught.value) is error
    assert caught.value.retryable
    context = caught.value.context
    assert (context["winning_version"], context["winning_operation"]) == (1, "TEST")
    # A snapshot tells two commits of one millisecond apart by one more.
    assert read_anew(table).timestamp_ms - context["winning_timestamp_ms"] in (0, 1)
    assert "(TEST, 2" in caught.value.problem
    assert read_anew(table).version == 1


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (replace_day("1"), ConcurrentAppendError),
        (overwrite_partition("1"), ConcurrentAppendError),
        (overwrite_all, ConcurrentAppendError),
        (rewrite_where_id(5), ConcurrentAppendError),
        (append("1"), None),
        (compact("1"), None),
        (replace_day("2"), None),
        (rewrite_where_id(100), None),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("by", ["property", "argument"])
def test_serializable_minds_blind_appends(
    table: DeltaTable, second: Stage, error: type[ConflictError] | None, by: str
) -> None:
    properties = {"delta.isolationLevel": "Serializable"} if by == "property" else {}
    snapshot = create_table(table, "1", "2", "3", properties=properties)
    options = {"isolation_level": "Serializable"} if by == "argument" else {}
    late = begin_stage(table, snapshot, second, **options)
    begin_stage(table, snapshot, append("1")).commit()
    if error is None:
        assert late.commit().version == 2
    else:
        with pytest.raises(error):
            late.commit()
        assert read_anew(table).version == 1


def test_an_append_by_a_writer_that_does_not_say_blind_counts_as_having_read(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, replace_day("1"))
    line = (
        b'{"add":{"path":"x.parquet","partitionValues":{"day":"1"},"size":1,"modificationTime":1,"dataChange":true}}\n'
    )
    table.store.put_if_absent("_delta_log/00000000000000000001.json", line)
    with pytest.raises(ConcurrentAppendError):
        late.commit()


def remove_line(snapshot: Snapshot, row: int) -> bytes:
    """A remove that says nothing but the path, as old writers leave it."""
    path = snapshot.files()["path"][row].as_py()
    return orjson.dumps({"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}) + b"\n"


@pytest.mark.parametrize(("read", "conflicts"), [("1", True), ("2", False), ("3", False)])
def test_a_remove_without_partition_values_is_looked_up_in_the_snapshot(
    table: DeltaTable, read: str, conflicts: bool
) -> None:
    snapshot = create_table(table, "1", "2")
    late = begin(table, snapshot, operation="TEST")
    late.read_partitions(pa.table({"day": pa.array([read])}))
    late.add_files(day_files(read))
    table.store.put_if_absent("_delta_log/00000000000000000001.json", remove_line(snapshot, 0))
    if not conflicts:
        assert late.commit().version == 2
        return
    with pytest.raises(ConcurrentDeleteReadError):
        late.commit()


def test_rows_that_were_read_are_followed_through_a_compaction(table: DeltaTable) -> None:
    """They are removed from a file that the snapshot never had."""
    snapshot = create_table(table, "1", "2")
    for stage, second in ((rewrite_where_id(5), "1"), (rewrite_where_id(5), "2")):
        late = begin_stage(table, snapshot, stage)
        begin_stage(table, read_anew(table), compact(second)).commit()
        assert late._rebased == []
        moved = read_anew(table)
        begin_stage(table, moved, delete_file(second)).commit()
        with pytest.raises(ConcurrentDeleteReadError, match="has read"):
            late.commit()
        snapshot = read_anew(table)


def test_snapshot_isolation_minds_only_what_is_written_twice(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2")
    late = begin_stage(table, snapshot, rewrite_where_id(5), isolation_level="SnapshotIsolation")
    begin_stage(table, snapshot, replace_day("1")).commit()
    assert late.commit().version == 2
    late = begin_stage(table, snapshot, replace_day("1"), isolation_level="SnapshotIsolation")
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()


def test_a_change_follows_rows_only_where_it_takes_all_that_moved(table: DeltaTable) -> None:
    """Of two files of a day that were merged, it removes one: the other's rows must stay."""
    snapshot = create_table(table, "1", "1", "2", "2")
    late = begin(table, snapshot, operation="TEST")
    one = files_of(snapshot, "1").slice(0, 1)
    late.read_files(one)
    late.remove_files(one)
    whole = begin(table, snapshot, operation="TEST")
    whole.read_partitions(pa.table({"day": pa.array(["2"])}))
    whole.remove_files(files_of(snapshot, "2"))
    whole.set_operation_metrics({"numRemovedFiles": 2, "numRemovedBytes": 200})
    both = begin_stage(table, snapshot, compact("1"))
    compact("2")(both, snapshot)
    both.commit()
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()
    assert whole.commit().operation_metrics == {"numRemovedFiles": 1, "numRemovedBytes": 100}
    assert [dict(v)["day"] for v in read_anew(table).files()["partition_values"].to_pylist()] == ["1"]


def test_rows_are_followed_through_one_compaction_after_the_other(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "1")
    late = begin_stage(table, snapshot, replace_day("1"))
    for _ in range(3):
        begin_stage(table, read_anew(table), compact("1")).commit()
    assert late.commit().rebased_versions == (1, 2, 3)
    assert read_anew(table).num_files == 1


def test_a_compaction_says_that_it_yields(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, compact("1"))
    begin_stage(table, snapshot, replace_day("1")).commit()
    with pytest.raises(ConcurrentDeleteDeleteError, match="changes no row yields"):
        late.commit()


def test_files_are_compared_by_canonical_path(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    add = b'{"add":{"path":"file:///data/x","partitionValues":{"day":"1"},"size":1,"modificationTime":1,"dataChange":true}}'
    table.store.put_if_absent("_delta_log/00000000000000000001.json", add + b"\n")
    snapshot = table.snapshot()
    late = begin(table, snapshot, operation="TEST")
    files = snapshot.files()
    late.remove_files(files.filter(pa.array([p.startswith("file:") for p in files["path"].to_pylist()])))
    remove = b'{"remove":{"path":"file:/data/x","partitionValues":{"day":"1"},"dataChange":true,"deletionTimestamp":1}}'
    table.store.put_if_absent("_delta_log/00000000000000000002.json", remove + b"\n")
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()


def test_all_winners_are_checked_not_only_the_first(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2")
    late = begin_stage(table, snapshot, replace_day("1"))
    for _ in range(5):
        begin_stage(table, read_anew(table), append("2")).commit()
    begin_stage(table, read_anew(table), replace_day("1")).commit()
    begin_stage(table, read_anew(table), append("2")).commit()
    with pytest.raises(ConflictError) as caught:
        late.commit()
    assert caught.value.context["winning_version"] == 6


def test_a_protocol_this_release_cannot_write_stops_the_transaction(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, append("1"))
    line = b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["x"],"writerFeatures":["x"]}}\n'
    table.store.put_if_absent("_delta_log/00000000000000000001.json", line)
    with pytest.raises(UnsupportedFeatureError):
        late.commit()
    assert not table.log.has_version(2)


def test_append_only_tables_keep_their_rows(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", properties={"delta.appendOnly": "true"})
    with pytest.raises(AppendOnlyError):
        begin_stage(table, snapshot, replace_day("1"))
    begin_stage(table, snapshot, compact("1")).commit()
    begin_stage(table, read_anew(table), append("1")).commit()
    assert read_anew(table).version == 2


# The same application id


def test_a_lower_version_of_the_same_application_conflicts(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, append("1"), txn=[TxnId("app", 2)])
    begin_stage(table, snapshot, append("1"), txn=[TxnId("app", 1)]).commit()
    with pytest.raises(ConcurrentTransactionError):
        late.commit()


@pytest.mark.parametrize("version", [2, 3])
def test_the_same_or_a_later_version_makes_it_a_skip(table: DeltaTable, version: int) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, append("1"), txn=[TxnId("app", 2)])
    begin_stage(table, snapshot, append("1"), txn=[TxnId("app", version)]).commit()
    result = late.commit()
    assert (result.skipped, result.version, result.skipped_txns) == (True, 1, (TxnId("app", 2),))
    assert read_anew(table).version == 1


@pytest.mark.parametrize(("other", "outcome"), [(2, "both"), (3, "skipped"), (1, "conflict")])
def test_ordered_identifiers_stand_beside_the_same_version_only(table: DeltaTable, other: int, outcome: str) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, append("1"), txn=[TxnId("order", 2, ordered=True)])
    begin_stage(table, snapshot, append("1"), txn=[TxnId("order", other, ordered=True)]).commit()
    if outcome == "conflict":
        with pytest.raises(ConcurrentTransactionError):
            late.commit()
    else:
        assert late.commit().skipped == (outcome == "skipped")
    assert read_anew(table).version == (2 if outcome == "both" else 1)


def test_a_skip_comes_before_a_conflict(table: DeltaTable) -> None:
    """Two runs of one step replace the same partition: the second has nothing to do, and no reason to fail."""
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, replace_day("1"), txn=[TxnId("app", 1)])
    begin_stage(table, snapshot, replace_day("1"), txn=[TxnId("app", 1)]).commit()
    assert late.commit().skipped


def test_scoped_identifiers_leave_out_what_another_run_has_committed(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2", "3")
    late = begin(
        table, snapshot, operation="TEST", txn=[TxnId(f"day-{day}", 1, scope=day_is(day)) for day in ("1", "2", "3")]
    )
    for day in ("1", "2", "3"):
        replace_day(day)(late, snapshot)
    late.set_operation_metrics({"numFiles": 3, "numOutputRows": 30, "numRemovedFiles": 3, "note": "kept"})
    begin_stage(table, snapshot, replace_day("2"), txn=[TxnId("day-2", 1, scope=day_is("2"))]).commit()
    result = late.commit()
    assert not result.skipped
    assert [txn.app_id for txn in result.skipped_txns] == ["day-2"]
    assert result.operation_metrics == {"numFiles": 2, "numOutputRows": 20, "numRemovedFiles": 2, "note": "kept"}
    commit = table.log.read_commit(2)
    assert [dict(v)["day"] for v in commit.adds["partition_values"].to_pylist()] == ["1", "3"]
    assert [dict(v)["day"] for v in commit.removes["partition_values"].to_pylist()] == ["1", "3"]
    assert sorted(txn.app_id for txn in commit.txns) == ["day-1", "day-3"]
    assert read_anew(table).num_files == 3


def test_a_dropped_scope_still_conflicts_outside_of_it(table: DeltaTable) -> None:
    snapshot = create_table(table, "1", "2")
    late = begin(table, snapshot, operation="TEST", txn=[TxnId(f"day-{d}", 1, scope=day_is(d)) for d in "12"])
    for day in ("1", "2"):
        replace_day(day)(late, snapshot)
    rival = begin(table, snapshot, operation="TEST", txn=[TxnId("day-2", 1, scope=day_is("2"))])
    replace_day("2")(rival, snapshot)
    replace_day("1")(rival, snapshot)
    rival.commit()
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()


def test_all_scopes_stale_is_a_skip(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, replace_day("1"), txn=[TxnId("day-1", 1, scope=day_is("1"))])
    begin_stage(table, snapshot, replace_day("1"), txn=[TxnId("day-1", 5, scope=day_is("1"))]).commit()
    assert late.commit().skipped


def test_a_cursor_that_follows_moves_once(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    late = begin_stage(table, snapshot, append("1"), txn=[TxnId("cursor", 9, follows=-1)])
    begin_stage(table, snapshot, append("1"), txn=[TxnId("cursor", 4, follows=-1)]).commit()
    with pytest.raises(ConcurrentTransactionError):
        late.commit()
    snapshot = read_anew(table)
    with pytest.raises(ConcurrentTransactionError):
        begin_stage(table, snapshot, append("1"), txn=[TxnId("cursor", 9, follows=3)]).commit()
    assert read_anew(table).version == 1
    begin_stage(table, snapshot, append("1"), txn=[TxnId("cursor", 9, follows=4)]).commit()
    assert begin_stage(table, read_anew(table), append("1"), txn=[TxnId("cursor", 9, follows=4)]).commit().skipped
    assert read_anew(table).txns == {"cursor": 9}
