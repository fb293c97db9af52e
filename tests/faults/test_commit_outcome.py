"""Stores whose answers get lost, come twice or not at all."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from delta_orch.errors import (
    CommitOutcomeUnknownError,
    CommitRetriesExhaustedError,
    ConcurrentDeleteDeleteError,
    FileExistsInStoreError,
    StorageError,
)
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment, StoreCall
from tests.harness.results import Snapshot, Transaction
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(open_store(f"memory://{uuid.uuid4()}"))


@pytest.fixture
def snapshot(store: FaultStore) -> Snapshot:
    return create_table(open_table(store), "1")


def rival_appends(store: FaultStore, day: str = "2") -> None:
    """Another writer, by a way of its own."""
    table = open_table(store.inner)
    append_days(table, read_anew(table), day)


def begin_append(store: FaultStore, snapshot: Snapshot, **options: Any) -> Transaction:
    transaction = begin(open_table(store), snapshot, operation="WRITE", **options)
    transaction.add_files(day_files("3"))
    return transaction


def test_written_but_not_told(store: FaultStore, snapshot: Snapshot) -> None:
    store.at(Moment.COMMIT_PUT, "after", do=store.lose_answer)
    result = begin_append(store, snapshot).commit()
    assert (result.version, result.skipped, result.rebased_versions) == (1, False, ())
    assert open_table(store).snapshot().version == 1


def test_not_written_and_not_told(store: FaultStore, snapshot: Snapshot) -> None:
    store.at(Moment.COMMIT_PUT, "before", do=store.lose_answer, times=3)
    result = begin_append(store, snapshot).commit()
    assert (result.version, result.attempts) == (1, 4)
    assert open_table(store).snapshot().num_files == 2


def test_not_told_and_overtaken(store: FaultStore, snapshot: Snapshot) -> None:
    def lose_to_rival(call: StoreCall) -> None:
        rival_appends(store)
        store.lose_answer(call)

    store.at(Moment.COMMIT_PUT, "before", do=lose_to_rival)
    result = begin_append(store, snapshot).commit()
    assert (result.version, result.rebased_versions) == (2, (1,))
    assert open_table(store).snapshot().num_files == 3


def test_written_and_followed_by_others_before_the_answer_is_lost(store: FaultStore, snapshot: Snapshot) -> None:
    def follow_and_lose(call: StoreCall) -> None:
        rival_appends(store)
        store.lose_answer(call)

    store.at(Moment.COMMIT_PUT, "after", do=follow_and_lose)
    assert begin_append(store, snapshot).commit().version == 1
    assert open_table(store).snapshot().num_files == 3


def test_the_store_repeats_a_request_and_finds_its_own_commit(store: FaultStore, snapshot: Snapshot) -> None:
    """What a client library does on its own: the second request answers that the file exists."""

    def echo(call: StoreCall) -> None:
        raise FileExistsInStoreError("exists already", path=call.path)

    store.at(Moment.COMMIT_PUT, "after", do=echo)
    result = begin_append(store, snapshot).commit()
    assert (result.version, result.rebased_versions) == (1, ())
    assert open_table(store).snapshot().num_files == 2


def test_a_late_request_takes_effect_while_its_writer_tries_again(store: FaultStore, snapshot: Snapshot) -> None:
    """The first request seems lost, is read back as absent, and arrives just before the second."""
    transaction = begin_append(store, snapshot)
    late: list[bytes] = []

    def hold(call: StoreCall) -> None:
        late.append(transaction._serialize(1))
        store.lose_answer(call)

    def arrive(call: StoreCall) -> None:
        store.inner.put_if_absent(call.path, late[0])

    store.at(Moment.COMMIT_PUT, "before", do=hold)
    store.at(
        Moment.COMMIT_PUT, "before", do=lambda call: arrive(call) if late and call.number != first[0] else None, times=2
    )
    first = [len(store.calls)]
    assert transaction.commit().version == 1
    assert open_table(store).snapshot().num_files == 2


@pytest.mark.parametrize("moment", [Moment.COMMIT_HEAD, Moment.COMMIT_READ])
def test_a_lost_answer_that_cannot_be_read_back_is_said_to_be_unknown(
    store: FaultStore, snapshot: Snapshot, moment: Moment
) -> None:
    store.at(Moment.COMMIT_PUT, "after", do=store.lose_answer)
    store.at(moment, "before", do=store.fail)
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        begin_append(store, snapshot).commit()
    assert not caught.value.retryable
    assert caught.value.context["version"] == 1
    info = open_table(store).log.read_commit(1).commit_info
    assert info is not None
    assert caught.value.context["txn_id"] == info["txnId"]


def test_a_failure_after_a_lost_answer_stays_unknown(store: FaultStore, snapshot: Snapshot) -> None:
    """The second request certainly failed, but the first may still arrive."""
    store.at(Moment.COMMIT_PUT, "before", do=store.lose_answer)
    first = len(store.calls)

    def fail_second(call: StoreCall) -> None:
        if call.number > first:
            store.fail(call)

    store.at(Moment.COMMIT_PUT, "before", do=fail_second, times=2)
    with pytest.raises(CommitOutcomeUnknownError):
        begin_append(store, snapshot).commit()


def test_answers_lost_for_good_are_unknown_not_exhausted(store: FaultStore, snapshot: Snapshot) -> None:
    store.at(Moment.COMMIT_PUT, "before", do=store.lose_answer, times=99)
    with pytest.raises(CommitOutcomeUnknownError):
        begin_append(store, snapshot, max_attempts=3).commit()


def test_a_plain_failure_writes_nothing(store: FaultStore, snapshot: Snapshot) -> None:
    store.at(Moment.COMMIT_PUT, "before", do=store.fail)
    with pytest.raises(StorageError):
        begin_append(store, snapshot).commit()
    assert open_table(store).snapshot().version == 0
    begin_append(store, snapshot).commit()
    assert open_table(store).snapshot().version == 1


def test_a_failure_while_rebasing_is_certain(store: FaultStore, snapshot: Snapshot) -> None:
    """Version 1 was read and is another's; that version 2 cannot be looked at says nothing about our commit."""
    rival_appends(store)
    transaction = begin_append(store, snapshot)

    def fail_at_version_2(call: StoreCall) -> None:
        if call.path.endswith("2.json"):
            store.fail(call)

    store.at(Moment.COMMIT_HEAD, "before", do=fail_at_version_2, times=9)
    with pytest.raises(StorageError):
        transaction.commit()
    assert open_table(store.inner).snapshot().version == 1


def test_attempts_are_bounded(store: FaultStore, snapshot: Snapshot) -> None:
    store.at(Moment.COMMIT_PUT, "before", do=lambda call: rival_appends(store), times=99)
    with pytest.raises(CommitRetriesExhaustedError) as caught:
        begin_append(store, snapshot, max_attempts=5).commit()
    assert caught.value.retryable
    assert open_table(store.inner).snapshot().version == 5


def test_the_commit_path_lists_nothing_and_reads_each_winner_once(store: FaultStore, snapshot: Snapshot) -> None:
    for _ in range(4):
        rival_appends(store)
    transaction = begin_append(store, snapshot)
    store.forget_calls()
    assert transaction.commit().version == 5
    assert store.count("list_from") == 0
    assert store.count("read_bytes", "*.json") == 4
    assert store.count("head") == 5
    assert store.count("put_if_absent", "*.json") == 2


def test_an_uncontended_commit_is_one_request(store: FaultStore, snapshot: Snapshot) -> None:
    transaction = begin_append(store, snapshot)
    store.forget_calls()
    store.uri = "far://away"
    transaction.commit()
    assert [call.method for call in store.calls] == ["stage", "put_if_absent"]


def test_where_requests_cost_little_the_checksum_follows_the_commit(store: FaultStore, snapshot: Snapshot) -> None:
    transaction = begin_append(store, snapshot)
    store.forget_calls()
    transaction.commit()
    names = [(call.method, call.path.rpartition("/")[2].lstrip("0")) for call in store.calls]
    assert names == [
        ("stage", "_delta_log"), ("put_if_absent", "1.json"), ("read_bytes", ".crc"), ("put_if_absent", "1.crc"),
    ]  # fmt: skip


@pytest.mark.parametrize("moment", [Moment.CHECKPOINT_PUT, Moment.POINTER_PUT])
def test_a_failing_checkpoint_does_not_fail_the_commit(
    store: FaultStore, snapshot: Snapshot, moment: Moment, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table(store)
    for _ in range(9):
        append_days(table, read_anew(table), "2")
    store.at(moment, "before", do=store.fail)
    assert append_days(table, read_anew(table), "2").version == 10
    assert "Could not write the checkpoint of version 10" in caplog.text
    assert read_anew(table).num_files == 11
    append_days(table, read_anew(table), "2")
    assert read_anew(table).version == 11


def test_a_conflict_after_a_lost_answer_is_certain(store: FaultStore, snapshot: Snapshot) -> None:
    transaction = begin(open_table(store), snapshot, operation="DELETE")
    transaction.remove_files(snapshot.files())

    def lose_to_rival(call: StoreCall) -> None:
        rival = begin(open_table(store.inner), snapshot, operation="DELETE")
        rival.remove_files(snapshot.files())
        rival.commit()
        store.lose_answer(call)

    store.at(Moment.COMMIT_PUT, "before", do=lose_to_rival)
    with pytest.raises(ConcurrentDeleteDeleteError):
        transaction.commit()
