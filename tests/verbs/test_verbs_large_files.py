"""Files that are large enough for a thread each are read, filtered and written by it."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError, MissingFileError
from delta_orch.storage.prefetch import thread_count

FILE_ROWS = 140_000
FILES = 2 * thread_count()


def rows_of_file(number: int, value: np.ndarray | None = None) -> pa.Table:
    ids = np.arange(number * FILE_ROWS, (number + 1) * FILE_ROWS)
    noise = np.random.default_rng(number).random((2, FILE_ROWS))
    return pa.table({"id": ids, "value": noise[0] if value is None else value, "other": noise[1]})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "table")
    for number in range(FILES):
        table.append(rows_of_file(number))
    return table


def threads_ahead() -> set[threading.Thread]:
    """The threads that work ahead. Other tests may have left some of other names."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("delta-orch-ahead")}


def ids(table: DeltaTable) -> np.ndarray:
    return np.sort(table.snapshot().scan(columns=["id"]).to_arrow()["id"].to_numpy())


def test_the_rows_that_stay_are_written_once(table: DeltaTable) -> None:
    files = table.snapshot().files()
    assert files.num_rows == FILES
    metrics = table.delete("id % 10 = 3").operation_metrics
    every = np.arange(FILES * FILE_ROWS)
    assert np.array_equal(ids(table), every[every % 10 != 3])
    assert metrics["numDeletedRows"] == len(every) // 10
    assert metrics["numCopiedRows"] == len(every) - len(every) // 10
    assert metrics["numAddedFiles"] in range(1, thread_count() + 1)


def test_all_columns_of_a_row_stay_together(table: DeltaTable) -> None:
    before = table.snapshot().scan().to_arrow()
    table.delete("id % 7 = 0")
    after = table.snapshot().scan().to_arrow()
    expected = duckdb.from_arrow(before).filter("id % 7 <> 0").order("id").to_arrow_table()
    assert after.sort_by("id").equals(expected.cast(after.schema))


def test_nan_that_comes_late_is_found(table: DeltaTable) -> None:
    late = np.full(FILE_ROWS, 0.5)
    late[-1] = np.nan
    table.append(rows_of_file(FILES, late))
    table.delete("id % 10 = 3")
    found = table.snapshot().scan(where="value > 1e9").to_arrow()
    assert found["id"].to_pylist() == [(FILES + 1) * FILE_ROWS - 1]


def test_a_file_that_is_gone_changes_nothing(table: DeltaTable, tmp_path: Path) -> None:
    path = table.snapshot().files()["path"].to_pylist()[-1]
    (tmp_path / "table" / path).unlink()
    version, before = table.version(), threads_ahead()
    with pytest.raises(MissingFileError):
        table.delete("other < 0.01")
    assert table.version() == version
    assert threads_ahead() <= before


def test_a_row_that_breaks_a_rule_stops_all_threads(table: DeltaTable, tmp_path: Path) -> None:
    strict = DeltaTable(tmp_path / "strict")
    strict.create(table.snapshot().schema)
    version = strict.alter().add_constraint("few", f"id <> {FILES * FILE_ROWS - 1}").commit().version
    before = threads_ahead()
    with pytest.raises(ConstraintViolationError):
        strict.append(table.snapshot())
    assert strict.version() == version
    assert threads_ahead() <= before


def test_rows_that_a_merge_changes_stand_beside_those_it_copies(table: DeltaTable) -> None:
    changed = pa.table({"id": [3, FILES * FILE_ROWS], "value": [-1.0, -2.0], "other": [0.0, 0.0]})
    scattered = pa.table({"id": np.arange(1, FILES) * FILE_ROWS, "value": np.full(FILES - 1, -3.0)})
    scattered = scattered.append_column("other", pa.nulls(FILES - 1, pa.float64()))
    before = table.snapshot().scan().to_arrow()
    source = pa.concat_tables([changed, scattered])
    metrics = table.upsert(source, ["id"]).metrics
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]) == (FILES, 1)
    assert metrics["numTargetRowsCopied"] == FILES * FILE_ROWS - FILES
    kept = duckdb.from_arrow(before).filter(f"id NOT IN (3, {', '.join(map(str, scattered['id'].to_pylist()))})")
    expected = pa.concat_tables([kept.to_arrow_table().cast(before.schema), source.cast(before.schema)])
    assert table.snapshot().scan().to_arrow().sort_by("id").equals(expected.sort_by("id").combine_chunks())
