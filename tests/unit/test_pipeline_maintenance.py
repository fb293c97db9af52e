from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.maintenance import ALWAYS, MaintenancePolicy, count_rows, read_table_health

WEEK_MS = 7 * 24 * 3_600_000


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    for day in ("a", "a", "a", "b"):
        table.append(pa.table({"day": [day, day], "n": [1, 2]}), partition_by=["day"])
    return table


def test_health_of_many_small_files(table: DeltaTable) -> None:
    health = read_table_health(table.snapshot())
    assert health.num_files == 4
    assert health.num_small_files == 4
    # The one file of partition b has nothing to be merged with.
    assert health.num_compactable_files == 3
    assert health.commits_since_checkpoint == 4
    assert health.checkpoint_version is None
    assert health.num_expired_tombstones == 0
    assert health.size_bytes == table.snapshot().size_bytes
    assert health.target_file_size_bytes == 128 * 1024 * 1024


def test_maintenance_makes_it_healthy(table: DeltaTable) -> None:
    before = read_table_health(table.snapshot())
    assert ALWAYS.needs_optimize(before)
    assert ALWAYS.needs_checkpoint(before)
    table.optimize()
    table.checkpoint()
    # A snapshot that was advanced still starts from the checkpoint it was loaded with.
    after = read_table_health(DeltaTable(table.uri).snapshot())
    assert (after.num_files, after.num_compactable_files, after.checkpoint_version) == (2, 0, 4)
    assert after.commits_since_checkpoint == 0
    assert not ALWAYS.needs_optimize(after)
    assert not ALWAYS.needs_checkpoint(after)


def test_tombstones_expire(table: DeltaTable) -> None:
    table.optimize()
    snapshot = table.snapshot()
    assert read_table_health(snapshot).num_expired_tombstones == 0
    later = read_table_health(snapshot, now_ms=snapshot.timestamp_ms + WEEK_MS + 60_000)
    assert later.num_expired_tombstones == 3
    assert MaintenancePolicy().needs_vacuum(later)
    assert not MaintenancePolicy(min_expired_tombstones=4).needs_vacuum(later)


def test_an_empty_table(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "empty")
    table.create(pa.schema([("n", pa.int64())]))
    health = read_table_health(table.snapshot())
    assert (health.num_files, health.size_bytes, health.num_compactable_files) == (0, 0, 0)
    assert "checkpoint_version" not in health.as_metadata()


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_compactable_files": 1}, {"max_commits_since_checkpoint": -1}, {"min_expired_tombstones": -1},
        {"min_compactable_files": "10"}, {"max_commits_since_checkpoint": None}, {"min_expired_tombstones": True},
    ],
)  # fmt: skip
def test_policies_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        MaintenancePolicy(**arguments)


def _files(stats: list[str | None], cardinalities: list[int | None] | None = None) -> pa.Table:
    vectors = [None if c is None else {"cardinality": c} for c in cardinalities or [None] * len(stats)]
    return pa.table(
        {
            "stats": pa.array(stats, pa.string()),
            "deletion_vector": pa.array(vectors, pa.struct([("cardinality", pa.int64())])),
        }
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (_files([]), 0),
        (_files(['{"numRecords":3,"minValues":{"numRecords":7}}', '{"numRecords": 4, "x": "a\\nb"}']), 7),
        (_files(['{"numRecords":3}', None]), None),
        (_files(['{"numRecords":3}', '{"minValues":{}}']), None),
        (_files(['{"numRecords":"three"}']), None),
        (_files(["not json"]), None),
        (_files(['{"numRecords":1}{"numRecords":2}']), None),
        (_files(['{"numRecords":5}', '{"numRecords":5}'], [2, None]), 8),
    ],
)
def test_row_counts(files: pa.Table, expected: int | None) -> None:
    assert count_rows(files) == expected


def test_row_counts_of_slices_and_chunks() -> None:
    files = pa.concat_tables(
        [_files(['{"numRecords":1}', '{"numRecords":2}']), _files([]), _files(['{"numRecords":4}'])]
    )
    assert count_rows(files) == 7
    assert count_rows(files.slice(1, 1)) == 2


def test_the_row_count_of_a_table(table: DeltaTable) -> None:
    assert count_rows(table.snapshot().files(["stats", "deletion_vector"])) == 8


def test_a_clustered_table_is_healthy_once_it_is_clustered(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for n in range(3):
        table.append(pa.table({"n": [n, n + 1]}), cluster_by=["n"] if not n else None)
    assert read_table_health(table.snapshot()).num_compactable_files == 3
    assert not table.optimize().skipped
    # Several small files may be there afterwards, as there is an order to keep: nothing is left to do.
    table.append(pa.table({"n": [5]}))
    assert read_table_health(table.snapshot()).num_compactable_files == 1
    assert not table.optimize().skipped and table.optimize().skipped
    assert read_table_health(table.snapshot()).num_compactable_files == 0
