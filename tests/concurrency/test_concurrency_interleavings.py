"""Every interleaving of two commits, forced: a rival acts, or a writer is held, at each phase of a commit."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from itertools import product

import pytest

from delta_orch import TxnId
from delta_orch.errors import ConcurrentDeleteDeleteError, ConflictError
from delta_orch.protocol.paths import checkpoint_path
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment, When
from tests.harness.results import CommitResult, Snapshot, Transaction
from tests.harness.table_builder import append_days, begin, create_table, day_files, read_anew

PHASES = [
    (moment, when)
    for moment, when in product((Moment.COMMIT_PUT, Moment.COMMIT_HEAD, Moment.COMMIT_READ), ("before", "after"))
]


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FaultStore:
    where = f"memory://{uuid.uuid4()}" if request.param == "memory" else tmp_path_factory.mktemp("table")
    return FaultStore(open_store(where))


class Writer(threading.Thread):
    """A commit on a thread of its own; `outcome` is its result or its error."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__()
        self._transaction = transaction
        self.outcome: CommitResult | ConflictError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._transaction.commit()
        except ConflictError as e:
            self.outcome = e

    def result(self) -> CommitResult | ConflictError:
        self.join(timeout=60)
        assert self.outcome is not None, "the writer did not end"
        return self.outcome


def begin_append(store: FaultStore, snapshot: Snapshot, *txns: TxnId) -> Transaction:
    transaction = begin(open_table(store), snapshot, operation="WRITE", txn=txns)
    transaction.add_files(day_files("a"))
    return transaction


def begin_overwrite(store: FaultStore, snapshot: Snapshot) -> Transaction:
    transaction = begin(open_table(store), snapshot, operation="OVERWRITE")
    transaction.read_whole_table()
    transaction.remove_files(snapshot.files())
    transaction.add_files(day_files("o"))
    return transaction


def rival(store: FaultStore, *txns: TxnId) -> Callable[[object], None]:
    """Another writer that appends a file, by a way of its own."""

    def act(_: object) -> None:
        table = open_table(store.inner)
        append_days(table, read_anew(table), "r", txns=txns)

    return act


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("moment", "when"), PHASES)
def test_a_rival_appends_at_each_phase(store: FaultStore, moment: Moment, when: When, times: int) -> None:
    snapshot = create_table(open_table(store), "1")
    rival(store)(None)  # so that every phase of a rebase is reached
    transaction = begin_append(store, snapshot)
    store.at(moment, when, do=rival(store), times=times)
    result = transaction.commit()
    table = open_table(store.inner)
    final = read_anew(table)
    assert result.rebased_versions == tuple(range(1, result.version))
    assert final.num_files == final.version + 1
    committed = [table.log.read_commit(v) for v in range(1, final.version + 1)]
    mine = [c.version for c in committed if c.commit_info and c.commit_info["readVersion"] == 0]
    assert result.version in mine


@pytest.mark.parametrize(("moment", "when"), PHASES)
def test_a_rival_overwrites_at_each_phase(store: FaultStore, moment: Moment, when: When) -> None:
    """Wherever the rival's overwrite falls, ours either came first as a whole or conflicts as a whole."""
    snapshot = create_table(open_table(store), "1")
    rival(store)(None)
    transaction = begin_overwrite(store, snapshot)

    def overwrite(_: object) -> None:
        table = open_table(store.inner)
        begin_overwrite(FaultStore(store.inner), read_anew(table)).commit()

    store.at(moment, when, do=overwrite)
    try:
        transaction.commit()
        ours = 1
    except ConflictError:
        ours = 0
    log = open_table(store.inner).log
    commits = [log.read_commit(version) for version in range(log.latest_version() + 1)]
    overwrites = [c for c in commits if c.commit_info and c.commit_info["operation"] == "OVERWRITE"]
    assert len(overwrites) == ours + 1
    # Each file is removed at most once, and never before it was added.
    seen: set[str] = set()
    for commit in commits:
        removed = set(commit.removes["path"].to_pylist())
        assert removed <= seen
        seen = (seen - removed) | set(commit.adds["path"].to_pylist())
    assert seen == set(open_table(store.inner).snapshot().files(["path"])["path"].to_pylist())


@pytest.mark.parametrize(("moment", "when"), PHASES)
def test_a_rival_records_the_same_identifier_at_each_phase(store: FaultStore, moment: Moment, when: When) -> None:
    snapshot = create_table(open_table(store), "1")
    rival(store)(None)
    txn = TxnId("step", 1)
    transaction = begin_append(store, snapshot, txn)
    store.at(moment, when, do=rival(store, txn))
    transaction.commit()
    final = open_table(store.inner).snapshot()
    assert final.txns == {"step": 1}
    assert final.num_files == 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_writers_at_the_same_version(store: FaultStore, order: tuple[int, int]) -> None:
    """Both stand right before the creation of version 1; whoever is let go first gets it."""
    snapshot = create_table(open_table(store), "1")
    views = [FaultStore(store.inner), FaultStore(store.inner)]
    gates = [view.gate(Moment.COMMIT_PUT, "before") for view in views]
    writers = [Writer(begin_append(view, snapshot)) for view in views]
    for gate in gates:
        gate.wait_until_reached()
    versions = {}
    for number in order:
        gates[number].open()
        outcome = writers[number].result()
        assert isinstance(outcome, CommitResult)
        versions[number] = outcome.version
    assert [versions[number] for number in order] == [1, 2]
    assert open_table(store).snapshot().num_files == 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_overwrites_at_the_same_version_one_wins(store: FaultStore, order: tuple[int, int]) -> None:
    snapshot = create_table(open_table(store), "1")
    views = [FaultStore(store.inner), FaultStore(store.inner)]
    gates = [view.gate(Moment.COMMIT_PUT, "before") for view in views]
    writers = [Writer(begin_overwrite(view, snapshot)) for view in views]
    for gate in gates:
        gate.wait_until_reached()
    for number in order:
        gates[number].open()
        writers[number].join(timeout=60)
    first, second = writers[order[0]].result(), writers[order[1]].result()
    assert isinstance(first, CommitResult)
    assert isinstance(second, ConcurrentDeleteDeleteError)
    assert open_table(store).snapshot().version == 1


def test_two_writers_let_go_at_once(store: FaultStore) -> None:
    for _ in range(10):
        snapshot = open_table(store).snapshot() if open_table(store).exists() else create_table(open_table(store), "1")
        views = [FaultStore(store.inner), FaultStore(store.inner)]
        gates = [view.gate(Moment.COMMIT_PUT, "before") for view in views]
        writers = [Writer(begin_overwrite(view, snapshot)) for view in views]
        for gate in gates:
            gate.wait_until_reached()
        for gate in gates:
            gate.open()
        outcomes = [writer.result() for writer in writers]
        assert sorted(type(o).__name__ for o in outcomes) == ["CommitResult", "ConcurrentDeleteDeleteError"]
        assert open_table(store).snapshot().num_files == 1


def test_a_writer_stuck_before_its_checkpoint_disturbs_nobody(store: FaultStore) -> None:
    table = open_table(store)
    snapshot = create_table(table, "1")
    for _ in range(9):
        append_days(table, snapshot, "1")
        snapshot = table.snapshot()
    view = FaultStore(store.inner)
    gate = view.gate(Moment.CHECKPOINT_PUT, "before")
    writer = Writer(begin_append(view, snapshot))
    gate.wait_until_reached()
    for _ in range(12):
        append_days(table, read_anew(table), "1")
    assert store.head(checkpoint_path(10)) is None
    assert store.head(checkpoint_path(20)) is not None
    gate.open()
    outcome = writer.result()
    assert isinstance(outcome, CommitResult)
    assert outcome.version == 10
    assert store.head(checkpoint_path(10)) is not None
    final = read_anew(table)
    assert final.version == 22
    assert final.num_files == 23
    assert final.checkpoint is not None
    assert final.checkpoint.files.version == 20


def test_a_checkpoint_is_of_the_version_just_committed(store: FaultStore) -> None:
    """Others have moved on before it is written: it holds what was then, not what is now."""
    table = open_table(store)
    snapshot = create_table(table, "1")
    for _ in range(9):
        append_days(table, snapshot, "1")
        snapshot = table.snapshot()
    store.at(Moment.COMMIT_PUT, "after", do=rival(store), times=3)
    assert begin_append(store, snapshot).commit().version == 10
    at_ten = table.snapshot(10)
    assert at_ten.checkpoint is not None
    assert at_ten.checkpoint.files.version == 10
    assert at_ten.num_files == 11
    assert read_anew(table).num_files == read_anew(table).version + 1
