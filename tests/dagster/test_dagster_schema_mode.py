"""The metadata `schema_mode` of an asset: its table's schema follows its value."""

# No postponed annotations in this file: Dagster reads them as they are.

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import ChangeBatch, DeltaLakeIOManager, DeltaTableResource, delta_asset
from delta_orch.dagster.settings import parse_settings
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from tests.dagster.lake import Lake

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")


def test_an_asset_may_let_its_schema_grow(tmp_path: Path) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "schema_mode": "merge"})
    def flights(context: dg.AssetExecutionContext) -> pa.Table:
        rows = {"day": [context.partition_key], "n": [1]}
        return pa.table(rows if context.partition_key == "2013-01-01" else rows | {"note": ["x"]})

    resources = {"io_manager": DeltaLakeIOManager(root_uri=str(tmp_path))}
    for day in ("2013-01-01", "2013-01-02"):
        assert dg.materialize([flights], resources=resources, partition_key=day).success
    rows = DeltaTable(tmp_path / "flights").snapshot().scan().to_arrow().sort_by("day")
    assert rows.column("note").to_pylist() == [None, "x"]


def test_an_incremental_asset_may_follow_its_source(tmp_path: Path) -> None:
    bronze, silver = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("bronze", "silver"))

    @delta_asset(incremental_from=bronze, table=silver, write="overwrite", schema_mode="merge")
    def copied(context: dg.AssetExecutionContext, batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    source = DeltaTable(tmp_path / "bronze")
    source.append(pa.table({"n": [1]}))
    assert dg.materialize([copied]).success
    source.append(pa.table({"n": [2], "note": ["x"]}), schema_mode="merge")
    assert dg.materialize([copied]).success
    rows = DeltaTable(tmp_path / "silver").snapshot().scan().to_arrow().sort_by("n")
    assert rows.column("note").to_pylist() == [None, "x"]
    with pytest.raises(InvalidRequestError, match="schema_mode"):
        delta_asset(incremental_from=bronze, table=silver, schema_mode="grow")


def test_the_output_may_say_so_and_only_what_there_is() -> None:
    assert parse_settings({"schema_mode": "merge"}, {"schema_mode": "overwrite"}, "append").schema_mode == "overwrite"
    assert parse_settings({}, {}, "append").schema_mode is None
    with pytest.raises(InvalidRequestError, match="schema_mode"):
        parse_settings({"schema_mode": "replace"}, {}, "append")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "overwrite", "merge", "cdc"])
@pytest.mark.parametrize(
    "other", [{"n": [2], "v": [1.5], "at": [2]}, {"n": [2], "v": [2], "at": [2], "w": ["x"]}], ids=["double", "column"]
)
def test_no_mode_rounds_a_value_or_leaves_a_column_out(tmp_path: Path, mode: str, other: dict[str, list[Any]]) -> None:
    lake, given = Lake(tmp_path), [pa.table({"n": [1], "v": [1], "at": [1]}), pa.table(other)]
    versions = {"sequence_by": "at"} if mode == "cdc" else {}

    @dg.asset(metadata={"write": mode, "merge_keys": ["n"], **versions})
    def items() -> pa.Table:
        return given[0]

    assert lake.run(items).success
    known = lake.rows("items")
    given.pop(0)
    assert isinstance(lake.fails(items), SchemaMismatchError)
    assert lake.rows("items") == known


@pytest.mark.parametrize("schema_mode", ["merge", None])
def test_a_merge_takes_narrower_types_and_more_columns_where_told(tmp_path: Path, schema_mode: str | None) -> None:
    lake = Lake(tmp_path)
    metadata = {"write": "merge", "merge_keys": ["n"], **({"schema_mode": schema_mode} if schema_mode else {})}
    given = [pa.table({"n": [1, 2], "v": [1, 2]}), pa.table({"v": pa.array([7], pa.int8()), "n": [2]})]
    if schema_mode:
        given[1] = given[1].append_column("w", [["x"]])

    @dg.asset(metadata=metadata)
    def items() -> pa.Table:
        return given.pop(0)

    assert lake.run(items).success
    assert lake.run(items).success
    rows = lake.table("items").snapshot().scan().to_arrow().sort_by("n").to_pydict()
    assert rows == {"n": [1, 2], "v": [1, 7], **({"w": [None, "x"]} if schema_mode else {})}
