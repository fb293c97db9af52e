import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from delta_orch.dagster import DeltaLakeIOManager
from delta_orch.dagster.run import retry_conflicts
from delta_orch.dagster.settings import DEFINED_KEYS, WRITTEN_KEYS
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import (
    ColumnNotFoundError,
    ConcurrentAppendError,
    ConstraintViolationError,
    InvalidRequestError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from tests.dagster.lake import Lake, metadata_of
from tests.families import family

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")
HOURS = dg.HourlyPartitionsDefinition("2013-01-01-00:00", end_date="2013-01-02-00:00")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def partitioned(
    column: str,
    values: Callable[[str], list[Any]],
    data_type: pa.DataType,
    partitions_def: dg.PartitionsDefinition[str],
    **metadata: Any,
) -> dg.AssetsDefinition:
    """An asset whose rows hold, for each partition key of the run, the given values in `column`."""

    @dg.asset(
        partitions_def=partitions_def,
        metadata={"partition_expr": column, **metadata},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        found = [(key, value) for key in context.partition_keys for value in values(key)]
        return pa.table(
            {
                column: pa.array([value for _, value in found], data_type),
                "key": pa.array([str(key) for key, _ in found], pa.string()),
                "run": pa.array([context.run.run_id] * len(found), pa.string()),
            }
        )

    return events


# What every write says


def test_metadata_and_data_version(lake: Lake) -> None:
    @dg.asset(key=["bronze", "flights"], partitions_def=DAYS, metadata={"partition_expr": "day"})
    def flights(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key] * 2, "delay": pa.array([1, 2], pa.int32())})

    lake.run(flights, partition="2013-01-01")
    result = lake.run(flights, partition="2013-01-02")
    table = lake.table("bronze", "flights")
    metadata = metadata_of(result, "bronze/flights")
    assert metadata["dagster/row_count"] == 4
    assert metadata["dagster/partition_row_count"] == 2
    assert metadata["dagster/table_name"] == "bronze.flights"
    assert metadata["dagster/uri"] == table.uri
    assert metadata["dagster/storage_kind"] == "deltalake"
    assert metadata["delta/version"] == table.version() == 1
    assert metadata["delta/outcome"] == "written"
    assert metadata["delta/operation_metrics"]["numOutputRows"] == 2
    assert [(c.name, c.type) for c in metadata["dagster/column_schema"].columns] == [
        ("day", "string"),
        ("delay", "integer"),
    ]
    assert metadata["delta/deleted_rows_ratio"] == 0
    assert metadata["delta/seconds"] > 0
    assert metadata["delta/committed_by"] == result.run_id
    (event,) = result.asset_materializations_for_node("bronze__flights")
    assert event.tags["dagster/data_version"] == f"{table.snapshot().metadata.id}:1"
    commit = table.history(1)[0]
    assert commit.user_metadata is not None
    assert f'"run_id":"{result.run_id}"' in commit.user_metadata
    assert '"partition":"2013-01-02"' in commit.user_metadata


def test_a_commit_links_to_the_page_of_its_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    def said() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(str(lake.table("numbers").history(1)[0].user_metadata))
        return found

    result = lake.run(numbers)
    assert (said()["run_id"], said().get("run_url")) == (result.run_id, None)
    monkeypatch.setenv("DELTA_ORCH_WEBSERVER_BASE_URL", "https://dagster.example.com/prod/")
    result = lake.run(numbers)
    assert said()["run_url"] == f"https://dagster.example.com/prod/runs/{result.run_id}"
    version = lake.table("numbers").version()
    for wrong in ("dagster.example.com", "https://me:secret@dagster.example.com", "https://d.example.com/?token=1"):
        monkeypatch.setenv("DELTA_ORCH_WEBSERVER_BASE_URL", wrong)
        assert "is not the address" in str(lake.fails(numbers))
    assert lake.table("numbers").version() == version


def test_each_partition_of_a_range_has_its_row_count(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [key] * int(key[-1]), pa.string(), DAYS)
    result = lake.run(asset, span=("2013-01-01", "2013-01-03"))
    counts = {
        event.partition: event.metadata["dagster/partition_row_count"].value
        for event in result.asset_materializations_for_node("events")
    }
    assert counts == {"2013-01-01": 1, "2013-01-02": 2, "2013-01-03": 3}
    # One commit for all.
    assert lake.table("events").version() == 0


def test_secrets_stay_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hunter2-from-env")
    options = {"password": dg.EnvVar("LAKE_SECRET"), "token": "hunter2-plain"}
    lake = Lake(tmp_path, storage_options=options)

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    result = lake.run(numbers)
    shown = [repr(lake.io_manager), str(lake.io_manager), lake.logs(result), repr(metadata_of(result, "numbers"))]
    assert "STEP_SUCCESS" in shown[2]
    shown += capfd.readouterr()
    shown += [str(event) for event in result.all_events]
    shown += [path.read_text(errors="replace") for path in tmp_path.rglob("*.json")]
    assert not any("hunter2" in text for text in shown)


# What may be written and read


def _tables() -> list[Any]:
    data = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "s": pa.array(["a", None, "c"], pa.string())})
    return [
        pytest.param(lambda: data, id="arrow"),
        pytest.param(lambda: pa.RecordBatchReader.from_batches(data.schema, data.to_batches()), id="reader"),
        pytest.param(lambda: pd.DataFrame({"n": [1, 2, 3], "s": ["a", None, "c"]}), id="pandas"),
        pytest.param(lambda: pl.DataFrame({"n": [1, 2, 3], "s": ["a", None, "c"]}), id="polars"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("make", _tables())
def test_values(lake: Lake, make: Callable[[], Any]) -> None:
    @dg.asset
    def numbers() -> Any:
        return make()

    lake.run(numbers)
    expected = [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": "c"}]
    assert lake.rows("numbers") == expected
    lake.run(numbers)
    assert lake.rows("numbers") == expected


@pytest.mark.parametrize("make", _tables())
def test_values_of_a_partitioned_asset(lake: Lake, make: Callable[[], Any]) -> None:
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b", "c"]), metadata={"partition_expr": "s"})
    def numbers(context: dg.AssetExecutionContext) -> Any:
        table = pa.table({"n": pa.array([1], pa.int64()), "s": [context.partition_key]})
        return {"Table": table, "DataFrame": table.to_pandas()}.get(type(make()).__name__, table)

    for key in "ab":
        lake.run(numbers, partition=key)
    assert lake.rows("numbers") == [{"n": 1, "s": "a"}, {"n": 1, "s": "b"}]


@pytest.mark.parametrize(
    "annotation",
    [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame, DeltaTable, TableSnapshot, Any],
    ids=str,
)
def test_inputs_follow_the_annotation(lake: Lake, annotation: Any) -> None:
    got: list[Any] = []

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": pa.array([1, 2], pa.int64())})

    def consume(numbers):  # type: ignore[no-untyped-def]
        got.append(numbers)
        if isinstance(numbers, pa.RecordBatchReader):
            got[0] = (numbers, numbers.read_all())
        return pa.table({"rows": [1]})

    consume.__annotations__["numbers"] = annotation
    lake.run(numbers, dg.asset(consume))
    value = got[0]
    if annotation is Any:
        assert isinstance(value, pa.Table)
    elif annotation is pa.RecordBatchReader:
        assert isinstance(value[0], pa.RecordBatchReader)
        assert value[1].column("n").to_pylist() == [1, 2]
    else:
        assert isinstance(value, annotation)
    if annotation in (pl.DataFrame, pl.LazyFrame):
        assert value.lazy().collect().to_dicts() == [{"n": 1}, {"n": 2}]


def test_an_input_may_load_some_columns_only(lake: Lake) -> None:
    @dg.asset
    def wide() -> pa.Table:
        return pa.table({"a": [1], "b": [2], "c": [3]})

    @dg.asset(ins={"wide": dg.AssetIn(metadata={"columns": ["c", "a"]})})
    def narrow(wide: pa.Table) -> pa.Table:
        return wide

    lake.run(wide, narrow)
    assert lake.table("narrow").snapshot().schema.names == ("c", "a")


def test_an_input_of_another_type_is_refused(lake: Lake) -> None:
    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset
    def wrong(numbers: dict) -> pa.Table:  # type: ignore[type-arg]
        return pa.table({"n": [1]})

    assert "cannot be loaded" in str(lake.fails(numbers, wrong))


def test_an_input_that_was_never_written(lake: Lake) -> None:
    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset
    def after(numbers: pa.Table) -> pa.Table:
        return numbers

    assert isinstance(lake.fails(numbers, after, selection=[after]), TableNotFoundError)


def test_op_outputs_are_tables_too(lake: Lake) -> None:
    @dg.op(out=dg.Out(metadata={"schema": "scratch"}))
    def extract() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @dg.op
    def load(rows: pa.Table) -> pa.Table:
        return rows.slice(1)

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        load(extract())

    assert etl.execute_in_process(instance=lake.instance).success
    assert lake.rows("scratch", "etl", "extract", "result") == [{"n": 1}, {"n": 2}]
    assert lake.rows("etl", "load", "result") == [{"n": 2}]


def numbers_of(count: int) -> pa.Table:
    return pa.table({"n": list(range(count))})


def test_outputs_of_the_same_name_are_tables_of_their_own(lake: Lake) -> None:
    """Two ops, one op twice, an op in a graph, and another job: all outputs are called `result`."""
    seen: dict[str, int] = {}

    @dg.op
    def one() -> pa.Table:
        return numbers_of(1)

    @dg.op
    def two() -> pa.Table:
        return numbers_of(2)

    @dg.op
    def see(context: dg.OpExecutionContext, first: pa.Table, second: pa.Table, third: pa.Table) -> None:
        seen.update({"one": first.num_rows, "again": second.num_rows, "two": third.num_rows})

    @dg.graph
    def inner() -> Any:
        return two()

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        see(one(), one.alias("again")(), inner())

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def other() -> None:
        two.alias("one")()

    assert etl.execute_in_process(instance=lake.instance).success
    assert seen == {"one": 1, "again": 1, "two": 2}
    assert other.execute_in_process(instance=lake.instance).success
    places = {("etl", "one"): 1, ("etl", "again"): 1, ("etl", "inner.two"): 2, ("other", "one"): 2}
    assert {place: len(lake.rows(*place, "result")) for place in places} == places


def test_mapped_outputs_are_tables_of_their_own(lake: Lake) -> None:
    @dg.op(out=dg.DynamicOut())
    def split() -> Any:
        for count in (1, 2, 3):
            yield dg.DynamicOutput(numbers_of(count), mapping_key=f"k{count}")

    @dg.op
    def double(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, rows])

    @dg.op(out=dg.Out(metadata={"table": "named"}))
    def named(rows: pa.Table) -> pa.Table:
        return rows

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        parts = split()
        parts.map(double)
        parts.map(named)

    assert etl.execute_in_process(instance=lake.instance).success
    for count in (1, 2, 3):
        assert len(lake.rows("etl", "split", "result", f"k{count}")) == count
        assert len(lake.rows("etl", "double", "result", f"k{count}")) == 2 * count
        assert len(lake.rows("named", f"k{count}")) == count


# Partitions, one test a failure of others


def test_the_second_day_on_a_string_column_leaves_the_first_alone(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    for day in ("2013-01-01", "2013-01-02", "2013-01-03"):
        lake.run(asset, partition=day)
    assert [row["day"] for row in lake.rows("events")] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert lake.table("events").snapshot().partition_columns == ("day",)


def test_static_partitions_on_an_integer_column(lake: Lake) -> None:
    keys = dg.StaticPartitionsDefinition(["1", "2", "10"])
    asset = partitioned("store", lambda key: [int(key)] * 2, pa.int32(), keys)
    for key in ("1", "2", "10", "2"):
        lake.run(asset, partition=key)
    assert [row["store"] for row in lake.rows("events")] == [1, 1, 10, 10, 2, 2]


def test_hourly_partitions_on_a_timestamp_ntz_column(lake: Lake) -> None:
    def inside(key: str) -> list[datetime]:
        start = datetime.strptime(key, "%Y-%m-%d-%H:%M")
        return [start, start.replace(minute=59, second=59, microsecond=999_999)]

    asset = partitioned("at", inside, pa.timestamp("us"), HOURS)
    for key in ("2013-01-01-00:00", "2013-01-01-01:00", "2013-01-01-00:00"):
        lake.run(asset, partition=key)
    assert lake.table("events").snapshot().schema.find("at").data_type.name == "timestamp_ntz"  # type: ignore[union-attr]
    assert [row["at"].hour for row in lake.rows("events")] == [0, 0, 1, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.date32(), date.fromisoformat),
        (pa.timestamp("us", "UTC"), lambda key: datetime.fromisoformat(key).replace(tzinfo=UTC, hour=13)),
        (pa.timestamp("us"), lambda key: datetime.fromisoformat(key).replace(hour=23)),
        (pa.int32(), lambda key: int(key.replace("-", ""))),
        (pa.int64(), lambda key: int(key.replace("-", ""))),
        (pa.string(), lambda key: key),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_daily_partitions_on_every_kind_of_column(
    lake: Lake, data_type: pa.DataType, value: Callable[[str], Any]
) -> None:
    asset = partitioned("at", lambda key: [value(key)], data_type, DAYS, partition_by=["at"])
    for day in ("2013-01-01", "2013-01-02"):
        lake.run(asset, partition=day)
    first = lake.rows("events")
    again = lake.run(asset, partition="2013-01-02")
    assert [row["key"] for row in lake.rows("events")] == ["2013-01-01", "2013-01-02"]
    assert [row["run"] == again.run_id for row in lake.rows("events")] == [False, True]
    assert first[0] == lake.rows("events")[0]
    lake.run(asset, span=("2013-01-02", "2013-01-04"))
    assert [row["key"] for row in lake.rows("events")] == ["2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04"]


def test_dynamic_partitions(lake: Lake) -> None:
    keys = dg.DynamicPartitionsDefinition(name="stores")
    asset = partitioned("store", lambda key: [key], pa.string(), keys)
    lake.instance.add_dynamic_partitions("stores", ["it's", "b"])
    for key in ("it's", "b", "it's"):
        lake.run(asset, partition=key)
    assert sorted(row["store"] for row in lake.rows("events")) == ["b", "it's"]


def test_multi_dimensional_partitions(lake: Lake) -> None:
    keys = dg.MultiPartitionsDefinition({"day": DAYS, "origin": dg.StaticPartitionsDefinition(["JFK", "LGA"])})

    @dg.asset(partitions_def=keys, metadata={"partition_expr": {"day": "flight_date", "origin": "origin"}})
    def flights(context: dg.AssetExecutionContext) -> pa.Table:
        key = context.partition_key.keys_by_dimension
        return pa.table(
            {
                "flight_date": pa.array([date.fromisoformat(key["day"])], pa.date32()),
                "origin": [key["origin"]],
                "n": [1],
            }
        )

    for day in ("2013-01-01", "2013-01-02"):
        for origin in ("JFK", "LGA"):
            lake.run(flights, partition=dg.MultiPartitionKey({"day": day, "origin": origin}))
    lake.run(flights, partition=dg.MultiPartitionKey({"day": "2013-01-01", "origin": "JFK"}))
    assert [(row["flight_date"].day, row["origin"]) for row in lake.rows("flights")] == [
        (1, "JFK"),
        (1, "LGA"),
        (2, "JFK"),
        (2, "LGA"),
    ]


def test_a_format_for_columns_that_do_not_hold_the_key(lake: Lake) -> None:
    def hour(key: str) -> list[int]:
        return [int(key.replace("-", "")[:8] + key[11:13])]

    asset = partitioned("hour", hour, pa.int64(), HOURS, partition_format="%Y%m%d%H")
    for key in ("2013-01-01-00:00", "2013-01-01-01:00"):
        lake.run(asset, partition=key)
    assert [row["hour"] for row in lake.rows("events")] == [2013010100, 2013010101]


def test_an_unpartitioned_asset_downstream_of_three_days_reads_three(lake: Lake) -> None:
    upstream = partitioned("day", lambda key: [key], pa.string(), DAYS)

    @dg.asset
    def total(events: pa.Table) -> pa.Table:
        return pa.table({"rows": [events.num_rows]})

    for day in ("2013-01-01", "2013-01-02", "2013-01-03"):
        lake.run(upstream, partition=day)
    lake.run(upstream, total, selection=[total])
    assert lake.rows("total") == [{"rows": 3}]


def test_a_partitioned_asset_reads_its_own_partitions(lake: Lake) -> None:
    upstream = partitioned("day", lambda key: [key] * int(key[-1]), pa.string(), DAYS)
    read: list[list[str]] = []

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
    def copy(events: pa.Table) -> pa.Table:
        read.append(sorted(set(events.column("day").to_pylist())))
        return events

    lake.run(upstream, span=("2013-01-01", "2013-01-05"))
    lake.run(upstream, copy, selection=[copy], partition="2013-01-02")
    lake.run(upstream, copy, selection=[copy], span=("2013-01-03", "2013-01-05"))
    assert read == [["2013-01-02"], ["2013-01-03", "2013-01-04", "2013-01-05"]]
    assert len(lake.rows("copy")) == 2 + 3 + 4 + 5


def test_daily_asset_downstream_of_hours(lake: Lake) -> None:
    def at(key: str) -> list[datetime]:
        return [datetime.strptime(key, "%Y-%m-%d-%H:%M")]

    upstream = partitioned("at", at, pa.timestamp("us"), HOURS, partition_by=["at"])
    read: list[int] = []

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def daily(context: dg.AssetExecutionContext, events: pa.Table) -> pa.Table:
        read.append(events.num_rows)
        return pa.table({"day": [context.partition_key], "rows": [events.num_rows]})

    lake.run(upstream, span=("2013-01-01-00:00", "2013-01-01-05:00"))
    lake.run(upstream, daily, selection=[daily], partition="2013-01-01")
    assert read == [6]


# What is refused, with the table unchanged


def test_rows_outside_the_partition_are_refused(lake: Lake) -> None:
    good = partitioned("day", lambda key: [key], pa.string(), DAYS)
    bad = partitioned("day", lambda key: ["2013-01-05"], pa.string(), DAYS)
    lake.run(good, partition="2013-01-01")
    version = lake.table("events").version()
    assert isinstance(lake.fails(bad, partition="2013-01-01"), ConstraintViolationError)
    assert lake.table("events").version() == version
    assert [row["day"] for row in lake.rows("events")] == ["2013-01-01"]


@pytest.mark.parametrize("write", ["append", "overwrite", "overwrite_partitions"])
def test_a_null_partition_value_is_outside(tmp_path: Path, write: str) -> None:
    lake = Lake(tmp_path, write=write)
    bad = partitioned("day", lambda key: [key, None], pa.string(), DAYS)
    assert isinstance(lake.fails(bad, partition="2013-01-01"), ConstraintViolationError)
    assert not lake.table("events").exists() or lake.rows("events") == []


def test_partitions_without_partition_expr_are_refused(lake: Lake) -> None:
    @dg.asset(partitions_def=DAYS)
    def events() -> pa.Table:
        return pa.table({"day": ["2013-01-01"]})

    error = lake.fails(events, partition="2013-01-01")
    assert isinstance(error, InvalidRequestError)
    assert '"partition_expr": "column"' in str(error)
    assert not lake.table("events").exists()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["overwrite", "append", "ignore"])
def test_a_run_that_names_no_partition_of_a_partitioned_asset_is_refused(tmp_path: Path, mode: str) -> None:
    lake = Lake(tmp_path, write=mode)

    # As a schedule of the job runs it that is not made of its partitions. Dagster has nothing against that.
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events() -> pa.Table:
        return pa.table({"day": ["2013-01-01"], "id": [1]})

    lake.run(events, partition="2013-01-01")
    lake.table("events").append(pa.table({"day": ["2013-01-02"], "id": [2]}))
    for span in (None, ("2013-01-02", "2013-01-01")):
        error = lake.fails(events, span=span)
        assert isinstance(error, InvalidRequestError)
        assert "names none of them" in str(error)
    assert [row["id"] for row in lake.rows("events")] == [1, 2]


def test_partition_expr_must_be_a_column(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS, partition_expr="dya")
    assert isinstance(lake.fails(asset, partition="2013-01-01"), ColumnNotFoundError)
    assert not lake.table("events").exists()


def test_hourly_partitions_on_a_date_column_are_refused(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [date(2013, 1, 1)], pa.date32(), HOURS)
    assert "midnight" in str(lake.fails(asset, partition="2013-01-01-01:00"))


def test_a_key_that_is_no_number_on_an_integer_column_is_refused(lake: Lake) -> None:
    keys = dg.StaticPartitionsDefinition(["one", "01"])
    asset = partitioned("store", lambda key: [1], pa.int32(), keys)
    for key in ("one", "01"):
        assert "usual spelling" in str(lake.fails(asset, partition=key))


def test_a_range_over_a_table_partitioned_otherwise_is_refused(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS, partition_by=["key"])
    assert "BackfillPolicy.multi_run(1)" in str(lake.fails(asset, span=("2013-01-01", "2013-01-02")))


def test_a_single_day_of_a_table_partitioned_otherwise(lake: Lake) -> None:
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS, partition_by=[])
    for day in ("2013-01-01", "2013-01-02", "2013-01-01"):
        lake.run(asset, partition=day)
    assert [row["day"] for row in lake.rows("events")] == ["2013-01-01", "2013-01-02"]
    assert lake.table("events").snapshot().partition_columns == ()


def test_none_is_no_table(lake: Lake) -> None:
    @dg.asset
    def nothing() -> Any:
        return None

    assert "returned None" in str(lake.fails(nothing))


@pytest.mark.parametrize("part", ["..", "a/b", "_delta_log"])
def test_names_that_lead_elsewhere_are_refused(lake: Lake, part: str) -> None:
    @dg.asset(metadata={"schema": part})
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    assert "name of a folder" in str(lake.fails(numbers))


# Modes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"mode": "append"}, "Write write"),
        ({"table_properties": {}}, "Write properties"),
        ({"partition_overwrite": "dynamic"}, "Write write='overwrite_partitions'"),
        ({"idempotency": "partition"}, "on_redo='keep'"),
        ({"write": "dynamic"}, "write='overwrite_partitions'"),
        ({"write": "overwrite_changed"}, "@delta_asset"),
        ({"code_location": "x"}, "no setting 'code_location'"),
    ],
)
def test_old_names_are_refused_by_their_new_ones(tmp_path: Path, old: dict[str, Any], new: str) -> None:
    with pytest.raises(ValueError, match=new):
        DeltaLakeIOManager(root_uri=str(tmp_path), **old)


@pytest.mark.parametrize("field", ["write", "on_redo", "unit", "engine"])
def test_choices_are_checked(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        DeltaLakeIOManager(root_uri=str(tmp_path), **cast(dict[str, Any], {field: "nonsense"}))


def test_a_merge_without_keys_is_refused(lake: Lake) -> None:
    @dg.asset(metadata={"write": "merge"})
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    assert "merge_keys" in str(lake.fails(numbers))
    assert not lake.table("numbers").exists()


def test_merge_by_keys(lake: Lake) -> None:
    batches = [{"id": [1, 2, None], "v": ["a", "b", "n"]}, {"id": [2, 3, None], "v": ["B", "c", "N"]}]

    @dg.asset(metadata={"write": "merge", "merge_keys": ["id"]})
    def items() -> pa.Table:
        return pa.table(batches.pop(0))

    lake.run(items)
    result = lake.run(items)
    assert {row["id"]: row["v"] for row in lake.rows("items")} == {1: "a", 2: "B", 3: "c", None: "N"}
    assert len(lake.rows("items")) == 4
    assert metadata_of(result, "items")["delta/operation_metrics"]["numTargetRowsUpdated"] == 2


def test_merge_of_a_partition(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["day", "id"])
    ids = [[1, 2], [2, 3], [9]]

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        found = ids.pop(0)
        return pa.table(
            {"day": [context.partition_key] * len(found), "id": found, "run": [context.run.run_id] * len(found)}
        )

    first = lake.run(items, partition="2013-01-01").run_id
    second = lake.run(items, partition="2013-01-01").run_id
    other = lake.run(items, partition="2013-01-02").run_id
    assert {(row["day"][-1:], row["id"], row["run"]) for row in lake.rows("items")} == {
        ("1", 1, first),
        ("1", 2, second),
        ("1", 3, second),
        ("2", 9, other),
    }


def test_a_merged_row_outside_the_partition_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["day", "key"])
    good = partitioned("day", lambda key: [key], pa.string(), DAYS)
    bad = partitioned("day", lambda key: ["2013-01-05"], pa.string(), DAYS)
    lake.run(good, partition="2013-01-01")
    assert isinstance(lake.fails(bad, partition="2013-01-02"), ConstraintViolationError)
    assert [row["day"] for row in lake.rows("events")] == ["2013-01-01"]


def test_output_metadata_goes_before_definition_metadata_before_config(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="ignore")
    chosen: dict[str, str] = {}

    @dg.asset(metadata={"write": "append"})
    def numbers() -> dg.Output[pa.Table]:
        return dg.Output(pa.table({"n": [1]}), metadata=chosen)

    lake.run(numbers)
    lake.run(numbers)
    assert len(lake.rows("numbers")) == 2
    chosen["write"] = "overwrite"
    lake.run(numbers)
    assert len(lake.rows("numbers")) == 1


def test_mode_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="error")
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    lake.run(asset, partition="2013-01-01")
    lake.run(asset, partition="2013-01-02")
    assert isinstance(lake.fails(asset, partition="2013-01-02"), TableExistsError)
    assert len(lake.rows("events")) == 2


def test_mode_ignore(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="ignore")

    @dg.asset
    def numbers(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"run": [context.run.run_id]})

    first = lake.run(numbers)
    second = lake.run(numbers)
    assert lake.rows("numbers") == [{"run": first.run_id}]
    assert metadata_of(second, "numbers")["delta/outcome"] == "nothing new"


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"exactly_once": False}, {"on_redo": "keep"}])
def test_mode_ignore_takes_one_partition_at_a_time(tmp_path: Path, settings: dict[str, Any]) -> None:
    """It would leave out partitions that have no data, because of one that has."""
    lake = Lake(tmp_path, write="ignore", **settings)
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    first = lake.run(asset, partition="2013-01-02")
    assert "one partition at a time" in str(lake.fails(asset, span=("2013-01-01", "2013-01-03")))
    lake.run(asset, span=("2013-01-02", "2013-01-02"))
    assert [(row["day"], row["run"]) for row in lake.rows("events")] == [("2013-01-02", first.run_id)]


@family("key", sorted({*DEFINED_KEYS} - {*WRITTEN_KEYS, "schema", "table", "unit", "properties"}), every=5)
@pytest.mark.parametrize("how", ["output", "result", "context"])
def test_what_only_a_definition_can_say_is_no_output_metadata(lake: Lake, key: str, how: str) -> None:
    metadata = {key: {"n": "n > 5"} if key == "audit" else "n"}

    @dg.asset
    def numbers(context: dg.AssetExecutionContext):  # type: ignore[no-untyped-def]
        rows = pa.table({"n": [1], "p": ["x"]})
        if how == "result":
            return dg.MaterializeResult(value=rows, metadata=metadata)
        if how == "context":
            context.add_output_metadata(metadata)
        return dg.Output(rows, metadata=metadata) if how == "output" else rows

    assert "belongs to the definition" in str(lake.fails(numbers))
    assert not lake.table("numbers").exists()


def test_dynamic_overwrite_of_an_unpartitioned_asset(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="overwrite_partitions")
    days = [["a", "b"], ["b", "c"]]

    @dg.asset(metadata={"partition_by": ["day"]})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": days.pop(0), "run": [context.run.run_id] * 2})

    first, second = lake.run(events).run_id, lake.run(events).run_id
    assert lake.rows("events") == sorted(
        [{"day": "a", "run": first}, {"day": "b", "run": second}, {"day": "c", "run": second}], key=repr
    )

    @dg.asset
    def whole() -> pa.Table:
        return pa.table({"n": [1]})

    assert "whole replaces the partitions that its rows lie in" in str(lake.fails(whole))


def test_table_properties_are_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path, properties={"delta.logRetentionDuration": "interval 7 days"})
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    lake.run(asset, partition="2013-01-01")
    assert lake.table("events").snapshot().metadata.configuration == {
        "delta.logRetentionDuration": "interval 7 days",
        "delta_orch.owner": "assets by scope",
        "delta_orch.partitions.day": "0 0 * * *; %Y-%m-%d",
    }


def test_table_properties_of_an_asset(tmp_path: Path) -> None:
    lake = Lake(tmp_path, properties={"delta.appendOnly": "false", "my.team": "flights"})

    @dg.asset(metadata={"properties": {"delta.columnMapping.mode": "name", "my.team": "names"}})
    def people() -> pa.Table:
        return pa.table({"First Name": ["Ada"]})

    lake.run(people)
    assert lake.rows("people") == [{"First Name": "Ada"}]
    properties = lake.table("people").snapshot().metadata.configuration
    assert properties["my.team"] == "names"
    assert properties["delta.appendOnly"] == "false"


def test_an_empty_partition_clears_the_partition_only(lake: Lake) -> None:
    full = partitioned("day", lambda key: [key], pa.string(), DAYS)
    empty = partitioned("day", lambda key: [], pa.string(), DAYS)
    lake.run(full, span=("2013-01-01", "2013-01-03"))
    result = lake.run(empty, partition="2013-01-02")
    assert [row["day"] for row in lake.rows("events")] == ["2013-01-01", "2013-01-03"]
    assert metadata_of(result, "events")["dagster/partition_row_count"] == 0


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_modes_that_look_first_see_rows_and_not_files(tmp_path: Path, mode: str) -> None:
    # Not partitioned by day: the first file's statistics span the second day, which has no row yet.
    lake = Lake(tmp_path)
    written = partitioned("day", lambda key: [key], pa.string(), DAYS, partition_by=[])
    lake.table("events").append(pa.table({"day": ["2013-01-01", "2013-01-03"], "key": ["a", "c"], "run": ["x", "x"]}))
    lake.io_manager = DeltaLakeIOManager(root_uri=str(tmp_path), write=mode)
    lake.run(written, partition="2013-01-02")
    assert sorted(row["day"] for row in lake.rows("events")) == ["2013-01-01", "2013-01-02", "2013-01-03"]
    if mode == "error":
        assert isinstance(lake.fails(written, partition="2013-01-02"), TableExistsError)
    else:
        lake.run(written, partition="2013-01-02")
    assert len(lake.rows("events")) == 3


def test_a_multi_asset_writes_a_table_for_each(lake: Lake) -> None:
    @dg.multi_asset(
        outs={
            "orders": dg.AssetOut(metadata={"partition_expr": "day"}),
            "items": dg.AssetOut(key_prefix="marts", metadata={"partition_expr": "on"}),
        },
        partitions_def=DAYS,
    )
    def load(context):  # type: ignore[no-untyped-def]
        day = context.partition_key
        return pa.table({"day": [day], "n": [1]}), pa.table({"on": [date.fromisoformat(day)], "n": [2]})

    for day in ("2013-01-01", "2013-01-02"):
        lake.run(load, partition=day)
    assert len(lake.rows("orders")) == 2
    assert [row["on"].day for row in lake.rows("marts", "items")] == [1, 2]


def test_a_conflict_runs_the_step_again(lake: Lake) -> None:
    attempts: list[int] = []

    class Overtaken(DeltaLakeIOManager):
        """Another writer replaces the same day between the rows of the first attempt and their commit."""

        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            attempts.append(context.step_context.previous_attempt_count)
            super().handle_output(context, slow(obj) if len(attempts) == 1 else obj)

    def slow(table: pa.Table) -> pa.RecordBatchReader:
        def batches() -> Any:
            other = pa.table({"day": ["2013-01-01"], "key": ["other"], "run": ["other"]})
            lake.table("events").overwrite(other, replace_where="day = '2013-01-01'")
            yield from table.to_batches()

        return pa.RecordBatchReader.from_batches(table.schema, batches())

    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    lake.run(asset, partition="2013-01-02")
    lake.io_manager = Overtaken(root_uri=str(lake.root))
    result = lake.run(asset, partition="2013-01-01")
    assert result.success
    assert attempts == [0, 1]
    assert [(row["day"], row["run"] == "other") for row in lake.rows("events")] == [
        ("2013-01-01", False),
        ("2013-01-02", False),
    ]


def test_conflicts_may_be_left_to_the_user() -> None:
    with pytest.raises(ConcurrentAppendError), retry_conflicts(0):
        raise ConcurrentAppendError("overtaken")
    with pytest.raises(dg.RetryRequested), retry_conflicts(1):
        raise ConcurrentAppendError("overtaken")
    with pytest.raises(SchemaMismatchError), retry_conflicts(1):
        raise SchemaMismatchError("wrong")


def test_many_files_for_one_partition_are_worth_a_word(lake: Lake) -> None:
    def instants(key: str) -> list[datetime]:
        return [datetime.fromisoformat(key).replace(microsecond=number) for number in range(101)]

    asset = partitioned("at", instants, pa.timestamp("us"), DAYS, partition_by=["at"])
    result = lake.run(asset, partition="2013-01-01")
    assert (
        "The run's partitions (1) were written as 101 files: each value of at is a directory of its own"
        in lake.logs(result)
    )


@pytest.mark.parametrize(("exactly_once", "partition_by"), [(True, ["key"]), (False, ["day"])])
def test_dynamic_overwrite_that_could_reach_other_partitions_is_refused(
    tmp_path: Path, exactly_once: bool, partition_by: list[str]
) -> None:
    lake = Lake(tmp_path)
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS, partition_by=partition_by)
    lake.run(asset, partition="2013-01-01")
    lake.io_manager = DeltaLakeIOManager(
        root_uri=str(tmp_path), write="overwrite_partitions", exactly_once=exactly_once
    )
    assert "could replace other partitions" in str(lake.fails(asset, partition="2013-01-02"))
    assert len(lake.rows("events")) == 1


def test_dynamic_overwrite_of_a_partitioned_asset(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="overwrite_partitions")
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS)
    lake.run(asset, span=("2013-01-01", "2013-01-03"))
    again = lake.run(asset, partition="2013-01-02")
    assert [row["run"] == again.run_id for row in lake.rows("events")] == [False, True, False]


def test_a_table_of_another_client_goes_on(lake: Lake) -> None:
    """As dagster-deltalake leaves one behind: written by delta-rs, partitioned, with properties."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    rows = pa.table({"day": ["2013-01-01", "2013-01-02"], "key": ["old", "old"], "run": ["old", "old"]})
    place = lake.root / "public" / "events"
    configuration = {"delta.logRetentionDuration": "interval 3 days"}
    deltalake.write_deltalake(str(place), rows, partition_by=["day"], configuration=configuration)
    asset = partitioned("day", lambda key: [key], pa.string(), DAYS, schema="public")
    result = lake.run(asset, partition="2013-01-02")
    assert [row["run"] for row in lake.rows("public", "events")] == ["old", result.run_id]
    assert lake.table("public", "events").snapshot().metadata.configuration == {
        **configuration,
        "delta_orch.owner": "assets by scope",
        "delta_orch.partitions.day": "0 0 * * *; %Y-%m-%d",
    }
    assert deltalake.DeltaTable(str(place)).to_pyarrow_table().num_rows == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "rows"),
    [("write", "append", 2), ("on_redo", "keep", 1), ("engine", "local", 1), ("write", "overwrite_partitions", 1)],
)
def test_a_setting_may_be_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, rows: int
) -> None:
    lake = Lake(tmp_path, **{name: dg.EnvVar("DELTA_TEST_SETTING")})

    @dg.asset(metadata={"partition_by": ["n"]})
    def numbers() -> pa.Table:
        return pa.table({"n": [1], "of": ["x"]})

    monkeypatch.setenv("DELTA_TEST_SETTING", value)
    assert lake.run(numbers).success
    assert lake.run(numbers).success
    assert len(lake.rows("numbers")) == rows
    monkeypatch.setenv("DELTA_TEST_SETTING", "another")
    with pytest.raises((dg.DagsterResourceFunctionError, InvalidRequestError)) as caught:
        lake.run(numbers)
    assert "another" in str(caught.value.__cause__ or caught.value)
