"""Many writers of one table at once, as threads and as processes."""

from __future__ import annotations

import multiprocessing
import threading
import traceback
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import MetadataChangedError
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.results import CommitResult, Transaction
from tests.harness.table_builder import (
    append_days,
    begin_creation,
    create_table,
    day_files,
    new_metadata,
    read_anew,
)

FORK = multiprocessing.get_context("fork")


def run_in_processes(count: int, work: Any) -> list[Any]:
    """The results of `work(number)` in that many forked processes that start together; fails where one raises."""
    barrier, results = FORK.Barrier(count), FORK.Queue()

    def run(number: int) -> None:
        barrier.wait()
        try:
            results.put((number, work(number), None))
        except BaseException:  # noqa: BLE001  whatever it is, the parent must hear of it
            results.put((number, None, traceback.format_exc()))

    processes = [FORK.Process(target=run, args=(n,)) for n in range(count)]
    for process in processes:
        process.start()
    found = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join()
    errors = [error for _, _, error in found if error is not None]
    assert not errors, "\n".join(errors)
    return [result for _, result, _ in sorted(found, key=lambda item: item[0])]


def test_eight_processes_of_fifty_appends(tmp_path: Path) -> None:
    """400 commits, none failed, contiguous versions, each file exactly once."""
    uri = str(tmp_path / "table")
    create_table(open_table(open_store(uri)))

    def work(number: int) -> list[int]:
        table = open_table(open_store(uri))
        snapshot = read_anew(table)
        versions = []
        for _ in range(50):
            snapshot = table.snapshot()
            versions.append(append_days(table, snapshot, f"{number}").version)
        return versions

    versions = run_in_processes(8, work)
    assert sorted(v for mine in versions for v in mine) == list(range(1, 401))
    assert all(mine == sorted(mine) for mine in versions)
    table = open_table(open_store(uri))
    snapshot = read_anew(table)
    assert snapshot.version == 400
    values = snapshot.files(["partition_values"])["partition_values"].to_pylist()
    assert Counter(dict(v)["day"] for v in values) == {f"{n}": 50 for n in range(8)}
    assert len(set(snapshot.files(["path"])["path"].to_pylist())) == 400
    replayed = [table.log.read_commit(version).adds.num_rows for version in range(1, 401)]
    assert replayed == [1] * 400
    assert not list((tmp_path / "table" / "_delta_log").glob(".*"))


@pytest.mark.parametrize("where", ["local", "memory"])
def test_threads_append(tmp_path: Path, where: str) -> None:
    table = open_table(open_store(tmp_path / "table" if where == "local" else f"memory://{uuid.uuid4()}"))
    snapshot = create_table(table)
    results: list[CommitResult] = []

    def work(number: int) -> None:
        for _ in range(20):
            results.append(append_days(table, snapshot, f"{number}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.version for r in results) == list(range(1, 121))
    assert read_anew(table).num_files == 120


def test_one_identifier_in_many_processes_commits_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    create_table(open_table(open_store(uri)))

    def work(number: int) -> bool:
        table = open_table(open_store(uri))
        return append_days(table, read_anew(table), "1", txns=[TxnId("step", 1)]).skipped

    assert sorted(run_in_processes(8, work)) == [False] + [True] * 7
    assert open_table(open_store(uri)).snapshot().num_files == 1


def test_of_versions_of_one_application_none_is_lost_or_doubled(tmp_path: Path) -> None:
    """Zombies and retries of several runs at once: whatever wins, the highest version ends up recorded, and every
    commit's file is there once."""
    uri = str(tmp_path / "table")
    create_table(open_table(open_store(uri)))

    def work(number: int) -> int:
        table = open_table(open_store(uri))
        committed = 0
        while True:
            try:
                result = append_days(table, read_anew(table), f"{number}", txns=[TxnId("step", number)])
            except Exception as e:
                if not getattr(e, "retryable", False):
                    raise
                continue
            committed += not result.skipped
            return committed

    committed = run_in_processes(6, work)
    snapshot = open_table(open_store(uri)).snapshot()
    assert snapshot.txns == {"step": 5}
    assert committed[5] == 1
    days = Counter(dict(v)["day"] for v in snapshot.files(["partition_values"])["partition_values"].to_pylist())
    assert days == {f"{n}": 1 for n in range(6) if committed[n]}


def test_first_writers_of_a_new_table_end_as_one_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")

    def work(number: int) -> tuple[int, bool]:
        table = open_table(open_store(uri))
        transaction = begin_creation(table, txns=[TxnId(f"writer-{number}", 1)])
        transaction.add_files(day_files(f"{number}"))
        result = transaction.commit()
        return result.version, result.skipped

    results = run_in_processes(8, work)
    assert sorted(results) == [(version, False) for version in range(8)]
    table = open_table(open_store(uri))
    snapshot = read_anew(table)
    assert snapshot.num_files == 8
    assert snapshot.txns == {f"writer-{n}": 1 for n in range(8)}
    commits = list(table.log.commits(0, 7))
    assert [c.metadata is not None for c in commits] == [True] + [False] * 7
    assert [c.protocol is not None for c in commits] == [True] + [False] * 7


# Create or join, step by step


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


def test_creating_a_table_that_was_just_created_alike_does_nothing(table: DeltaTable) -> None:
    late = begin_creation(table)
    create_table(table)
    result = late.commit()
    assert (result.skipped, result.version, result.skipped_txns) == (True, 0, ())
    assert read_anew(table).version == 0


def test_joining_keeps_the_first_table_and_adds_the_files(table: DeltaTable) -> None:
    late = begin_creation(table)
    late.add_files(day_files("2"))
    first = create_table(table, "1")
    result = late.commit()
    assert (result.version, result.rebased_versions) == (1, (0,))
    joined = read_anew(table)
    assert joined.metadata == first.metadata
    assert joined.num_files == 2


@pytest.mark.parametrize(
    ("metadata", "difference"),
    [
        (new_metadata(partition_columns=()), "partitioning"),
        (new_metadata(properties={"delta.appendOnly": "true"}), "properties"),
    ],
)
def test_joining_another_table_than_meant_is_refused(table: DeltaTable, metadata: Any, difference: str) -> None:
    late = begin_creation(table, metadata)
    create_table(table, "1")
    with pytest.raises(MetadataChangedError, match=difference) as caught:
        late.commit()
    assert caught.value.retryable
    assert read_anew(table).version == 0


def test_a_creation_whose_identifier_is_recorded_meanwhile_is_skipped(table: DeltaTable) -> None:
    late = begin_creation(table, txns=[TxnId("step", 3)])
    late.add_files(day_files("1"))
    rival = begin_creation(table, txns=[TxnId("step", 3)])
    rival.add_files(day_files("1"))
    rival.commit()
    assert late.commit().skipped
    assert read_anew(table).num_files == 1


def test_a_creation_joins_far_behind(table: DeltaTable) -> None:
    late = begin_creation(table)
    late.add_files(day_files("2"))
    snapshot = create_table(table, "1")
    for _ in range(12):
        append_days(table, snapshot, "1")
    assert late.commit().version == 13


def test_version_zero_of_an_old_table_is_never_written_again(table: DeltaTable) -> None:
    from delta_orch.errors import TableExistsError

    late = begin_creation(table)
    snapshot = create_table(table, "1")
    for _ in range(12):
        append_days(table, snapshot, "1")
    table.store.delete("_delta_log/00000000000000000000.json")
    with pytest.raises(TableExistsError):
        late.commit()
    assert not table.log.has_version(0)


def test_an_overwrite_that_creates_conflicts_with_another_one(table: DeltaTable) -> None:
    from delta_orch.errors import ConcurrentAppendError

    def begin() -> Transaction:
        transaction = begin_creation(table)
        transaction.read_whole_table()
        transaction.add_files(day_files("1"))
        return transaction

    late, first = begin(), begin()
    first.commit()
    with pytest.raises(ConcurrentAppendError):
        late.commit()
