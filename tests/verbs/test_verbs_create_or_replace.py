"""create_or_replace, overwrite with a definition, and NOT NULL of Arrow schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    AppendOnlyError,
    ColumnNotFoundError,
    ConcurrentAppendError,
    ConflictError,
    ConstraintViolationError,
    InvalidRequestError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from delta_orch.expressions.parse import parse_expression
from delta_orch.table.clustering import CLUSTERING_DOMAIN
from delta_orch.table.registry import canonical_features
from tests.certain import some
from tests.harness.table_builder import read_anew

PAIR = pa.struct([pa.field("a b", pa.int64(), nullable=False), pa.field("c", pa.string())])
STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field(
            "s", pa.struct([pa.field("a b", pa.int64(), nullable=False), pa.field("c", pa.string())]), nullable=False
        ),
        pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
)
GOOD: dict[str, list[Any]] = {"id": [1], "s": [{"a b": 1, "c": None}], "l": [[1]], "m": [[("k", 1)]]}
BAD: dict[str, list[Any]] = {"id": [None], "s": [{"a b": None, "c": "x"}], "l": [[1, None]], "m": [[("k", None)]]}
MAPPED = {"delta.columnMapping.mode": "name"}


def loose(values: dict[str, list[Any]]) -> pa.Table:
    """Rows in a schema in which everything may be null."""
    c = pa.struct([pa.field("a b", pa.int64()), pa.field("c", pa.string())])
    types = {"id": pa.int64(), "s": c, "l": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.int64())}
    return pa.table({name: pa.array(rows, types[name]) for name, rows in values.items()})


class TestNotNull:
    def test_of_an_arrow_schema_is_kept_at_any_depth_and_enforced(self, table: DeltaTable) -> None:
        table.append(pa.table(GOOD, schema=STRICT).to_reader(), properties=MAPPED)
        assert read_anew(table).scan().to_arrow().schema.equals(STRICT)
        for name, rows in BAD.items():
            with pytest.raises(ConstraintViolationError):
                table.append(loose({**GOOD, name: rows}))
        table.append(loose(GOOD))
        assert (table.version(), read_anew(table).scan().to_arrow().num_rows) == (1, 2)

    def test_is_what_the_first_rows_are_checked_by(self, table: DeltaTable) -> None:
        broken = pa.Table.from_arrays([pa.array([None], pa.int64())], schema=pa.schema([STRICT.field(0)]))
        with pytest.raises(ConstraintViolationError):
            table.append(broken)
        assert not table.exists()

    def test_of_new_columns_is_left_out_where_old_rows_lack_them(self, table: DeltaTable) -> None:
        table.append(pa.table({"id": [1]}))
        strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
        table.append(pa.table({"id": [2], "n": [2]}, schema=strict), schema_mode="merge")
        assert [f.nullable for f in read_anew(table).schema] == [True, True]
        table.overwrite(pa.table({"id": [2], "n": [2]}, schema=strict), schema_mode="overwrite")
        assert [f.nullable for f in read_anew(table).schema] == [False, False]

    @pytest.mark.spark
    def test_of_arrow_is_kept_by_spark_and_that_of_a_frame_is_not(self, spark: Any, tmp_path: Path) -> None:
        arrow, frame = DeltaTable(tmp_path / "arrow"), DeltaTable(tmp_path / "frame")
        arrow.append(pa.table(GOOD, schema=STRICT), engine="spark", properties=MAPPED)
        assert read_anew(arrow).scan().to_arrow().schema.equals(STRICT)
        with pytest.raises(ConstraintViolationError):
            broken = pa.Table.from_arrays([pa.nulls(1, pa.int64())], schema=pa.schema([STRICT.field(0)]))
            arrow.append(broken, schema_mode="merge", engine="spark")
        # Spark derives it from the query: Delta on Spark creates columns that may be null.
        frame.append(spark.range(2))
        assert [f.nullable for f in read_anew(frame).schema] == [True]


class TestCreateOrReplace:
    def test_creates_where_there_is_none(self, table: DeltaTable) -> None:
        assert table.create_or_replace(STRICT, name="n", properties={**MAPPED, "my": "p"}).version == 0
        metadata = read_anew(table).metadata
        assert (metadata.name, metadata.configuration["my"]) == ("n", "p")
        assert table.history(1)[0].operation == "CREATE OR REPLACE TABLE"

    def test_only_the_new_definition_holds(self, table: DeltaTable, days: Any) -> None:
        table.append(
            days(("a", 1), (None, 2)),
            partition_by=["day"],
            name="old",
            description="old",
            properties={**MAPPED, "my": "p", "delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true"},
        )
        table.set_domain_metadata("mine", "kept")
        before = read_anew(table)
        new = pa.schema([pa.field("x", pa.string(), nullable=False), pa.field("day", pa.string())])
        result = table.create_or_replace(new, cluster_by=["x"], properties=MAPPED, txn=TxnId("t", 1))
        assert table.create_or_replace(new, txn=TxnId("t", 1)).skipped and result.version == 2
        now = read_anew(table)
        assert (now.num_files, now.partition_columns) == (0, ())
        assert (now.metadata.name, now.metadata.description) == (None, None)
        assert now.metadata.id != before.metadata.id and now.scan().to_arrow().schema.equals(new)
        assert {k for k in now.metadata.configuration if k.startswith("delta.")} == {
            "delta.columnMapping.mode",
            "delta.columnMapping.maxColumnId",
            "delta.enableRowTracking",
            "delta.rowTracking.materializedRowIdColumnName",
            "delta.rowTracking.materializedRowCommitVersionColumnName",
        }
        # No column id is given twice, and nothing the log has promised is taken back.
        ids = [field.metadata["delta.columnMapping.id"] for field in now.schema]
        assert min(ids) > int(before.metadata.configuration["delta.columnMapping.maxColumnId"])
        assert canonical_features(now.protocol) >= canonical_features(before.protocol)
        assert now.domain_metadata["mine"] == "kept" and now.clustering is not None
        assert table.snapshot(0).scan(["id"]).to_arrow()["id"].to_pylist() == [1, 2]
        table.append(pa.table({"x": ["v"], "day": [None]}, schema=new))
        assert read_anew(table).scan().to_arrow().to_pylist() == [{"x": "v", "day": None}]
        table.create_or_replace(new)
        assert not read_anew(table).clustering and CLUSTERING_DOMAIN not in read_anew(table).metadata.configuration

    def test_commit_times_go_on(self, table: DeltaTable, days: Any) -> None:
        timed = {"delta.enableInCommitTimestamps": "true"}
        table.append(days(("a", 1)))
        table.alter().set_properties(timed).commit()
        kept = {k: v for k, v in table.snapshot().metadata.configuration.items() if "Enablement" in k}
        table.create_or_replace(STRICT.remove(1), properties=timed)
        now = read_anew(table).metadata.configuration
        assert kept and {k: v for k, v in now.items() if "Enablement" in k} == kept
        table.create_or_replace(STRICT.remove(1))
        assert not any("nCommit" in key for key in read_anew(table).metadata.configuration)
        assert [entry.version for entry in table.history()] == [3, 2, 1, 0]

    def test_rows_that_another_writer_adds_are_not_lost(self, table: DeltaTable, days: Any) -> None:
        table.append(days(("a", 1)))
        read = table.snapshot()
        DeltaTable(table.uri).append(days(("a", 2)))
        with pytest.raises(ConcurrentAppendError):
            table.create_or_replace(STRICT.remove(1), read_version=read.version)
        assert read_anew(table).scan().to_arrow().num_rows == 2

    def test_what_cannot_be_is_refused(self, table: DeltaTable, days: Any) -> None:
        table.append(days(("a", 1)), partition_by=["day"], properties={"delta.appendOnly": "true"})
        with pytest.raises(AppendOnlyError):
            table.create_or_replace(STRICT.remove(1))
        with pytest.raises(InvalidRequestError, match="scope"):
            table.create_or_replace(STRICT.remove(1), txn=TxnId("t", 1, parse_expression("day = 'a'")))
        with pytest.raises(VersionNotFoundError):
            table.create_or_replace(STRICT.remove(1), read_version=7)
        assert table.version() == 0

    def test_as_a_statement(self, table: DeltaTable, days: Any) -> None:
        table.append(days(("a", 1)))
        delta_orch.sql(
            "CREATE OR REPLACE TABLE t (x STRING NOT NULL, d DATE) USING delta PARTITIONED BY (d) COMMENT 'c'",
            tables={"t": table},
        )
        now = read_anew(table)
        assert (now.schema.names, now.partition_columns, now.metadata.description) == (("x", "d"), ("d",), "c")


class TestOverwriteWithDefinition:
    def test_all_of_it_is_applied(self, table: DeltaTable, days: Any) -> None:
        table.append(days(("a", 1)), partition_by=["day"], properties={"my": "old", "kept": "1"}, name="old")
        table.overwrite(
            pa.table({"id": [5], "other": ["x"]}),
            schema_mode="overwrite",
            partition_by=[],
            cluster_by=["other"],
            properties={
                "my": "new",
                "DELTA.enablechangedatafeed": "true",
                "delta.enableRowTracking": "true",
                "delta.columnMapping.mode": "name",
                "delta.constraints.positive": "id > 0",
                "delta.feature.deletionVectors": "supported",
            },
            name="new",
            description="about",
        )
        now = read_anew(table)
        asked = {"my", "kept", "delta.enableChangeDataFeed", "delta.columnMapping.mode", "delta.enableRowTracking"}
        assert asked <= set(now.metadata.configuration) and now.metadata.configuration["my"] == "new"
        assert (now.metadata.name, now.metadata.description, now.partition_columns) == ("new", "about", ())
        assert now.clustering is not None and now.configuration.supports("deletionVectors")
        assert now.scan(["id", "other"]).to_arrow().to_pylist() == [{"id": 5, "other": "x"}]
        with pytest.raises(ConstraintViolationError):
            table.append(pa.table({"id": [0], "other": ["x"]}))
        table.update({"other": "'y'"})
        assert table.changes(starting_version=2).to_arrow().num_rows == 2
        # Without words of its own, it changes none of them.
        table.overwrite(pa.table({"id": [6], "other": ["x"]}), schema_mode="overwrite")
        assert read_anew(table).metadata == now.metadata

    @pytest.mark.parametrize(
        "definition",
        [
            {"properties": {"delta.nonsense": "1"}},
            {"properties": {"delta.columnMapping.mode": "id"}},
            {"properties": {"delta.appendOnly": "true"}},
            {"properties": {"delta.constraints.c": "nonsense > 1"}},
            {"cluster_by": ["id"]},
            {"partition_by": ["nonsense"]},
            {"name": 7},
        ],
    )
    def test_what_cannot_be_is_refused(self, table: DeltaTable, days: Any, definition: Any) -> None:
        table.append(days(("a", 1)), partition_by=["day"])
        with pytest.raises((InvalidRequestError, ConflictError)):
            table.overwrite(days(("a", 2)), schema_mode="overwrite", **definition)
        assert read_anew(table).scan(["id"]).to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("rows", [None, pa.table({"id": [1]})])
def test_a_protocol_that_is_asked_for_is_obeyed_in_place_of_a_table(table: DeltaTable, rows: pa.Table | None) -> None:
    schema = pa.schema([("id", pa.int64())])
    table.create(schema)
    asked = {"delta.minWriterVersion": "7", "delta.feature.domainMetadata": "supported"}
    if rows is None:
        table.create_or_replace(schema, properties=asked)
    else:
        table.create_or_replace(data=rows, properties=asked)
    found = read_anew(table)
    assert found.protocol.min_writer_version == 7
    assert {*some(found.protocol.writer_features)} >= {"domainMetadata", "appendOnly", "invariants"}
    assert not [key for key in found.metadata.configuration if "minWriter" in key or "feature" in key]
    table.create_or_replace(schema)
    assert read_anew(table).protocol == found.protocol


@pytest.mark.parametrize("key", ["delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT"])
def test_a_definition_in_the_metadata_of_an_arrow_schema_is_not_passed_over(table: DeltaTable, key: str) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("more", pa.int64(), metadata={key: "1", "comment": "x"})])
    for create in (table.create, table.create_or_replace):
        with pytest.raises(InvalidRequestError, match=f"'more' holds {key}"):
            create(schema)
    assert not table.exists()
    table.create(schema.set(1, schema.field(1).with_metadata({"comment": "x"})))


def test_rows_without_the_partition_columns_say_how_to_leave_them(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), partition_by=["day"])
    other = pa.table({"id": [2]})
    with pytest.raises(ColumnNotFoundError, match="no column 'day', by which the table is partitioned"):
        table.overwrite(other, schema_mode="overwrite")
    table.overwrite(other, schema_mode="overwrite", partition_by=[])
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id bigint NOT NULL, tags: array<string>", ["id long False {}", "tags array<string> True {}"]),
        ("`a-b` varchar(3)", ["a-b string True {'__CHAR_VARCHAR_TYPE_STRING': 'varchar(3)'}"]),
        ("n int COMMENT 'how many'", ["n integer True {'comment': 'how many'}"]),
        ("", None),
        ("id", None),
        ("id int>", None),
        ("id int, n nothing", None),
    ],
)
def test_columns_as_spark_sql_lists_them(table: DeltaTable, text: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(SchemaMismatchError, match="neither a list of columns"):
            table.create(text)
        assert not table.exists()
        return
    table.create(text)
    fields = table.snapshot().schema
    assert [f"{f.name} {f.data_type} {f.nullable} {dict(f.metadata)}" for f in fields] == expected


def test_an_identity_column_may_begin_with_the_smallest_number(table: DeltaTable) -> None:
    table.create([delta_orch.identity_column("id", start=-(2**63)), delta_orch.column("v", "string")])
    table.append(pa.table({"v": ["a", "b"]}))
    assert sorted(read_anew(table).scan().to_arrow().column("id").to_pylist()) == [-(2**63), 1 - 2**63]
