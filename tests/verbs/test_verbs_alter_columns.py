"""`alter()`: columns are added, renamed, moved, dropped and widened, and the rows follow on both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column, identity_column
from delta_orch.errors import (
    ColumnNotFoundError,
    ConstraintViolationError,
    InvalidRequestError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from delta_orch.protocol import types as t
from delta_orch.protocol.schema import TYPE_CHANGES, serialize_schema
from delta_orch.protocol.types import ArrayType, DataType, StructType
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME, field_id, physical_name
from tests.certain import a, some
from tests.harness.table_builder import begin

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows

MAPPED = {"delta.columnMapping.mode": "name"}
PAIR = pa.struct([("x", pa.int64()), ("y", pa.string())])


def ids(schema: DataType) -> dict[str, int | None]:
    return {f.name: field_id(f) for f in a(StructType, schema)}


def listed(rows: EngineRows, table: DeltaTable, key: str = "id") -> Any:
    """All rows, also where a column is of a type that Arrow does not sort by."""
    scan = table.snapshot().scan()
    read = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    return sorted(read.to_pylist(), key=lambda row: row[key])


@pytest.fixture
def filled(rows: EngineRows, table: DeltaTable) -> DeltaTable:
    data = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"x": 1, "y": "a"}], PAIR), "day": ["d"]})
    table.append(rows.data(data), partition_by=["day"])
    return table


def test_columns_are_added_where_they_are_wanted(rows: EngineRows, filled: DeltaTable) -> None:
    filled.alter().add_column("first", "string", first=True).add_column("s.z", "double", after="x").add_columns(
        {"last": "array<int>"}
    ).commit()
    schema = filled.snapshot().schema
    assert schema.names == ("first", "id", "s", "day", "last")
    assert a(StructType, some(schema.find("s")).data_type).names == ("x", "z", "y")
    assert listed(rows, filled) == [
        {"first": None, "id": 1, "s": {"x": 1, "z": None, "y": "a"}, "day": "d", "last": None}
    ]


def test_one_addition_is_told_as_the_reference_implementation_tells_it(filled: DeltaTable) -> None:
    filled.alter().add_column("note", "string", comment="why", after="id").commit()
    entry = filled.history()[0]
    assert entry.operation == "ADD COLUMNS"
    assert entry.operation_parameters == {
        "columns": '[{"column":{"name":"note","type":"string","nullable":true,"metadata":{"comment":"why"}},'
        '"position":"AFTER id"}]'
    }


@pytest.mark.parametrize(
    ("path", "data_type", "options", "error"),
    [
        ("ID", "string", {}, InvalidRequestError),
        ("s.X", "string", {}, InvalidRequestError),
        ("nope.x", "string", {}, ColumnNotFoundError),
        ("id.x", "string", {}, InvalidRequestError),
        ("a b", "string", {}, SchemaMismatchError),
        ("n", "strin", {}, SchemaMismatchError),
        ("n", "string", {"after": "nope"}, InvalidRequestError),
        ("n", "string", {"after": "id", "first": True}, InvalidRequestError),
    ],
)
def test_columns_that_cannot_be_added(filled: DeltaTable, path: str, data_type: str, options: Any, error: Any) -> None:
    with pytest.raises(error):
        filled.alter().add_column(path, data_type, **options).commit()
    assert filled.version() == 0


def test_column_mapping_is_enabled_on_an_existing_table(rows: EngineRows, filled: DeltaTable) -> None:
    filled.alter().set_properties(MAPPED).commit()
    snapshot = filled.snapshot()
    assert snapshot.protocol.min_reader_version == 2
    assert [physical_name(f) for f in snapshot.schema] == ["id", "s", "day"]
    assert ids(snapshot.schema) == {"id": 1, "s": 2, "day": 5}
    assert ids(some(snapshot.schema.find("s")).data_type) == {"x": 3, "y": 4}
    assert snapshot.metadata.configuration["delta.columnMapping.maxColumnId"] == "5"
    assert rows.pylist(filled) == [{"id": 1, "s": {"x": 1, "y": "a"}, "day": "d"}]


@pytest.mark.long
def test_renaming_dropping_and_adding_keep_names_and_ids(rows: EngineRows, filled: DeltaTable) -> None:
    filled.alter().set_properties(MAPPED).rename_column("id", "Order Id").rename_column("s.x", "ex").commit()
    filled.alter().rename_column("day", "tag").drop_columns("s.y").commit()
    filled.alter().add_column("s.y", "string").add_column("id", "int").commit()
    snapshot = filled.snapshot()
    assert snapshot.partition_columns == ("tag",)
    assert ids(snapshot.schema) == {"Order Id": 1, "s": 2, "tag": 5, "id": 7}
    assert physical_name(some(snapshot.schema.find("Order Id"))) == "id"
    assert physical_name(some(snapshot.schema.find("id"))).startswith("col-")
    assert snapshot.metadata.configuration["delta.columnMapping.maxColumnId"] == "7"
    # The value of the column that was dropped does not come back under its name.
    assert rows.pylist(filled) == [{"Order Id": 1, "s": {"ex": 1, "y": None}, "tag": "d", "id": None}]
    more = pa.table(
        {
            "Order Id": pa.array([2], pa.int64()),
            "s": pa.array([{"ex": 2, "y": "b"}], pa.struct([("ex", pa.int64()), ("y", pa.string())])),
            "tag": ["e"],
            "id": pa.array([7], pa.int32()),
        }
    )
    filled.append(rows.data(more))
    assert rows.pylist(filled)[1] == {"Order Id": 2, "s": {"ex": 2, "y": "b"}, "tag": "e", "id": 7}
    assert rows.pylist(filled, where="`Order Id` = 2 AND tag = 'e'") == [rows.pylist(filled)[1]]


def test_merging_a_schema_maps_the_new_columns(rows: EngineRows, filled: DeltaTable) -> None:
    filled.alter().set_properties(MAPPED).commit()
    more = pa.table(
        {"id": pa.array([2], pa.int64()), "s": pa.array([None], PAIR), "day": ["d"], "a new, odd=name": ["v"]}
    )
    filled.append(rows.data(more), schema_mode="merge")
    field = filled.snapshot().schema.find("a new, odd=name")
    assert some(field).metadata[FIELD_ID] == 6
    assert some(field).metadata[PHYSICAL_NAME].startswith("col-")
    assert [row["a new, odd=name"] for row in rows.pylist(filled)] == [None, "v"]


def test_without_mapping_nothing_is_renamed_or_dropped(filled: DeltaTable) -> None:
    for alteration in (filled.alter().rename_column("id", "x"), filled.alter().drop_columns("id")):
        with pytest.raises(InvalidRequestError, match="column mapping"):
            alteration.commit()
    assert filled.version() == 0


def test_what_cannot_be_renamed_or_dropped(filled: DeltaTable) -> None:
    filled.alter().set_properties(MAPPED).commit()
    alter = filled.alter
    for alteration, cause in (
        (alter().rename_column("id", "S"), "already"),
        (alter().rename_column("id", ""), "empty"),
        (alter().drop_columns("day"), "partitioned"),
        (alter().drop_columns("s.x", "s.y"), "only column"),
        (alter().drop_columns("id", "s"), "partition columns"),
        (alter().set_properties({"delta.columnMapping.mode": "id"}), "cannot go from 'name' to 'id'"),
        (alter().set_properties({"delta.columnMapping.mode": "none"}), "cannot go from 'name' to 'none'"),
        (alter().unset_properties("delta.columnMapping.mode"), "cannot go from 'name' to 'none'"),
    ):
        with pytest.raises(InvalidRequestError, match=cause):
            alteration.commit()
    assert filled.version() == 1


def test_a_name_may_change_its_case(filled: DeltaTable) -> None:
    filled.alter().set_properties(MAPPED).rename_column("id", "ID").commit()
    assert filled.snapshot().schema.names == ("ID", "s", "day")


def test_columns_move(rows: EngineRows, filled: DeltaTable) -> None:
    filled.alter().move_column("day", first=True).move_column("s.x", after="y").commit()
    schema = filled.snapshot().schema
    assert (schema.names, a(StructType, some(schema.find("s")).data_type).names) == (("day", "id", "s"), ("y", "x"))
    assert rows.pylist(filled) == [{"day": "d", "id": 1, "s": {"y": "a", "x": 1}}]
    assert filled.alter().move_column("day", first=True).commit().skipped


def test_comments(filled: DeltaTable) -> None:
    filled.alter().set_column_comment("s.x", "the x").commit()
    assert some(a(StructType, some(filled.snapshot().schema.find("s")).data_type).find("x")).metadata == {
        "comment": "the x"
    }
    filled.alter().set_column_comment("s.x", "").commit()
    assert some(a(StructType, some(filled.snapshot().schema.find("s")).data_type).find("x")).metadata == {}


def test_lists_of_columns_in_properties_follow(filled: DeltaTable) -> None:
    filled.alter().set_properties({**MAPPED, "delta.dataSkippingStatsColumns": "id,s.x,s.y"}).commit()
    filled.alter().rename_column("s", "p").drop_columns("id", "p.y").commit()
    assert filled.snapshot().properties.data_skipping_stats_columns == (("p", "x"),)


def test_mode_id_is_for_new_tables(rows: EngineRows, table: DeltaTable) -> None:
    table.create(pa.schema([("a b", pa.int64()), ("l", pa.list_(PAIR))]), properties={"delta.columnMapping.mode": "id"})
    schema = table.snapshot().schema
    assert ids(schema) == {"a b": 1, "l": 2}
    assert ids(a(ArrayType, some(schema.find("l")).data_type).element_type) == {"x": 3, "y": 4}
    assert all(physical_name(f).startswith("col-") for f in schema)
    data = pa.table({"a b": pa.array([1], pa.int64()), "l": pa.array([[{"x": 1, "y": "z"}]], pa.list_(PAIR))})
    table.append(rows.data(data))
    assert listed(rows, table, "a b") == [{"a b": 1, "l": [{"x": 1, "y": "z"}]}]


def test_types_become_wider_at_any_depth(rows: EngineRows, table: DeltaTable) -> None:
    kind = pa.struct([("n", pa.int32()), ("l", pa.list_(pa.float32())), ("m", pa.map_(pa.int16(), pa.int32()))])
    data = pa.table({"id": pa.array([1], pa.int8()), "s": pa.array([{"n": 1, "l": [0.5], "m": [(1, 2)]}], kind)})
    table.append(rows.data(data))
    with pytest.raises(UnsupportedFeatureError, match="type widening is off"):
        table.alter().change_type("id", "bigint").commit()
    widened = table.alter().set_properties({"delta.enableTypeWidening": "true"}).change_type("id", "bigint")
    widened.change_type("s.n", "double").change_type("s.l.element", "double").change_type("s.m.key", "int")
    widened.change_type("s.m.value", "decimal(12,2)").commit()
    assert table.snapshot().protocol.reader_features == ("typeWidening",)
    schema = table.snapshot().schema
    assert some(schema.find("id")).metadata == {TYPE_CHANGES: [{"fromType": "byte", "toType": "long"}]}
    inside = a(StructType, some(schema.find("s")).data_type)
    assert some(inside.find("l")).metadata == {
        TYPE_CHANGES: [{"fromType": "float", "toType": "double", "fieldPath": "element"}]
    }
    assert some(inside.find("m")).metadata[TYPE_CHANGES] == [
        {"fromType": "short", "toType": "integer", "fieldPath": "key"},
        {"fromType": "integer", "toType": "decimal(12,2)", "fieldPath": "value"},
    ]
    more = pa.table(
        {
            "id": pa.array([2**40], pa.int64()),
            "s": pa.array([{"n": 0.25, "l": [1.25], "m": [(70000, 1)]}], pa.struct(
                [("n", pa.float64()), ("l", pa.list_(pa.float64())), ("m", pa.map_(pa.int32(), pa.int32()))])),
        }
    )  # fmt: skip
    more = more.set_column(1, "s", more.column("s").cast(table.snapshot().scan().to_arrow().schema.field("s").type))
    table.append(rows.data(more))
    found = listed(rows, table)
    assert [row["id"] for row in found] == [1, 2**40]
    assert [row["s"]["n"] for row in found] == [1.0, 0.25]
    assert [row["s"]["l"] for row in found] == [[0.5], [1.25]]
    assert rows.pylist(table, columns=["id"], where="id > 1000") == [{"id": 2**40}]


@pytest.mark.parametrize(
    ("source", "target"),
    [("bigint", "int"), ("bigint", "double"), ("string", "int"), ("decimal(10,2)", "decimal(10,3)"),
     ("double", "float"), ("int", "decimal(11,2)"), ("timestamp", "timestamp_ntz"), ("int", "string")],
)  # fmt: skip
def test_types_that_do_not_widen_are_refused(table: DeltaTable, source: str, target: str) -> None:
    from delta_orch.protocol.type_text import parse_declared_type

    table.create(t.StructType((t.StructField("a", parse_declared_type(source)[0]), t.StructField("b", t.LONG))))
    with pytest.raises(InvalidRequestError, match="cannot go from"):
        table.alter().set_properties({"delta.enableTypeWidening": "true"}).change_type("a", target).commit()
    assert table.version() == 0


def test_merging_widens_where_the_table_allows_it(rows: EngineRows, table: DeltaTable) -> None:
    table.append(
        rows.data(pa.table({"id": pa.array([1], pa.int32())})), properties={"delta.enableTypeWidening": "true"}
    )
    table.append(rows.data(pa.table({"id": pa.array([2**40], pa.int64())})), schema_mode="merge")
    assert some(table.snapshot().schema.find("id")).data_type == t.LONG
    assert rows.pylist(table) == [{"id": 1}, {"id": 2**40}]
    # Whole numbers do not become fractions by themselves.
    with pytest.raises(SchemaMismatchError):
        table.append(rows.data(pa.table({"id": pa.array([0.5])})), schema_mode="merge")
    # Narrower data still fits.
    table.append(rows.data(pa.table({"id": pa.array([3], pa.int32())})))
    assert len(rows.pylist(table)) == 3


def test_columns_that_expressions_speak_of_stay_as_they_are(table: DeltaTable) -> None:
    table.create(pa.schema([("id", pa.int32()), ("n", pa.int64())]), properties=MAPPED | {
        "delta.enableTypeWidening": "true"})  # fmt: skip
    table.alter().add_constraint("c", "id > 0").commit()
    for alteration in (
        table.alter().rename_column("id", "x"),
        table.alter().drop_columns("id"),
        table.alter().change_type("id", "bigint"),
    ):
        with pytest.raises(InvalidRequestError, match="the constraint c"):
            alteration.commit()
    table.alter().drop_constraint("c").rename_column("id", "x").commit()


def test_a_mapping_that_was_never_in_force_does_not_hide_the_values(table: DeltaTable) -> None:
    """A property without the feature, and names left over from another table: files know columns by their own."""
    table.append(pa.table({"id": pa.array([1], pa.int64()), "note": ["x"]}))
    snapshot = table.snapshot()
    stale = {FIELD_ID: 1, PHYSICAL_NAME: "col-of-another-table"}
    schema = t.StructType(tuple(replace(f, metadata=stale) for f in snapshot.schema))
    transaction = begin(table, snapshot, operation="TEST")
    transaction.update_metadata(replace(snapshot.metadata, schema_string=serialize_schema(schema)))
    transaction.commit()
    table.alter().set_properties(MAPPED).rename_column("note", "text").add_column("new", "int").commit()
    after = table.snapshot().schema
    assert [physical_name(f) for f in after][:2] == ["id", "note"]
    assert physical_name(some(after.find("new"))).startswith("col-")
    assert ids(after) == {"id": 1, "text": 2, "new": 3}
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "text": "x", "new": None}]


def test_columns_whose_values_are_made_are_not_added_later(table: DeltaTable) -> None:
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    for field in (
        identity_column("k"),
        column("g", "bigint", generated_as="id + 1"),
        column("d", "bigint", default="1"),
    ):
        with pytest.raises(InvalidRequestError, match="cannot be added as"):
            table.alter().add_columns([field]).commit()
    assert table.version() == 0


def test_constraints_at_creation(rows: EngineRows, table: DeltaTable) -> None:
    table.create(pa.schema([("id", pa.int64())]), properties={"delta.constraints.c": "id > 0"})
    with pytest.raises(ConstraintViolationError):
        table.append(rows.data(pa.table({"id": pa.array([0], pa.int64())})))
    other = DeltaTable(f"{table.uri}-2")
    with pytest.raises(InvalidRequestError, match="nope"):
        other.create(pa.schema([("id", pa.int64())]), properties={"delta.constraints.c": "nope > 0"})
