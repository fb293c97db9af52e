from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from delta_orch import DeltaTable, column
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.sources import relation_of
from delta_orch.errors import DeltaError, InvalidRequestError, SchemaMismatchError

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]})
ENGINE = LocalEngine()


def read(data: Any) -> list[dict[str, Any]]:
    relation = ENGINE.relation(data)
    rows: list[dict[str, Any]] = ENGINE.to_arrow(relation).to_pylist()
    return rows


def polars_frame() -> Any:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    return polars.from_arrow(ROWS)


def duckdb_relation() -> Any:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    return duckdb.connect().from_arrow(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: ROWS.to_batches()[0],
        lambda: ROWS.to_reader(),
        lambda: ds.dataset(ROWS),
        lambda: ROWS.to_pandas(),
        polars_frame,
        lambda: polars_frame().lazy(),
        duckdb_relation,
        lambda: [{"id": 1, "name": "a"}, {"id": 2}],
    ],
    ids=["table", "batch", "reader", "dataset", "pandas", "polars", "polars lazy", "duckdb", "dicts"],
)
def test_every_kind_of_value(make: Any) -> None:
    data = make()
    assert ENGINE.accepts(data)
    relation = ENGINE.relation(data)
    assert [(f.name, str(f.data_type)) for f in ENGINE.schema(relation)] == [("id", "long"), ("name", "string")]
    assert ENGINE.to_arrow(relation).to_pylist() == ROWS.to_pylist()
    if not isinstance(data, pa.RecordBatchReader):
        assert ENGINE.to_arrow(relation).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("data", [[1], [], "text", 5, None, pa.Table, object()])
def test_other_values_are_refused(data: Any) -> None:
    assert not ENGINE.accepts(data)
    with pytest.raises(InvalidRequestError):
        ENGINE.relation(data)


@pytest.mark.parametrize("rows", [[{}], [{1: 1}], [{"id": 1}, {"id": "a"}], [{"id": 2**70}]])
def test_rows_that_make_no_table_are_refused(rows: Any) -> None:
    with pytest.raises(InvalidRequestError, match="The rows"):
        ENGINE.relation(rows)


class Batch:
    """What other libraries of Arrow have instead of a stream."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.array.__arrow_c_array__(requested_schema)


def test_no_rows_have_no_columns(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.append([{"id": 1}])
    for write in (table.append, table.overwrite, lambda rows: table.upsert(rows, ["id"])):
        with pytest.raises(InvalidRequestError, match="An empty list does not say which columns it has"):
            write([])
    table.overwrite(pa.Table.from_pylist([], pa.schema([("id", pa.int64())])))
    assert table.snapshot().scan().to_arrow().num_rows == 0


def test_batches_of_other_libraries() -> None:
    batch = ROWS.to_batches()[0]
    for data, times in ((Batch(batch), 1), (batch.to_struct_array(), 1), ([Batch(batch), batch], 2)):
        assert ENGINE.accepts(data)
        assert ENGINE.to_arrow(ENGINE.relation(data)).to_pylist() == ROWS.to_pylist() * times
    masked = pa.StructArray.from_arrays([pa.array([1, 2])], ["id"], mask=pa.array([False, True]))
    other = Batch(pa.record_batch({"z": [1]}))
    for data in (pa.array([1]), [Batch(pa.array([1]))], masked, [Batch(batch), other]):
        with pytest.raises(InvalidRequestError, match="batch"):
            ENGINE.relation(data)


def test_a_stream_is_read_once() -> None:
    relation = ENGINE.relation(ROWS.to_reader())
    assert ENGINE.to_arrow(relation).num_rows == 2
    with pytest.raises(InvalidRequestError, match="read already"):
        ENGINE.to_arrow(relation)


def test_a_relation_is_its_own_relation() -> None:
    relation = ENGINE.relation(ROWS)
    assert ENGINE.relation(relation) is relation


def test_a_pandas_index_counts_where_it_has_a_name() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"v": [1, 2]}, index=[10, 20])
    assert read(frame) == [{"v": 1}, {"v": 2}]
    frame.index.name = "k"
    assert read(frame) == [{"k": 10, "v": 1}, {"k": 20, "v": 2}]
    grouped = pandas.DataFrame({"a": ["x", "x"], "b": [1, 1], "v": [1, 2]}).groupby(["a", "b"]).sum()
    assert read(grouped) == [{"a": "x", "b": 1, "v": 3}]


def test_a_pandas_index_with_half_its_names_is_refused() -> None:
    import pandas

    index = pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["key", None])
    with pytest.raises(InvalidRequestError, match="Some levels of the pandas index have names"):
        ENGINE.relation(pandas.DataFrame({"v": [1, 2]}, index=index))


@pytest.mark.parametrize("values", [[1, "a", date(2013, 1, 1)], [1j], [2**70, 1], [range(3), 1]])
def test_a_pandas_column_that_arrow_has_no_type_for_is_refused(values: list[object]) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidRequestError, match="cannot be converted"):
        ENGINE.relation(pandas.DataFrame({"v": values}))


DAY, NOON = date(2024, 1, 1), datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([DAY, NOON], "beside dates"),
        ([[DAY], [DAY, NOON]], "Column a.element"),
        ([{"b": [DAY]}, {"b": [NOON]}], "Column a.b.element|one type"),
        ([NOON, NOON.replace(tzinfo=UTC)], "with a zone beside others"),
    ],
)
@pytest.mark.parametrize("as_pandas", [True, False])
def test_objects_that_arrow_would_change_are_refused(values: list[object], problem: str, as_pandas: bool) -> None:
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame({"a": pandas.Series(values, dtype=object)}) if as_pandas else [{"a": v} for v in values]
    with pytest.raises(DeltaError, match=problem):
        read(data)


def test_moments_of_pandas_among_python_objects() -> None:
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp("2024-01-01 00:00:00.000000001")
    for data in ([{"a": moment}], pandas.DataFrame({"a": pandas.Series([moment], dtype=object)})):
        with pytest.raises(SchemaMismatchError, match="nanoseconds"):
            read(data)
    with pytest.raises(SchemaMismatchError, match="NaT"):
        read([{"a": DAY}, {"a": pandas.NaT}])
    dates = pandas.Series([DAY, pandas.NaT, None], dtype=object)
    assert read(pandas.DataFrame({"a": dates})) == [{"a": DAY}, {"a": None}, {"a": None}]
    lists = pandas.Series([[[DAY], float("nan")], None], dtype=object)
    assert read(pandas.DataFrame({"a": lists})) == [{"a": [[DAY], None]}, {"a": None}]


@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::DATE",
        "'-infinity'::TIMESTAMP",
        "'infinity'::TIMESTAMPTZ",
        "['infinity'::DATE]",
        "{'b': 'infinity'::TIMESTAMP_S}",
        "MAP {1: '-infinity'::DATE}",
    ],
)
def test_infinity_of_duckdb_is_not_a_day(value: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with pytest.raises(SchemaMismatchError, match="infinity"):
        read(duckdb.connect().sql(f"SELECT {value} AS a"))
    far = duckdb.connect().sql("SELECT [DATE '9999-12-31'] AS a, NULL::DATE AS b, [DATE '2024-01-01']::DATE[1] AS c")
    assert read(far) == [{"a": [date(9999, 12, 31)], "b": None, "c": [DAY]}]


@pytest.mark.parametrize("rows", ["1", "3000000"])
def test_a_query_of_duckdb_that_fails_leaves_the_table_as_it_was(rows: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}))
    value = f"CASE WHEN i = {rows} - 1 THEN error('mine')::BIGINT ELSE i END"
    for write in (table.append, lambda data: table.upsert(data, ["id"])):
        with pytest.raises(InvalidRequestError, match=r"(?s)DuckDBPyRelation cannot be read.*mine"):
            write(duckdb.connect().sql(f"SELECT {value} AS id FROM range({rows}) AS t(i)"))
    assert table.version() == 0


def test_a_query_of_duckdb_that_is_not_read_leaves_its_connection_free(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}), txn=("job", 1))
    with duckdb.connect() as connection:
        with pytest.raises(SchemaMismatchError, match="column other is not in the table"):
            table.append(connection.sql("SELECT 2 AS other"))
        assert table.append(connection.sql("SELECT 2 AS id"), txn=("job", 1)).skipped
        assert table.append(connection.sql("SELECT 3 AS id")).version == 1


def test_types_without_a_counterpart_are_refused_by_name() -> None:
    with pytest.raises(SchemaMismatchError, match="duration"):
        ENGINE.relation(pa.table({"t": pa.array([1], pa.duration("s"))}))


def test_arrows_other_spellings_of_a_type() -> None:
    rows = pa.table(
        {
            "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
            "codes of views": pa.DictionaryArray.from_arrays([1, None, 0], pa.array(["a", "b"], pa.string_view())),
            "codes of bytes": pa.DictionaryArray.from_arrays([1, 1, 0], pa.array([b"a", None], pa.binary_view())),
            "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([5, None, 0], pa.int8())),
            "large": pa.array(["a", None, "b"], pa.large_string()),
            "view": pa.array(["a", None, "b"], pa.string_view()),
            "u8": pa.array([255, None, 0], pa.uint8()),
            "u32": pa.array([2**32 - 1, None, 0], pa.uint32()),
            "half": pa.array([0.5, None, -0.0], pa.float16()),
            "date64": pa.array([date(2013, 1, 1), None, date(1, 1, 1)], pa.date64()),
            "seconds": pa.array([1, None, -1], pa.timestamp("s", "Europe/Vienna")),
            "millis": pa.array([1, None, -1], pa.timestamp("ms")),
            "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "large_list": pa.array([[1], None, []], pa.large_list(pa.int32())),
            "fixed_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
            "list_view": pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())),
            "runs": pa.array(pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None]))),
            "nothing": pa.nulls(3),
        }
    )
    relation = ENGINE.relation(rows)
    for table in (ENGINE.to_arrow(relation), ENGINE.to_arrow(ENGINE.relation(rows.slice(1)))):
        table.validate(full=True)
    found = ENGINE.to_arrow(relation)
    assert {f.name: str(f.type) for f in found.schema} | {"x": "x"} == {
        "dictionary": "string", "large": "string", "view": "string", "u8": "int16", "u32": "int64", "half": "float",
        "date64": "date32[day]", "seconds": "timestamp[us, tz=UTC]", "millis": "timestamp[us]", "fixed": "binary",
        "large_list": "list<element: int32>", "fixed_list": "list<element: int32>", "list_view": "list<element: int32>",
        "runs": "string", "nothing": "null", "x": "x", "codes of views": "string", "codes of bytes": "binary",
        "bool8": "bool",
    }  # fmt: skip
    assert found.column("codes of views").to_pylist() == ["b", None, "a"]
    assert found.column("codes of bytes").to_pylist() == [None, None, b"a"]
    assert found.column("bool8").to_pylist() == [True, None, False]
    assert found.column("u32").to_pylist() == [2**32 - 1, None, 0]
    assert found.column("fixed_list").to_pylist() == [[1, 2], None, [3, None]]
    assert found.column("list_view").to_pylist() == [[1], None, [2, 3]]
    assert found.column("large_list").to_pylist() == [[1], None, []]
    assert found.column("runs").to_pylist() == ["x", "x", None]
    assert found.column("seconds").cast(pa.int64()).to_pylist() == [1_000_000, None, -1_000_000]


def test_nanoseconds_go_in_only_where_nothing_is_lost() -> None:
    exact = pa.table({"t": pa.array([1_000, None, -1_000], pa.timestamp("ns"))})
    assert ENGINE.to_arrow(ENGINE.relation(exact)).column("t").cast(pa.int64()).to_pylist() == [1, None, -1]
    with pytest.raises(SchemaMismatchError, match="Column t"):
        ENGINE.to_arrow(ENGINE.relation(pa.table({"t": pa.array([1_001], pa.timestamp("ns"))})))


def test_union_of_relations() -> None:
    union = ENGINE.union([ENGINE.relation(ROWS), ENGINE.relation(ROWS.slice(1))])
    assert ENGINE.to_arrow(union).column("id").to_pylist() == [1, 2, 2]
    with pytest.raises(InvalidRequestError):
        ENGINE.union([])


def test_a_single_column_is_not_a_stream_of_rows() -> None:
    with pytest.raises(InvalidRequestError, match="not a stream of rows"):
        ENGINE.relation(pa.chunked_array([[1, 2]]))


class TestWideNumbers:
    def test_unsigned_numbers_that_fit(self, tmp_path: Path) -> None:
        table = DeltaTable(tmp_path / "t")
        nested = pa.list_(pa.struct([("u", pa.uint64())]))
        table.append(
            pa.table({"u": pa.array([0, 2**63 - 1, None], pa.uint64()), "n": pa.array([[{"u": 7}]] * 3, nested)})
        )
        assert table.snapshot().scan().to_arrow().to_pylist()[1] == {"u": 2**63 - 1, "n": [{"u": 7}]}
        with pytest.raises(SchemaMismatchError, match=str(2**63)):
            table.append(pa.table({"u": pa.array([2**63], pa.uint64()), "n": pa.nulls(1, nested)}))
        with pytest.raises(SchemaMismatchError, match=str(2**64 - 1)):
            table.append(pa.table({"u": pa.nulls(1, pa.uint64()), "n": pa.array([[{"u": 2**64 - 1}]], nested)}))
        assert table.version() == 0

    def test_polars_has_numbers_of_128_bits(self, tmp_path: Path) -> None:
        pl = pytest.importorskip("polars", reason="Polars is not installed")
        table = DeltaTable(tmp_path / "t")
        frame = pl.DataFrame({"n": pl.Series([10**38 - 1, -5, None], dtype=pl.Int128)})
        for made in (frame, frame.lazy()):
            table.append(made)
        assert table.snapshot().scan().to_arrow()["n"].to_pylist()[:3] == [Decimal(10**38 - 1), Decimal(-5), None]
        for broken in (pl.DataFrame({"n": pl.Series([2**127 - 1], dtype=pl.Int128)}),):
            for made in (broken, broken.lazy()):
                with pytest.raises(DeltaError):
                    table.append(made)
        with pytest.raises(SchemaMismatchError, match="objects"):
            table.append(pl.DataFrame({"n": pl.Series([object()], dtype=pl.Object)}), schema_mode="merge")
        with pytest.raises(DeltaError):
            table.append(frame.lazy().select(pl.col("n").cast(pl.Int8)))
        assert table.version() == 1


class TestPolarsQueries:
    def test_rows_come_before_the_query_has_ended(self) -> None:
        """All rows are more than a pass may hold. They come in their order, again in each pass."""
        pl = pytest.importorskip("polars", reason="Polars is not installed")
        computed: list[int] = []

        def counted(frame: Any) -> Any:
            computed.append(len(frame))
            return frame

        query = pl.LazyFrame({"n": pl.int_range(5_000_000, eager=True)}).map_batches(counted, streamable=True)
        relation = relation_of(query.with_columns(text=pl.col("n").cast(pl.String)))
        batches = relation.batches()
        first = next(batches)
        assert 0 < sum(computed) < 5_000_000
        numbers = pa.chunked_array([first["n"], *(batch["n"] for batch in batches)])
        assert numbers.equals(pa.chunked_array([pa.array(range(5_000_000), pa.int64())]))
        assert relation.to_reader().read_next_batch()["n"][0].as_py() == 0

    def test_a_query_that_fails_half_way(self, tmp_path: Path) -> None:
        pl = pytest.importorskip("polars", reason="Polars is not installed")
        table = DeltaTable(tmp_path / "t")
        text = pl.concat([pl.repeat("1", 2_000_000, eager=True), pl.Series(["one"])])
        with pytest.raises(SchemaMismatchError, match="one"):
            table.append(pl.LazyFrame({"n": text}).with_columns(pl.col("n").cast(pl.Int64)))
        assert not table.exists()

    def test_polars_without_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pl = pytest.importorskip("polars", reason="Polars is not installed")
        monkeypatch.delattr(pl.LazyFrame, "collect_batches")
        assert read(polars_frame().lazy()) == ROWS.to_pylist()


def _unsound() -> dict[str, pa.Array]:
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0")
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    large = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(bytes(8) + b"\2" + bytes(7)), text.buffers()[2]]
    )
    number = pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, pa.py_buffer((10**5).to_bytes(16, "little"))])
    found = {"text": text, "large": large, "number": number}
    for name, array in list(found.items()):
        found[f"{name} in a list"] = pa.ListArray.from_arrays([0, 1], array)
        found[f"{name} in a struct"] = pa.StructArray.from_arrays([array], ["x"])
        found[f"{name} in a map"] = pa.MapArray.from_arrays([0, 1], pa.array([1]), array)
        found[f"{name} in a dictionary"] = pa.DictionaryArray.from_arrays(pa.array([0]), array)
    return found


@pytest.mark.parametrize("kind", _unsound())
def test_values_that_are_none_of_their_type_are_not_written(kind: str, tmp_path: Path) -> None:
    """Else a green append makes a table that nobody can read."""
    rows = pa.table({"c": _unsound()[kind]})
    table = DeltaTable(tmp_path)
    for data in (rows, rows.to_reader(), rows.to_batches()[0]):
        with pytest.raises(SchemaMismatchError, match="Column c has a value that is not a valid"):
            table.append(data)
    assert not table.exists()


STRUCTS = pa.array([{"a": {"b": number} if number % 3 else None} for number in range(12)])


@pytest.mark.parametrize(
    "values",
    [
        STRUCTS.slice(6),
        pa.StructArray.from_arrays([STRUCTS.slice(6)], ["c"]),
        pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 5, 6], pa.int32()), STRUCTS.slice(6)),
    ],
    ids=["structs", "structs of structs", "lists of structs"],
)
def test_structs_of_structs_are_merged_and_queried_where_they_are_slices(tmp_path: Path, values: pa.Array) -> None:
    """DuckDB refuses them as they are."""
    rows = pa.table({"id": range(6), "v": values})
    table = DeltaTable(tmp_path / "t")
    table.append(rows.slice(0, 3))
    table.upsert(rows.slice(1, 5), ["id"])
    table.upsert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=2)), ["id"])
    assert table.snapshot().scan().to_arrow().sort_by("id").to_pylist() == rows.to_pylist()
    assert table.snapshot().scan(where="id > 2").to_duckdb().order("id").fetchall()[0][0] == 3


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [1, 2], "name": ["a", None]},
        {"id": pa.array([1, 2]), "name": pa.chunked_array([["a"], [None]])},
        {"id": (1, 2), "name": pa.array(["a", None])},
    ],
)
def test_a_dict_of_columns(tmp_path: Path, columns: dict[str, object]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(columns)
    table.overwrite(columns)
    table.upsert(columns, keys=["id"])
    assert table.snapshot().scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "name": "a"}, {"id": 2, "name": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", [{}, {1: [1]}, {"id": 1}, {"id": "text"}, {"id": [1], "b": [1, 2]}, {"id": iter([1])}, {"id": [1, "a"]}]
)
def test_a_dict_that_is_none_of_columns(tmp_path: Path, value: dict[object, object]) -> None:
    with pytest.raises(InvalidRequestError):
        DeltaTable(tmp_path / "t").append(value)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("type_name", "values", "fits"),
    [
        ("bigint", [1.0, None], True), ("bigint", [2.0**53 - 1, None], True), ("bigint", [-(2.0**53) + 1, None], True),
        ("bigint", [2.0**53, None], False), ("bigint", [1.5, None], False), ("bigint", [float("inf"), None], False),
        ("int", [2.0**31 - 1, None], True), ("int", [2.0**31, None], False), ("smallint", [300.0, None], True),
        ("tinyint", [300.0, None], False), ("tinyint", [None, None], True), ("bigint", [1.0, 2.0], False),
    ],
)  # fmt: skip
def test_integers_that_pandas_keeps_as_floats(
    tmp_path: Path, type_name: str, values: list[float | None], fits: bool
) -> None:
    """In every verb that takes rows."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [1, 2], "n": pandas.Series(values, dtype="float64")})
    table = DeltaTable(tmp_path / "t")
    table.create([column("id", "bigint"), column("n", type_name)])
    verbs: list[Callable[[], object]] = [
        lambda: table.append(frame),
        lambda: table.overwrite(frame),
        lambda: table.overwrite(frame, replace_where="id < 9"),
        lambda: table.upsert(frame, keys=["id"]),
        lambda: table.merge(frame, "target.id = source.id").when_matched_update_all().execute(),
        lambda: table.merge(frame, "target.id = source.id").when_not_matched_insert_all().execute(),
    ]
    if not fits:
        # Merges and upserts cast, as Delta on Spark does.
        for verb in verbs[:3]:
            with pytest.raises(DeltaError):
                verb()
        return
    for number, verb in enumerate(verbs):
        verb()
        if number == 0:
            table.overwrite(frame)
        rows = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
        assert [row["n"] for row in rows] == [None if v is None else int(v) for v in values]
