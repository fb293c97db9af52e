"""Iceberg compatibility: what is required is required, and what files must hold they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, SchemaMismatchError, UnsupportedFeatureError
from delta_orch.protocol.types import MapType, StructType
from delta_orch.table.column_mapping import field_id, nested_field_ids
from tests.certain import a, some
from tests.harness.table_builder import begin

if TYPE_CHECKING:
    from pathlib import Path

    from tests.verbs.conftest import EngineRows

V1 = {"delta.enableIcebergCompatV1": "true"}
V2 = {"delta.enableIcebergCompatV2": "true"}
V3 = {"delta.enableIcebergCompatV3": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("l", pa.list_(pa.list_(pa.int32()))),
        ("m", pa.map_(pa.string(), pa.struct([("k", pa.list_(pa.int64()))]))),
    ]
)
ROWS = pa.table({"id": pa.array([1], pa.int64()), "day": ["a"]})


def parquet_ids(table: DeltaTable) -> dict[Any, int] | dict[tuple[str], int]:
    """Path → field id, of everything in a table's one file that has one."""
    path = table.snapshot().files(["path"]).column("path")[0].as_py()
    found = {}

    def walk(field: pa.Field, prefix: Any) -> None:
        here = (*prefix, field.name)
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            found[here] = int(number)
        kind = field.type
        if pa.types.is_struct(kind):
            for inner in kind:
                walk(inner, here)
        elif pa.types.is_list(kind):
            walk(kind.value_field.with_name("element"), here)
        elif pa.types.is_map(kind):
            walk(kind.key_field.with_name("key"), here)
            walk(kind.item_field.with_name("value"), here)

    for field in pq.read_schema(f"{urlparse(table.uri).path}/{unquote(path)}"):
        walk(field, ())
    return found


@pytest.mark.long
def test_v2_gives_ids_to_what_is_nested_in_schema_and_files(rows: EngineRows, table: DeltaTable) -> None:
    table.create(NESTED, properties=V2)
    snapshot = table.snapshot()
    assert {"columnMapping", "icebergCompatV2"} <= set(some(snapshot.protocol.writer_features))
    assert snapshot.properties.column_mapping_mode == "name"
    nested = {f.name: nested_field_ids(f) for f in snapshot.schema}
    assert {name: sorted(ids) for name, ids in nested.items()} == {
        "id": [],
        "l": ["element", "element.element"],
        "m": ["key", "value"],
    }
    values = a(MapType, some(snapshot.schema.find("m")).data_type).value_type
    inner = some(a(StructType, values).find("k"))
    assert sorted(nested_field_ids(inner)) == ["element"]
    every = [*nested["l"].values(), *nested["m"].values(), *nested_field_ids(inner).values()]
    every += [some(field_id(f)) for f in (*snapshot.schema, inner)]
    assert sorted(every) == list(range(1, 10))
    assert snapshot.metadata.configuration["delta.columnMapping.maxColumnId"] == "9"
    data = pa.Table.from_pylist([{"id": 1, "l": [[1]], "m": [("a", {"k": [7]})]}], NESTED)
    table.append(rows.data(data))
    assert sorted(parquet_ids(table).values()) == list(range(1, 10))
    # New columns get theirs, old ones keep them.
    table.alter().add_column("n", "array<int>").commit()
    after = table.snapshot().schema
    assert nested_field_ids(some(after.find("l"))) == nested["l"]
    assert (field_id(some(after.find("n"))), nested_field_ids(some(after.find("n")))) == (10, {"element": 11})


@pytest.mark.parametrize("version", [V1, V2, V3], ids=["V1", "V2", "V3"])
def test_partition_columns_are_in_the_files(rows: EngineRows, table: DeltaTable, version: dict[str, str]) -> None:
    table.append(rows.data(ROWS), partition_by=["day"], properties=version)
    ids = parquet_ids(table)
    assert sorted(ids.values()) == [1, 2]
    assert rows.pylist(table) == [{"id": 1, "day": "a"}]


def test_an_existing_table_becomes_compatible_once_its_columns_are_mapped(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(ROWS))
    with pytest.raises(InvalidRequestError, match="it needs"):
        table.alter().set_properties(V2).commit()
    table.alter().set_properties(V2 | MAPPED).commit()
    table.append(rows.data(ROWS))
    assert len(rows.pylist(table)) == 2
    table.alter().set_properties({"delta.enableIcebergCompatV2": "false"}).set_properties(V1).commit()
    assert "icebergCompatV1" in some(table.snapshot().protocol.writer_features)


@pytest.mark.parametrize(
    ("properties", "schema", "cause"),
    [
        (V1 | V2, ROWS.schema, "exclude each other"),
        (V1, NESTED, "excludes the types"),
        (V1 | {"delta.enableDeletionVectors": "true"}, ROWS.schema, "deletionVectors"),
        (V1 | {"delta.feature.deletionVectors": "supported"}, ROWS.schema, "deletionVectors"),
        (V2 | {"delta.enableDeletionVectors": "true"}, ROWS.schema, "excludes deletion vectors"),
        (V2 | {"delta.columnMapping.mode": "none"}, ROWS.schema, "needs delta.columnMapping.mode"),
        (V2, pa.schema([("n", pa.null()), ("id", pa.int64())]), "void"),
        (V3 | V2, ROWS.schema, "V2 and V3 exclude each other"),
        (V3 | {"delta.enableRowTracking": "false"}, ROWS.schema, "needs delta.enableRowTracking"),
        (V3 | {"delta.columnMapping.mode": "none"}, ROWS.schema, "needs delta.columnMapping.mode"),
        (V3, pa.schema([("n", pa.null()), ("id", pa.int64())]), "void"),
    ],
)
def test_contradictions_are_named_at_creation(
    table: DeltaTable, properties: dict[str, str], schema: pa.Schema, cause: str
) -> None:
    with pytest.raises(InvalidRequestError, match=cause):
        table.create(schema, properties=properties)
    assert not table.exists()


def test_contradictions_are_named_later_on(table: DeltaTable) -> None:
    table.append(ROWS, properties=V1)
    for alteration, cause in (
        (table.alter().add_column("l", "array<int>"), "excludes the types"),
        (table.alter().set_properties({"delta.enableDeletionVectors": "true"}), "deletionVectors"),
        (table.alter().set_properties(V2), "exclude each other"),
    ):
        with pytest.raises(InvalidRequestError, match=cause):
            alteration.commit()
    with pytest.raises((InvalidRequestError, SchemaMismatchError), match="excludes the types"):
        table.append(pa.table({"l": pa.array([[1]], pa.list_(pa.int32()))}), schema_mode="merge")
    assert table.version() == 0


def test_types_widen_only_as_iceberg_knows_it(table: DeltaTable) -> None:
    columns = pa.schema([("i", pa.int32()), ("d", pa.date32()), ("p", pa.decimal128(5, 2)), ("f", pa.float32())])
    table.create(columns, properties=V2 | {"delta.enableTypeWidening": "true"})
    for name, data_type in (("i", "double"), ("i", "decimal(12,0)"), ("d", "timestamp_ntz"), ("p", "decimal(8,3)")):
        with pytest.raises(InvalidRequestError, match="Iceberg"):
            table.alter().change_type(name, data_type).commit()
    table.alter().change_type("i", "long").change_type("p", "decimal(8,2)").change_type("f", "double").commit()
    assert table.version() == 1


def test_v1_looks_at_the_files_that_are_there(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"], properties=MAPPED)
    with pytest.raises(InvalidRequestError, match="partition columns"):
        table.alter().set_properties(V1).commit()
    # V2 speaks of files to come.
    table.alter().set_properties(V2).commit()


def test_a_partitioned_table_keeps_its_partitioning(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"], properties=V2)
    with pytest.raises(InvalidRequestError, match="stays partitioned"):
        table.overwrite(ROWS, schema_mode="overwrite", partition_by=["id"])
    table.overwrite(pa.table({"day": [1], "id": ["x"]}), schema_mode="overwrite")
    assert table.snapshot().partition_columns == ("day",)


def test_files_must_say_how_many_records_they_have(table: DeltaTable) -> None:
    table.append(ROWS, properties=V2)
    files = table.snapshot().files()
    bare = files.set_column(files.schema.get_field_index("stats"), "stats", pa.nulls(1, pa.string()))
    bare = bare.set_column(bare.schema.get_field_index("path"), "path", pa.array(["other.parquet"]))
    transaction = begin(table, table.snapshot(), operation="WRITE")
    transaction.add_files(bare)
    with pytest.raises(InvalidRequestError, match="numRecords"):
        transaction.commit()


def test_v3_tracks_rows_under_the_field_ids_of_iceberg(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.concat_tables([ROWS, pa.table({"id": [2], "day": ["b"]})])), properties=V3)
    assert {"icebergCompatV3", "rowTracking", "columnMapping"} <= set(some(table.snapshot().protocol.writer_features))
    assert sorted(parquet_ids(table).values()) == [1, 2]
    before = row_ids(table)
    table.update({"day": "'c'"}, engine=rows.engine)
    assert sorted(parquet_ids(table).values()) == [1, 2, 2147483539, 2147483540]
    assert row_ids(table) == before


def row_ids(table: DeltaTable) -> dict[int, int]:
    found = table.snapshot().scan(columns=["id"], row_tracking=True).to_arrow()
    return dict(zip(found["id"].to_pylist(), found["row_id"].to_pylist(), strict=True))


def test_v3_takes_deletion_vectors_and_stays(table: DeltaTable) -> None:
    table.append(pa.table({"id": [1, 2]}), properties=V3 | {"delta.enableDeletionVectors": "true"})
    table.delete("id = 1")
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 2}]
    for change, cause in (
        ({"delta.enableIcebergCompatV3": "false"}, "cannot be switched off"),
        ({"delta.enableRowTracking": "false"}, "needs delta.enableRowTracking"),
    ):
        with pytest.raises(InvalidRequestError, match=cause):
            table.alter().set_properties(change).commit()
    with pytest.raises(UnsupportedFeatureError, match="icebergCompatV3"):
        table.alter().drop_feature("icebergCompatV3").commit()
    with pytest.raises(InvalidRequestError, match="variants"):
        table.alter().add_column("v", "variant").commit()
    assert table.version() == 1


def test_v3_comes_to_a_table_whose_files_hold_no_row_ids(tmp_path: Path) -> None:
    tracked, mapped = DeltaTable(tmp_path / "tracked"), DeltaTable(tmp_path / "mapped")
    tracked.append(ROWS, properties=MAPPED | {"delta.enableRowTracking": "true"})
    switched = {**V3, "delta.enableRowTracking": "true"}
    with pytest.raises(InvalidRequestError, match="tracked rows before"):
        tracked.alter().set_properties(switched).commit()
    with pytest.raises(InvalidRequestError, match="tracked rows before"):
        tracked.clone(tmp_path / "clone", properties=V3)
    mapped.append(ROWS, properties=MAPPED)
    mapped.alter().set_properties(switched).commit()
    assert row_ids(mapped) == {1: 0}
    with pytest.raises(InvalidRequestError, match="switched off"):
        mapped.restore(0)


def test_a_clone_is_held_to_what_it_promises(tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(ROWS, partition_by=["day"], properties=MAPPED)
    with pytest.raises(InvalidRequestError, match="partition columns"):
        source.clone(tmp_path / "clone", shallow=False, properties=V1)
    assert not DeltaTable(tmp_path / "clone").exists()
