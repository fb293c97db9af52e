"""Tables as other writers leave them, odd but legal, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.errors import ProtocolViolationError, TableError
from delta_orch.protocol.types import INTEGER, STRING, StructField, StructType
from tests.handmade import HandmadeTable


@pytest.mark.long
@pytest.mark.parametrize(
    ("listed", "key", "name"), [("P", "p", "p"), ("p", "P", "p"), ("P", "P", "p"), ("p", "p", "P")], ids="".join
)
def test_partition_columns_are_found_whatever_their_case(
    rows: Any, tmp_path: Path, listed: str, key: str, name: str
) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(StructType((StructField("i", INTEGER), StructField(name, STRING))), partition_by=[listed])
    made.commit(made.add("f.parquet", pa.table({"I": pa.array([1], pa.int32())}), partition_values={key: "x"}))
    table = made.open()
    assert table.snapshot().partition_columns == (name,)
    assert rows.pylist(table) == rows.pylist(table, where="P = 'x'") == [{"i": 1, name: "x"}]
    assert rows.pylist(table, where="p = 'y'") == []
    table.append(rows.data(pa.table({"i": pa.array([2], pa.int32()), name: ["y"]})))
    assert rows.pylist(table, where="p = 'y'") == [{"i": 2, name: "y"}]
    assert table.snapshot().scan(where="p = 'y'").explain().after_partition_pruning.num_files == 1


def test_a_partition_column_outside_the_schema_is_refused_before_rows_are_written(rows: Any, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(StructType((StructField("i", INTEGER),)), partition_by=["gone"])
    table = made.open()
    with pytest.raises(ProtocolViolationError, match="gone is not in the schema"):
        table.append(rows.data(pa.table({"i": pa.array([1], pa.int32())})))
    assert table.version() == 0
    assert not list(tmp_path.rglob("*.parquet"))


def mapped(number: int) -> dict[str, Any]:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}


def with_id(name: str, data_type: pa.DataType, number: int | None) -> pa.Field:
    return pa.field(name, data_type, metadata=None if number is None else {"PARQUET:field_id": str(number)})


@pytest.mark.parametrize("outer", [None, 2])
@pytest.mark.parametrize("inner", [None, 3, 9])
def test_by_id_no_file_without_ids_is_read(rows: Any, tmp_path: Path, outer: int | None, inner: int | None) -> None:
    fields = (
        StructField("a", INTEGER, True, mapped(1)),
        StructField("s", StructType((StructField("x", INTEGER, True, mapped(3)),)), True, mapped(2)),
    )
    made = HandmadeTable(tmp_path / "t")
    made.create(
        StructType(fields),
        reader_features=("columnMapping",),
        configuration={"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "3"},
    )
    struct = pa.struct([with_id("col-3", pa.int32(), inner)])
    schema = pa.schema([with_id("any", pa.int32(), outer and 1), with_id("col-2", struct, outer)])
    made.commit(made.add("f.parquet", pa.Table.from_pylist([{"any": 1, "col-2": {"col-3": 3}}], schema)))
    table = made.open()
    assert table.snapshot().scan(columns=[]).to_arrow().num_rows == 1
    if outer is None:
        for where in (None, "s.x = 3", "length(CAST(s.x AS STRING)) = 1"):
            with pytest.raises(TableError, match=r"(?s)f\.parquet does not fit .* field id"):
                rows.pylist(table, where=where)
    else:
        assert rows.pylist(table) == [{"a": 1, "s": {"x": 3 if inner == 3 else None}}]
        assert len(rows.pylist(table, where="s.x = 3")) == (inner == 3)


def test_by_id_partition_columns_are_no_matter_of_files(rows: Any, tmp_path: Path) -> None:
    fields = (StructField("a", INTEGER, True, mapped(1)), StructField("p", INTEGER, True, mapped(2)))
    made = HandmadeTable(tmp_path / "t")
    made.create(
        StructType(fields),
        reader_features=("columnMapping",),
        partition_by=("p",),
        configuration={"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "2"},
    )
    for number, file_id in enumerate((None, 1)):
        data = pa.Table.from_pylist([{"col-1": 1}], pa.schema([with_id("col-1", pa.int32(), file_id)]))
        made.commit(made.add(f"{number}.parquet", data, partition_values={"col-2": str(number)}))
    table = made.open()
    if rows.spark is None:  # Spark is told of all columns of a file, before it is known which are wanted.
        assert sorted(row["p"] for row in rows.pylist(table, columns=["p"])) == [0, 1]
        assert rows.pylist(table, columns=["p"], where="p = 0") == [{"p": 0}]
    assert rows.pylist(table, where="p = 1") == [{"a": 1, "p": 1}]
    with pytest.raises(TableError, match="field id"):
        rows.pylist(table, where="p = 0")


def test_files_from_before_column_mapping_may_differ_in_case(rows: Any, tmp_path: Path) -> None:
    """A table that was mapped later keeps its columns' names as physical ones, and its files."""
    made = HandmadeTable(tmp_path / "t")
    made.create(pa.schema([("Id", pa.int32()), ("S", pa.struct([("X", pa.int32())]))]))
    written = pa.schema([("ID", pa.int32()), ("s", pa.struct([("x", pa.int32())]))])
    made.commit(made.add("f.parquet", pa.table({"ID": pa.array([1], pa.int32()), "s": [{"x": 2}]}, schema=written)))
    table = made.open()
    before = rows.pylist(table)
    table.alter().set_properties({"delta.columnMapping.mode": "name"}).commit()
    assert rows.pylist(table) == before == [{"Id": 1, "S": {"X": 2}}]
    assert rows.pylist(table, where="S.X = 2 AND id = 1") == before
