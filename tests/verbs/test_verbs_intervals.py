"""Columns of intervals: the numbers of the files, in every verb; and no condition but IS NULL."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch import DeltaTable, column
from delta_orch.errors import InvalidExpressionError, InvalidRequestError, ProtocolViolationError, SchemaMismatchError
from delta_orch.protocol.partition_values import parse_partition_value, serialize_partition_value
from delta_orch.protocol.types import DAY_TIME, YEAR_MONTH, IntervalType, parse_interval
from tests.harness.commit_lines import adds
from tests.harness.row_multiset import ensure_same_rows

COLUMNS = (
    column("id", "bigint"),
    column("late", "interval year to month"),
    column("took", "interval day to hour"),
    column("s", "struct<a:interval month,b:array<interval second>>"),
)
PLAIN = ["id", "late", "took"]


def rows(*ids: int) -> pa.Table:
    kind = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int64()))])
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "late": pa.array([None if i % 3 == 2 else 18 - 25 * i for i in ids], pa.int32()),
            "took": pa.array([None if i % 3 == 2 else (-1) ** i * 86_401_000_001 * i for i in ids], pa.int64()),
            "s": pa.array([None if i % 3 == 2 else {"a": -i, "b": [i, None]} for i in ids], kind),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    table.create(COLUMNS)
    table.append(rows(1, 2, 3))
    return table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval year", YEAR_MONTH),
        ("interval month", YEAR_MONTH),
        ("interval year to month", YEAR_MONTH),
        ("interval day", DAY_TIME),
        ("INTERVAL HOUR TO SECOND", DAY_TIME),
        ("interval day to second", DAY_TIME),
        ("interval", None),
        ("interval month to year", None),
        ("interval month to day", None),
        ("interval week", None),
    ],
)
def test_all_spellings_of_a_family_are_one_type(text: str, expected: IntervalType | None) -> None:
    assert parse_interval(text) == expected


def test_files_and_log_hold_what_the_specification_says(table: DeltaTable, tmp_path: Path) -> None:
    (add,) = adds(tmp_path / "t", 1)
    assert orjson.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"id": 1},
        "maxValues": {"id": 3},
        "nullCount": {"id": 0, "late": 1, "took": 1, "s": {"a": 1, "b": 1}},
    }
    snapshot = table.snapshot()
    schema = snapshot.metadata.schema_string
    assert '"interval year to month"' in schema and '"interval day to second"' in schema
    assert "to hour" not in schema
    assert (snapshot.protocol.min_reader_version, snapshot.protocol.min_writer_version) == (1, 2)
    file = pq.ParquetFile(tmp_path / "t" / add["path"]).schema
    kinds = {file.column(i).path: (file.column(i).physical_type, file.column(i).logical_type.type) for i in range(3)}
    assert kinds == {"id": ("INT64", "NONE"), "late": ("INT32", "NONE"), "took": ("INT64", "NONE")}


def test_rows_survive_every_verb(table: DeltaTable) -> None:
    ensure_same_rows(table.snapshot().scan().to_arrow(), rows(1, 2, 3))
    table.merge(rows(3, 4), "target.id = source.id").when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete("id = 1")
    table.update({"late": "late", "took": "NULL"}, where="id = 4")
    table.append(rows(5))
    table.optimize()
    table.checkpoint()
    expected = rows(2, 3, 4, 5).to_pylist()
    expected[2]["took"] = None
    found = DeltaTable(table.uri).snapshot().scan()
    ensure_same_rows(found.to_arrow(), pa.Table.from_pylist(expected, rows(1).schema))
    assert found.to_arrow().schema.field("took").type == pa.int64()


def test_nulls_are_found(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    assert snapshot.scan(["id"], where="late IS NULL").to_arrow()["id"].to_pylist() == [2]
    assert snapshot.scan(["id"], where="took IS NOT NULL AND s.a IS NOT NULL").to_arrow()["id"].to_pylist() == [1, 3]


@pytest.mark.parametrize(
    "where",
    ["late > 5", "late = late", "took < INTERVAL '1' DAY", "late IN (1, 2)", "abs(late) > 1", "s.a = 1", "took = id"],
)
def test_no_other_condition(table: DeltaTable, where: str) -> None:
    for ask in (lambda: table.snapshot().scan(where=where).to_arrow(), lambda: table.delete(where)):
        with pytest.raises(InvalidExpressionError, match="is of type interval"):
            ask()
    with pytest.raises(InvalidExpressionError, match="is of type interval"):
        table.alter().add_constraint("rule", where).commit()
    assert table.version() == 1


def test_no_expression_makes_one(table: DeltaTable) -> None:
    with pytest.raises(SchemaMismatchError, match="cannot hold the constant 5"):
        table.update({"late": "5"})
    with pytest.raises(InvalidExpressionError, match="is of type interval"):
        table.update({"id": "late + 1"})
    with pytest.raises(SchemaMismatchError, match="has a default or is generated"):
        table.alter().set_default("took", "INTERVAL '1' DAY").commit()
    with pytest.raises(SchemaMismatchError, match="has a default or is generated"):
        DeltaTable(table.uri + "2").create([column("a", "int"), column("b", "interval day", generated_as="a")])
    with pytest.raises(InvalidRequestError, match="smallest and largest"):
        table.alter().cluster_by("late").commit()
    with pytest.raises(SchemaMismatchError, match="late is long"):
        table.append(rows(9).set_column(1, "late", pa.array([1], pa.int64())))
    assert table.version() == 1


def test_as_partitions(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(COLUMNS[:3], partition_by=["late", "took"])
    table.append(rows(1, 2, 3).select(PLAIN))
    table.delete("id = 3")
    table.checkpoint()
    ensure_same_rows(DeltaTable(table.uri).snapshot().scan().to_arrow(), rows(1, 2).select(PLAIN))
    assert {tuple(add["partitionValues"].values()) for add in adds(tmp_path / "t", 1)} == {
        ("INTERVAL '-0-7' YEAR TO MONTH", "INTERVAL '-1 00:00:01.000001' DAY TO SECOND"),
        (None, None),
        ("INTERVAL '-4-9' YEAR TO MONTH", "INTERVAL '-3 00:00:03.000003' DAY TO SECOND"),
    }
    assert table.snapshot().scan(["id"], where="took IS NULL").to_arrow()["id"].to_pylist() == [2]


def test_iceberg_has_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="excludes the types interval year to month"):
        DeltaTable(tmp_path / "t").create(COLUMNS[:2], properties={"delta.enableIcebergCompatV2": "true"})


def test_files_of_others_are_added(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(COLUMNS[:3])
    pq.write_table(rows(1, 2).select(PLAIN), tmp_path / "t" / "mine.parquet")
    table.add_files([tmp_path / "t" / "mine.parquet"])
    ensure_same_rows(table.snapshot().scan().to_arrow(), rows(1, 2).select(PLAIN))


@given(months=st.integers(-(2**31), 2**31 - 1), micros=st.integers(-(2**63), 2**63 - 1))
def test_partition_values_survive(months: int, micros: int) -> None:
    for value, data_type in ((months, YEAR_MONTH), (micros, DAY_TIME)):
        assert parse_partition_value(serialize_partition_value(value, data_type), data_type) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INTERVAL '-1-6' YEAR TO MONTH", -18),
        ("INTERVAL -'1-6' YEAR TO MONTH", -18),
        ("INTERVAL '-1 00:00:01' DAY TO SECOND", -86_401_000_000),
        ("INTERVAL '7 12:34:56.123456' DAY TO SECOND", 650_096_123_456),
        ("INTERVAL '0 00:00:00.5' DAY TO SECOND", 500_000),
    ],
)
def test_what_delta_on_spark_writes(text: str, expected: int) -> None:
    assert parse_partition_value(text, YEAR_MONTH if "YEAR" in text else DAY_TIME) == expected


@pytest.mark.parametrize("text", ["18", "INTERVAL '1' YEAR", "INTERVAL '999999999-0' YEAR TO MONTH"])
def test_other_partition_values_are_told(text: str) -> None:
    with pytest.raises(ProtocolViolationError, match="not a valid interval year to month"):
        parse_partition_value(text, YEAR_MONTH)


def test_change_events_compare_intervals(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create((column("id", "bigint"), column("seq", "bigint"), column("took", "interval day to second")))

    def events(seq: int, *took: int | None) -> pa.Table:
        numbers = {"id": pa.array(range(len(took)), pa.int64()), "seq": pa.array([seq] * len(took), pa.int64())}
        return pa.table({**numbers, "took": pa.array(took, pa.int64())})

    table.apply_changes(events(1, 5, None, 7), keys=["id"], sequence_by="seq")
    table.apply_changes(events(2, 5, 6, None), keys=["id"], sequence_by="seq")
    with pytest.raises(InvalidRequestError, match="have the same sequence and differ"):
        table.apply_changes(events(2, 5, 6, 8), keys=["id"], sequence_by="seq")
    ensure_same_rows(table.snapshot().scan(columns=["id", "seq", "took"]).to_arrow(), events(2, 5, 6, None))
