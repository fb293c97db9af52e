"""Writing tables with column mapping, in both modes and on both engines (PROTOCOL, "Writer Requirements for Column
Mapping")."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import INTEGER, LONG, STRING, ArrayType, MapType, StructField, StructType
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME
from tests.certain import directory
from tests.handmade import HandmadeTable
from tests.harness.conformance.cases import GOLDEN, needs_golden
from tests.harness.table_builder import begin


def mapped(name: str, number: int, data_type: Any, nullable: bool = True, **metadata: Any) -> StructField:
    return StructField(name, data_type, nullable, {FIELD_ID: number, PHYSICAL_NAME: f"col-{number}", **metadata})


SCHEMA = StructType(
    (
        mapped("day, of week", 1, STRING),
        mapped("id", 2, LONG, nullable=False),
        mapped("st", 3, StructType((mapped("x y", 4, LONG), mapped("id", 5, STRING)))),
        mapped("items", 6, ArrayType(StructType((mapped("k", 7, INTEGER),)))),
        mapped("m", 8, MapType(STRING, LONG)),
    )
)
ARROW = pa.schema(
    [
        ("day, of week", pa.string()),
        ("id", pa.int64()),
        ("st", pa.struct([("x y", pa.int64()), ("id", pa.string())])),
        ("items", pa.list_(pa.struct([("k", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)


def row(day: str | None, number: int) -> dict[str, Any]:
    return {
        "day, of week": day,
        "id": number,
        "st": {"x y": number * 10, "id": f"s{number}"} if number % 3 else None,
        "items": [{"k": number}, {"k": None}],
        "m": [("a", number)],
    }


def some(*days_and_ids: tuple[str | None, int]) -> pa.Table:
    return pa.Table.from_pylist([row(*pair) for pair in days_and_ids], ARROW)


@pytest.fixture(params=["name", "id"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[(), ("day, of week",)], ids=["flat", "partitioned"])
def mapped_table(tmp_path: Path, mode: str, request: pytest.FixtureRequest) -> DeltaTable:
    handmade = HandmadeTable(tmp_path / "mapped")
    handmade.create(
        SCHEMA,
        reader_features=["columnMapping"],
        partition_by=request.param,
        configuration={"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "8"},
    )
    return handmade.open()


def ids(rows: Any, table: DeltaTable) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    # Sorting by a column that is a struct is not for Arrow: the ids will do.
    scan = table.snapshot().scan()
    read = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    for given in sorted(read.to_pylist(), key=lambda r: r["id"]):
        assert given == row(given["day, of week"], given["id"])
        found.setdefault(given["day, of week"], []).append(given["id"])
    return found


def live_files(table: DeltaTable) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = table.snapshot().files().to_pylist()
    return files


def test_files_and_log_know_physical_names_and_ids(rows: Any, mapped_table: DeltaTable) -> None:
    mapped_table.append(rows.data(some(("a", 1), ("b", 2), (None, 3))))
    assert ids(rows, mapped_table) == {"a": [1], "b": [2], None: [3]}
    partitioned = bool(mapped_table.snapshot().partition_columns)
    for file in live_files(mapped_table):
        schema = pq.read_schema(directory(mapped_table) / unquote(file["path"]))
        numbers = {f.name: int((f.metadata or {}).get(b"PARQUET:field_id", -1)) for f in schema}
        wanted = {f"col-{n}": n for n in (1, 2, 3, 6, 8)}
        if partitioned:
            del wanted["col-1"]
        assert numbers == wanted
        struct = schema.field("col-3").type
        assert {f.name: f.metadata[b"PARQUET:field_id"] for f in struct} == {"col-4": b"4", "col-5": b"5"}
        (element,) = schema.field("col-6").type.value_type
        assert (element.name, element.metadata[b"PARQUET:field_id"]) == ("col-7", b"7")
        assert set(dict(file["partition_values"])) == ({"col-1"} if partitioned else set())
        stats = json.loads(file["stats"])
        assert set(stats["nullCount"]) >= {"col-2", "col-3"}
        assert set(stats["nullCount"]["col-3"]) == {"col-4", "col-5"}
        assert "id" not in stats["minValues"]


def test_statistics_prune_by_logical_predicates(rows: Any, mapped_table: DeltaTable) -> None:
    mapped_table.append(rows.data(some(("a", 1))))
    mapped_table.append(rows.data(some(("b", 20))))
    assert mapped_table.snapshot().files(["path"], resolved(mapped_table, "id > 10")).num_rows == 1
    assert mapped_table.snapshot().files(["path"], resolved(mapped_table, "st.`x y` = 200")).num_rows == 1
    assert mapped_table.snapshot().files(["path"], resolved(mapped_table, "`day, of week` = 'c'")).num_rows == 0


def resolved(table: DeltaTable, text: str) -> Any:
    from delta_orch.expressions.parse import parse_expression
    from delta_orch.expressions.resolve import resolve_expression

    return resolve_expression(parse_expression(text), table.snapshot().schema)


def test_every_verb_that_writes_rows(rows: Any, mapped_table: DeltaTable) -> None:
    table = mapped_table
    table.append(rows.data(some(("a", 1), ("b", 2))))
    table.append(rows.data(some(("a", 3), (None, 4))))
    table.overwrite(rows.data(some(("b", 12))), replace_where="`day, of week` = 'b'")
    assert ids(rows, table) == {"a": [1, 3], "b": [12], None: [4]}
    table.optimize(engine=rows.engine)
    assert ids(rows, table) == {"a": [1, 3], "b": [12], None: [4]}
    assert len(live_files(table)) == (3 if table.snapshot().partition_columns else 1)
    if table.snapshot().partition_columns:
        table.overwrite(rows.data(some(("a", 5), (None, 6))), partition_overwrite_mode="dynamic")
        assert ids(rows, table) == {"a": [5], "b": [12], None: [6]}
        table.overwrite(rows.data(some(("a", 7))), replace_where="`day, of week` = 'a'")
        assert ids(rows, table) == {"a": [7], "b": [12], None: [6]}
    table.overwrite(rows.data(some(("z", 9))))
    assert ids(rows, table) == {"z": [9]}


def test_a_renamed_column_keeps_its_rows_and_takes_new_ones(rows: Any, tmp_path: Path) -> None:
    handmade = HandmadeTable(tmp_path / "mapped")
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    before = StructType((mapped("old", 1, LONG), mapped("other", 2, STRING)))
    handmade.create(before, reader_features=["columnMapping"], configuration=configuration)
    table = handmade.open()
    table.append(rows.data(pa.table({"old": [1], "other": ["x"]})))
    after = StructType((mapped("other", 1, LONG), mapped("old", 2, STRING)))
    change = begin(table, table.snapshot(), operation="RENAME COLUMN")
    change.update_metadata(replace(table.snapshot().metadata, schema_string=serialize_schema(after)))
    change.commit()
    table.append(rows.data(pa.table({"old": ["y"], "other": [2]})))
    assert rows.pylist(table) == [{"other": 1, "old": "x"}, {"other": 2, "old": "y"}]


@needs_golden
@pytest.mark.parametrize(
    "name", ["golden-table-with-columnmapping-mode-id", "kgold-table-with-columnmapping-mode-name"]
)
def test_tables_of_other_writers_are_appended_to(rows: Any, tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name / "table", tmp_path / "copy")
    table = DeltaTable(tmp_path / "copy")
    before = table.snapshot().scan().to_arrow()
    table.append(rows.data(before))
    after = table.snapshot().scan().to_arrow()
    assert sorted(map(repr, after.to_pylist())) == sorted(map(repr, before.to_pylist() * 2))


NESTED_IDS = "parquet.field.nested.ids"


@pytest.mark.long
def test_elements_keys_and_values_have_ids_where_the_schema_gives_them(rows: Any, tmp_path: Path) -> None:
    """PROTOCOL, "Writer Requirements for IcebergCompatV2"."""
    schema = StructType(
        (
            mapped("id", 1, LONG, delta_orch_note="kept"),
            mapped(
                "l",
                2,
                ArrayType(ArrayType(INTEGER)),
                True,
                **{NESTED_IDS: {"l.element": 100, "l.element.element": 101}},
            ),
            mapped("m", 3, MapType(STRING, LONG), True, **{NESTED_IDS: {"col-3.key": 102, "col-3.value": 103}}),
            mapped("day", 4, STRING),
        )
    )
    handmade = HandmadeTable(tmp_path / "iceberg")
    handmade.create(
        schema,
        reader_features=["columnMapping"],
        features=["icebergCompatV2", "checkConstraints"],
        partition_by=["day"],
        configuration={
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "103",
            "delta.enableIcebergCompatV2": "true",
            "delta.constraints.positive": "id > 0",
        },
    )
    table = handmade.open()
    data = pa.table(
        {
            "id": [1, 2],
            "l": pa.array([[[1], None], None], pa.list_(pa.list_(pa.int32()))),
            "m": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            "day": ["x", "y"],
        }
    )
    table.append(rows.data(data))
    assert sorted(table.snapshot().scan().to_arrow().to_pylist(), key=lambda r: r["id"]) == data.to_pylist()
    with pytest.raises(ConstraintViolationError, match="positive") as caught:
        table.append(rows.data(data.set_column(0, "id", pa.array([1, -2]))))
    assert caught.value.context["row"]["id"] == -2
    table.append(rows.data(data))
    table.optimize(engine=rows.engine)
    for file in live_files(table):
        assert "numRecords" in json.loads(file["stats"])
        found = pq.read_schema(directory(table) / unquote(file["path"]))
        # Partition columns come last in the file.
        assert found.names == ["col-1", "col-2", "col-3", "col-4"]
        outer = found.field("col-2").type.value_field
        assert [f.metadata[b"PARQUET:field_id"] for f in (outer, outer.type.value_field)] == [b"100", b"101"]
        kind = found.field("col-3").type
        assert [f.metadata[b"PARQUET:field_id"] for f in (kind.key_field, kind.item_field)] == [b"102", b"103"]
