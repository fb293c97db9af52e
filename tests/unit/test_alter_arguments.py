"""Whatever is passed to an alteration: it is one, or an error of ours, and the table stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId, column
from delta_orch.errors import ColumnNotFoundError, DeltaError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.parse import parse_expression

HOSTILE = [None, 5, b"x", [], (), "", "a..b", "`", {"a": 1}, [None], float("nan"), "\x00", True, object]
CALLS = {
    "add_column path": lambda a, b: a.add_column(b, "int"),
    "add_column type": lambda a, b: a.add_column("n", b),
    "add_column after": lambda a, b: a.add_column("n", "int", after=b),
    "add_columns": lambda a, b: a.add_columns(b),
    "rename_column path": lambda a, b: a.rename_column(b, "z"),
    "rename_column name": lambda a, b: a.rename_column("id", b),
    "drop_columns": lambda a, b: a.drop_columns(b),
    "move_column path": lambda a, b: a.move_column(b, first=True),
    "move_column after": lambda a, b: a.move_column("id", after=b),
    "change_type path": lambda a, b: a.change_type(b, "double"),
    "change_type type": lambda a, b: a.change_type("id", b),
    "set_not_null": lambda a, b: a.set_not_null(b),
    "set_default path": lambda a, b: a.set_default(b, "1"),
    "set_default expression": lambda a, b: a.set_default("id", b),
    "set_column_comment": lambda a, b: a.set_column_comment("id", b),
    "cluster_by": lambda a, b: a.cluster_by(b),
    "set_properties": lambda a, b: a.set_properties(b),
    "set_properties value": lambda a, b: a.set_properties({"delta.appendOnly": b}),
    "unset_properties": lambda a, b: a.unset_properties(b),
    "add_feature": lambda a, b: a.add_feature(b),
    "drop_feature": lambda a, b: a.drop_feature(b),
    "add_constraint name": lambda a, b: a.add_constraint(b, "id > 0"),
    "add_constraint expression": lambda a, b: a.add_constraint("c", b),
    "set_description": lambda a, b: a.set_description(b),
    "upgrade_protocol": lambda a, b: a.upgrade_protocol(min_writer_version=b),
}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))})
    table.append(rows, properties={"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"})
    return table


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments_of_any_kind(table: DeltaTable, call: Callable[..., Any]) -> None:
    refused = 0
    for value in HOSTILE:
        try:
            call(table.alter(), value).preview()
        except DeltaError:
            refused += 1
    assert refused >= 5
    assert table.version() == 0


class Column:
    """As of pyspark, or an expression of Polars."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.delete(Column()), r"not Column\.\nWrite it as text in Spark SQL"),
        (lambda t: t.update({"id": Column()}), "(?s)A Column cannot be a constant .* or text in Spark SQL"),
        (lambda t: t.alter().add_constraint("c", Column()), r"not a value of type Column\.\nWrite it as text"),
        (lambda t: t.snapshot().scan([Column(), "id"]), "Sequence.str. or nothing, not a list of Column and str"),
        (lambda t: t.alter().add_column("n", Column()), r"is not a type\.\nWrite it as in Spark SQL"),
        (lambda t: t.snapshot(timestamp=1.5), r"1\.5 is not a point in time\.\nPass a datetime"),
        (lambda t: t.append([{"id": 1}], txn="x"), r"A str is not an idempotency key\.\nPass TxnId"),
        (lambda t: t.append([{"id": 1}], txn=(t for t in [TxnId("a", 1)])), r"A generator is not an idempotency key"),
        (lambda t: t.append(duckdb.connect()), r"a DuckDB relation \(connection.sql\)"),
        (lambda t: t.add_files(["nope.parquet"]), "nope.parquet.\nPass absolute paths, or paths relative"),
    ],
    ids=["where", "value", "constraint", "columns", "type", "time", "txn", "txns read once", "data", "files"],
)
def test_what_is_not_taken_says_what_is(table: DeltaTable, call: Callable[..., Any], message: str) -> None:
    with pytest.raises(DeltaError, match=message):
        call(table)
    assert table.version() == 0


def test_statistics_are_of_columns_that_are_there(table: DeltaTable) -> None:
    with pytest.raises(ColumnNotFoundError, match="nope"):
        table.alter().set_properties({"delta.dataSkippingStatsColumns": "id,nope"}).commit()
    table.alter().set_properties({"delta.dataSkippingStatsColumns": "ID,s"}).commit()


@pytest.mark.parametrize(
    "wrong", ["p", "id,P", "id,ID", "id,`id`", "st,st.a", "st.a,st", "l", "m", "b", "bo", "id,st.bo"]
)
def test_statistics_are_of_columns_that_prune(tmp_path: Path, wrong: str) -> None:
    """Delta on Spark refuses them, but for two spellings of one column."""
    schema = [
        column("id", "long"), column("p", "string"), column("st", "struct<a: int, bo: boolean, l: array<int>>"),
        column("l", "array<int>"), column("m", "map<string, int>"), column("b", "binary"), column("bo", "boolean"),
    ]  # fmt: skip
    asked = {"delta.dataSkippingStatsColumns": wrong}
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(InvalidRequestError, match="dataSkippingStatsColumns"):
        table.create(schema, partition_by=["p"], properties=asked)
    table.create(schema, partition_by=["p"], properties={"delta.dataSkippingStatsColumns": "id,st"})
    with pytest.raises(InvalidRequestError, match="dataSkippingStatsColumns"):
        table.alter().set_properties(asked).commit()
    with pytest.raises(InvalidRequestError, match="a partition column"):
        table.create_or_replace(schema, partition_by=["id"], properties={"delta.dataSkippingStatsColumns": "id,st"})
    assert table.version() == 0


def test_an_alteration_has_no_scope(table: DeltaTable) -> None:
    txn = TxnId("a", 1, parse_expression("id = 1"))
    with pytest.raises(InvalidRequestError, match="whole table"):
        table.alter().set_properties({"a": "1"}).commit(txn=txn)


@pytest.mark.parametrize(
    "columns",
    [
        pa.schema([("a", pa.int32()), ("b", pa.string())]),
        [pa.field("a", pa.int32()), pa.field("b", pa.string())],
        deltalake.Schema([deltalake.Field("a", "integer"), deltalake.Field("b", "string")]),
        [deltalake.Field("a", "integer"), deltalake.Field("b", "string")],
        polars.Schema({"a": polars.Int32, "b": polars.String}),
        "a int, b string",
    ],
    ids=["schema", "fields", "deltalake schema", "deltalake fields", "Polars schema", "text"],
)
def test_columns_are_added_and_tables_created_from_schemas_of_any_library(
    table: DeltaTable, tmp_path: Path, columns: object
) -> None:
    table.alter().add_columns(columns).commit()
    other = DeltaTable(tmp_path / "other")
    other.create(columns)
    for found in (table.snapshot().schema.fields[-2:], other.snapshot().schema.fields):
        assert [(field.name, str(field.data_type)) for field in found] == [("a", "integer"), ("b", "string")]


def test_a_column_may_have_a_type_of_arrow(table: DeltaTable, tmp_path: Path) -> None:
    table.alter().add_column("a", pa.list_(pa.int32())).add_columns({"b": pa.date32()}).commit()
    assert [str(field.data_type) for field in table.snapshot().schema.fields[-2:]] == ["array<integer>", "date"]
    assert column("c", pa.int64()) == column("c", "bigint")
    with pytest.raises(SchemaMismatchError, match=r"Column d has the Arrow type duration\[s\]"):
        table.alter().add_column("d", pa.duration("s"))


@pytest.mark.parametrize("columns", [pa.int32(), [pa.field("a", pa.int32(), metadata={"delta.identity.start": "1"})]])
def test_what_is_no_schema_or_would_lose_a_definition_adds_nothing(table: DeltaTable, columns: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"is not a schema|holds delta\.identity\.start"):
        table.alter().add_columns(columns).commit()
    assert table.version() == 0
