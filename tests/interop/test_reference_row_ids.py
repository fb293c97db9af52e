"""Row ids, commit versions and in-commit timestamps: Delta on Spark and we tell the same of the same rows, by turns."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.table.row_tracking import parse_high_water_mark
from tests.interop.reference_client import Reference

PROPERTIES = {
    "delta.enableRowTracking": "true",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
}


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, stop), pa.int64()), "name": [f"n{i % 3}" for i in range(start, stop)]})


def ours(table: DeltaTable) -> dict[int, tuple[int, int]]:
    read = table.snapshot().scan(["id"], row_tracking=True).to_arrow().to_pylist()
    return {row["id"]: (row["row_id"], row["row_commit_version"]) for row in read}


def theirs(reference: Reference, path: Path) -> dict[int, tuple[int, int]]:
    query = f"SELECT id, _metadata.row_id AS r, _metadata.row_commit_version AS v FROM delta.`{path}`"
    return {row["id"]: (row["r"], row["v"]) for row in reference.query(query).to_pylist()}


def assert_agreed(table: DeltaTable, reference: Reference, path: Path) -> dict[int, tuple[int, int]]:
    found = ours(table)
    assert theirs(reference, path) == found
    assert len({row_id for row_id, _ in found.values()}) == len(found)
    mark = parse_high_water_mark(table.snapshot().domain_metadata["delta.rowTracking"])
    assert max(row_id for row_id, _ in found.values()) <= mark
    return found


def test_row_ids_by_turns(reference: Reference, tmp_path: Path) -> None:
    table, it = DeltaTable(tmp_path), f"delta.`{tmp_path}`"
    table.append(rows(0, 20), properties=PROPERTIES)
    table.append(rows(20, 30))
    assert_agreed(table, reference, tmp_path)
    table.optimize()
    table.overwrite(rows(5, 7), replace_where="id >= 5 AND id < 7")
    before = assert_agreed(table, reference, tmp_path)
    # Theirs: new rows above our mark, an update that keeps ids, a deletion by vector, a compaction.
    reference.run(f"INSERT INTO {it} VALUES (100, 'theirs'), (101, 'theirs')")
    reference.run(f"UPDATE {it} SET name = 'changed' WHERE id IN (1, 100)", f"DELETE FROM {it} WHERE id = 2")
    after = assert_agreed(table, reference, tmp_path)
    assert {i: row_id for i, (row_id, _) in after.items() if i < 100} == {
        i: row_id for i, (row_id, _) in before.items() if i != 2
    }
    assert {i: after[i] for i in before if i not in (1, 2)} == {i: before[i] for i in before if i not in (1, 2)}
    # And ours above theirs.
    table.append(rows(200, 205))
    table.optimize()
    moved = assert_agreed(table, reference, tmp_path)
    assert {i: moved[i] for i in after} == after
    reference.run(f"OPTIMIZE {it}")
    assert assert_agreed(table, reference, tmp_path) == moved
    times = [entry.timestamp_ms for entry in table.history()]
    assert times == sorted(set(times), reverse=True)
    told = {row["version"]: row["timestamp"] for row in reference.run(f"DESCRIBE HISTORY {it}")}
    assert {version: _milliseconds(text) for version, text in told.items()} == {
        entry.version: entry.timestamp_ms for entry in table.history()
    }


def _milliseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def test_ids_that_were_given_later(reference: Reference, tmp_path: Path) -> None:
    table, it = DeltaTable(tmp_path), f"delta.`{tmp_path}`"
    table.append(rows(0, 20))
    table.append(rows(20, 30))
    table.alter().set_properties({"delta.enableRowTracking": "true"}).commit()
    assert_agreed(table, reference, tmp_path)
    reference.run(f"UPDATE {it} SET name = 'changed' WHERE id = 3", f"INSERT INTO {it} VALUES (100, 'theirs')")
    table.optimize()
    assert_agreed(table, reference, tmp_path)


def test_ids_that_they_gave_later(reference: Reference, tmp_path: Path) -> None:
    table, it = DeltaTable(tmp_path), f"delta.`{tmp_path}`"
    table.append(rows(0, 20))
    reference.run(f"ALTER TABLE {it} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    table.append(rows(20, 25))
    table.optimize()
    assert_agreed(table, reference, tmp_path)
