from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.engines.base import RowCheck, StatisticsPolicy, WriteSpec
from delta_orch.engines.local import write as write_module
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import (
    ConstraintViolationError,
    InvalidPropertyError,
    InvalidRequestError,
    SchemaMismatchError,
    StorageError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.types import (
    LONG,
    STRING,
    VOID,
    ArrayType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from tests.harness.table_builder import FILE_SCHEMA

ENGINE = LocalEngine()


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return open_store(tmp_path / "table")


def write(store: LogStore, rows: Any, partition_by: tuple[str, ...] = (), **spec: Any) -> pa.Table:
    relation = ENGINE.relation(rows)
    schema = spec.pop("schema", None) or relation.schema
    return ENGINE.write(relation, WriteSpec(store, schema, partition_by, **spec))


def scan(
    store: LogStore, adds: pa.Table, schema: StructType, partition_by: tuple[str, ...] = (), **plan: Any
) -> pa.Table:
    return ENGINE.to_arrow(ENGINE.scan(ScanPlan(store, schema, partition_by, adds, **plan)))


def files_below(store: LogStore) -> list[str]:
    root = store.data_filesystem()[1]
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file())


def test_rows_come_back_and_the_log_gets_what_it_needs(store: LogStore) -> None:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "x": [1.5, math.nan, None], "s": ["a", None, "ü"]})
    adds = write(store, rows)
    assert adds.schema == FILE_SCHEMA
    [add] = adds.to_pylist()
    root = store.data_filesystem()[1]
    assert files_below(store) == [add["path"]]
    assert add["path"].startswith("part-00000-")
    assert add["path"].endswith(".c000.zstd.parquet")
    assert add["size"] == Path(f"{root}/{add['path']}").stat().st_size
    assert add["modification_time"] > 1_600_000_000_000
    assert add["data_change"] is True
    assert add["partition_values"] == []
    # A maximum that passes over NaN is no upper bound.
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"id": 1, "x": 1.5, "s": "a"},
        "maxValues": {"id": 3, "s": "ü"},
        "nullCount": {"id": 0, "x": 1, "s": 1},
    }
    assert repr(scan(store, adds, schema_from_arrow(rows.schema)).to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize(
    "rows", [pa.table({"id": pa.array([], pa.int64())}), pa.table({"id": pa.chunked_array([], pa.int64())})]
)
def test_no_rows_make_no_files(store: LogStore, rows: pa.Table) -> None:
    adds = write(store, rows)
    assert adds.schema == FILE_SCHEMA
    assert adds.num_rows == 0
    assert files_below(store) == []


def test_statistics_policy(store: LogStore) -> None:
    rows = pa.table({"a": [1], "b": [2], "c": [3]})
    [one] = write(store, rows, statistics=StatisticsPolicy(num_indexed_columns=1)).column("stats").to_pylist()
    assert json.loads(one)["minValues"] == {"a": 1}
    [named] = write(store, rows, statistics=StatisticsPolicy(columns=(("c",),))).column("stats").to_pylist()
    assert json.loads(named)["minValues"] == {"c": 3}
    [none] = write(store, rows, statistics=StatisticsPolicy(num_indexed_columns=0)).column("stats").to_pylist()
    assert json.loads(none) == {"numRecords": 1}


def test_partitions_of_every_type(store: LogStore) -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2, 3, 4], pa.int64()),
            "day": [date(2013, 1, 1), date(2013, 1, 1), None, date(9999, 12, 31)],
            "s": ["a:b/c=%d ü", "a:b/c=%d ü", "", None],
            "n": pa.array([-1, -1, 0, None], pa.int32()),
            "b": [True, True, None, False],
            "x": [0.1, 0.1, math.nan, -math.inf],
            "d": pa.array([Decimal("1.50"), Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(5, 2)),
            "at": pa.array([datetime(2013, 1, 1, 1, 2, 3, 4, tzinfo=UTC)] * 2 + [None] * 2, pa.timestamp("us", "UTC")),
            "local": pa.array([datetime(2013, 1, 1, 1, 2, 3)] * 2 + [None] * 2, pa.timestamp("us")),
        }
    )
    names = tuple(rows.column_names[1:])
    adds = write(store, rows, names)
    assert adds.num_rows == 3
    first = adds.to_pylist()[0]
    assert dict(first["partition_values"]) == {
        "day": "2013-01-01", "s": "a:b/c=%d ü", "n": "-1", "b": "true", "x": "0.1", "d": "1.50",
        "at": "2013-01-01T01:02:03.000004Z", "local": "2013-01-01 01:02:03.000000",
    }  # fmt: skip
    assert first["path"].startswith("day=2013-01-01/s=a%253Ab%252Fc%253D%2525d%20%C3%BC/")
    in_file = pq.read_schema(f"{store.data_filesystem()[1]}/{files_below(store)[0]}")
    assert in_file.names == ["id"]
    found = scan(store, adds, schema_from_arrow(rows.schema), names).sort_by("id")
    expected = rows.to_pylist()
    expected[2]["s"] = None  # an empty string is null in a partition column
    assert repr(found.to_pylist()) == repr(expected)


def test_rows_of_a_partition_keep_their_order_whatever_their_batches(store: LogStore) -> None:
    rows = pa.table(
        {"p": [i % 7 for i in range(1000)], "q": [None if i % 3 else "x" for i in range(1000)], "id": range(1000)}
    )
    reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=13)))
    adds = write(store, reader, ("q", "p"))
    assert adds.num_rows == 14
    found = scan(store, adds, schema_from_arrow(rows.schema), ("q", "p"))
    assert sorted(found.column("id").to_pylist()) == list(range(1000))
    for add in adds.to_pylist():
        values = dict(add["partition_values"])
        ids = pq.read_table(f"{store.data_filesystem()[1]}/{store.resolve(add['path']).split('/table/')[1]}").column(
            "id"
        )
        wanted = [i for i in range(1000) if str(i % 7) == values["p"] and (None if i % 3 else "x") == values["q"]]
        assert ids.to_pylist() == wanted


def test_more_partitions_than_open_files(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MAX_OPEN_FILES", 4)
    monkeypatch.setattr(write_module, "MAX_ROW_GROUP_ROWS", 10)
    rows = pa.table({"p": [i % 50 for i in range(2000)], "id": range(2000)})
    adds = write(store, rows, ("p",))
    found = scan(store, adds, schema_from_arrow(rows.schema), ("p",)).sort_by("id")
    assert found.to_pylist() == rows.to_pylist()
    assert len(files_below(store)) == adds.num_rows >= 50


def test_memory_bounds_flush_the_largest_partition(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MAX_BUFFERED_BYTES", 1000)
    rows = pa.table({"p": [i % 20 for i in range(3000)], "id": range(3000)})
    reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=50)))
    adds = write(store, reader, ("p",))
    assert scan(store, adds, schema_from_arrow(rows.schema), ("p",)).sort_by("id").to_pylist() == rows.to_pylist()


def test_files_are_cut_at_the_target_size(store: LogStore) -> None:
    rows = pa.table({"s": [os.urandom(500).hex() for _ in range(8000)]})
    batches = iter(rows.to_batches(max_chunksize=200))
    adds = write(store, pa.RecordBatchReader.from_batches(rows.schema, batches), target_file_size_bytes=1024 * 1024)
    sizes = adds.column("size").to_pylist()
    assert len(sizes) >= 3
    assert all(size < 2.5 * 1024 * 1024 for size in sizes)
    assert sorted(scan(store, adds, schema_from_arrow(rows.schema)).column("s").to_pylist()) == sorted(
        rows.column("s").to_pylist()
    )
    assert write(store, rows).num_rows == 1


def test_rewrite_makes_one_ordered_file_of_each_plan(store: LogStore) -> None:
    rows = pa.table({"id": range(100), "p": [i // 50 for i in range(100)]})
    schema = schema_from_arrow(rows.schema)
    parts = [write(store, rows.slice(start, 10), ("p",)) for start in range(0, 100, 10)]
    plans = [
        ScanPlan(store, schema, ("p",), pa.concat_tables(parts[:5])),
        ScanPlan(store, schema, ("p",), pa.concat_tables(parts[5:])),
    ]
    adds = ENGINE.rewrite(plans, WriteSpec(store, schema, ("p",)))
    assert adds.num_rows == 2
    assert scan(store, adds, schema, ("p",)).column("id").to_pylist() == list(range(100))
    assert ENGINE.rewrite([], WriteSpec(store, schema, ("p",))).num_rows == 0


def bounds_in_footers(store: LogStore, adds: pa.Table, leaf: str) -> list[list[bool]]:
    """For each file, whether its row groups have bounds for a leaf."""
    root = store.data_filesystem()[1]
    footers = [pq.read_metadata(f"{root}/{path}") for path in adds["path"].to_pylist()]
    index = [footer.schema.column(i).path for footer in footers[:1] for i in range(len(footer.schema))].index(leaf)
    found = [[f.row_group(i).column(index).statistics for i in range(f.num_row_groups)] for f in footers]
    return [[one is not None and one.has_min_max for one in groups] for groups in found]


def test_a_float_column_with_nan_has_no_bounds_in_the_footer(store: LogStore) -> None:
    nan = math.nan
    rows = pa.table({"s": [{"x": nan, "y": 0.5}, {"x": 2.0, "y": None}, None], "f": [1.0, 2.0, None], "s.x": [1, 2, 3]})
    adds = write(store, rows)
    assert [bounds_in_footers(store, adds, leaf) for leaf in ("s.y", "f")] == [[[True]], [[True]]]
    assert bounds_in_footers(store, adds, "s.x") == [[False]]
    stats = json.loads(adds["stats"][0].as_py())
    assert stats["minValues"] == {"s": {"x": 2.0, "y": 0.5}, "f": 1.0}, "Arrow's writer cannot tell s.x from x in s"
    assert stats["maxValues"] == {"s": {"y": 0.5}, "f": 2.0}
    assert stats["nullCount"] == {"s": {"x": 1, "y": 2}, "f": 1}


def test_nan_that_comes_late(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MAX_ROW_GROUP_ROWS", 10)
    values = [*[1.0] * 20, *[math.nan] * 5, *[-2.0] * 15]
    rows = pa.table({"id": range(40), "x": values, "y": [1.0] * 40})
    batches = pa.Table.from_batches([rows.slice(i, 5).to_batches()[0] for i in range(0, 40, 5)])
    adds = write(store, batches, keeps_order=True)
    assert bounds_in_footers(store, adds, "x") == [[True, True], [False, False]]
    assert bounds_in_footers(store, adds, "y") == [[True, True], [True, True]]
    first, second = map(json.loads, adds["stats"].to_pylist())
    assert (first["maxValues"], second["minValues"]["x"]) == ({"id": 19, "x": 1.0, "y": 1.0}, -2.0)
    assert "x" not in second["maxValues"]
    assert second["nullCount"] == {"id": 0, "x": 0, "y": 0}
    schema = schema_from_arrow(rows.schema)
    assert repr(scan(store, adds, schema).to_pylist()) == repr(rows.to_pylist())
    together = ENGINE.rewrite([ScanPlan(store, schema, (), adds)], WriteSpec(store, schema, ()))
    assert bounds_in_footers(store, together, "x") == [[False] * 2], "else compaction would never end"
    assert bounds_in_footers(store, together, "y") == [[True] * 2]
    assert repr(scan(store, together, schema).to_pylist()) == repr(rows.to_pylist())


def test_nan_that_comes_late_in_many_columns(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MAX_ROW_GROUP_ROWS", 10)
    columns = {f"x{i}": [math.nan if row == 10 * i + 15 else 1.0 for row in range(80)] for i in range(6)}
    rows = pa.table({"id": range(80), **columns})
    adds = pa.concat_tables([write(store, rows.slice(start, 10)) for start in range(0, 80, 10)])
    begun = len(files_below(store))
    schema = schema_from_arrow(rows.schema)
    together = ENGINE.rewrite([ScanPlan(store, schema, (), adds)], WriteSpec(store, schema, ()))
    assert repr(scan(store, together, schema).to_pylist()) == repr(rows.to_pylist())
    assert together.num_rows == 1
    assert len(files_below(store)) - begun <= 3
    assert {"x0", "x5"} <= json.loads(together["stats"][0].as_py())["minValues"].keys()


@pytest.mark.parametrize(
    ("codec", "suffix", "name"),
    [("zstd", ".zstd.parquet", "ZSTD"), ("SNAPPY", ".snappy.parquet", "SNAPPY"), ("gzip", ".gz.parquet", "GZIP"),
     ("uncompressed", ".c000.parquet", "UNCOMPRESSED"), ("lz4_raw", ".lz4raw.parquet", "LZ4")],
)  # fmt: skip
def test_compression(store: LogStore, codec: str, suffix: str, name: str) -> None:
    write(store, pa.table({"id": [1]}), compression=codec)
    [file] = files_below(store)
    assert file.endswith(suffix)
    assert pq.read_metadata(f"{store.data_filesystem()[1]}/{file}").row_group(0).column(0).compression == name


@pytest.mark.parametrize("num_rows", [16 * 1024, 40_000, 300_000])
def test_columns_whose_values_differ_have_no_dictionary(store: LogStore, num_rows: int) -> None:
    """It would only repeat them: files get larger, and take twice as long to write."""
    numbers = pa.array(range(num_rows))
    texts = pa.array([f"name {i % 5000}" for i in range(num_rows)])
    adds = write(store, pa.table({"id": numbers, "k": pa.array([i % 100 for i in range(num_rows)]), "s": texts}))
    metadata = pq.read_metadata(store.data_filesystem()[1] + "/" + adds["path"][0].as_py())
    encodings = [metadata.row_group(0).column(i).encodings for i in range(3)]
    assert ["RLE_DICTIONARY" in e or "PLAIN_DICTIONARY" in e for e in encodings] == [False, True, True]


def test_unknown_compression_is_refused(store: LogStore) -> None:
    with pytest.raises(InvalidPropertyError):
        write(store, pa.table({"id": [1]}), compression="brotli2")
    assert files_below(store) == []


def test_columns_match_by_name_and_are_widened(store: LogStore) -> None:
    schema = StructType((StructField("Id", LONG), StructField("name", STRING), StructField("nothing", VOID)))
    rows = pa.table({"NAME": ["a"], "ID": pa.array([1], pa.int8()), "Nothing": pa.nulls(1)})
    adds = write(store, rows, schema=schema)
    assert pq.read_schema(f"{store.data_filesystem()[1]}/{files_below(store)[0]}").names == ["Id", "name"]
    assert scan(store, adds, schema).to_pylist() == [{"Id": 1, "name": "a", "nothing": None}]


NOT_NULL = StructType(
    (
        StructField("id", LONG, nullable=False),
        StructField("p", STRING, nullable=False),
        StructField("st", StructType((StructField("a", LONG, nullable=False),))),
        StructField("l", ArrayType(LONG, contains_null=False)),
        StructField("m", MapType(STRING, LONG, value_contains_null=False)),
        StructField("ls", ArrayType(StructType((StructField("b", LONG, nullable=False),)))),
    )
)
GOOD = {"id": 1, "p": "x", "st": {"a": 1}, "l": [1], "m": [("k", 1)], "ls": [{"b": 1}, None]}
ROW_TYPE = pa.schema(
    [
        ("id", pa.int64()), ("p", pa.string()), ("st", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.int64())), ("ls", pa.list_(pa.struct([("b", pa.int64())]))),
    ]
)  # fmt: skip


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), ROW_TYPE)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"id": None}, "id"),
        ({"p": None}, "p"),
        ({"p": ""}, "p"),  # null in a partition column
        ({"st": {"a": None}}, "st.a"),
        ({"st": None}, "st.a"),
        ({"l": [1, None]}, "l.element"),
        ({"m": [("k", None)]}, "m.value"),
        ({"ls": [None, {"b": None}]}, "ls.element.b"),
    ],
)
def test_not_null_is_verified_wherever_it_stands(store: LogStore, bad: dict[str, Any], path: str) -> None:
    offending = GOOD | bad | {"id": bad.get("id", 7)}
    table = rows_of(GOOD, GOOD | {"l": None, "m": None, "ls": None}, offending, GOOD)
    for rows in (table, table.slice(1), table.slice(2, 1)):
        with pytest.raises(ConstraintViolationError) as caught:
            write(store, rows, ("p",), schema=NOT_NULL)
        assert caught.value.context["constraint"] == f"NOT NULL constraint on {path}"
        assert caught.value.context["row"]["id"] == offending["id"]


def test_rows_without_violations_pass(store: LogStore) -> None:
    table = rows_of(GOOD, GOOD | {"l": None, "m": None, "ls": None}, GOOD | {"l": [], "m": [], "ls": []})
    adds = write(store, table.slice(1), ("p",), schema=NOT_NULL)
    assert scan(store, adds, NOT_NULL, ("p",)).num_rows == 2


@pytest.mark.parametrize("text", ["id > 1", "id > 1 AND p = 'a'", "id % 2 = 0", "id + 1 > 2 OR p = 'nope'"])
def test_row_checks_count_null_as_a_violation(store: LogStore, text: str) -> None:
    rows = pa.table({"id": pa.array([2, 4], pa.int64()), "p": ["a", "a"]})
    schema = schema_from_arrow(rows.schema)
    check = RowCheck("replace_where", resolve_expression(parse_expression(text), schema))
    assert write(store, rows, checks=(check,)).num_rows == 1
    for bad in (1, None):
        wrong = pa.concat_tables([rows, pa.table({"id": pa.array([bad], pa.int64()), "p": ["a"]})])
        with pytest.raises(ConstraintViolationError, match="replace_where") as caught:
            write(store, wrong, checks=(check,))
        assert caught.value.context == {"constraint": "replace_where", "row": {"id": bad, "p": "a"}}
        assert "id" in str(caught.value) and "CAST" not in str(caught.value)


def test_a_check_that_cannot_be_evaluated_is_refused_before_anything_is_written(store: LogStore) -> None:
    rows = pa.table({"s": ["a"]})
    condition = resolve_expression(parse_expression("soundex(s) = 'A'"), schema_from_arrow(rows.schema))
    with pytest.raises(UnsupportedExpressionError, match="Spark engine"):
        write(store, rows, checks=(RowCheck("soundex", condition),))
    assert files_below(store) == []


def test_the_offending_value_is_shortened(store: LogStore) -> None:
    condition = resolve_expression(parse_expression("s = 'short'"), StructType((StructField("s", STRING),)))
    with pytest.raises(ConstraintViolationError) as caught:
        write(store, pa.table({"s": ["x" * 100_000]}), checks=(RowCheck("c", condition),))
    assert len(str(caught.value)) < 1000


def test_values_that_do_not_fit_are_refused(store: LogStore) -> None:
    schema = StructType(
        (StructField("t", schema_from_arrow(pa.schema([("t", pa.timestamp("us"))])).fields[0].data_type),)
    )
    with pytest.raises(SchemaMismatchError):
        write(store, pa.table({"t": pa.array([1], pa.timestamp("ns"))}), schema=schema)


def test_binary_partition_values_that_are_no_text_are_refused(store: LogStore) -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        write(store, pa.table({"b": [b"\xff"], "id": [1]}), ("b",))


def test_errors_of_the_callers_stream_come_through(store: LogStore) -> None:
    class OwnError(Exception):
        pass

    def batches() -> Any:
        yield pa.RecordBatch.from_pydict({"id": [1]})
        raise OwnError("mine")

    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(OwnError, match="mine"):
        write(store, pa.RecordBatchReader.from_batches(schema, batches()))


def test_a_file_where_a_directory_is_needed(tmp_path: Path, store: LogStore) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "p=1").write_text("in the way")
    with pytest.raises(StorageError, match="in the place of a directory"):
        write(store, pa.table({"p": [1], "id": [1]}), ("p",))


@pytest.mark.long
@pytest.mark.parametrize("num_rows", [100, 3_000_000])
def test_a_file_that_cannot_grow(tmp_path: Path, num_rows: int) -> None:
    # In a process of its own: the limit holds for all of it. What the kernel answers is like a full disk.
    script = (
        "import resource, sys, pyarrow as pa\n"
        "from delta_orch.engines.local.engine import LocalEngine\n"
        "from delta_orch.engines.base import WriteSpec\n"
        "from delta_orch.errors import StorageError\n"
        "from delta_orch.storage.open import open_store\n"
        "import os\n"
        f"n = {num_rows}\n"
        "rows = pa.table({'id': range(n), 's': pa.array(range(n)).cast(pa.string())})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "engine = LocalEngine()\n"
        "relation = engine.relation(rows)\n"
        "try:\n"
        "    engine.write(relation, WriteSpec(open_store(sys.argv[1]), relation.schema, ()))\n"
        "except StorageError as e:\n"
        "    print('refused:', e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("refused: Cannot write"), done
    assert "Exception ignored" not in done.stderr


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak memory of one process")
def test_memory_stays_bounded(tmp_path: Path) -> None:
    # 1.6 GB of rows through a process that holds a few row groups. `ru_maxrss` would not do: on Linux it begins at the
    # parent's peak, so tests that ran earlier in this worker would count.
    script = (
        "import sys, pyarrow as pa\n"
        "def peak_mib():\n"
        "    return next(int(s.split()[1]) >> 10 for s in open('/proc/self/status') if s.startswith('VmHWM:'))\n"
        "from delta_orch.engines.local.engine import LocalEngine\n"
        "from delta_orch.engines.base import WriteSpec\n"
        "from delta_orch.engines.scan_plan import ScanPlan\n"
        "from delta_orch.storage.open import open_store\n"
        "batch = pa.RecordBatch.from_pydict({c: pa.array(range(200_000)) for c in 'abcd'})\n"
        "reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(250)))\n"
        "engine, store = LocalEngine(), open_store(sys.argv[1])\n"
        "relation = engine.relation(reader)\n"
        "adds = engine.write(relation, WriteSpec(store, relation.schema, ()))\n"
        "written = peak_mib()\n"
        "plan = ScanPlan(store, relation.schema, (), adds)\n"
        "rows = sum(b.num_rows for b in engine.to_reader(engine.scan(plan)))\n"
        "print(rows, written, peak_mib())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True, timeout=280, check=True
    )
    rows, written_mib, read_mib = map(int, done.stdout.split())
    assert rows == 50_000_000
    assert written_mib < 900
    assert read_mib < 1100


def test_a_small_append_imports_neither_duckdb_nor_sqlglot_nor_pandas(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from delta_orch.expressions.to_arrow import literal_array\n"
        "from delta_orch.protocol.types import LONG\n"
        "import pyarrow as pa\n"
        "from delta_orch.engines.local.engine import LocalEngine\n"
        "from delta_orch.engines.base import WriteSpec\n"
        "from delta_orch.storage.open import open_store\n"
        "rows = pa.table({'id': literal_array([1], LONG), 'p': literal_array([1], LONG)})\n"
        "engine = LocalEngine()\n"
        "relation = engine.relation(rows)\n"
        "assert engine.write(relation, WriteSpec(open_store(sys.argv[1]), relation.schema, ('p',))).num_rows == 1\n"
        "assert not {'pandas', 'sqlglot', 'duckdb'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], check=True, timeout=60)


def test_no_descriptor_is_left_open(store: LogStore) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("descriptors can only be counted in /proc")
    rows = pa.table({"p": [i % 20 for i in range(200)], "id": range(200)})
    write(store, rows, ("p",))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        adds = write(store, rows, ("p",))
        scan(store, adds, schema_from_arrow(rows.schema), ("p",))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


@pytest.mark.long
@pytest.mark.parametrize("store", ["memory", "local"])
@pytest.mark.parametrize("count", [1, 50_000])
def test_one_file_is_written_where_the_interpreter_is_about_to_end(tmp_path: Path, store: str, count: int) -> None:
    uri = "memory://late" if store == "memory" else str(tmp_path / "late")
    write_late = f"""
import atexit
import pyarrow as pa
from delta_orch import DeltaTable

table, rows = DeltaTable({uri!r}), pa.table({{"x": range({count})}})
table.append(rows)
atexit.register(lambda: print(table.append(rows).version))
"""
    ran = subprocess.run([sys.executable, "-c", write_late], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("1\n", "")
