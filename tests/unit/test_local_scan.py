from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.batch_bytes import BATCH_BYTES
from delta_orch.engines.local import parquet_read
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.parquet_read import row_group_skipping
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import MissingFileError, ProtocolViolationError, TableError, UnsupportedExpressionError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
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
from delta_orch.storage.base import LogStore, ensure_regular_file
from delta_orch.storage.open import open_store
from tests.harness.table_builder import file_table

ENGINE = LocalEngine()


class Table:
    """Data files that somebody else wrote."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.store: LogStore = open_store(root)
        self._paths: list[str] = []
        self._partitions: list[dict[str, str | None]] = []

    def add(
        self, rows: pa.Table, path: str | None = None, partition: dict[str, str | None] | None = None, **write: Any
    ) -> None:
        path = path or f"f{len(self._paths)}.parquet"
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target, **write)
        self._paths.append(path)
        self._partitions.append(partition or {})

    @property
    def files(self) -> pa.Table:
        return file_table(
            *(
                {"path": encode_path(path), "partition_values": partition}
                for path, partition in zip(self._paths, self._partitions, strict=True)
            )
        )

    def plan(self, schema: StructType, *partition_by: str, where: str | None = None, **plan: Any) -> ScanPlan:
        condition = None if where is None else resolve_expression(parse_expression(where), schema)
        return ScanPlan(self.store, schema, partition_by, self.files, where=condition, **plan)

    def read(self, schema: StructType, *partition_by: str, **plan: Any) -> list[dict[str, Any]]:
        table = ENGINE.to_arrow(ENGINE.scan(self.plan(schema, *partition_by, **plan)))
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def schema_of(**columns: DataType) -> StructType:
    return StructType(tuple(StructField(name, data_type) for name, data_type in columns.items()))


def test_the_log_decides_names_order_and_types(table: Table) -> None:
    table.add(pa.table({"B": pa.array([1], pa.int16()), "extra": [9], "a": ["x"]}))
    table.add(pa.table({"A": ["y"]}))
    table.add(pa.table({"other": [1, 2]}))
    schema = schema_of(a=STRING, b=LONG, gone=VOID, new=DecimalType(5, 2))
    assert table.read(schema) == [
        {"a": "x", "b": 1, "gone": None, "new": None},
        {"a": "y", "b": None, "gone": None, "new": None},
        {"a": None, "b": None, "gone": None, "new": None},
        {"a": None, "b": None, "gone": None, "new": None},
    ]
    assert table.read(schema, columns=("b",)) == [{"b": 1}, {"b": None}, {"b": None}, {"b": None}]
    assert table.read(schema, columns=("new", "a"), where="B = 1") == [{"new": None, "a": "x"}]


def test_timestamps_however_they_are_stored(table: Table) -> None:
    moments = [datetime(2013, 1, 1, 1, 2, 3, 456789, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    aware = pa.table({"t": pa.array(moments, pa.timestamp("us", "UTC"))})
    naive = pa.table({"t": aware.column("t").cast(pa.timestamp("us"))})
    millis = pa.table({"t": aware.column("t").cast(pa.timestamp("ms", "UTC"), safe=False)})
    nanos = pa.table({"t": pa.array([1_999, None, -1], pa.timestamp("ns", "UTC"))})
    table.add(aware, use_deprecated_int96_timestamps=True)
    table.add(naive)
    table.add(aware)
    table.add(millis)
    table.add(nanos, version="2.6")
    for data_type, zone in ((TIMESTAMP, UTC), (TIMESTAMP_NTZ, None)):
        rows = [row["t"] for row in table.read(schema_of(t=data_type))]
        wanted = [None if m is None else m.replace(tzinfo=zone) for m in moments]
        assert rows[:9] == wanted * 3
        assert rows[9:12] == [
            None if m is None else m.replace(microsecond=m.microsecond // 1000 * 1000) for m in wanted
        ]
        assert rows[12:] == [
            datetime(1970, 1, 1, 0, 0, 0, 1, zone),
            None,
            datetime(1969, 12, 31, 23, 59, 59, 999999, zone),
        ]


def test_decimals_however_they_are_stored(table: Table) -> None:
    values = pa.table({"d": pa.array([Decimal("1.50"), None, Decimal("-999.99")], pa.decimal128(5, 2))})
    table.add(values)
    table.add(values, store_decimal_as_integer=True)
    table.add(pa.table({"d": values.column("d").cast(pa.decimal128(20, 2))}))
    wanted = [{"d": v} for v in values.column("d").to_pylist()]
    assert table.read(schema_of(d=DecimalType(5, 2))) == wanted * 3


@pytest.mark.parametrize("as_integer", [False, True])
@pytest.mark.parametrize("digits", [5, 9, 10, 18, 19, 37])
@pytest.mark.parametrize("sign", [1, -1])
def test_decimals_with_more_digits_than_their_type_are_refused(
    tmp_path: Path, digits: int, *, as_integer: bool, sign: int
) -> None:
    # What a flipped bit makes: Arrow takes it as it is.
    value = (sign * 10**digits).to_bytes(16, "little", signed=True)
    bad = pa.Array.from_buffers(pa.decimal128(digits, 2), 1, [None, pa.py_buffer(value)])
    flat = DecimalType(digits, 2)
    kinds: list[tuple[pa.Array, DataType]] = [
        (bad, flat),
        (pa.ListArray.from_arrays([0, 1], bad), ArrayType(flat)),
        (pa.StructArray.from_arrays([bad], ["x"]), StructType((StructField("x", flat),))),
    ]
    for number, (column, kind) in enumerate(kinds):
        table = Table(tmp_path / str(number))
        table.add(pa.table({"d": column}), store_decimal_as_integer=as_integer)
        with pytest.raises(TableError, match="does not fit"):
            ENGINE.to_arrow(ENGINE.scan(table.plan(schema_of(d=kind))))


def test_lists_of_old_writers(table: Table) -> None:
    rows = pa.table({"l": pa.array([[1, None], None, []], pa.list_(pa.int32()))})
    table.add(rows, use_compliant_nested_type=False)
    table.add(rows, use_compliant_nested_type=True)
    assert table.read(schema_of(l=ArrayType(LONG))) == rows.to_pylist() * 2


def test_nested_fields_are_matched_at_every_depth(table: Table) -> None:
    table.add(pa.table({"S": [{"Y": 1, "x": [{"K": "k"}]}, None]}))
    schema = schema_of(
        s=StructType(
            (
                StructField("x", ArrayType(StructType((StructField("k", STRING), StructField("new", LONG))))),
                StructField("y", LONG),
                StructField("m", MapType(STRING, LONG)),
            )
        )
    )
    assert table.read(schema) == [{"s": {"x": [{"k": "k", "new": None}], "y": 1, "m": None}}, {"s": None}]


def test_names_with_dots_beside_structs(table: Table) -> None:
    rows = pa.table({"a": [{"b": 1}], "a.b": [2], "a.c": [3], "`q`": [4]})
    table.add(rows)
    schema = schema_from_arrow(rows.schema)
    assert table.read(schema, columns=("a.b", "`q`")) == [{"a.b": 2, "`q`": 4}]
    assert table.read(schema, columns=("a",)) == [{"a": {"b": 1}}]
    assert table.read(schema, where="a.b = 1 AND `a.b` = 2") == rows.to_pylist()
    assert table.read(schema, where="`a.b` = 1") == []


def test_partition_values_come_from_the_log(table: Table) -> None:
    # The directory and the file say otherwise; neither counts.
    table.add(pa.table({"id": [1], "p": ["in file"]}), "p=directory/a b%41.parquet", {"p": "log", "Day": "2013-01-01"})
    table.add(pa.table({"id": [2, 3]}), "x.parquet", {"p": "", "Day": None})
    table.add(pa.table({"id": [4]}), "y.parquet", {})
    schema = schema_of(p=STRING, id=LONG, day=DATE)
    rows = table.read(schema, "p", "day")
    assert rows == [
        {"p": "log", "id": 1, "day": date(2013, 1, 1)},
        {"p": None, "id": 2, "day": None},
        {"p": None, "id": 3, "day": None},
        {"p": None, "id": 4, "day": None},
    ]
    assert table.read(schema, "p", "day", columns=("p",)) == [{"p": row["p"]} for row in rows]
    assert table.read(schema, "p", "day", columns=("day", "p"), where="p IS NULL") == [{"day": None, "p": None}] * 3
    assert table.read(schema, "p", "day", where="p = 'log' AND id % 2 = 1") == rows[:1]


def test_a_partition_value_that_is_none(table: Table) -> None:
    table.add(pa.table({"id": [1]}), partition={"n": "x"})
    with pytest.raises(ProtocolViolationError):
        table.read(schema_of(id=LONG, n=INTEGER), "n")


def test_predicates_that_only_duckdb_evaluates(table: Table) -> None:
    table.add(pa.table({"id": range(10), "s": ["a" * n for n in range(10)]}))
    schema = schema_of(id=LONG, s=STRING)
    assert table.read(schema, columns=("id",), where="length(s) % 3 = 1 AND id > 1") == [{"id": 4}, {"id": 7}]
    with pytest.raises(UnsupportedExpressionError, match="Spark engine"):
        table.read(schema, where="soundex(s) = 'A000'")


def test_files_in_order_and_batch_after_batch(table: Table) -> None:
    for start in range(0, 400, 10):
        table.add(pa.table({"id": range(start, start + 10)}))
    assert [row["id"] for row in table.read(schema_of(id=LONG))] == list(range(400))


def test_small_files_that_are_not_alike(table: Table) -> None:
    """Files with the same columns are finished together, and each row is that of its own file."""
    expected: list[dict[str, Any]] = []
    for n in range(200):
        id_type = pa.int32() if n % 50 > 40 else pa.int64()
        columns = {"id": pa.array([n, n + 1000], id_type), "s": pa.array([f"v{n}", None])}
        if n % 30 > 20:
            columns = {"S": columns["s"], "more": pa.array([1, 2]), "id": columns["id"]}
        if n % 70 > 66:
            del columns["id"]
        table.add(pa.table(columns), partition={"p": None if n % 40 == 7 else str(n // 60)})
        ids = columns["id"].to_pylist() if "id" in columns else [None, None]
        day = None if n % 40 == 7 else n // 60
        expected += [{"id": i, "s": t, "p": day} for i, t in zip(ids, [f"v{n}", None], strict=True)]
    schema = schema_of(id=LONG, s=STRING, p=INTEGER)
    assert table.read(schema, "p") == expected
    found = table.read(schema, "p", where="id >= 1000 AND p = 2")
    assert found == [row for row in expected if row["p"] == 2 and row["id"] is not None and row["id"] >= 1000]
    assert table.read(schema, "p", columns=("p",)) == [{"p": row["p"]} for row in expected]


def test_small_files_that_repeat_short_texts_are_read_once_and_together(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        table.add(pa.table({"s": [f"v{n}"] * 50}))
    opened: list[str] = []

    def ensure(path: str) -> None:
        opened.append(path)
        ensure_regular_file(path)

    monkeypatch.setattr(parquet_read, "ensure_regular_file", ensure)
    (batch,) = ENGINE.to_reader(ENGINE.scan(table.plan(schema_of(s=STRING))))
    assert batch.column("s").to_pylist() == [f"v{n}" for n in range(40) for _ in range(50)]
    assert len(opened) == len(set(opened)) == 40


def test_texts_of_a_file_that_repeats_them_very_often_stay_in_bounds(table: Table) -> None:
    """Its dictionary looks short: one text is long, and nearly all rows have it."""
    table.add(
        pa.table({"s": ["y" * 50_000] * 5_000 + [str(n) for n in range(1_000)]}), dictionary_pagesize_limit=1 << 20
    )
    sizes = [batch.nbytes for batch in ENGINE.to_reader(ENGINE.scan(table.plan(schema_of(s=STRING))))]
    assert sum(sizes) > 250_000_000
    assert max(sizes) <= BATCH_BYTES


@pytest.mark.parametrize("small_bytes", [1, 1 << 30])
def test_texts_inside_structs_and_lists_repeat_in_several_row_groups(
    table: Table, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    """Each row group has a dictionary of its own."""
    monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
    rows = pa.table({"s": [{"a": f"{'y' * 500}{n % 3}"} for n in range(9_000)], "l": [["x" * 500]] * 9_000})
    table.add(rows, row_group_size=3_000)
    assert table.read(schema_of(s=schema_of(a=STRING), l=ArrayType(STRING))) == rows.to_pylist()


@pytest.mark.parametrize("text", [pa.array([b"\xff"]), pa.array([[1.5]])], ids=["not UTF-8", "another type"])
def test_the_one_of_many_files_that_does_not_fit_is_named(table: Table, text: pa.Array) -> None:
    for n in range(64):
        table.add(pa.table({"s": text if n == 40 else pa.array(["a"])}))
    with pytest.raises(TableError, match="f40"):
        table.read(schema_of(s=STRING))


@pytest.mark.parametrize("small_bytes", [1, 2_000, 1 << 30])
def test_large_files_are_read_row_group_by_row_group(
    table: Table, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
    table.add(pa.table({"id": range(5000), "p": [1] * 5000}), row_group_size=100, partition={"p": "7"})
    schema = schema_of(id=LONG, p=BYTE)
    assert [row["id"] for row in table.read(schema, "p")] == list(range(5000))
    assert len(table.read(schema, "p", columns=("p",))) == 5000
    assert [row["id"] for row in table.read(schema, "p", where="id >= 4990 AND p = 7")] == list(range(4990, 5000))


def test_row_groups_are_skipped(table: Table) -> None:
    table.add(
        pa.table({"id": range(1000), "x": [float(i) for i in range(1000)], "s": ["v"] * 1000}), row_group_size=100
    )
    path = str(table.root / "f0.parquet")
    schema = schema_of(id=LONG, x=DOUBLE, s=STRING)
    metadata = pq.read_metadata(path)
    file_schema = metadata.schema.to_arrow_schema()

    def groups(where: str, data_schema: StructType = schema) -> list[int] | None:
        skipping = row_group_skipping(resolve_expression(parse_expression(where), data_schema), data_schema, ())
        names = None if skipping is None else skipping.names_in(file_schema)
        if skipping is None or names is None:
            return None if skipping is None else list(range(10))
        return skipping.groups_of(metadata, names)

    assert groups("id BETWEEN 250 AND 310") == [2, 3]
    assert groups("id = 5 AND x > 900 AND length(s) = 1") == [0]
    assert groups("id < 0") == []
    assert groups("x > 900") == list(range(10))  # NaN may hide behind a maximum
    assert groups("x < 100") == [0]
    assert groups("length(s) = 1") is None
    assert groups("id = 5", schema_of(id=INTEGER)) == list(range(10))  # another type than the file's
    assert groups("other = 5", schema_of(other=LONG)) == list(range(10))
    assert [row["id"] for row in table.read(schema, where="id IN (5, 905)")] == [5, 905]


def test_nan_is_found_where_statistics_pass_over_it(table: Table) -> None:
    rows = pa.table({"x": [1.0, float("nan"), 2.0, 3.0, 4.0, 5.0]})
    table.add(rows, row_group_size=3)
    assert len(table.read(schema_of(x=DOUBLE), where="NOT (x <= 5)")) == 1
    assert len(table.read(schema_of(x=DOUBLE), where="x > 100")) == 1


def test_a_missing_file(table: Table) -> None:
    for number in range(3):
        table.add(pa.table({"id": [number]}))
    (table.root / "f1.parquet").unlink()
    with pytest.raises(MissingFileError) as caught:
        table.read(schema_of(id=LONG))
    assert caught.value.context["path"].endswith("f1.parquet")
    with pytest.raises(MissingFileError):
        table.read(schema_of(id=LONG), where="id % 2 = 0")
    reader = ENGINE.to_reader(ENGINE.scan(table.plan(schema_of(id=LONG))))
    with pytest.raises(MissingFileError):
        reader.read_all()


@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "no magic", "bad page"])
def test_a_damaged_file(table: Table, damage: str) -> None:
    table.add(pa.table({"id": range(10_000)}))
    path = table.root / "f0.parquet"
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "garbage": b"x" * 1000,
        "truncated": content[: len(content) // 2],
        "no magic": content[:-4] + b"XXXX",
        "bad page": content[:4] + bytes(255 - b for b in content[4 : len(content) // 2]) + content[len(content) // 2 :],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(TableError, match=r"not readable as Parquet.*") as caught:
        table.read(schema_of(id=LONG))
    assert caught.value.context["path"] == str(path)


def test_a_column_of_another_type_than_the_tables(table: Table) -> None:
    table.add(pa.table({"id": ["x"]}))
    with pytest.raises(TableError, match="does not fit the table's schema"):
        table.read(schema_of(id=LONG))


def test_no_files_have_no_rows(table: Table) -> None:
    assert table.read(schema_of(id=LONG, p=STRING), "p") == []
    assert table.read(schema_of(id=LONG), where="length('x') = 1") == []


def test_a_reader_that_is_given_up_ends_its_threads(table: Table) -> None:
    for _ in range(50):
        table.add(pa.table({"id": range(1000)}))
    before = threading.active_count()
    reader = ENGINE.to_reader(ENGINE.scan(table.plan(schema_of(id=LONG))))
    reader.read_next_batch()
    reader.close()
    del reader
    assert threading.active_count() <= before + 1


def test_memory_tables(tmp_path: Path) -> None:
    store = open_store(f"memory://local-scan-{tmp_path.name}")
    rows = pa.table({"id": range(10), "p": ["a", "b"] * 5})
    schema = schema_from_arrow(rows.schema)
    adds = ENGINE.write(ENGINE.relation(rows), WriteSpec(store, schema, ("p",)))
    found = ENGINE.to_arrow(ENGINE.scan(ScanPlan(store, schema, ("p",), adds))).sort_by("id")
    assert found.to_pylist() == rows.to_pylist()
