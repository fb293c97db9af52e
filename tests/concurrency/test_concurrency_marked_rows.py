"""Two commits that delete rows of one file by marking them: different rows do not disturb each other."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_orch import DeltaTable
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConflictError,
    InvalidRequestError,
)
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.log.write import conflict
from delta_orch.testing import open_table
from delta_orch.writing.target import existing_target
from tests.harness.fault_store import FaultStore, Moment
from tests.harness.results import Snapshot, Transaction
from tests.harness.row_deletion import begin_delete_where, marked_rows
from tests.harness.table_builder import begin, read_anew

ROWS = 100
VECTORS = {
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.feature.domainMetadata": "supported",
}


def new_table(num_files: int = 2, properties: dict[str, str] | None = None) -> DeltaTable:
    """Files of a hundred rows each; the ids count on from file to file."""
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    for number in range(num_files):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        table.append(pa.table({"id": ids}), properties=VECTORS | (properties or {}))
    return table


def ids_in(table: DeltaTable) -> list[int]:
    found: list[int] = read_anew(table).scan(["id"]).to_arrow().column("id").to_pylist()
    return sorted(found)


def files_in_order(snapshot: Snapshot) -> pa.Table:
    return snapshot.files().sort_by("base_row_id")


def deletion(table: DeltaTable, snapshot: Snapshot, *positions: Sequence[int]) -> Transaction:
    """Deletes rows of each file, without having looked at anything else."""
    transaction = begin(table, snapshot, operation="DELETE")
    transaction.delete_rows(files_in_order(snapshot), [BitMap64(rows) for rows in positions])
    return transaction


def begin_append_read(table: DeltaTable, ids: Sequence[int]) -> None:
    """A rival adds rows, having read something that disturbs nobody: no blind append."""
    transaction = begin(table, table.snapshot(), operation="WRITE")
    transaction.read_where(resolve_predicate("id = -1", table.snapshot().schema))
    transaction.add_files(a_file_of(table, *ids))
    transaction.commit()


def a_file_of(table: DeltaTable, *ids: int) -> pa.Table:
    """A file that is written and not committed."""
    target = existing_target(table.snapshot())
    engine = LocalEngine()
    return engine.write(engine.relation(pa.table({"id": pa.array(ids or [-5], pa.int64())})), target.write_spec())


def paths_of(transaction: Transaction) -> list[str]:
    assert transaction.snapshot is not None
    found: list[str] = transaction.snapshot.files()["path"].to_pylist()
    return found


def left(*deleted: int, num_files: int = 2) -> list[int]:
    return sorted(set(range(num_files * ROWS)) - set(deleted))


def test_different_rows_of_one_file_are_both_deleted() -> None:
    table = new_table()
    snapshot = table.snapshot()
    ours, theirs = deletion(table, snapshot, [1, 2], [5]), deletion(table, snapshot, [3], [])
    theirs.commit()
    result = ours.commit()
    assert result.rebased_versions == (result.version - 1,)
    assert ids_in(table) == left(1, 2, 3, 105)
    files = files_in_order(read_anew(table))
    assert marked_rows(table, files) == [{1, 2, 3}, {5}]
    before = files_in_order(snapshot)
    for kept in ("base_row_id", "default_row_commit_version", "path", "size", "partition_values"):
        assert files[kept].equals(before[kept])
    assert files["deletion_vector"].combine_chunks().field("cardinality").to_pylist() == [3, 1]


def test_the_same_row_is_a_conflict_that_names_file_and_rows() -> None:
    table = new_table()
    snapshot = table.snapshot()
    deletion(table, snapshot, [1, 2, 7], [5]).commit()
    with pytest.raises(ConcurrentDeleteDeleteError, match=r"It deleted 3 rows of the file .* and 1 others") as caught:
        deletion(table, snapshot, [2, 7, 8], [5, 6]).commit()
    assert caught.value.context["num_rows"] == 3
    assert caught.value.context["paths"] == files_in_order(snapshot)["path"].to_pylist()
    assert ids_in(table) == left(1, 2, 7, 105)


def test_a_file_that_loses_its_last_rows_by_both_stays_until_it_is_purged() -> None:
    table = new_table()
    snapshot = table.snapshot()
    deletion(table, snapshot, range(50), []).commit()
    deletion(table, snapshot, range(50, 100), []).commit()
    assert ids_in(table) == list(range(100, 200))
    assert read_anew(table).num_files == 2
    table.purge()
    assert read_anew(table).num_files == 1


def test_a_compaction_in_between_is_a_conflict() -> None:
    table = new_table()
    snapshot = table.snapshot()
    ours = deletion(table, snapshot, [1], [5])
    table.optimize()
    with pytest.raises(ConcurrentDeleteDeleteError, match="It removed the file"):
        ours.commit()
    assert ids_in(table) == left()


def test_rows_that_are_not_in_the_table_are_refused() -> None:
    table = new_table()
    deletion(table, table.snapshot(), [1], []).commit()
    for positions in ([1], [100]):
        with pytest.raises(InvalidRequestError, match="not in the table"):
            deletion(table, table.snapshot(), positions, [])
    twice = deletion(table, table.snapshot(), [2], [])
    twice.delete_rows(files_in_order(table.snapshot()), [BitMap64([3]), BitMap64()])
    with pytest.raises(InvalidRequestError, match="names a file twice"):
        twice.commit()
    removed = begin(table, table.snapshot())
    removed.remove_files(table.snapshot().files())
    removed.delete_rows(files_in_order(table.snapshot()), [BitMap64([3]), BitMap64()])
    with pytest.raises(InvalidRequestError, match="names a file twice"):
        removed.commit()
    assert ids_in(table) == left(1)


def test_a_dry_run_writes_no_vector() -> None:
    table = new_table()
    before = {meta.path for meta in table.store.list_recursive()}
    transaction = begin(table, table.snapshot(), dry_run=True)
    transaction.delete_rows(files_in_order(table.snapshot()), [BitMap64(range(0, 100, 2)), BitMap64([1])])
    preview = transaction.commit().preview
    assert preview is not None
    assert preview.adds[0]["deletion_vector"].combine_chunks().field("cardinality").to_pylist() == [50, 1]
    assert {meta.path for meta in table.store.list_recursive()} == before


def test_only_what_a_rival_touched_is_written_again() -> None:
    """Of two large vectors the one that stays as it was keeps its file."""
    table = new_table()
    snapshot = table.snapshot()
    many = [row * 2 for row in range(50)]
    store = FaultStore(table.store)
    ours = deletion(open_table(store), snapshot, many, many)
    store.at(Moment.COMMIT_PUT, "before", do=lambda _: deletion(table, snapshot, [1], []).commit())
    ours.commit()
    vectors = [path for path in (meta.path for meta in table.store.list_recursive()) if path.endswith(".bin")]
    descriptors = files_in_order(read_anew(table))["deletion_vector"].to_pylist()
    assert len({descriptor["path_or_inline_dv"] for descriptor in descriptors}) == len(vectors) == 2
    assert marked_rows(table, files_in_order(read_anew(table))) == [{1, *many}, set(many)]


# What was read: a rival's rows are looked at one by one where statistics leave it open.


def replaced(table: DeltaTable, *ids: int, by: Sequence[int]) -> None:
    """A rival puts other rows in the place of some, as an update does: it rewrites files."""
    wanted = ", ".join(map(str, ids))
    rows = pa.table({"id": pa.array(by, pa.int64())})
    # What is put in must satisfy the predicate.
    more = ", ".join(map(str, by))
    table.overwrite(rows, replace_where=f"id IN ({wanted}, {more})")


def test_rows_that_a_rival_added_within_the_bounds_of_ours_do_not_matter() -> None:
    table = new_table()
    ours = begin_delete_where(table, table.snapshot(), "id = 150")
    begin_append_read(table, [1000, 100, 199])
    ours.commit()
    assert ids_in(table) == sorted([*left(150), 1000, 100, 199])


@pytest.mark.parametrize("looks", [True, False])
def test_rows_that_a_rival_added_and_ours_names_are_a_conflict(looks: bool) -> None:
    table = new_table()
    ours = begin_delete_where(table, table.snapshot(), "id = 150", looks=looks)
    begin_append_read(table, [100, 150 if looks else 151, 199])
    with pytest.raises(ConcurrentAppendError, match="should have read"):
        ours.commit()


def test_many_or_large_files_of_a_rival_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict, "MOST_BYTES_LOOKED_AT", 100)
    table = new_table()
    ours = begin_delete_where(table, table.snapshot(), "id = 150")
    begin_append_read(table, [100, 151, 199])
    with pytest.raises(ConcurrentAppendError):
        ours.commit()


def test_a_file_that_cannot_be_looked_at_counts_as_a_conflict() -> None:
    table = new_table()
    ours = begin_delete_where(table, table.snapshot(), "id = 150")
    begin_append_read(table, [100, 151, 199])
    (added,) = (path for path in table.snapshot().files()["path"].to_pylist() if path not in paths_of(ours))
    table.store.delete(added)
    with pytest.raises(ConcurrentAppendError):
        ours.commit()


def test_a_rival_that_rewrites_a_file_without_rows_of_ours() -> None:
    """It was looked at, and nothing in it matters: what becomes of it does not either."""
    table = new_table(3)
    ours = begin_delete_where(table, table.snapshot(), "id = 150 OR id = 250 OR id = 1000")
    replaced(table, 5, by=[5, 6])
    ours.commit()
    assert ids_in(table) == left(150, 250, num_files=3)


def test_a_rival_that_rewrites_a_file_with_rows_of_ours() -> None:
    table = new_table(3)
    ours = begin_delete_where(table, table.snapshot(), "id = 150")
    replaced(table, 151, by=[151])
    with pytest.raises(ConcurrentDeleteDeleteError, match="removed the file"):
        ours.commit()


def test_rows_that_a_rival_deleted_in_a_file_that_only_a_predicate_names() -> None:
    """Nobody has noted which rows were read: those that went are looked at."""
    table = new_table()
    snapshot = table.snapshot()

    def reader(where: str) -> Transaction:
        transaction = begin_delete_where(table, snapshot, "id = 1000000")
        transaction.read_where(resolve_predicate(where, snapshot.schema))
        transaction.set_domain_metadata("app", where)
        transaction.add_files(a_file_of(table))
        return transaction

    deletion(table, snapshot, [5, 6], [7]).commit()
    reader("id > 10 AND id < 105").commit()
    with pytest.raises(ConcurrentDeleteReadError, match="It deleted rows of the file"):
        reader("id > 5 AND id < 100").commit()


def test_rows_that_a_rival_brings_back_are_new_rows() -> None:
    table = new_table()
    deletion(table, table.snapshot(), [5], []).commit()
    snapshot = table.snapshot()
    ours = begin_delete_where(table, snapshot, "id < 50")
    back = begin(table, snapshot, operation="RESTORE")
    files = files_in_order(snapshot)
    old = files_in_order(table.snapshot(snapshot.version - 1)).slice(0, 1)
    back.remove_files(files.slice(0, 1))
    back.add_files(old)
    back.commit()
    with pytest.raises(ConflictError):
        ours.commit()
    other = begin_delete_where(table, snapshot, "id >= 100 AND id < 120")
    other.commit()


SETS = st.lists(st.sets(st.integers(0, ROWS - 1), max_size=12), min_size=2, max_size=2)


@settings(max_examples=3, deadline=None)
@given(st.lists(SETS, min_size=2, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_whoever_is_disjoint_from_all_before_commits(writers: list[list[set[int]]], anew: list[bool]) -> None:
    """Each starts from the first version or from the newest; the table is always that of the serial order."""
    table = new_table()
    first = table.snapshot()
    gone: list[set[int]] = [set(), set()]
    seen: list[set[int]] = [set(), set()]
    for wanted, is_anew in zip(writers, anew, strict=False):
        base = table.snapshot() if is_anew else first
        live = gone if is_anew else seen
        if any(rows >= set(range(ROWS)) for rows in gone):
            return
        rows = [want - dead for want, dead in zip(wanted, live, strict=True)]
        overlap = sum(len(want & dead) for want, dead in zip(rows, gone, strict=True))
        transaction = deletion(table, base, *map(sorted, rows))
        if overlap:
            with pytest.raises(ConcurrentDeleteDeleteError) as caught:
                transaction.commit()
            assert 0 < caught.value.context["num_rows"] <= overlap
        else:
            transaction.commit()
            gone = [dead | want for dead, want in zip(gone, rows, strict=True)]
    assert ids_in(table) == left(*gone[0], *(ROWS + row for row in gone[1]))
