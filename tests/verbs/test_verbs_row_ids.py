"""Row tracking, written by both engines: rows keep their ids and commit versions wherever they are moved to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.table.row_tracking import materialized_columns, parse_high_water_mark
from tests.certain import a

TRACKED = {"delta.enableRowTracking": "true"}
Tracked = dict[int, tuple[int, int]]


def tracked(rows: Any, table: DeltaTable) -> Tracked:
    """Id of a row in the data → its row id and commit version."""
    scan = table.snapshot().scan(["id"], row_tracking=True)
    read = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    return {row["id"]: (row["row_id"], row["row_commit_version"]) for row in read.to_pylist()}


def mark_of(table: DeltaTable) -> int:
    return parse_high_water_mark(table.snapshot().domain_metadata["delta.rowTracking"])


def preserved(table: DeltaTable) -> str:
    info = table.log.read_commit(table.version()).commit_info
    assert info is not None
    tag: str = a(dict, info["tags"])["delta.rowTracking.preserved"]
    return tag


def assert_sound(table: DeltaTable, found: Tracked) -> None:
    """Ids are unique, none is above the mark, and none is fresh for one row and stable for another."""
    assert len({row_id for row_id, _ in found.values()}) == len(found)
    files = table.snapshot().files(["base_row_id", "default_row_commit_version"])
    assert files["base_row_id"].null_count == files["default_row_commit_version"].null_count == 0
    assert max(row_id for row_id, _ in found.values()) <= mark_of(table)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_ids_stay_with_rows_through_rewrites(rows: Any, table: DeltaTable, days: Any, mode: str) -> None:
    properties = TRACKED if mode == "none" else {**TRACKED, "delta.columnMapping.mode": mode}
    table.append(rows.data(days(("a", 1), ("a", 2), ("b", 3))), partition_by=["day"], properties=properties)
    table.append(rows.data(days(("a", 4), ("b", 5))))
    before = tracked(rows, table)
    assert_sound(table, before)
    assert {i: version for i, (_, version) in before.items()} == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
    assert table.optimize(engine=rows.engine).operation_metrics["numAddedFiles"] == 2
    assert tracked(rows, table) == before
    assert preserved(table) == "true"
    # Rows 1 and 4 are replaced, 2 is copied from the same file.
    table.overwrite(rows.data(days(("a", 1), ("a", 4))), replace_where="id IN (1, 4)")
    after = tracked(rows, table)
    assert_sound(table, after)
    assert {i: after[i] for i in (2, 3, 5)} == {i: before[i] for i in (2, 3, 5)}
    assert {after[1][1], after[4][1]} == {table.version()}
    assert not {after[1][0], after[4][0]} & {row_id for row_id, _ in before.values()}
    table.optimize(engine=rows.engine)
    assert tracked(rows, table) == after
    assert rows.pylist(table, columns=["id"]) == [{"id": i} for i in (1, 2, 3, 4, 5)]


def test_the_columns_of_copies_are_nobodys_business(rows: Any, table: DeltaTable, days: Any, tmp_path: Path) -> None:
    """They are in the files alone: not in the schema, not in the statistics, and files of new rows lack them."""
    table.append(rows.data(days(("a", 1), ("a", 2))), properties=TRACKED)
    table.append(rows.data(days(("a", 3))))
    names = set(materialized_columns(table.snapshot().metadata))
    for path in table.snapshot().files(["path"])["path"].to_pylist():
        assert not names & set(pq.read_schema(tmp_path / "table" / path).names)
    table.optimize(engine=rows.engine)
    snapshot = table.snapshot()
    (path,) = snapshot.files(["path"])["path"].to_pylist()
    schema = pq.read_schema(tmp_path / "table" / path)
    assert [schema.field(name).type for name in sorted(names)] == [pa.int64(), pa.int64()]
    (stats,) = snapshot.files(["stats"])["stats"].to_pylist()
    assert not any(name in stats for name in names)
    assert not names & set(snapshot.schema.names)
    assert rows.read(table).column_names == ["day", "id", "value"]


@pytest.mark.long
def test_an_overwrite_makes_new_rows(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"], properties=TRACKED)
    before = tracked(rows, table)
    table.overwrite(rows.data(days(("a", 1))), partition_overwrite_mode="dynamic")
    after = tracked(rows, table)
    assert after[2] == before[2]
    assert after[1] != before[1]
    table.overwrite(rows.data(days(("a", 1), ("b", 2))))
    last = tracked(rows, table)
    assert not {row_id for row_id, _ in last.values()} & {row_id for row_id, _ in (*before.values(), *after.values())}
    assert_sound(table, last)


def test_a_table_that_only_supports_it_says_that_copies_are_new_rows(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))), properties={"delta.feature.rowTracking": "supported"})
    table.append(rows.data(days(("a", 2))))
    assert preserved(table) == "true"
    table.optimize(engine=rows.engine)
    assert preserved(table) == "false"
    assert mark_of(table) == 3
    assert table.snapshot().files(["base_row_id"])["base_row_id"].to_pylist() == [2]


def test_concurrent_writers_never_share_an_id(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 0)), properties=TRACKED)
    late = [DeltaTable(table.uri) for _ in range(3)]
    snapshots = [one.snapshot() for one in late]
    for number, one in enumerate(late):
        one.append(days(*(("a", 10 * number + i) for i in range(1, 4))))
    assert all(snapshot.version == 0 for snapshot in snapshots)
    read = table.snapshot().scan(row_tracking=True).to_arrow()
    assert sorted(read["row_id"].to_pylist()) == list(range(10))
