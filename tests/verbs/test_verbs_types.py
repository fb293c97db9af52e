"""Every type a data file may hold, on both engines, clause by clause of what can be read; golden tables cover the rest.

| what                                           | where                                                          |
|------------------------------------------------|----------------------------------------------------------------|
| all primitive types, nested structs and maps   | golden: `parquet-all-types`, `data-reader-*`; below            |
| decimals of all precisions, in every storage   | below; golden: `parquet-decimal-*`                             |
| legacy lists                                   | golden: `parquet-all-types-legacy-format`; below, two levels   |
| INT96, millis, micros, nanos, with and without | below; golden: `kernel-timestamp-*`                            |
| `timestamp_ntz`                                | below; golden: `data-reader-timestamp_ntz*`                    |
| `void`                                         | below                                                          |
| char, varchar, collations                      | `test_column_details.py`; golden: `collations-table`           |
| variant                                        | golden: `variant/*`; `test_variant_*.py`                       |
| before 1582, in the year 9999                  | below; other calendars: `test_legacy_calendar.py`, on Spark too |
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
)
from tests.handmade import HandmadeTable


def read(rows: Any, root: Path, schema: StructType, data: pa.Table, **write: Any) -> pa.Table:
    """The rows of a table of one file, in their order."""
    made = HandmadeTable(root)
    made.create(schema, reader_features=("timestampNtz",))
    made.commit(made.add("f.parquet", data, write=write))
    scan = made.open().snapshot().scan()
    return scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))


def schema_of(**fields: DataType) -> StructType:
    return StructType(tuple(StructField(name, data_type) for name, data_type in fields.items()))


def test_primitive_types_and_their_edges(rows: Any, tmp_path: Path) -> None:
    schema = schema_of(b=BYTE, s=SHORT, i=INTEGER, l=LONG, f=FLOAT, d=DOUBLE, o=BOOLEAN, t=STRING, x=BINARY, a=DATE)
    columns: dict[str, list[Any]] = {
        "b": [-128, 127, None], "s": [-(2**15), 2**15 - 1, None], "i": [-(2**31), 2**31 - 1, None],
        "l": [-(2**63), 2**63 - 1, None], "f": [-1.5, float("inf"), None], "d": [5e-324, float("-inf"), None],
        "o": [True, False, None], "t": ["", "äé\U0001f600\u0000", None], "x": [b"", b"\x00\xff", None],
        "a": [date(1, 1, 1), date(9999, 12, 31), None],
    }  # fmt: skip
    kinds = [pa.int32(), pa.int32(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
             pa.binary(), pa.date32()]  # fmt: skip
    data = pa.table({name: pa.array(v, kind) for (name, v), kind in zip(columns.items(), kinds, strict=True)})
    found = read(rows, tmp_path / "t", schema, data)
    assert found.to_pydict() == columns
    assert found.schema.field("b").type == pa.int8()


@pytest.mark.parametrize("as_integer", [True, False], ids=["integers", "bytes"])
def test_decimals_of_all_precisions(rows: Any, tmp_path: Path, as_integer: bool) -> None:
    shapes = [(p, s) for p in range(1, 39) for s in sorted({0, p // 2, p})]
    schema = schema_of(**{f"d{p}_{s}": DecimalType(p, s) for p, s in shapes})
    columns = {f"d{p}_{s}": pa.array([_exact(p, s, 1), _exact(p, s, -1), None], pa.decimal128(p, s)) for p, s in shapes}
    data = pa.table(columns)
    found = read(rows, tmp_path / "t", schema, data, store_decimal_as_integer=as_integer)
    assert found.schema.types == data.schema.types
    assert found.to_pydict() == data.to_pydict()
    parquet = pq.read_metadata(tmp_path / "t" / "f.parquet").schema
    stored = {parquet.column(index).physical_type for index in range(len(shapes))}
    assert stored == ({"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"} if as_integer else {"FIXED_LEN_BYTE_ARRAY"})


def _exact(precision: int, scale: int, sign: int) -> Decimal:
    """The largest value of a decimal type, or the smallest."""
    return Decimal((0 if sign > 0 else 1, (9,) * precision, -scale))


UTC_TIMES = [
    datetime(2, 1, 1, tzinfo=UTC), datetime(1582, 10, 4, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), None,
]  # fmt: skip


@pytest.mark.parametrize("storage", ["ms", "us", "ns", "INT96"])
@pytest.mark.parametrize("zone", ["UTC", None], ids=["adjusted", "local"])
def test_timestamps_in_every_storage(rows: Any, tmp_path: Path, storage: str, zone: str | None) -> None:
    times = [t for t in UTC_TIMES if storage != "ns" or t is None or 1700 < t.year < 2200]
    if zone is None:
        times = [t and t.replace(tzinfo=None) for t in times]
    if storage == "INT96":
        # No writer has INT96 for times without a zone; Arrow's own has nanoseconds on the way there.
        zone = "UTC"
        times = [t and t.replace(tzinfo=UTC) for t in times if t is None or 1700 < t.year < 2200]
    data = pa.table({"t": pa.array(times, pa.timestamp("us" if storage == "INT96" else storage, zone))})
    write: dict[str, Any] = {"version": "2.6"}
    if storage == "INT96":
        write = {"use_deprecated_int96_timestamps": True}
    schema = schema_of(t=TIMESTAMP if zone else TIMESTAMP_NTZ)
    found = read(rows, tmp_path / "t", schema, data, **write)
    assert found["t"].to_pylist() == times
    physical = pq.read_metadata(tmp_path / "t" / "f.parquet").schema.column(0).physical_type
    assert physical == ("INT96" if storage == "INT96" else "INT64")


def test_nanoseconds_are_cut_towards_the_past(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(schema_of(t=TIMESTAMP))
    data = pa.table({"t": pa.array([1_999, -1, -1_001], pa.timestamp("ns", "UTC"))})
    made.commit(made.add("f.parquet", data, write={"version": "2.6"}))
    found = made.open().snapshot().scan().to_arrow()["t"]
    assert found.cast(pa.int64()).to_pylist() == [1, -1, -2]


def test_nested_types(rows: Any, tmp_path: Path) -> None:
    inner = StructType((StructField("x", LONG), StructField("m", MapType(STRING, ArrayType(DATE)))))
    schema = schema_of(a=ArrayType(ArrayType(inner)), m=MapType(LONG, MapType(STRING, inner)))
    value = {"x": 1, "m": [("k", [date(1500, 1, 1), None]), ("l", [])]}
    lists, maps = [[[value, None], [], None], [], None], [[(1, [("i", value)]), (2, None)], [], None]
    data = pa.Table.from_arrays(
        [pa.array(v, kind) for v, kind in zip((lists, maps), schema_to_arrow(schema).types, strict=True)],
        names=["a", "m"],
    )
    found = read(rows, tmp_path / "t", schema, data)
    assert found.to_pydict() == data.to_pydict()


def test_void_is_null(rows: Any, tmp_path: Path) -> None:
    schema = schema_of(id=LONG, v=VOID)
    found = read(rows, tmp_path / "t", schema, pa.table({"id": [1, 2]}))
    assert found.to_pydict() == {"id": [1, 2], "v": [None, None]}
    assert found.schema.field("v").type == pa.null()


@pytest.mark.spark
def test_lists_of_two_levels(spark: Any, tmp_path: Path) -> None:
    """As Hive, and Spark in its legacy format, have them: the elements themselves are repeated."""
    before = spark.conf.get("spark.sql.parquet.writeLegacyFormat")
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    try:
        columns = ("array(1, 2) a", "array(array('x'), array('y', 'z')) n", "array(named_struct('f', 1)) s")
        written_rows = spark.range(2).selectExpr("id", *columns, "map('k', array(1)) m")
        written_rows.coalesce(1).write.parquet(str(tmp_path / "w"))
    finally:
        spark.conf.set("spark.sql.parquet.writeLegacyFormat", before)
    (written,) = (tmp_path / "w").glob("*.parquet")
    paths = [pq.read_metadata(written).schema.column(i).path for i in range(5)]
    assert "a.array" in paths, "two levels: no group between the list and its elements"
    integers = ArrayType(INTEGER)
    schema = schema_of(
        id=LONG, a=integers, n=ArrayType(ArrayType(STRING)), s=ArrayType(StructType((StructField("f", INTEGER),))),
        m=MapType(STRING, integers),
    )  # fmt: skip
    made = HandmadeTable(tmp_path / "t")
    made.create(schema)
    written.rename(made.root / "f.parquet")
    made.commit(made.add("f.parquet"))
    rows = made.open().snapshot().scan().to_arrow().to_pylist()
    value = {"a": [1, 2], "n": [["x"], ["y", "z"]], "s": [{"f": 1}], "m": [("k", [1])]}
    assert rows == [{"id": 0, **value}, {"id": 1, **value}]


def test_json_and_uuids_of_arrow_are_text_and_bytes(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, None], pa.binary(16)))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None]))
    rows = pa.table({"u": uuids, "j": texts, "l": pa.ListArray.from_arrays([0, 1, 2], texts)})
    table.append(rows)
    table.upsert(rows.slice(0, 1), ["j"])
    assert str(table.snapshot().schema) == "struct<u:binary,j:string,l:array<string>>"
    found = sorted(table.snapshot().scan().to_arrow().to_pylist(), key=str)
    assert found == [
        {"u": None, "j": None, "l": [None]},
        {"u": b"a" * 16, "j": '{"a": 1}', "l": ['{"a": 1}']},
    ]
    with pytest.raises(SchemaMismatchError, match="opaque"):
        table.append(pa.table({"u": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "t", "v"), pa.array(["a"]))}))
