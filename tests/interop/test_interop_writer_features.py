"""Tables with row tracking, in-commit timestamps, deletion vectors and metadata domains as we write them, read by
`deltalake` (DataFusion on delta-kernel) and by DuckDB's delta extension."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.families import family
from tests.harness.row_deletion import delete_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

VECTORS = {"delta.enableDeletionVectors": "true"}
EVERYTHING = {
    **VECTORS,
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.feature.domainMetadata": "supported",
}


def rows(start: int, stop: int) -> pa.Table:
    ids = list(range(start, stop))
    return pa.table({"day": [f"d{i % 2}" for i in ids], "id": pa.array(ids, pa.int64())})


def vectors_in_a_file(table: DeltaTable) -> None:
    table.append(rows(0, 1000), partition_by=["day"], properties=VECTORS)
    table.append(rows(1000, 3000))
    delete_rows(table, *range(0, 400, 3))


def vectors_in_the_log(table: DeltaTable) -> None:
    table.append(rows(0, 10), properties=VECTORS)
    delete_rows(table, 0, 7, inline=True)
    delete_rows(table, 0, 1, 7, inline=True)


def long_vectors(table: DeltaTable) -> None:
    table.append(rows(0, 200_000), properties=VECTORS)
    delete_rows(table, *range(500, 150_000), *range(160_000, 170_000, 2))


def vectors_and_what_follows(table: DeltaTable) -> None:
    vectors_in_a_file(table)
    table.overwrite(rows(0, 1), replace_where="day = 'd0' AND id < 500")
    table.append(rows(5000, 5010))


def purged(table: DeltaTable) -> None:
    vectors_in_a_file(table)
    table.optimize()


def timestamps(table: DeltaTable) -> None:
    table.append(rows(0, 5), properties={"delta.enableInCommitTimestamps": "true"})
    table.append(rows(5, 8))


def timestamps_enabled_later(table: DeltaTable) -> None:
    table.append(rows(0, 5))
    table.alter().set_properties({"delta.enableInCommitTimestamps": "true"}).commit()
    table.append(rows(5, 8))


def tracked_rows(table: DeltaTable) -> None:
    table.append(rows(0, 5), partition_by=["day"], properties={"delta.enableRowTracking": "true"})
    table.append(rows(5, 9))
    table.optimize()
    table.overwrite(rows(0, 1), replace_where="id < 3")


def tracked_later(table: DeltaTable) -> None:
    table.append(rows(0, 5))
    table.alter().set_properties({"delta.enableRowTracking": "true"}).commit()
    table.append(rows(5, 9))
    table.optimize()


def everything(table: DeltaTable) -> None:
    table.append(rows(0, 50), partition_by=["day"], properties=EVERYTHING)
    table.set_domain_metadata("com.example", "{}")
    table.append(rows(50, 60))
    delete_rows(table, 0, 2)
    table.overwrite(rows(100, 101), replace_where="day = 'd0' AND id > 40")
    table.optimize(max_deleted_rows_ratio=1)
    table.remove_domain_metadata("com.example")


SCENARIOS: tuple[Callable[[DeltaTable], None], ...] = (
    vectors_in_a_file,
    vectors_in_the_log,
    long_vectors,
    vectors_and_what_follows,
    purged,
    timestamps,
    timestamps_enabled_later,
    tracked_rows,
    tracked_later,
    everything,
)


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.__name__)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "table")
    request.param(table)
    return table


def ours(table: DeltaTable) -> list[tuple[str, int]]:
    read = table.snapshot().scan(["day", "id"]).to_arrow()
    return sorted(zip(read["day"].to_pylist(), read["id"].to_pylist(), strict=True))


_QUERY = """
import sys, deltalake, pyarrow as pa, pyarrow.parquet as pq
table = deltalake.DeltaTable(sys.argv[1])
found = deltalake.QueryBuilder().register("t", table).execute("SELECT day, id FROM t").read_all()
pq.write_table(pa.table(found).cast(pa.schema([("day", pa.string()), ("id", pa.int64())])), sys.argv[2])
"""


def through_deltalake(path: Path, output: Path) -> list[tuple[str, int]]:
    """In a process of its own: DataFusion and DuckDB do not always get on with each other's threads."""
    import pyarrow.parquet as pq

    done = subprocess.run([sys.executable, "-c", _QUERY, str(path), str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = pq.read_table(output)
    return sorted(zip(read["day"].to_pylist(), read["id"].to_pylist(), strict=True))


@family("checkpointed", [False, True], ids=["commits", "checkpoint"], every=2)
def test_both_referees_read_the_same_rows(
    written: DeltaTable, tmp_path: Path, duckdb_delta: Any, checkpointed: bool
) -> None:
    if checkpointed:
        written.checkpoint()
    expected = ours(written)
    root = tmp_path / "table"
    read = duckdb_delta(root)
    assert sorted(zip(read["day"].to_pylist(), read["id"].to_pylist(), strict=True)) == expected
    assert through_deltalake(root, tmp_path / "rows.parquet") == expected


def test_deltalake_tells_the_same_times(tmp_path: Path) -> None:
    """The history of commits by their in-commit timestamps."""
    table = DeltaTable(tmp_path / "table")
    timestamps_enabled_later(table)
    theirs = {entry["version"]: entry for entry in deltalake.DeltaTable(tmp_path / "table").history()}
    for entry in table.history():
        if entry.version:
            assert theirs[entry.version]["inCommitTimestamp"] == entry.timestamp_ms
