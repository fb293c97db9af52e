"""Tables with deletion vectors, written: every verb carries the vectors, and optimize and vacuum get rid of them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import AppendOnlyError, ConcurrentDeleteDeleteError, InvalidRequestError
from tests.harness.row_deletion import begin_deletion, delete_rows, replace_vectors, write_vectors
from tests.harness.table_builder import begin

VECTORS = {"delta.enableDeletionVectors": "true"}


def ids_of(table: DeltaTable) -> list[int]:
    found: list[int] = sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist())
    return found


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"t{i}" for i in ids]})


def files_of(table: DeltaTable, *paths: str) -> pa.Table:
    files = table.snapshot().files()
    return files if not paths else files.filter(pc.is_in(files["path"], pa.array(paths)))


def without_stats(files: pa.Table) -> pa.Table:
    column = files.schema.get_field_index("stats")
    return files.set_column(column, files.schema.field(column), pa.nulls(files.num_rows, pa.string()))


def actions(table: DeltaTable, version: int, kind: str) -> list[dict[str, Any]]:
    lines = (table.uri.removeprefix("file://") + f"/_delta_log/{version:020d}.json").replace("//", "/")
    return [o[kind] for line in Path(lines).read_bytes().splitlines() if kind in (o := orjson.loads(line))]


@pytest.fixture
def marked(table: DeltaTable) -> DeltaTable:
    """Ids 1 to 20 in two files; of each the rows at 0, 3 and 4 are deleted."""
    table.append(rows_of(*range(1, 11)), properties=VECTORS)
    table.append(rows_of(*range(11, 21)))
    delete_rows(table, 0, 3, 4)
    return table


LIVE = [2, 3, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 19, 20]


def test_a_file_with_another_vector_is_another_logical_file(marked: DeltaTable) -> None:
    assert ids_of(marked) == LIVE
    removes, adds = actions(marked, 2, "remove"), actions(marked, 2, "add")
    assert [r["path"] for r in removes] == [a["path"] for a in adds]
    assert all("deletionVector" not in r for r in removes)
    for add in adds:
        stats = orjson.loads(add["stats"])
        assert (stats["numRecords"], stats["tightBounds"]) == (10, False)
        assert add["deletionVector"]["cardinality"] == 3
    # The second vector of a file takes the place of the first, and the remove names the first.
    delete_rows(marked, 0, 3, 4, 5)
    removed, added = actions(marked, 3, "remove"), actions(marked, 3, "add")
    assert [r["deletionVector"] for r in removed] == [a["deletionVector"] for a in adds]
    assert {a["deletionVector"]["cardinality"] for a in added} == {4}
    assert ids_of(marked) == [i for i in LIVE if i not in (6, 16)]
    assert ids_of(marked) == sorted(marked.snapshot(3).scan(["id"]).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("inline", [True, False])
def test_what_verbs_remove_carries_its_vector(table: DeltaTable, inline: bool) -> None:
    table.append(rows_of(*range(1, 11)), properties=VECTORS)
    delete_rows(table, 0, 3, inline=inline)
    (vector,) = (add["deletionVector"] for add in actions(table, 1, "add"))
    assert vector["storageType"] == ("i" if inline else "u")
    table.append(rows_of(30))
    assert ids_of(table) == [2, 3, 5, 6, 7, 8, 9, 10, 30]
    table.overwrite(rows_of(5, 6), replace_where="id IN (5, 6)")
    assert ids_of(table) == [2, 3, 5, 6, 7, 8, 9, 10, 30]
    assert [r.get("deletionVector") for r in actions(table, 3, "remove")] == [vector]
    table.overwrite(rows_of(1))
    assert ids_of(table) == [1]
    assert ids_of(DeltaTable(table.uri)) == [1]
    assert sorted(table.snapshot(2).scan(["id"]).to_arrow()["id"].to_pylist()) == [2, 3, 5, 6, 7, 8, 9, 10, 30]


def test_checkpoints_keep_vectors(marked: DeltaTable) -> None:
    # Of what a checkpoint holds, nothing is a change.
    before = marked.snapshot().files().sort_by("path").drop_columns(["data_change"])
    marked.checkpoint()
    fresh = DeltaTable(marked.uri).snapshot()
    assert fresh.checkpoint is not None
    assert fresh.files().sort_by("path").drop_columns(["data_change"]).to_pylist() == before.to_pylist()
    assert ids_of(DeltaTable(marked.uri)) == LIVE
    # And the tombstones: the file without a vector is gone, the same file with one is there.
    assert fresh.tombstones(["dv_id"]).column("dv_id").null_count == 2
    marked.overwrite(rows_of(1))
    assert ids_of(marked) == [1]


def test_optimize_purges_what_is_deleted(rows: Any, table: DeltaTable) -> None:
    table.append(rows.data(rows_of(*range(1, 11))), properties=VECTORS)
    table.append(rows.data(rows_of(*range(11, 21))))
    files = table.snapshot().files()
    for path in files["path"].to_pylist():
        begin_deletion(table, files_of(table, path), 0, 3, 4).commit()
    expected = ids_of(table)
    # So small a target that no two files fit together: each is written anew for itself.
    result = table.optimize(target_file_size_bytes=10, engine=rows.engine)
    assert result.operation_metrics["numDeletionVectorsRemoved"] == files.num_rows
    assert result.operation_metrics["numRemovedFiles"] == files.num_rows
    snapshot = table.snapshot()
    assert snapshot.files(["dv_id"])["dv_id"].null_count == snapshot.num_files
    assert sum(orjson.loads(s)["numRecords"] for s in snapshot.files(["stats"])["stats"].to_pylist()) == len(expected)
    assert ids_of(table) == expected
    assert {c["dataChange"] for c in actions(table, result.version, "remove")} == {False}
    assert table.optimize(target_file_size_bytes=10, engine=rows.engine).skipped


def test_only_files_with_many_deleted_rows_are_written_anew(table: DeltaTable) -> None:
    table.append(rows_of(*range(100)), properties=VECTORS)
    delete_rows(table, 1, 2)
    assert table.optimize().skipped
    delete_rows(table, *range(1, 7))
    assert table.optimize().operation_metrics["numDeletionVectorsRemoved"] == 1
    assert len(ids_of(table)) == 94


def test_a_file_of_deleted_rows_only_vanishes(table: DeltaTable) -> None:
    table.append(rows_of(1, 2, 3), properties=VECTORS)
    table.append(rows_of(*range(10, 40)))
    first = files_of(table).sort_by("size").slice(0, 1)
    begin_deletion(table, first, 0, 1, 2).commit()
    result = table.optimize(target_file_size_bytes=10)
    assert (result.operation_metrics["numAddedFiles"], result.operation_metrics["numRemovedFiles"]) == (0, 1)
    assert ids_of(table) == list(range(10, 40))


def test_vacuum_keeps_the_vectors_that_are_needed(marked: DeltaTable, tmp_path: Path) -> None:
    root = tmp_path / "table"
    old = {path.name for path in root.glob("deletion_vector_*.bin")}
    assert len(old) == 1
    delete_rows(marked, 0, 3, 4, 5)
    assert marked.vacuum(0, enforce_retention=False).paths == tuple(old)
    assert ids_of(marked) == [i for i in LIVE if i not in (6, 16)]
    marked.optimize()
    gone = marked.vacuum(0, enforce_retention=False)
    assert sum(path.endswith(".bin") for path in gone.paths) == 1
    assert not list(root.glob("deletion_vector_*.bin"))
    assert ids_of(marked) == [i for i in LIVE if i not in (6, 16)]


def test_a_kept_snapshot_still_reads_within_the_retention(marked: DeltaTable) -> None:
    marked.optimize()
    assert not marked.vacuum().paths
    assert sorted(marked.snapshot(2).scan(["id"]).to_arrow()["id"].to_pylist()) == LIVE


def test_row_ids_stay_under_vectors(table: DeltaTable) -> None:
    table.append(rows_of(*range(1, 11)), properties={**VECTORS, "delta.enableRowTracking": "true"})
    read = table.snapshot().scan(row_tracking=True).to_arrow().sort_by("id").to_pylist()
    delete_rows(table, 0, 3)
    (add,) = actions(table, 1, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (0, 0)
    kept = [row for row in read if row["id"] not in (1, 4)]
    assert table.snapshot().scan(row_tracking=True).to_arrow().sort_by("id").to_pylist() == kept
    table.optimize()
    assert table.snapshot().scan(row_tracking=True).to_arrow().sort_by("id").to_pylist() == kept


def test_two_deletions_from_one_file_conflict(marked: DeltaTable) -> None:
    files = marked.snapshot().files()
    late = begin_deletion(marked, files, 0, 3, 4, 5)
    begin_deletion(marked, files, 0, 3, 4, 6).commit()
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()


def test_what_is_refused(table: DeltaTable) -> None:
    table.append(rows_of(1, 2))
    files = table.snapshot().files()
    with pytest.raises(InvalidRequestError, match="takes no deletion vectors"):
        begin_deletion(table, files, 0)
    other = DeltaTable(table.uri + "-2")
    other.append(rows_of(1, 2), properties={**VECTORS, "delta.appendOnly": "true"})
    with pytest.raises(AppendOnlyError):
        begin_deletion(other, other.snapshot().files(), 0)
    third = DeltaTable(table.uri + "-3")
    third.append(rows_of(1, 2), properties=VECTORS)
    files = third.snapshot().files()
    uncounted = without_stats(files)
    with pytest.raises(InvalidRequestError, match="how many records"):
        begin_deletion(third, uncounted, 0)
    with pytest.raises(InvalidRequestError, match="all its columns are needed"):
        begin_deletion(third, files.drop_columns(["tags"]), 0)
    assert third.version() == 0
    transaction = begin(third, third.snapshot(), operation="TEST")
    transaction.add_files(without_stats(begin_deletion(third, files, 0)._staged.adds[0]))
    with pytest.raises(InvalidRequestError, match="does not say how many records"):
        transaction.commit()


def test_a_file_may_be_named_once_as_removed_and_once_as_added(marked: DeltaTable) -> None:
    files = marked.snapshot().files()
    twice = begin(marked, marked.snapshot(), operation="TEST")
    replace_vectors(twice, files, write_vectors(marked, [[1]] * 2, inline=True))
    replace_vectors(twice, files, write_vectors(marked, [[2]] * 2, inline=True))
    with pytest.raises(InvalidRequestError, match="names a file twice"):
        twice.commit()


def test_marked_rows_leave_the_bounds_of_long_decimals_as_they_are(tmp_path: Path) -> None:
    """Delta on Spark passed over files whose bounds were rounded."""
    table = DeltaTable(tmp_path / "t")
    value = Decimal("12345678901234567.12")
    rows = pa.table({"id": [1, 2, 3], "d": pa.array([value] * 3, pa.decimal128(20, 2)), "f": [0.1] * 3})
    table.append(rows, properties={"delta.enableDeletionVectors": "true"})
    (before,) = table.snapshot().files()["stats"].to_pylist()
    table.delete("id = 3")
    table.delete("id = 2")
    (after,) = table.snapshot().files()["stats"].to_pylist()
    assert str(value) in after
    assert after == before.replace('"tightBounds":true', '"tightBounds":false')
