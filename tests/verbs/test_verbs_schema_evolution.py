"""`schema_mode`: the table's schema follows the data, on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch import column as column_of
from delta_orch.errors import InvalidExpressionError, InvalidRequestError, SchemaMismatchError
from delta_orch.protocol import types as t
from delta_orch.protocol.type_text import parse_columns
from tests.certain import some

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows


def test_merge_adds_columns_in_the_same_commit(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64())})))
    more = pa.table({"ID": pa.array([2], pa.int64()), "note": ["x"]})
    with pytest.raises(SchemaMismatchError):
        table.append(rows.data(more))
    result = table.append(rows.data(more), schema_mode="merge")
    assert result.version == 1
    assert rows.pylist(table) == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]
    assert table.snapshot().schema.names == ("id", "note")
    # What the table has and the data has not stays: it is null in the new rows.
    assert table.append(rows.data(pa.table({"note": ["y"], "id": pa.array([3], pa.int64())}))).version == 2


def test_merge_of_data_that_brings_nothing_new_leaves_the_metadata(rows: EngineRows, table: DeltaTable) -> None:
    data = rows.data(pa.table({"id": pa.array([1], pa.int64())}))
    table.append(data)
    table.append(data, schema_mode="merge")
    assert table.snapshot().metadata == table.snapshot(version=0).metadata


def test_merge_reaches_into_structs(rows: EngineRows, table: DeltaTable) -> None:
    old = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    new = pa.table({"id": pa.array([2], pa.int64()), "s": pa.array([{"a": 2, "b": "x"}], kind)})
    table.append(rows.data(old))
    table.append(rows.data(new), schema_mode="merge")
    assert rows.pylist(table) == [{"id": 1, "s": {"a": 1, "b": None}}, {"id": 2, "s": {"a": 2, "b": "x"}}]


def test_merge_that_cannot_be_is_refused_and_changes_nothing(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int32())})))
    with pytest.raises(SchemaMismatchError, match="id is string, the table has integer"):
        table.append(rows.data(pa.table({"id": ["x"]})), schema_mode="merge")
    with pytest.raises(SchemaMismatchError, match="enableTypeWidening"):
        table.append(rows.data(pa.table({"id": pa.array([2], pa.int64())})), schema_mode="merge")
    assert table.version() == 0
    with pytest.raises(InvalidRequestError, match="append"):
        table.append(rows.data(pa.table({"id": ["x"]})), schema_mode="overwrite")
    with pytest.raises(InvalidRequestError, match="schema_mode"):
        table.append(rows.data(pa.table({"id": ["x"]})), schema_mode="mergE")


def test_overwriting_the_schema_replaces_columns_and_partitioning(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"day": ["a"], "id": pa.array([1], pa.int64())})), partition_by=["day"])
    table.overwrite(rows.data(pa.table({"hour": [7], "id": ["x"]})), schema_mode="overwrite", partition_by=["hour"])
    snapshot = table.snapshot()
    assert snapshot.partition_columns == ("hour",)
    assert some(snapshot.schema.find("id")).data_type == t.STRING
    assert rows.pylist(table) == [{"hour": 7, "id": "x"}]
    assert rows.pylist(table.snapshot(version=0)) == [{"day": "a", "id": 1}]


def test_a_schema_is_only_overwritten_with_all_rows(rows: EngineRows, table: DeltaTable) -> None:
    data = rows.data(pa.table({"day": ["a"], "id": pa.array([1], pa.int64())}))
    table.append(data, partition_by=["day"])
    given: list[dict[str, Any]] = [{"replace_where": "day = 'a'"}, {"partition_overwrite_mode": "dynamic"}]
    for options in given:
        with pytest.raises(InvalidRequestError, match="every row"):
            table.overwrite(data, schema_mode="overwrite", **options)
    assert table.version() == 0


def test_replace_where_merges_and_keeps_the_other_rows(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1, 2], pa.int64())})))
    new = pa.table({"id": pa.array([2], pa.int64()), "note": ["x"]})
    table.overwrite(rows.data(new), replace_where="id = 2", schema_mode="merge")
    assert rows.pylist(table) == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]


def test_columns_of_types_with_features_of_their_own_bring_them(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64())})))
    assert table.snapshot().protocol.min_writer_version == 2
    times = pa.table({"id": pa.array([2], pa.int64()), "t": pa.array([0], pa.timestamp("us"))})
    data = rows.data(times)
    if rows.spark is not None:  # Arrow's naive timestamps become Spark's local ones
        data = data.selectExpr("id", "cast(t AS timestamp_ntz) AS t")
    table.append(data, schema_mode="merge")
    protocol = table.snapshot().protocol
    assert protocol.reader_features == ("timestampNtz",)
    assert set(some(protocol.writer_features)) == {"appendOnly", "invariants", "timestampNtz"}
    assert [row["id"] for row in rows.pylist(table)] == [1, 2]


def test_merge_reaches_into_arrays_and_maps(rows: EngineRows, table: DeltaTable) -> None:
    old, new = pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string()), ("a", pa.int64())])
    table.append(
        rows.data(
            pa.table(
                {
                    "id": pa.array([1], pa.int64()),
                    "l": pa.array([[{"a": 1}, None]], pa.list_(old)),
                    "m": pa.array([[("k", {"a": 1})]], pa.map_(pa.string(), old)),
                }
            )
        )
    )
    later = pa.table(
        {
            "id": pa.array([2], pa.int64()),
            "l": pa.array([[{"a": 2, "b": "x"}]], pa.list_(new)),
            "m": pa.array([[("k", {"a": 2, "b": "y"})]], pa.map_(pa.string(), new)),
        }
    )
    table.append(rows.data(later), schema_mode="merge")
    scan = table.snapshot().scan()
    read = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    found = sorted(read.to_pylist(), key=lambda row: row["id"])
    assert [row["l"] for row in found] == [[{"a": 1, "b": None}, None], [{"a": 2, "b": "x"}]]
    assert [dict(row["m"]) for row in found] == [{"k": {"a": 1, "b": None}}, {"k": {"a": 2, "b": "y"}}]


def test_a_schema_is_not_overwritten_under_what_depends_on_it(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64()), "n": [1]})))
    table.alter().add_constraint("c", "id > 0").set_not_null("id").set_column_comment("id", "key").commit()
    with pytest.raises(InvalidExpressionError, match="the constraint c"):
        table.overwrite(rows.data(pa.table({"n": [1]})), schema_mode="overwrite")
    table.overwrite(rows.data(pa.table({"m": ["x"], "id": pa.array([2], pa.int64())})), schema_mode="overwrite")
    field = table.snapshot().schema.find("id")
    assert (some(field).nullable, some(field).metadata) == (False, {"comment": "key"})
    assert table.snapshot().schema.names == ("m", "id")


@pytest.mark.long
@pytest.mark.parametrize("column", ["checked", "read", "made", "s.x"])
@pytest.mark.parametrize("verb", ["append", "overwrite", "upsert"])
def test_data_widens_no_column_that_an_expression_is_about(
    rows: EngineRows, table: DeltaTable, verb: str, column: str
) -> None:
    columns = parse_columns("id INT, checked INT, read INT, s STRUCT<x: INT>, free INT")
    table.create(
        [*columns, column_of("made", "int", generated_as="read + 1")],
        properties={"delta.enableTypeWidening": "true"},
    )
    table.alter().add_constraint("c", "checked > 0 AND s.x > 0").commit()
    version = table.version()

    def data(wide: str) -> Any:
        kinds = {
            name: pa.int64() if wide == name else pa.int32() for name in ("checked", "read", "made", "free", "s.x")
        }
        found = {name: pa.array([2 if name == "made" else 1], kind) for name, kind in kinds.items()}
        found["s"] = pa.StructArray.from_arrays([found.pop("s.x")], ["x"])
        return rows.data(pa.table({"id": pa.array([1], pa.int32()), **found}))

    def write(source: Any) -> None:
        if verb == "upsert":
            table.upsert(source, ["id"], schema_mode="merge", engine=rows.engine)
        else:
            getattr(table, verb)(source, schema_mode="merge")

    with pytest.raises(InvalidRequestError, match="cannot"):
        write(data(column))
    assert table.version() == version
    write(data("free"))
    assert some(table.snapshot().schema.find("free")).data_type == t.LONG


def test_overwritten_columns_keep_to_what_is_computed_from_them(rows: EngineRows, table: DeltaTable) -> None:
    table.create([*parse_columns("a INT"), column_of("made", "int", generated_as="a + 1")])
    wide = pa.table({"a": pa.array([1], pa.int64()), "made": pa.array([2], pa.int32())})
    with pytest.raises(SchemaMismatchError, match="another type than its expression"):
        table.overwrite(rows.data(wide), schema_mode="overwrite")
    assert table.version() == 0


@pytest.mark.spark
def test_a_variant_column_of_the_data_brings_its_feature(spark: Any, table: Any) -> None:
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    data = spark.sql("""SELECT 2L AS id, parse_json('{"a": 7}') AS v""")
    table.append(data, schema_mode="merge")
    assert table.snapshot().protocol.reader_features == ("variantType",)
    frame = table.snapshot().scan().to_spark(spark).selectExpr("id", "v:a::int AS a").orderBy("id")
    assert [tuple(row) for row in frame.collect()] == [(1, None), (2, 7)]


@pytest.mark.long
def test_a_column_without_a_type_takes_that_of_the_data(rows: EngineRows, table: DeltaTable) -> None:
    """As frames of pandas and Polars have it where every value is None."""
    untyped = pa.struct([("a", pa.null()), ("b", pa.int64())])
    first = pa.table({"id": [1], "v": pa.nulls(1), "st": pa.array([{"b": 1}], untyped), "more": pa.nulls(1)})
    table.append(rows.data(first), properties={"delta.columnMapping.mode": "name"})
    later = pa.table({"id": [2], "v": ["x"], "st": [{"a": {"q": 1}, "b": 2}], "new": pa.nulls(1)})
    with pytest.raises(SchemaMismatchError):
        table.append(rows.data(later.drop_columns(["new"])))
    table.append(rows.data(later), schema_mode="merge")
    table.overwrite(rows.data(pa.table({"id": [3], "new": [7]})), replace_where="id = 3", schema_mode="merge")
    source = rows.data(pa.table({"id": [1, 4], "more": [True, False]}))
    merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t", schema_mode="merge")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    nothing = {"v": None, "st": None, "more": None, "new": None}
    assert rows.pylist(table) == [
        nothing | {"id": 1, "st": {"a": None, "b": 1}, "more": True},
        nothing | {"id": 2, "v": "x", "st": {"a": {"q": 1}, "b": 2}},
        nothing | {"id": 3, "new": 7},
        nothing | {"id": 4, "more": False},
    ]
    told = table.changes(starting_version=0, ending_version=1).to_arrow()
    assert sorted(told.column("v").to_pylist(), key=str) == [None, "x"]
    before = table.version()
    with pytest.raises(SchemaMismatchError, match="void"):
        table.append(
            rows.data(pa.table({"id": [5], "l": pa.array([[None]], pa.list_(pa.null()))})), schema_mode="merge"
        )
    assert table.version() == before


def test_a_column_that_occurs_twice_is_no_matter_of_types(table: DeltaTable) -> None:
    table.append(pa.table({"id": [1]}))
    with pytest.raises(SchemaMismatchError, match=r"occurs twice\.\nName each column once"):
        table.append(pa.table([[2], [3]], names=["id", "ID"]), schema_mode="merge")
    assert table.version() == 0
