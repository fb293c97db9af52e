"""append and create, on both engines."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    ConcurrentTransactionError,
    ConstraintViolationError,
    InvalidPropertyError,
    InvalidRequestError,
    SchemaMismatchError,
    TableExistsError,
    UnsupportedFeatureError,
)
from delta_orch.expressions.parse import parse_expression
from tests.harness.row_multiset import ensure_same_rows


def commit_lines(table: DeltaTable, version: int) -> list[dict[str, Any]]:
    return [json.loads(x) for x in table.store.read_bytes(f"_delta_log/{version:020d}.json").splitlines()]


def test_first_append_creates_the_table(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    assert not table.exists()
    result = table.append(
        rows.data(days(("a", 1), ("b", 2))),
        partition_by=["DAY"],
        properties={"delta.checkpointInterval": "5", "owner": "me"},
        name="flights",
        description="of 2013",
        user_metadata="note",
    )
    assert (result.version, result.skipped) == (0, False)
    snapshot = table.snapshot()
    assert snapshot.partition_columns == ("day",)
    assert snapshot.metadata.name == "flights"
    assert snapshot.metadata.description == "of 2013"
    assert snapshot.metadata.configuration == {"delta.checkpointInterval": "5", "owner": "me"}
    assert snapshot.metadata.created_time
    assert (snapshot.protocol.min_reader_version, snapshot.protocol.min_writer_version) == (1, 2)
    assert all(f.nullable for f in snapshot.schema)
    assert ids(table) == {"a": [1], "b": [2]}
    entry = table.history()[0]
    assert entry.operation == "WRITE"
    assert entry.operation_parameters == {"mode": "Append", "partitionBy": '["day"]'}
    assert int(entry.operation_metrics["numOutputRows"]) == 2
    assert int(entry.operation_metrics["numFiles"]) == snapshot.num_files
    assert entry.user_metadata == "note"


def test_append_adds_rows(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    before = table.snapshot()
    assert table.append(rows.data(days(("a", 2), (None, 3)))).version == 1
    assert ids(table) == {"a": [1, 2], None: [3]}
    assert ids(before) == {"a": [1]}
    assert ids(table.snapshot(version=0)) == {"a": [1]}


def test_columns_match_by_name_and_cast_without_loss(rows: Any, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64()), "Name": ["x"]})))
    table.append(rows.data(pa.table({"NAME": ["y"], "ID": pa.array([2], pa.int32())})))
    read = rows.read(table)
    assert read.column_names == ["id", "Name"]
    assert read.to_pylist() == [{"id": 1, "Name": "x"}, {"id": 2, "Name": "y"}]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (pa.table({"id": pa.array([1], pa.int64()), "name": ["x"], "more": [1]}), "more"),
        (pa.table({"id": pa.array([1], pa.int64()), "name": pa.array([1], pa.int64())}), "name"),
        (pa.table({"id": pa.array([1.5], pa.float64()), "name": ["x"]}), "id"),
    ],
    ids=["extra", "wrong type", "narrowing"],
)
def test_schema_mismatch_changes_nothing(rows: Any, table: DeltaTable, data: pa.Table, names: str) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64()), "name": ["x"]})))
    before = sorted(f.path for f in table.store.list_recursive())
    with pytest.raises(SchemaMismatchError, match=names):
        table.append(rows.data(data))
    assert sorted(f.path for f in table.store.list_recursive()) == before


@pytest.mark.long
def test_null_fills_what_the_data_lacks_and_may_be_null(rows: Any, table: DeltaTable) -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string()), pa.field("s", inner)]
    table.create(pa.schema([*fields, pa.field("day", pa.string())]), partition_by=["day"])
    less = pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())]))
    data = pa.table({"ID": [1, 2], "s": less, "day": ["d", "d"]})
    table.append(rows.data(data))
    wanted = [
        {"id": 1, "note": None, "s": {"x": 1, "y": None}, "day": "d"},
        {"id": 2, "note": None, "s": None, "day": "d"},
    ]
    assert rows.pylist(table) == wanted
    table.overwrite(rows.data(data), replace_where="day = 'd'")
    assert rows.pylist(table) == wanted
    # A row without its partition, or without a value that must be there, is refused, as Delta on Spark does.
    for column in ("day", "id"):
        with pytest.raises(SchemaMismatchError, match=f"column {column} is missing"):
            table.append(rows.data(data.drop([{"id": "ID"}.get(column, column)])))
    assert table.version() == 2


def test_null_in_a_not_null_column(rows: Any, table: DeltaTable) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    table.create(schema)
    good = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array([None], pa.string())})
    table.append(rows.data(good))
    bad = pa.table({"id": pa.array([2, None], pa.int64()), "name": ["x", "y"]})
    with pytest.raises(ConstraintViolationError, match="id"):
        table.append(rows.data(bad))
    assert table.version() == 1
    assert rows.pylist(table) == [{"id": 1, "name": None}]


def test_partition_by_must_agree(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=["day"])
    table.append(rows.data(days(("a", 2))), partition_by=["Day"])
    for other in ([], ["id"], ["day", "id"]):
        with pytest.raises(InvalidRequestError, match="partition_by"):
            table.append(rows.data(days(("a", 3))), partition_by=other)
    with pytest.raises(InvalidRequestError, match=r"\['day'\]"):
        table.append(rows.data(days(("a", 3))), partition_by="day")
    assert table.version() == 1


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"delta.checkpointIntervall": "5"}, InvalidPropertyError),
        ({"delta.checkpointInterval": "five"}, InvalidPropertyError),
        ({"delta.columnMapping.mode": "names"}, InvalidPropertyError),
        ({"delta.feature.somethingNew": "supported"}, UnsupportedFeatureError),
    ],
)
def test_bad_properties_create_nothing(rows: Any, table: DeltaTable, days: Any, properties: Any, error: Any) -> None:
    with pytest.raises(error):
        table.append(rows.data(days(("a", 1))), properties=properties)
    assert not table.exists()
    assert not list(table.store.list_recursive())
    # Nor are they passed over where the table is there, and keeps its own.
    table.append(rows.data(days(("a", 1))))
    with pytest.raises(error):
        table.append(rows.data(days(("a", 1))), properties=properties)
    assert table.version() == 0


def test_txn_commits_once(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    assert not table.append(rows.data(days(("a", 1))), txn=("job", 1)).skipped
    again = table.append(rows.data(days(("a", 2))), txn=TxnId("job", 1))
    assert (again.skipped, again.version) == (True, 0)
    assert table.append(rows.data(days(("a", 3))), txn=("job", 0)).skipped
    assert not table.append(rows.data(days(("a", 4))), txn=[("job", 2), TxnId("other", 7)]).skipped
    assert dict(table.txns()) == {"job": 2, "other": 7}
    assert ids(table) == {"a": [1, 4]}


def test_stale_txn_does_not_consume_the_data(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), txn=("job", 1))

    def never() -> Any:
        raise AssertionError("the data was consumed")
        yield

    reader = pa.RecordBatchReader.from_batches(days(("a", 2)).schema, never())
    assert table.append(reader, txn=("job", 1)).skipped


def test_a_txn_that_follows_another_version_does_not_consume_the_data(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), txn=TxnId("cursor", 4, follows=-1))

    def never() -> Any:
        raise AssertionError("the data was consumed")
        yield

    for follows in (-1, 3, 5):
        reader = pa.RecordBatchReader.from_batches(days().schema, never())
        with pytest.raises(ConcurrentTransactionError):
            table.append(reader, txn=TxnId("cursor", 9, follows=follows))
    assert table.append(days(("a", 2)), txn=TxnId("cursor", 9, follows=4)).version == 1


@pytest.mark.long
def test_scoped_txns_leave_out_what_is_recorded(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    def key(day: str, version: int) -> TxnId:
        return TxnId(f"job:{day}", version, parse_expression(f"day = '{day}'"))

    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"], txn=[key("a", 1), key("b", 1)])
    table.append(rows.data(days(("b", 3))), txn=[key("b", 5)])
    late = table.append(rows.data(days(("a", 4), ("b", 5), ("c", 6))), txn=[key("a", 2), key("b", 2), key("c", 2)])
    assert not late.skipped
    assert [t.app_id for t in late.skipped_txns] == ["job:b"]
    assert ids(table) == {"a": [1, 4], "b": [2, 3], "c": [6]}
    assert table.append(rows.data(days(("a", 7), ("c", 8))), txn=[key("a", 2), key("c", 2)]).skipped
    assert dict(table.txns()) == {"job:a": 2, "job:b": 5, "job:c": 2}


def test_rows_outside_all_scopes_are_refused(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))), partition_by=["day"])
    with pytest.raises(ConstraintViolationError, match="'z'"):
        table.append(rows.data(days(("a", 2), ("z", 3))), txn=TxnId("job", 1, parse_expression("day = 'a'")))
    with pytest.raises(InvalidRequestError, match="partition column"):
        table.append(rows.data(days(("a", 2))), txn=TxnId("job", 1, parse_expression("id = 2")))
    assert table.version() == 0


@pytest.mark.parametrize(
    "txn", ["job", ("job",), ("job", "1"), ("", 1), ("job", -1), ("job", True), [("a", 1), ("a", 2)], 5]
)
def test_bad_txn(table: DeltaTable, days: Any, txn: Any) -> None:
    with pytest.raises(InvalidRequestError):
        table.append(days(("a", 1)), txn=txn)
    assert not table.exists()


def test_append_without_rows_still_records_the_txn(rows: Any, table: DeltaTable, days: Any, ids: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    assert not table.append(rows.data(days()), txn=("job", 1)).skipped
    assert dict(table.txns()) == {"job": 1}
    assert ids(table) == {"a": [1]}


def test_types_come_back(rows: Any, table: DeltaTable) -> None:
    data = pa.table(
        {
            "b": pa.array([True, None], pa.bool_()),
            "i8": pa.array([-128, None], pa.int8()),
            "i16": pa.array([-(2**15), None], pa.int16()),
            "i32": pa.array([2**31 - 1, None], pa.int32()),
            "i64": pa.array([-(2**63), None], pa.int64()),
            "f32": pa.array([1.5, float("nan")], pa.float32()),
            "f64": pa.array([float("-inf"), None], pa.float64()),
            "dec": pa.array([Decimal("-12345678901234567890.12"), None], pa.decimal128(38, 2)),
            "text": pa.array(["ü \n\t", ""], pa.string()),
            "raw": pa.array([b"\x00\xff", None], pa.binary()),
            "d": pa.array([date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
            "ts": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), None], pa.timestamp("us", "UTC")),
            "nested": pa.array(
                [{"x": 1, "y": ["a", None]}, None], pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
            ),
            "m": pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.string(), pa.int64())),
        }
    )  # fmt: skip
    table.append(rows.data(data))
    ensure_same_rows(table.snapshot().scan().to_arrow(), data)
    if rows.spark is not None:
        ensure_same_rows(rows.collect(table.snapshot().scan().to_spark(rows.spark)), data)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([date(2013, 1, 1), None, date(1, 1, 1)], pa.date32()),
        pa.array(
            [datetime(2013, 1, 1, 12, 30, 0, 123456, UTC), None, datetime(1900, 1, 1, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
        ),
        pa.array([datetime(2013, 1, 1, 12, 30), None, datetime(9999, 1, 1)], pa.timestamp("us")),
        pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
        pa.array([1, None, -1], pa.int8()),
        pa.array([True, None, False], pa.bool_()),
        pa.array([0.1, None, float("inf")], pa.float64()),
        pa.array([Decimal("1.10"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        pa.array(["a b/c%d=e:f", None, "ü'\""], pa.string()),
        pa.array([b"ab", None, b"c d"], pa.binary()),
    ],
    ids=lambda v: str(v.type).replace(" ", ""),
)  # fmt: skip
def test_partition_values_of_every_type_come_back(rows: Any, table: DeltaTable, values: pa.Array) -> None:
    data = pa.table({"part": values, "id": pa.array([1, 2, 3], pa.int64())})
    table.append(rows.data(data), partition_by=["part"])
    assert table.snapshot().num_files == 3
    ensure_same_rows(rows.read(table, columns=["part", "id"]), data)


@pytest.mark.parametrize("kind", ["reader", "pandas", "polars", "batch"])
def test_other_values_are_taken(table: DeltaTable, days: Any, kind: str) -> None:
    data = days(("a", 1), ("b", 2))
    value: Any = data
    if kind == "reader":
        value = data.to_reader()
    elif kind == "batch":
        value = data.to_batches()[0]
    elif kind == "pandas":
        value = data.to_pandas()
    elif kind == "polars":
        value = pytest.importorskip("polars", reason="Polars is not installed").from_arrow(data)
    table.append(value)
    ensure_same_rows(table.snapshot().scan().to_arrow(), data)


@pytest.mark.parametrize("value", [None, 5, "rows", [1, 2], {"a": 1}, object()])
def test_values_that_are_no_rows(table: DeltaTable, value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        table.append(value)
    assert not table.exists()


def test_create_or_join(table: DeltaTable, days: Any) -> None:
    schema = days().schema
    created = table.create(schema, partition_by=["day"], properties={"delta.appendOnly": "true"}, description="d")
    assert (created.version, created.skipped) == (0, False)
    joined = DeltaTable(table.uri).create(schema, partition_by=["day"])
    assert (joined.version, joined.skipped) == (0, True)
    with pytest.raises(TableExistsError):
        table.create(schema)
    with pytest.raises(TableExistsError):
        table.create(pa.schema([("day", pa.string())]))
    assert table.version() == 0
    assert table.snapshot().scan().to_arrow().num_rows == 0
    assert table.history()[0].operation == "CREATE TABLE"


def test_an_object_notices_that_its_table_was_replaced(tmp_path: Path, days: Any) -> None:
    import shutil

    table = DeltaTable(tmp_path / "t")
    for i in range(3):
        table.append(days(("a", i)))
    old_id = table.snapshot().metadata.id
    shutil.rmtree(tmp_path / "t")
    table.append(days(("b", 9)))
    assert table.version() == 0
    assert table.snapshot().metadata.id != old_id


def test_a_list_of_record_batches_is_data(table: DeltaTable) -> None:
    batches = [pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [3]})]
    table.append(batches)
    table.append(tuple(batches))
    table.merge(batches, "t.id = s.id + 1", source_alias="s", target_alias="t").when_matched_delete().execute()
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 1]
    for wrong in ([], [*batches, pa.record_batch({"id": ["x"]})], iter(batches), [1]):
        with pytest.raises(InvalidRequestError):
            table.append(wrong)
    assert table.version() == 2
