"""The change feed on Spark: clause by clause the rows that the local engine reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.protocol.types import INTEGER, LONG, STRING, DataType, StructField, StructType
from tests.families import family
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.row_multiset import ensure_same_rows

pytestmark = pytest.mark.spark

ON = {"delta.enableChangeDataFeed": "true"}
IDS = pa.schema([("id", pa.int64())])


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def _field(name: str, data_type: DataType, number: int, physical: str) -> StructField:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return StructField(name, data_type, True, mapping)


def _vectors(made: HandmadeTable) -> None:
    """Rows deleted, and restored, between two vectors of one file; a file added, and removed, with a vector."""
    made.create(IDS, reader_features=("deletionVectors",), features=("changeDataFeed",), configuration=ON)
    made.commit(made.add("f.parquet", ids(*range(10)), write={"row_group_size": 3}))
    one, two = inline_vector(2, 3), inline_vector(3, 8)
    made.commit(made.remove("f.parquet"), made.add("f.parquet", stats=False, deletion_vector=one))
    made.commit(made.remove("f.parquet", deletion_vector=one), made.add("f.parquet", deletion_vector=two))
    made.commit(made.add("g.parquet", ids(20, 21), deletion_vector=inline_vector(1)))
    made.commit(made.remove("g.parquet", deletion_vector=inline_vector(1)))


def _mapped(mode: str) -> Callable[[HandmadeTable], None]:
    def make(made: HandmadeTable) -> None:
        def schema_of(day: str, text: str) -> StructType:
            fields = (_field("id", LONG, 1, "c1"), _field(day, STRING, 2, "c2"), _field(text, STRING, 3, "c3"))
            return StructType(fields)

        before, after = schema_of("day", "old"), schema_of("date", "n.w")
        properties = ON | {"delta.columnMapping.mode": mode}
        given: dict[str, Any]
        features, given = ("changeDataFeed",), {"partition_values": {"c2": "mon"}}
        made.create(before, features=features, reader_features=("columnMapping",), partition_by=["day"],
                    configuration=properties)  # fmt: skip
        schema = pa.schema([_numbered("c1", pa.int64(), 1), _numbered("c3", pa.string(), 3)])
        made.commit(made.add("1.parquet", pa.table([[1], ["x"]], schema=schema), **given))
        changes = pa.table(
            [[1, 1], ["x", "y"], ["update_preimage", "update_postimage"]],
            schema=schema.append(pa.field("_change_type", pa.string())),
        )
        made.commit(
            made.remove("1.parquet", **given),
            made.add("2.parquet", pa.table([[1], ["y"]], schema=schema), **given),
            made.cdc("_change_data/2.parquet", changes, **given),
        )
        made.commit(made.metadata(after, configuration=properties, partition_columns=("date",)))

    return make


def _numbered(name: str, data_type: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})


def _evolved(made: HandmadeTable) -> None:
    changes = {"delta.typeChanges": [{"fromType": "integer", "toType": "long", "tableVersion": 2}]}
    wide = StructType((StructField("id", LONG, True, changes), StructField("text", STRING)))
    made.create(StructType((StructField("id", INTEGER),)), reader_features=("typeWidening",))
    made.commit(made.add("1.parquet", pa.table({"id": pa.array([1], pa.int32())})))
    made.commit(made.metadata(wide))
    made.commit(made.add("3.parquet", pa.table({"id": [2**40], "text": ["x"]})))


def _removed_without_partition_values(made: HandmadeTable) -> None:
    made.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_by=["day"])
    made.commit(made.add("1.parquet", ids(1, 2), partition_values={"day": "a b/%"}))
    made.commit(made.remove("1.parquet"), made.add("2.parquet", ids(3), partition_values={"day": None}))


_TABLES: dict[str, tuple[Callable[[HandmadeTable], None], dict[str, Any], int]] = {
    "vectors": (_vectors, {"starting_version": 1}, 16),
    "vectors by time": (_vectors, {"starting_timestamp": 0}, 16),
    "mapped by name": (_mapped("name"), {"starting_version": 0}, 3),
    "mapped by id": (_mapped("id"), {"starting_version": 0}, 3),
    "mapped, older schema": (_mapped("name"), {"starting_version": 0, "schema_version": 2}, 3),
    "evolved": (_evolved, {"starting_version": 0}, 2),
    "evolved, newest schema": (_evolved, {"starting_version": 0, "ending_version": 1, "schema_version": 3}, 1),
    "removes that say little": (_removed_without_partition_values, {"starting_version": 0}, 5),
    "past the newest version": (_evolved, {"starting_version": 9, "allow_out_of_range": True}, 0),
    "nothing but metadata": (_evolved, {"starting_version": 2, "ending_version": 2}, 0),
}


@family("name", list(_TABLES), every=5)
def test_spark_reads_the_changes_the_local_engine_reads(engine: SparkEngine, tmp_path: Path, name: str) -> None:
    make, asked, num_rows = _TABLES[name]
    made = HandmadeTable(tmp_path / "t")
    make(made)
    feed = DeltaTable(made.root).changes(**asked)
    local, found = feed.to_arrow(), engine.to_arrow(feed.to_relation(engine))
    assert local.num_rows == num_rows
    assert found.column_names == list(feed.schema.names) == local.column_names
    ensure_same_rows(found, local)
