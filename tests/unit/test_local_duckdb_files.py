from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.local.duckdb_files import native_scan
from delta_orch.engines.local.duckdb_input import duckdb_relation
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import OutputColumn, ScanPlan
from delta_orch.errors import MissingFileError, TableError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.types import (
    BINARY,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
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
from delta_orch.storage.open import open_store
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME, ColumnMappingMode
from tests.harness.table_builder import file_table

ENGINE = LocalEngine()


class Files:
    """Data files that somebody else wrote, with what the log says of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._adds: list[tuple[str, dict[str, str | None], Any]] = []

    def add(
        self,
        rows: pa.Table,
        path: str | None = None,
        partition: dict[str, str | None] | None = None,
        deleted: list[int] | None = None,
        **write: Any,
    ) -> Path:
        from pyroaring import BitMap64

        path = path or f"f{len(self._adds)}.parquet"
        pq.write_table(rows, self.root / path, **write)
        vector = None if deleted is None else DeletionVector(BitMap64(deleted)).inline_descriptor()
        self._adds.append((path, partition or {}, vector))
        return self.root / path

    def plan(self, schema: StructType, *partition_by: str, where: str | None = None, **plan: Any) -> ScanPlan:
        condition = None if where is None else resolve_expression(parse_expression(where), schema)
        files = file_table(
            *(
                {"path": encode_path(path), "partition_values": partition, "deletion_vector": vector}
                for path, partition, vector in self._adds
            )
        )
        return ScanPlan(open_store(self.root), schema, partition_by, files, where=condition, **plan)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def schema_of(**columns: DataType) -> StructType:
    return StructType(tuple(StructField(name, data_type) for name, data_type in columns.items()))


def texts(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))  # NaN is not equal to itself


def ensure_same(plan: ScanPlan) -> list[dict[str, Any]]:
    """DuckDB reads the files itself, and what Arrow reads. Returns: the rows."""
    assert native_scan(plan) is not None
    relation = ENGINE.scan(plan)
    expected = ENGINE.to_arrow(relation)
    through_sql = ENGINE.to_arrow(ENGINE.sql("SELECT * FROM t", {"t": relation}))
    assert texts(through_sql) == texts(expected)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    assert texts(duckdb_relation(relation, connection).to_arrow_table().cast(expected.schema)) == texts(expected)
    rows: list[dict[str, Any]] = expected.to_pylist()
    return rows


def test_types_however_they_are_stored(files: Files) -> None:
    moments = [datetime(1500, 1, 1, 1, 2, 3, 456789, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    rows = pa.table(
        {
            "b": pa.array([1, None, -128], pa.int8()),
            "i": pa.array([1, None, 2], pa.int32()),
            "f": pa.array([1.5, None, float("nan")], pa.float32()),
            "s": ["x", None, "ü\0"],
            "y": pa.array([b"\xff\x00", None, b""]),
            "d": pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
            "n": pa.array([Decimal("1.50"), None, Decimal("-999.99")], pa.decimal128(5, 2)),
            "t": pa.array(moments, pa.timestamp("us", "UTC")),
            "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "c": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": None}]),
        }
    )
    schema = schema_of(
        b=LONG, i=LONG, f=DOUBLE, s=STRING, y=BINARY, d=TIMESTAMP_NTZ, n=DecimalType(10, 3), t=TIMESTAMP,
        l=ArrayType(INTEGER), m=MapType(STRING, LONG), c=schema_of(y=STRING, new=DATE, x=LONG), absent=ArrayType(BYTE),
    )  # fmt: skip
    files.add(rows)
    files.add(rows, use_deprecated_int96_timestamps=True)
    files.add(rows.set_column(7, "t", rows.column("t").cast(pa.timestamp("us"))), compression="zstd")
    files.add(rows.set_column(7, "t", rows.column("t").cast(pa.timestamp("ms", "UTC"), safe=False)), row_group_size=1)
    files.add(rows.select(["S".lower(), "t"]).rename_columns(["S", "T"]))
    assert len(ensure_same(files.plan(schema))) == 15
    same = schema_of(b=BYTE, i=INTEGER, f=FLOAT, s=STRING, y=BINARY, d=DATE, n=DecimalType(5, 2), t=TIMESTAMP)
    ensure_same(files.plan(same))


def test_bounds_that_pass_over_nan(files: Files) -> None:
    files.add(pa.table({"x": [1.0, float("nan"), 2.0]}))
    assert len(ensure_same(files.plan(schema_of(x=DOUBLE), where="x > 5"))) == 1


@pytest.mark.parametrize("deleted", [None, [2], []])
def test_bounds_that_may_pass_over_nan_are_no_answer(files: Files, deleted: list[int] | None) -> None:
    files.add(pa.table({"x": [1.5, -2.0, None], "st": [{"y": 0.5}] * 3}), deleted=deleted)
    schema = schema_of(x=DOUBLE, st=StructType((StructField("y", DOUBLE),)))
    relation = duckdb_relation(ENGINE.scan(files.plan(schema)), duckdb.connect())
    assert relation.aggregate("max(x)").fetchall() == [(1.5,)]
    assert relation.filter("x > -9").aggregate("min(x), max(x)").fetchall() == [(-2.0, 1.5)]
    assert relation.aggregate("max(st.y)").fetchall() == [(0.5,)]


@pytest.mark.parametrize(
    ("branches", "mask_rows"),
    [(64, 1024), (64, 256), (64, 64), (0, 1024)],
    ids=["whole", "parts", "long", "joined"],
)
def test_deletion_vectors_and_partition_values(
    files: Files, monkeypatch: pytest.MonkeyPatch, branches: int, mask_rows: int
) -> None:
    monkeypatch.setattr("delta_orch.engines.local.duckdb_files._MOST_BRANCHES", branches)
    monkeypatch.setattr("delta_orch.engines.local.duckdb_files._MASK_ROWS", mask_rows)
    ids = pa.table({"id": range(1000)})
    files.add(ids, partition={"p": "1", "q": "a'b"}, deleted=[0, 1, 998, 999, 5000], row_group_size=100)
    files.add(ids, partition={"p": None, "q": None}, deleted=list(range(1000)))
    files.add(ids, partition={"p": "3", "q": ""})
    files.add(pa.table({"id": pa.array([], pa.int64())}), partition={"p": "4", "q": "d"}, deleted=[7])
    files.add(ids, partition={"p": "5", "q": "e"}, deleted=[3])
    files.add(ids, partition={"p": "6", "q": "f"}, deleted=[*range(0, 1000, 7), *range(500, 600)], row_group_size=100)
    schema = schema_of(id=LONG, p=INTEGER, q=STRING)
    found = native_scan(files.plan(schema, "p", "q"))
    assert found is not None
    reads = found.sql.count("read_parquet")
    # Live files are read together, and so are the others if they are joined; of the last, two row groups are a part.
    assert reads == {(64, 1024): 6, (64, 256): 10}.get((branches, mask_rows), 2)
    scattered = 1000 - len({*range(0, 1000, 7), *range(500, 600)})
    assert len(ensure_same(files.plan(schema, "p", "q"))) == 996 + 1000 + 999 + scattered
    assert len(ensure_same(files.plan(schema, "p", "q", where="p = 1 AND id < 10"))) == 8
    assert len(ensure_same(files.plan(schema, "p", "q", columns=("q",), where="id IN (1, 3)"))) == 1 + 2 + 1 + 2


def mapped(name: str, data_type: DataType, physical: str, number: int) -> StructField:
    return StructField(name, data_type, True, {PHYSICAL_NAME: physical, FIELD_ID: number})


@pytest.mark.parametrize("mode", [ColumnMappingMode.NAME, ColumnMappingMode.ID], ids=str)
def test_column_mapping(files: Files, mode: ColumnMappingMode) -> None:
    inner = StructType((mapped("city", STRING, "p3", 3), mapped("x", LONG, "p4", 4)))
    schema = StructType(
        (
            mapped("p1", LONG, "col", 1),
            mapped("place", inner, "p2", 2),
            mapped("places", ArrayType(inner), "p5", 5),
            mapped("late", inner, "p6", 6),
        )
    )

    def ids(t: pa.DataType, number: dict[str, int]) -> pa.DataType:
        if pa.types.is_struct(t):
            return pa.struct([ids_of(f, number) for f in t])
        return pa.list_(ids(t.value_type, number)) if pa.types.is_list(t) else t

    def ids_of(field: pa.Field, number: dict[str, int]) -> pa.Field:
        return pa.field(field.name, ids(field.type, number), metadata={"PARQUET:field_id": str(number[field.name])})

    number = {"col": 1, "p2": 2, "p3": 3, "p4": 4, "p5": 5, "gone": 9}
    place: list[Any] = [{"p3": "a", "p4": 1, "gone": 1}, {"p3": "b", "p4": 2, "gone": None}]
    for places in (place, [{"p3": None, "p4": None, "gone": None}, None]):
        rows = pa.table({"col": [1, 2], "p2": places, "p5": [places, None]})
        files.add(pa.Table.from_batches(rows.to_batches()).cast(pa.schema([ids_of(f, number) for f in rows.schema])))
    assert ensure_same(files.plan(schema, column_mapping=mode)) == [
        {
            "p1": 1,
            "place": {"city": "a", "x": 1},
            "places": [{"city": "a", "x": 1}, {"city": "b", "x": 2}],
            "late": None,
        },
        {"p1": 2, "place": {"city": "b", "x": 2}, "places": None, "late": None},
        {"p1": 1, "place": {"city": None, "x": None}, "places": [{"city": None, "x": None}, None], "late": None},
        {"p1": 2, "place": None, "places": None, "late": None},
    ]
    assert len(ensure_same(files.plan(schema, column_mapping=mode, where="place.x = 2"))) == 1
    fields = (OutputColumn("x", ("place", "x")), OutputColumn("late", ("late", "x")), OutputColumn("p1", ("p1",)))
    plan = files.plan(schema, where="place.city = 'b'", columns=("p1", "place", "late"), output=fields)
    plan = replace(plan, column_mapping=mode)
    assert ensure_same(plan) == [{"x": 2, "late": None, "p1": 2}]
    assert ENGINE.to_arrow(ENGINE.sql("SELECT x FROM t", {"t": ENGINE.scan(plan)})).to_pylist() == [{"x": 2}]


def test_a_struct_whose_field_is_never_null_is_read_field_by_field(files: Files) -> None:
    schema = StructType((mapped("s", StructType((mapped("x", LONG, "p", 2),)), "q", 1),))
    files.add(pa.table({"q": [{"p": 1, "z": 2}]}))
    found = native_scan(files.plan(schema, column_mapping=ColumnMappingMode.NAME))
    assert found is not None and "IS NULL" not in found.sql
    files.add(pa.table({"q": [{"p": None, "z": None}, None]}))
    found = native_scan(files.plan(schema, column_mapping=ColumnMappingMode.NAME))
    assert found is not None and "IS NULL" in found.sql


OLD_CALENDAR = pa.table({"a": [date(1000, 3, 1)], "b": [1]}).replace_schema_metadata(
    {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
)


def test_dates_of_an_old_calendar_are_nobodys_business_who_reads_no_dates(files: Files) -> None:
    files.add(OLD_CALENDAR)
    assert ensure_same(files.plan(schema_of(b=LONG))) == [{"b": 1}]


@pytest.mark.parametrize(
    ("rows", "schema"),
    [
        (pa.table({"a": [1], "A": [2]}), schema_of(a=LONG)),
        (pa.table({"a": [1], "File_Index": [2]}), schema_of(a=LONG)),
        (pa.table({"a": pa.array([1], pa.timestamp("ns"))}), schema_of(a=TIMESTAMP_NTZ)),
        (pa.table({"a": pa.array([1], pa.int64())}), schema_of(a=INTEGER)),
        (pa.table({"a": pa.array([1], pa.uint32())}), schema_of(a=LONG)),
        (pa.table({"a": pa.array([b"x"])}), schema_of(a=STRING)),
        (pa.table({"a": [1]}), schema_of(a=LONG, v=VOID)),
        (OLD_CALENDAR, schema_of(a=DATE)),
        (pa.table({"a": [{"x": 1, "X": 2}]}), schema_of(a=schema_of(x=LONG))),
        (pa.table({"a": pa.array([[("k", {"x": 1, "y": 1})]], pa.map_(pa.string(), pa.struct({"x": pa.int64()})))}),
         schema_of(a=MapType(STRING, schema_of(y=LONG)))),
    ],
    ids=["two cases", "virtual", "nanos", "narrower", "unsigned", "bytes", "void", "calendar", "two in one", "map"],
)  # fmt: skip
def test_what_is_left_to_arrow(files: Files, rows: pa.Table, schema: StructType) -> None:
    files.add(rows)
    plan = files.plan(schema)
    assert native_scan(plan) is None
    relation = duckdb_relation(ENGINE.scan(plan), duckdb.connect())
    expected = ENGINE.to_arrow(ENGINE.scan(plan)).to_pylist()
    for _ in range(2):
        assert relation.to_arrow_table().to_pylist() == expected


def test_paths_that_look_like_patterns(files: Files) -> None:
    files.add(pa.table({"a": [1]}), "a?.parquet")
    files.add(pa.table({"a": [2]}), "ab.parquet")
    assert native_scan(files.plan(schema_of(a=LONG))) is None
    assert duckdb_relation(ENGINE.scan(files.plan(schema_of(a=LONG))), duckdb.connect()).fetchall() == [(1,), (2,)]


def test_a_quote_in_a_path(files: Files) -> None:
    files.add(pa.table({"a": [1]}), "it's 100% ünï.parquet")
    assert ensure_same(files.plan(schema_of(a=LONG))) == [{"a": 1}]


def test_missing_and_damaged_files(files: Files) -> None:
    path = files.add(pa.table({"a": range(1000)}))
    plan = files.plan(schema_of(a=LONG))
    content = path.read_bytes()
    query = "SELECT sum(a) AS n FROM t"
    path.write_bytes(content[:4] + bytes(200) + content[204:])
    with pytest.raises(TableError, match="not readable as Parquet"):
        ENGINE.to_arrow(ENGINE.sql(query, {"t": ENGINE.scan(plan)}))
    path.write_bytes(content[:100])
    with pytest.raises(TableError, match="not readable as Parquet"):
        ENGINE.to_arrow(ENGINE.sql(query, {"t": ENGINE.scan(plan)}))
    path.unlink()
    with pytest.raises(MissingFileError):
        ENGINE.to_arrow(ENGINE.sql(query, {"t": ENGINE.scan(plan)}))


def test_a_damaged_file_after_others(files: Files) -> None:
    for _ in range(4):
        path = files.add(pa.table({"a": range(200_000)}), row_group_size=20_000)
    plan = files.plan(schema_of(a=LONG))
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(1000) + content[middle + 1000 :])
    rows = 0
    with pytest.raises(TableError, match="not readable"):
        for batch in ENGINE.to_reader(ENGINE.sql("SELECT a FROM t", {"t": ENGINE.scan(plan)})):
            rows += batch.num_rows
    assert rows < 800_000


def test_rows_that_are_deleted_break_no_query(files: Files) -> None:
    files.add(pa.table({"a": [1, 2**63 - 1, 2]}), deleted=[1])
    relation = ENGINE.scan(files.plan(schema_of(a=LONG)))
    result = ENGINE.sql("SELECT a FROM t WHERE a + 1 > 2", {"t": relation})
    assert ENGINE.to_arrow(result).to_pylist() == [{"a": 2}]


def test_predicates_mean_the_same_on_anybodys_connection(files: Files) -> None:
    files.add(pa.table({"a": ["x", "X", None]}))
    connection = duckdb.connect(config={"default_collation": "NOCASE"})
    relation = duckdb_relation(ENGINE.scan(files.plan(schema_of(a=STRING), where="a = 'x'")), connection)
    assert relation.fetchall() == [("x",)]
    opaque = ENGINE.scan(files.plan(schema_of(a=STRING), where="length(a) = 1"))
    assert duckdb_relation(opaque, duckdb.connect()).fetchall() == [("x",), ("X",)]


def test_files_without_a_column_for_deletion_vectors(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"))
    table.append(pa.table({"id": [1, 2]}))
    plan = table.snapshot().scan().plan()
    bare = ENGINE.scan(replace(plan, files=plan.files.drop_columns(["deletion_vector"])))
    assert duckdb_relation(bare).fetchall() == [(1,), (2,)]
    assert ENGINE.to_arrow(bare).num_rows == 2
