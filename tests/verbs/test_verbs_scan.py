"""The public surface of scans: what explain says, tasks, projections, names, expressions of pyarrow."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
)
from tests.handmade import HandmadeTable
from tests.harness.results import ScanTask

ODD = pa.table(
    {
        "a.b": [1, 2, 3],
        "with space": ["x", "y", "z"],
        "tick`ed": [1.5, None, 2.5],
        "a": [{"b": 7}, None, {"b": 9}],
    }
)


@pytest.fixture
def flights(tmp_path: Path) -> DeltaTable:
    """Three days of two files each: ids 0-9, 10-19, … in `id`, `id / 2` in `value`."""
    table = DeltaTable(tmp_path / "flights")
    for start in range(0, 60, 10):
        ids = list(range(start, start + 10))
        days = [f"2013-01-0{1 + start // 20}"] * 10
        rows = pa.table({"day": days, "id": ids, "value": [i / 2 for i in ids]})
        table.append(rows, partition_by=["day"])
    return table


def ids_of(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


# explain


def test_explain_counts_what_each_step_leaves(flights: DeltaTable) -> None:
    snapshot = flights.snapshot()
    where = "day = '2013-01-02' AND id >= 35 AND length(day) = 10"
    told = snapshot.scan(where=where).explain()
    sizes = snapshot.files(["size"]).column("size").to_pylist()
    assert (told.uri, told.version) == (flights.uri, 5)
    assert (told.total.num_files, told.total.size_bytes) == (6, sum(sizes))
    assert told.after_partition_pruning.num_files == 2
    assert told.after_data_skipping.num_files == 1
    planned = snapshot.scan(where=where).plan().files
    assert told.after_data_skipping.size_bytes == sum(planned.column("size").to_pylist())
    assert [(p.used, p.num_files_ruled_out) for p in told.parts] == [
        (("partition values",), 4),
        (("statistics",), 3),
        ((), 0),
    ]
    shown = str(told)
    assert "after partition pruning" in shown and "(4 ruled out)" in shown and "(1 ruled out)" in shown
    assert "length(day) = 10   [rows only]" in shown
    described: dict[str, Any] = told.to_dict()
    assert described["after_data_skipping"] == {"num_files": 1, "size_bytes": told.after_data_skipping.size_bytes}
    assert described["parts"][0]["used"] == ["partition values"]


def test_explain_counts_row_groups_on_request(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": range(10)}))
    (path,) = table.snapshot().files()["path"].to_pylist()
    file = tmp_path / "t" / path
    pq.write_table(pq.read_table(file), file, row_group_size=2)
    scan = table.snapshot().scan(where="id >= 7 AND length(CAST(id AS STRING)) = 1", columns=["id"])
    told = scan.explain(row_groups=True)
    assert told.row_groups == (5, 2)
    assert "2 of 5 row groups   (3 ruled out)" in str(told)
    assert told.to_dict()["row_groups"] == [5, 2]
    assert scan.explain().row_groups is None
    assert table.snapshot().scan().explain(row_groups=True).row_groups == (5, 5)
    assert table.snapshot().scan(where="id > 100").explain(row_groups=True).row_groups == (0, 0)
    assert scan.to_arrow()["id"].to_pylist() == [7, 8, 9]
    file.unlink()
    with pytest.raises(MissingFileError):
        scan.explain(row_groups=True)


def test_explain_without_a_predicate_and_of_nothing(flights: DeltaTable, tmp_path: Path) -> None:
    told = flights.snapshot().scan().explain()
    assert told.total == told.after_partition_pruning == told.after_data_skipping
    assert told.parts == ()
    empty = DeltaTable(tmp_path / "empty")
    empty.create(pa.schema([("id", pa.int64())]))
    nothing = empty.snapshot().scan(where="id = 1").explain()
    assert (nothing.total.num_files, nothing.total.size_bytes, nothing.after_data_skipping.num_files) == (0, 0, 0)


def test_a_part_that_may_be_anything_beside_an_or_is_not_used(flights: DeltaTable) -> None:
    (part,) = flights.snapshot().scan(where="id > 1000 OR length(day) = 10").explain().parts
    assert (part.used, part.num_files_ruled_out) == ((), 0)
    (part,) = flights.snapshot().scan(where="id > 1000 OR day = 'nope'").explain().parts
    assert (part.used, part.num_files_ruled_out) == (("partition values", "statistics"), 6)


# tasks


def _read_task(task: ScanTask) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = task.to_arrow().to_pylist()
    return rows


def test_tasks_are_read_in_other_processes(flights: DeltaTable) -> None:
    scan = flights.snapshot().scan(columns=["id", "day"], where="id >= 15 AND value < 28.0")
    tasks = scan.tasks(max_bytes=1)
    assert [task.num_files for task in tasks] == [1] * 5
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.map(_read_task, tasks)
    assert [row for part in parts for row in part] == scan.to_arrow().to_pylist()


def test_tasks_keep_to_their_size_and_order(flights: DeltaTable) -> None:
    scan = flights.snapshot().scan()
    largest = max(scan.plan().files.column("size").to_pylist())
    for max_bytes in (1, largest, 2 * largest + 1, 10**9):
        tasks = scan.tasks(max_bytes)
        assert all(task.size_bytes <= max_bytes or task.num_files == 1 for task in tasks)
        assert sum(task.num_files for task in tasks) == 6
        together = pa.concat_tables([task.to_reader().read_all() for task in tasks])
        assert together.equals(scan.to_arrow())
    assert len(scan.tasks()) == 1
    for bad in (0, -1, True, "1gb", None):
        with pytest.raises(InvalidRequestError):
            scan.tasks(cast(int, bad))


def test_a_pickled_task_carries_its_own_files_only(flights: DeltaTable) -> None:
    scan = flights.snapshot().scan(where=pc.match_like(pc.field("day"), "%03"))
    tasks, (every,) = scan.tasks(1), scan.tasks()
    path = every.plan.files.column("path")[5].as_py().encode()
    assert path in pickle.dumps(every)
    assert path not in pickle.dumps(tasks[0])
    assert [pickle.loads(pickle.dumps(task)).to_arrow().num_rows for task in tasks] == [0, 0, 0, 0, 10, 10]


def test_scans_of_nothing(flights: DeltaTable, tmp_path: Path) -> None:
    scan = flights.snapshot().scan(columns=["value"], where="id < 0")
    assert scan.tasks() == []
    assert scan.to_arrow().schema == pa.schema([("value", pa.float64())])
    assert scan.to_arrow().num_rows == 0
    assert [f.name for f in scan.schema] == ["value"]
    empty = DeltaTable(tmp_path / "empty")
    empty.create(pa.schema([("id", pa.int64())]))
    assert empty.snapshot().scan().tasks() == []
    assert empty.snapshot().scan().to_arrow().schema == pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (None, 60),
        ("day = '2013-01-01'", 20),
        ("id < 15", 15),
        ("length(day) = 10 AND id < 15", 15),
        ("id < 0", 0),
        (pc.match_like(pc.field("day"), "%02"), 20),
    ],
)
def test_rows_without_columns(flights: DeltaTable, where: Any, count: int) -> None:
    scan = flights.snapshot().scan(columns=[], where=where)
    rows = scan.to_arrow()
    assert (rows.num_columns, rows.num_rows) == (0, count)
    assert sum(batch.num_rows for batch in scan.to_reader()) == count
    assert sum(task.to_arrow().num_rows for task in scan.tasks(1)) == count
    assert not scan.schema.fields


# names


@pytest.fixture
def odd(tmp_path: Path) -> DeltaTable:
    made = HandmadeTable(tmp_path / "odd")
    made.create(ODD.schema)
    made.commit(made.add("f.parquet", ODD))
    return made.open()


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["a.b"], ["a.b"]),
        (["`a.b`", "WITH SPACE"], ["a.b", "with space"]),
        (["tick`ed"], ["tick`ed"]),
        (["`tick``ed`", "A"], ["tick`ed", "a"]),
    ],
)
def test_names_with_dots_spaces_and_backticks(odd: DeltaTable, columns: Sequence[str], names: list[str]) -> None:
    rows = odd.snapshot().scan(columns=columns).to_arrow()
    assert rows.equals(ODD.select(names))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("`a.b` = 2", [2]),
        ("`With Space` IN ('x', 'z')", [1, 3]),
        ("`tick``ed` IS NULL", [2]),
        ("a.b = 9", [3]),
        ("length(`with space`) = `a.b`", [1]),
        (pc.field("a.b") == 2, [2]),
        (pc.field("a", "b") == 9, [3]),
        (pc.field("tick`ed").is_null(), [2]),
    ],
)
def test_predicates_on_odd_names(odd: DeltaTable, where: Any, expected: list[int]) -> None:
    assert odd.snapshot().scan(columns=["a.b"], where=where).to_arrow().column(0).to_pylist() == expected


def test_unknown_names_say_what_to_write(odd: DeltaTable) -> None:
    snapshot = odd.snapshot()
    with pytest.raises(ColumnNotFoundError, match=r"Did you mean 'with space'\?"):
        snapshot.scan(columns=["with_space"])
    with pytest.raises(ColumnNotFoundError, match="no column 'c' in the struct a"):
        snapshot.scan(columns=["a.c"])
    with pytest.raises(InvalidRequestError, match="twice"):
        snapshot.scan(columns=["a.b", "`A.B`"])
    with pytest.raises(ColumnNotFoundError):
        snapshot.scan(columns=["`"])


# expressions of pyarrow


def test_an_expression_of_pyarrow_prunes_and_filters(flights: DeltaTable) -> None:
    snapshot = flights.snapshot()
    where = (pc.field("day") == "2013-01-02") & (pc.field("id") >= 35)
    scan = snapshot.scan(where=where)
    assert ids_of(scan.to_arrow()) == [35, 36, 37, 38, 39]
    assert scan.plan().files.num_rows == 1
    assert scan.plan().arrow_filter is None
    assert [p.used for p in scan.explain().parts] == [("partition values",), ("statistics",)]


def test_what_has_no_translation_filters_rows_only(flights: DeltaTable) -> None:
    snapshot = flights.snapshot()
    scan = snapshot.scan(columns=["id"], where=pc.match_like(pc.field("day"), "%-03"))
    assert ids_of(scan.to_arrow()) == list(range(40, 60))
    assert scan.plan().files.num_rows == 6
    (part,) = scan.explain().parts
    assert part.used == () and "match_like" in part.text
    # What is understood of a conjunction prunes, the rest filters.
    half = snapshot.scan(where=(pc.field("id") >= 50) & (pc.field("value").isin([27.0, 29.5])))
    assert (half.plan().files.num_rows, ids_of(half.to_arrow())) == (1, [54, 59])


def test_an_expression_of_pyarrow_that_does_not_fit(flights: DeltaTable) -> None:
    for bad in (pc.field("nope") == 1, pc.field("ID") == 1, pc.field("id"), pc.field("id") > "x"):
        with pytest.raises(InvalidExpressionError):
            flights.snapshot().scan(where=bad)
    with pytest.raises(InvalidExpressionError):
        flights.snapshot().scan(where=["id = 1"])


def test_pyarrow_itself_agrees(flights: DeltaTable) -> None:
    everything = flights.snapshot().scan().to_arrow()
    referee = ds.dataset(everything)
    for where in (
        pc.field("id").isin([3, 33]),
        ~pc.field("id").isin([3, 33]),
        (pc.field("value") > 10) | (pc.field("day") == "2013-01-03"),
        pc.starts_with(pc.field("day"), "2013-01-01") & pc.field("value").is_valid(),
        pc.field(1) < 5,
        pc.add(pc.field("id"), 1) == 7,
    ):
        found = flights.snapshot().scan(where=where).to_arrow()
        assert ids_of(found) == ids_of(referee.to_table(filter=where))
