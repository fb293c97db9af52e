"""overwrite, replace_where and dynamic partition overwrite, on both engines."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    AppendOnlyError,
    ColumnNotFoundError,
    ConflictError,
    ConstraintViolationError,
    InvalidExpressionError,
    InvalidRequestError,
    SchemaMismatchError,
)
from delta_orch.expressions.parse import parse_expression


def paths(table: DeltaTable) -> set[str]:
    return set(table.snapshot().files(["path"]).column("path").to_pylist())


def test_overwrite_replaces_everything(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"])
    result = table.overwrite(rows.data(days(("c", 3))))
    assert result.version == 1
    assert ids(table) == {"c": [3]}
    assert ids(table.snapshot(version=0)) == {"a": [1], "b": [2]}
    entry = table.history()[0]
    assert entry.operation_parameters["mode"] == "Overwrite"
    assert int(entry.operation_metrics["numRemovedFiles"]) == 2


def test_overwrite_creates_the_table(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    assert table.overwrite(rows.data(days(("a", 1))), partition_by=["day"]).version == 0
    assert ids(table) == {"a": [1]}


def test_overwrite_with_other_columns_is_refused(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    with pytest.raises(SchemaMismatchError):
        table.overwrite(rows.data(pa.table({"x": [1]})))
    assert ids(table) == {"a": [1]}


def test_replace_where_replaces_whole_partitions_without_reading_them(
    rows: Any, table: DeltaTable, days: Any, ids: Any
) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2), ("c", 3))), partition_by=["day"])
    before = table.snapshot().files(["path", "partition_values"]).to_pylist()
    kept = {f["path"] for f in before if dict(f["partition_values"])["day"] != "b"}
    table.overwrite(rows.data(days(("b", 4), ("b", 5))), replace_where="day = 'b'")
    assert ids(table) == {"a": [1], "b": [4, 5], "c": [3]}
    assert kept < paths(table)
    assert table.history()[0].operation_parameters["predicate"] == "day = 'b'"


@pytest.mark.long
def test_replace_where_rewrites_files_that_match_in_part(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1), ("a", 2), ("a", 3))))
    table.append(rows.data(days(("a", 100))))
    (untouched,) = (p for p in paths(table) if p not in paths_at(table, 0))
    table.overwrite(rows.data(days(("n", 2), ("n", 3))), replace_where="id >= 2 AND id < 50")
    assert ids(table) == {"a": [1, 100], "n": [2, 3]}
    assert untouched in paths(table)


def paths_at(table: DeltaTable, version: int) -> set[str]:
    return set(table.snapshot(version=version).files(["path"]).column("path").to_pylist())


def test_replace_where_keeps_rows_for_which_it_is_null(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days((None, 1), ("a", 2), ("b", 3))))
    table.overwrite(rows.data(days(("a", 4))), replace_where="day = 'a'")
    assert ids(table) == {None: [1], "a": [4], "b": [3]}


@pytest.mark.parametrize("partition_by", [None, ["day"]])
@pytest.mark.parametrize("outside", ["z", None])
def test_rows_outside_replace_where(
    rows: Any, table: DeltaTable, days: Any, ids: Any, partition_by: Any, outside: Any
) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=partition_by)
    with pytest.raises(ConstraintViolationError, match="replace_where"):
        table.overwrite(rows.data(days(("a", 2), (outside, 3))), replace_where="day = 'a'")
    assert table.version() == 0
    assert ids(table) == {"a": [1]}


def test_rows_outside_replace_where_by_value(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    with pytest.raises(ConstraintViolationError, match="replace_where"):
        table.overwrite(rows.data(days(("a", 2), ("a", 30))), replace_where="id < 10")
    assert table.version() == 0


def test_no_rows_with_replace_where_clears_the_range(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"])
    table.overwrite(rows.data(days()), replace_where="day = 'a'")
    assert ids(table) == {"b": [2]}


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("nope = 1", ColumnNotFoundError),
        ("day = ", InvalidExpressionError),
        ("day = 'a'; DROP TABLE x", InvalidExpressionError),
        ("id = 'seven'", InvalidExpressionError),
        ("", InvalidExpressionError),
        (5, InvalidExpressionError),
    ],
)
def test_bad_replace_where(table: DeltaTable, days: Any, where: Any, error: Any) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    with pytest.raises(error):
        table.overwrite(days(("a", 2)), replace_where=where)
    assert table.version() == 0


def test_replace_where_creates_the_table(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    with pytest.raises(ConstraintViolationError, match="replace_where"):
        table.overwrite(rows.data(days(("b", 1))), replace_where="day = 'a'", partition_by=["day"])
    with pytest.raises(ColumnNotFoundError):
        table.overwrite(rows.data(days(("a", 1))), replace_where="dya = 'a'", partition_by=["day"])
    assert not table.exists()
    table.overwrite(rows.data(days(("a", 1))), replace_where="day = 'a'", partition_by=["day"])
    assert (table.version(), ids(table)) == (0, {"a": [1]})


def test_dynamic_replaces_the_partitions_in_the_data(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2), (None, 3))), partition_by=["day"])
    table.overwrite(rows.data(days(("b", 4), (None, 5), ("d", 6))), partition_overwrite_mode="dynamic")
    assert ids(table) == {"a": [1], "b": [4], None: [5], "d": [6]}


def test_dynamic_without_rows_changes_nothing(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=["day"])
    table.overwrite(rows.data(days()), partition_overwrite_mode="dynamic")
    assert ids(table) == {"a": [1]}


def test_dynamic_compares_values_not_spellings(table: DeltaTable) -> None:
    data = pa.table({"part": pa.array([1.0, 2.0], pa.float64()), "id": pa.array([1, 2], pa.int64())})
    table.append(data, partition_by=["part"])
    log = table.store.read_bytes("_delta_log/00000000000000000000.json")
    from pathlib import Path

    commit = Path(table.store.resolve("_delta_log/00000000000000000000.json"))
    commit.write_bytes(log.replace(b'"part":"1.0"', b'"part":"1"'))
    again = DeltaTable(table.uri)
    again.overwrite(pa.table({"part": [1.0], "id": pa.array([3], pa.int64())}), partition_overwrite_mode="dynamic")
    assert sorted(again.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [2, 3]


@pytest.mark.long
def test_dynamic_takes_zeros_of_both_signs_for_one(rows: Any, table: DeltaTable) -> None:
    # They lie in two partitions, and are equal in every predicate.
    table.append(rows.data(pa.table({"part": [0.0, -0.0, 1.0], "id": [1, 2, 3]})), partition_by=["part"])
    table.overwrite(rows.data(pa.table({"part": [0.0], "id": [4]})), partition_overwrite_mode="dynamic")
    assert sorted(row["id"] for row in rows.pylist(table)) == [3, 4]
    first = table.snapshot()
    table.append(rows.data(pa.table({"part": [-0.0], "id": [5]})))
    again = rows.data(pa.table({"part": [0.0], "id": [6]}))
    with pytest.raises(ConflictError):
        first.overwrite(again, partition_overwrite_mode="dynamic", isolation_level="Serializable")


def test_dynamic_needs_partitions(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    with pytest.raises(InvalidRequestError, match="partitioned"):
        table.overwrite(rows.data(days(("a", 2))), partition_overwrite_mode="dynamic")
    with pytest.raises(InvalidRequestError, match="exclude"):
        table.overwrite(rows.data(days(("a", 2))), partition_overwrite_mode="dynamic", replace_where="day = 'a'")
    with pytest.raises(InvalidRequestError, match="sometimes"):
        table.overwrite(rows.data(days(("a", 2))), partition_overwrite_mode="sometimes")
    assert ids(table) == {"a": [1]}


def test_append_only_tables_keep_their_rows(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=["day"], properties={"delta.appendOnly": "true"})
    modes: list[dict[str, Any]] = [{}, {"replace_where": "day = 'a'"}, {"partition_overwrite_mode": "dynamic"}]
    for mode in modes:
        with pytest.raises(AppendOnlyError):
            table.overwrite(rows.data(days(("a", 2))), **mode)
    assert ids(table) == {"a": [1]}


def test_overwrite_from_the_table_itself(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"])
    scan = table.snapshot().scan(where="day = 'a'")
    source = scan.to_reader() if rows.spark is None else scan.to_spark(rows.spark)
    table.overwrite(source)
    assert ids(table) == {"a": [1]}


@pytest.mark.long
def test_range_overwrite_leaves_out_newer_partitions(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    def key(day: str, version: int) -> TxnId:
        return TxnId(f"job:{day}", version, parse_expression(f"day = '{day}'"))

    table.append(rows.data(days(("a", 1), ("b", 2), ("c", 3), ("x", 9))), partition_by=["day"])
    table.overwrite(rows.data(days(("b", 20))), replace_where="day = 'b'", txn=key("b", 10))
    where = "day >= 'a' AND day <= 'c'"
    backfill = rows.data(days(("a", 5), ("b", 6), ("c", 7)))
    result = table.overwrite(backfill, replace_where=where, txn=[key(d, 5) for d in "abc"])
    assert [t.app_id for t in result.skipped_txns] == ["job:b"]
    assert ids(table) == {"a": [5], "b": [20], "c": [7], "x": [9]}
    assert table.overwrite(backfill, replace_where=where, txn=[key(d, 5) for d in "abc"]).skipped
    assert ids(table) == {"a": [5], "b": [20], "c": [7], "x": [9]}


def test_partition_that_turns_newer_meanwhile_is_left_out(table: DeltaTable, days: Any) -> None:
    def key(day: str, version: int) -> TxnId:
        return TxnId(f"job:{day}", version, parse_expression(f"day = '{day}'"))

    table.append(days(("a", 1), ("b", 2)), partition_by=["day"])

    def late() -> Any:
        # While the backfill's rows are pulled, a newer run replaces b.
        DeltaTable(table.uri).overwrite(days(("b", 20)), replace_where="day = 'b'", txn=key("b", 10))
        yield from days(("a", 5), ("b", 6)).to_batches()

    reader = pa.RecordBatchReader.from_batches(days().schema, late())
    result = table.overwrite(reader, replace_where="day IN ('a', 'b')", txn=[key("a", 5), key("b", 5)])
    assert [t.app_id for t in result.skipped_txns] == ["job:b"]
    read = table.snapshot().scan().to_arrow().sort_by("day").to_pylist()
    assert [(r["day"], r["id"]) for r in read] == [("a", 5), ("b", 20)]


def test_overwrite_of_what_another_replaced_meanwhile_conflicts(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"])

    def late() -> Any:
        DeltaTable(table.uri).overwrite(days(("a", 20)), replace_where="day = 'a'")
        yield from days(("a", 5)).to_batches()

    reader = pa.RecordBatchReader.from_batches(days().schema, late())
    with pytest.raises(ConflictError) as caught:
        table.overwrite(reader, replace_where="day = 'a'")
    assert caught.value.retryable
    assert sorted(r["id"] for r in table.snapshot().scan().to_arrow().to_pylist()) == [2, 20]


def test_overwrites_of_different_partitions_do_not_conflict(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"])

    def late() -> Any:
        DeltaTable(table.uri).overwrite(days(("b", 20)), partition_overwrite_mode="dynamic")
        yield from days(("a", 5)).to_batches()

    reader = pa.RecordBatchReader.from_batches(days().schema, late())
    result = table.overwrite(reader, replace_where="day = 'a'")
    assert result.rebased_versions == (1,)
    assert sorted(r["id"] for r in table.snapshot().scan().to_arrow().to_pylist()) == [5, 20]


@pytest.mark.parametrize("other", ["append", "overwrite"])
def test_overwrite_of_a_table_that_is_created_meanwhile(table: DeltaTable, days: Any, other: str) -> None:
    def late() -> Any:
        getattr(DeltaTable(table.uri), other)(days(("a", 1)))
        yield from days(("a", 2)).to_batches()

    reader = pa.RecordBatchReader.from_batches(days().schema, late())
    if other == "append":
        # As if the append had come second.
        table.overwrite(reader)
        assert sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 2]
    else:
        with pytest.raises(ConflictError):
            table.overwrite(reader)
        assert table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist() == [1]


def commit_lines(table: DeltaTable, version: int) -> list[dict[str, Any]]:
    return [json.loads(x) for x in table.store.read_bytes(f"_delta_log/{version:020d}.json").splitlines()]


def changes_of(rows: Any, table: DeltaTable, version: int) -> list[tuple[Any, ...]]:
    feed = table.changes(starting_version=version, ending_version=version)
    read = feed.to_arrow() if rows.spark is None else rows.collect(feed.to_spark(rows.spark))
    return sorted((r["_change_type"], r["day"], r["id"]) for r in read.to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("partition_by", [["day"], []], ids=["partitioned", "flat"])
def test_partial_rewrite_with_a_change_feed_tells_its_changes(
    rows: Any, table: DeltaTable, days: Any, ids: Any, partition_by: list[str]
) -> None:
    table.append(
        rows.data(days(("a", 1), ("a", 2), ("b", 3))),
        partition_by=partition_by,
        properties={"delta.enableChangeDataFeed": "true"},
    )
    table.append(rows.data(days(("a", 2))))
    result = table.overwrite(rows.data(days(("a", 2), ("c", 2))), replace_where="id = 2")
    assert ids(table) == {"a": [1, 2], "b": [3], "c": [2]}
    assert changes_of(rows, table, result.version) == [
        ("delete", "a", 2),
        ("delete", "a", 2),
        ("insert", "a", 2),
        ("insert", "c", 2),
    ]
    # A row that keeps its file is never told as changed, and nothing but the change files has the extra column.
    cdc = [line["cdc"] for line in commit_lines(table, result.version) if "cdc" in line]
    assert cdc and not any(c["dataChange"] for c in cdc)
    assert any(c["path"].startswith("_change_data/") for c in cdc)
    only_deleted = table.overwrite(rows.data(days()), replace_where="id = 1")
    assert changes_of(rows, table, only_deleted.version) == [("delete", "a", 1)]
    nothing = table.overwrite(rows.data(days(("z", -5))), replace_where="id < 0 or value = 77")
    assert changes_of(rows, table, nothing.version) == [("insert", "z", -5)]
    whole = table.overwrite(rows.data(days(("q", 9))))
    assert [c[0] for c in changes_of(rows, table, whole.version)] == ["delete"] * 4 + ["insert"]
    assert not any("cdc" in line for line in commit_lines(table, whole.version))


@pytest.mark.long
def test_a_write_that_changes_nothing_commits_nothing(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    """As with Delta on Spark (tests/interop/test_reference_row_features.py). What is recorded is a change."""
    none = days(("a", 1)).slice(0, 0)
    assert table.append(rows.data(none), partition_by=["day"]).version == 0
    assert table.overwrite(rows.data(none)).skipped
    table.append(rows.data(days(("a", 1), ("b", 2))))
    for result in (
        table.append(rows.data(none)),
        table.append(rows.data(none), stage=True),
        table.overwrite(rows.data(none), replace_where="day = 'z'"),
        table.overwrite(rows.data(none), replace_where="id > 100"),
        table.overwrite(rows.data(none), partition_overwrite_mode="dynamic"),
    ):
        assert (result.skipped, result.version, result.staged) == (True, 1, None)
    assert table.version() == 1
    assert table.append(rows.data(none), txn=TxnId("job", 1)).version == 2
    assert table.overwrite(rows.data(none), replace_where="day = 'z'", txn=TxnId("job", 2)).version == 3
    assert table.snapshot().txn_version("job") == 2
    wider = pa.table({"day": pa.array([], pa.string()), "id": pa.array([], pa.int64()), "x": pa.array([], pa.int64())})
    assert table.append(rows.data(wider), schema_mode="merge").version == 4
    assert ids(table) == {"a": [1], "b": [2]}
    assert table.overwrite(rows.data(wider)).version == 5
    assert table.overwrite(rows.data(wider)).skipped


@pytest.mark.long
def test_a_write_of_nothing_looks_for_what_others_changed(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=["day"])
    before = table.snapshot()
    table.append(rows.data(days(("z", 2))))
    with pytest.raises(ConflictError):
        before.overwrite(rows.data(days(("z", 2)).slice(0, 0)), replace_where="day = 'z'")
    assert before.overwrite(rows.data(days(("y", 2)).slice(0, 0)), replace_where="day = 'y'").skipped
