"""What is different with Spark: lazy values, inputs, the session."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from delta_orch.dagster import ChangeBatch, DeltaLakeIOManager, DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConstraintViolationError

pytestmark = pytest.mark.spark

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-10")


def run(root: Path, *assets: Any, span: tuple[str, str] | None = None, **extras: Any) -> Any:
    tags = {}
    if span is not None:
        tags = {"dagster/asset_partition_range_start": span[0], "dagster/asset_partition_range_end": span[1]}
    config = extras.pop("config", {})
    instance = extras.pop("instance", None) or dg.DagsterInstance.ephemeral()
    resources = {"io_manager": DeltaLakeIOManager(root_uri=str(root), **config)}
    return dg.materialize(assets, instance=instance, resources=resources, tags=tags, **extras)


def flights_asset(spark: SparkSession, shift: int = 0) -> dg.AssetsDefinition:
    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "flight_date"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def flights(context) -> DataFrame:  # type: ignore[no-untyped-def]
        rows = [(key, number) for key in context.partition_keys for number in range(3)]
        frame = spark.createDataFrame(rows, "day string, n int")
        return frame.select(F.date_add(F.to_date("day"), shift).alias("flight_date"), "n")

    return flights


def test_days_and_ranges_of_spark_frames(spark: SparkSession, tmp_path: Path) -> None:
    flights = flights_asset(spark)

    @dg.asset
    def total(flights: DataFrame) -> DataFrame:
        assert isinstance(flights, DataFrame)
        return flights.groupBy("flight_date").count()

    run(tmp_path, flights, partition_key="2013-01-01")
    result = run(tmp_path, flights, span=("2013-01-02", "2013-01-04"))
    counts = {
        event.partition: event.metadata["dagster/partition_row_count"].value
        for event in result.asset_materializations_for_node("flights")
    }
    assert counts == {"2013-01-02": 3, "2013-01-03": 3, "2013-01-04": 3}
    run(tmp_path, flights, partition_key="2013-01-02")
    run(tmp_path, flights, total, selection=[total])
    totals = DeltaTable(tmp_path / "total").snapshot().scan().to_arrow()
    assert sorted(totals.column("count").to_pylist()) == [3, 3, 3, 3]


def test_rows_of_another_day_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, flights_asset(spark), partition_key="2013-01-01")
    table = DeltaTable(tmp_path / "flights")
    version = table.version()
    with pytest.raises(Exception) as caught:
        run(tmp_path, flights_asset(spark, shift=1), partition_key="2013-01-01")
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, ConstraintViolationError):
        error = error.__cause__
    assert isinstance(error, ConstraintViolationError)
    assert table.version() == version


def test_a_unit_that_is_kept_does_not_run_the_query(spark: SparkSession, tmp_path: Path) -> None:
    poison: list[bool] = []

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "write": "append"})
    def readings(context) -> DataFrame:  # type: ignore[no-untyped-def]
        value = F.raise_error(F.lit("the query ran")).cast("int") if poison else F.lit(1)
        return spark.range(1).select(F.lit(context.partition_key).alias("day"), value.alias("n"))

    config = {"on_redo": "keep"}
    run(tmp_path, readings, partition_key="2013-01-01", config=config)
    poison.append(True)
    result = run(tmp_path, readings, partition_key="2013-01-01", config=config)
    (event,) = result.asset_materializations_for_node("readings")
    assert event.metadata["delta/outcome"].value == "recovered"


def test_the_spark_engine_takes_arrow_and_gives_spark(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[Any] = []

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @dg.asset
    def doubled(numbers):  # type: ignore[no-untyped-def]
        seen.append(numbers)
        return numbers.union(numbers)

    run(tmp_path, numbers, doubled, config={"engine": "spark"})
    assert isinstance(seen[0], DataFrame)
    assert DeltaTable(tmp_path / "doubled").snapshot().scan().to_arrow().num_rows == 4


@pytest.mark.long
def test_an_incremental_spark_asset(spark: SparkSession, tmp_path: Path) -> None:
    bronze, silver = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")
    bronze.append(spark.createDataFrame([("a", 1), ("b", 2)], "day string, n int"), partition_by=["day"])

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=bronze.uri),
        table=DeltaTableResource(table_uri=silver.uri),
        partition_by=["day"],
        name="silver",
    )
    def enrich(context, batch: ChangeBatch) -> Any:  # type: ignore[no-untyped-def]
        return batch.scan().to_spark(spark).withColumn("n", F.col("n") * 10)

    instance = dg.DagsterInstance.ephemeral()
    dg.materialize([enrich], instance=instance)
    bronze.append(spark.createDataFrame([("b", 3)], "day string, n int"))
    dg.materialize([enrich], instance=instance)
    rows = silver.snapshot().scan().to_arrow().to_pylist()
    assert sorted((row["day"], row["n"]) for row in rows) == [("a", 10), ("b", 20), ("b", 30)]
