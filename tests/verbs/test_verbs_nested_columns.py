"""Fields of structs as columns of a scan, on both engines: their names, what is read for them, which files are not."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.protocol.types import LONG, STRING, DataType, StructField, StructType
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.results import Scan

INNER = pa.struct([("x y", pa.int64()), ("z", pa.string())])
PLACE = pa.struct([("b", pa.int64()), ("c.d", INNER), ("ti`ck", pa.float64())])
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "a.b": [10, 20, 30, 40],
        "a": pa.array(
            [{"b": 7, "c.d": {"x y": 1, "z": "q"}, "ti`ck": 0.5}, None, {"b": 9, "c.d": None}, {"b": None, "c.d": {}}],
            PLACE,
        ),
        "list": [[{"q": 1}], [], None, [{"q": None}]],
    }
)


def read(rows: Any, scan: Scan) -> list[tuple[Any, ...]]:
    found = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    assert found.column_names == list(scan.schema.names)
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.fixture
def nested(tmp_path: Path) -> DeltaTable:
    made = HandmadeTable(tmp_path / "nested")
    made.create(ROWS.schema)
    made.commit(made.add("f.parquet", ROWS, write={"row_group_size": 3}))
    return made.open()


@pytest.mark.parametrize(
    ("columns", "names", "expected"),
    [
        (["a.`c.d`.`x y`"], ["x y"], [(1,), (None,), (None,), (None,)]),
        (["A.`C.D`.Z", "ID"], ["z", "id"], [("q", 1), (None, 2), (None, 3), (None, 4)]),
        (["`a`.`b`", "a.b"], ["b", "a.b"], [(7, 10), (None, 20), (9, 30), (None, 40)]),
        (["a.`ti``ck`"], ["ti`ck"], [(0.5,), (None,), (None,), (None,)]),
        (["`a`.b", "a.`c.d`.z", "a.`c.d`.`x y`"], ["b", "z", "x y"], [(7, "q", 1), (None,) * 3, (9, None, None),
                                                                       (None,) * 3]),
        (["a.`c.d`"], ["c.d"], [({"x y": 1, "z": "q"},), (None,), (None,), ({"x y": None, "z": None},)]),
    ],
)  # fmt: skip
def test_fields_are_columns_called_by_their_last_name(
    rows: Any, nested: DeltaTable, columns: Sequence[str], names: list[str], expected: list[tuple[Any, ...]]
) -> None:
    scan = nested.snapshot().scan(columns=columns)
    assert scan.columns == tuple(names) == scan.schema.names
    assert read(rows, scan) == expected
    assert all(field.nullable for field in scan.schema)


@pytest.mark.parametrize("where", ["`a`.b > 6 AND id < 3", "length(`a`.`c.d`.z) = 1", "`a`.`c.d`.`x y` = 1"])
def test_predicates_over_other_fields(rows: Any, nested: DeltaTable, where: str) -> None:
    assert read(rows, nested.snapshot().scan(columns=["a.`c.d`.z"], where=where)) == [("q",)]


def test_expressions_of_pyarrow(nested: DeltaTable) -> None:
    scan = nested.snapshot().scan(columns=["`a`.b"], where=pc.field("a", "c.d", "z").is_valid() & (pc.field(0) > 0))
    assert scan.to_arrow().to_pylist() == [{"b": 7}]


def test_tasks_travel_with_what_they_return(nested: DeltaTable) -> None:
    (task,) = nested.snapshot().scan(columns=["`a`.b"]).tasks()
    assert pickle.loads(pickle.dumps(task)).to_arrow().to_pylist() == [{"b": b} for b in (7, None, 9, None)]
    assert nested.snapshot().scan(columns=["`a`.b"]).to_reader().schema == pa.schema([("b", pa.int64())])


def test_names_that_cannot_be(nested: DeltaTable) -> None:
    snapshot = nested.snapshot()
    for columns, error, text in (
        (["`a`.b", "A.B", "`A`.`B`"], InvalidRequestError, "twice"),
        (["a.`c.d`.z", "`a`.b", "a.`c.d`.Z"], InvalidRequestError, "twice"),
        (["a.c.d"], ColumnNotFoundError, "Did you mean c.d"),
        (["a.nowhere"], ColumnNotFoundError, "Columns of the struct a: b, c.d"),
        (["id.x"], ColumnNotFoundError, "id is not a struct"),
        (["list.q"], ColumnNotFoundError, "inside an array or a map"),
        (["a.`c.d`.`x"], ColumnNotFoundError, "not a top-level column"),
        (["a..b"], ColumnNotFoundError, None),
    ):
        with pytest.raises(error, match=text):
            snapshot.scan(columns=columns)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(pa.schema([("x", pa.struct([("n", pa.int64())])), ("y", pa.struct([("N", pa.int64())]))]))
    with pytest.raises(InvalidRequestError, match="two columns would be called"):
        made.open().snapshot().scan(columns=["x.n", "y.n"])


def test_only_the_leaves_asked_for_are_read(rows: Any, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    table = pa.table({"s": [{"kept": {"k": 1}, "broken": "x" * 50}, {"kept": {"k": 2}, "broken": "y" * 50}]})
    made.create(table.schema)
    made.commit(made.add("f.parquet", table, write={"compression": "none", "use_dictionary": False}))
    column = pq.read_metadata(made.root / "f.parquet").row_group(0).column(1)
    assert column.path_in_schema == "s.broken"
    data = bytearray((made.root / "f.parquet").read_bytes())
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = (
        b"\xff" * column.total_compressed_size
    )
    (made.root / "f.parquet").write_bytes(data)
    snapshot = made.open().snapshot()
    assert read(rows, snapshot.scan(columns=["s.kept.k"])) == [(1,), (2,)]
    assert read(rows, snapshot.scan(columns=["s.kept"], where="s.kept.k = 2")) == [({"k": 2},)]
    if rows.spark is None:
        with pytest.raises(Exception, match=r"f\.parquet"):
            snapshot.scan().to_arrow()


def _mapped(name: str, data_type: DataType, number: int) -> StructField:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    return StructField(name, data_type, True, mapping)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_fields_and_their_statistics(rows: Any, tmp_path: Path, mode: str) -> None:
    inner = StructType((_mapped("deep one", LONG, 3), _mapped("new", STRING, 4)))
    schema = StructType((_mapped("s", StructType((_mapped("in.ner", inner, 2), _mapped("other", LONG, 5))), 1),))
    made = HandmadeTable(tmp_path / "t")
    made.create(
        schema,
        reader_features=("columnMapping", "deletionVectors"),
        configuration={"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "5"},
    )

    def numbered(name: str, data_type: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})

    # The field `new` came later; `gone` was dropped.
    deep = pa.struct([numbered("gone", pa.int64(), 9), numbered("c3", pa.int64(), 3)])
    file_type = pa.struct([numbered("c2", deep, 2), numbered("c5", pa.int64(), 5)])
    for start in (0, 10, 20):
        values = [{"c2": {"c3": start + i, "gone": 1}, "c5": i} for i in range(3)]
        table = pa.Table.from_arrays(
            [pa.array([*values, None], file_type)], schema=pa.schema([numbered("c1", file_type, 1)])
        )
        vector = None if start == 20 else inline_vector(1)
        made.commit(made.add(f"{start}.parquet", table, deletion_vector=vector))
    snapshot = made.open().snapshot()
    found = read(rows, snapshot.scan(columns=["s.`in.ner`.`deep one`", "S.`In.Ner`.NEW"]))
    assert sorted(found, key=str) == sorted([(v, None) for v in (0, 2, None, 10, 12, None, 20, 21, 22, None)], key=str)


@pytest.mark.parametrize("mode", ["none", "name"])
def test_nested_statistics_leave_out_files(rows: Any, tmp_path: Path, mode: str) -> None:
    mapped = mode == "name"
    field = _mapped if mapped else (lambda name, data_type, number: StructField(name, data_type))
    schema = StructType((field("s", StructType((field("in.ner", StructType((field("d", LONG, 3),)), 2),)), 1),))
    names = ("c1", "c2", "c3") if mapped else ("s", "in.ner", "d")
    made = HandmadeTable(tmp_path / "t")
    features = ("columnMapping",) if mapped else ()
    made.create(schema, reader_features=features, configuration={"delta.columnMapping.mode": mode} if mapped else {})
    for start in (0, 10, 20):
        values = [{names[1]: {names[2]: start + i}} for i in range(3)]
        made.file(f"{start}.parquet", pa.table({names[0]: values}))
        bounds = {
            key: {names[0]: {names[1]: {names[2]: value}}}
            for key, value in (("minValues", start), ("maxValues", start + 2), ("nullCount", 0))
        }
        add = made.add(f"{start}.parquet", stats=False)
        made.commit(replace(add, stats=json.dumps({"numRecords": 3, **bounds})))
    scan = made.open().snapshot().scan(columns=["s.`in.ner`.d"], where="S.`in.ner`.D > 11")
    told = scan.explain()
    assert (told.total.num_files, told.after_data_skipping.num_files) == (3, 2)
    assert told.parts[0].used == ("statistics",)
    assert sorted(read(rows, scan)) == [(12,), (20,), (21,), (22,)]
