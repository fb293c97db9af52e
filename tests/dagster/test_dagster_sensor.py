import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import delta_orch.dagster.sensor as sensor_module
from delta_orch.dagster import DeltaTableResource, build_delta_log_sensor, report_existing_partitions
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError, InvalidRequestError, StorageError
from delta_orch.storage.open import open_store
from delta_orch.storage.patience import Patience
from tests.certain import some
from tests.harness.fault_store import FaultStore

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-10")

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def rows(*days: Any, data_type: pa.DataType | None = None) -> pa.Table:
    return pa.table({"day": pa.array(days, data_type or pa.string()), "n": pa.array(range(len(days)), pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "t")


def build(table: DeltaTable, **arguments: Any) -> dg.Definitions:
    """A sensor and an asset it requests runs of."""

    @dg.asset(partitions_def=arguments.get("partitions_def"))
    def downstream() -> None: ...

    place: dict[str, Any] = {} if "tables" in arguments else {"table_uri": table.uri}
    sensor = build_delta_log_sensor(name="watch", target=[downstream], **place, **arguments)
    return dg.Definitions(assets=[downstream], sensors=[sensor])


class Ticks:
    """Evaluates a sensor again and again, as the daemon does: with its cursor kept."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance | None = None) -> None:
        self.definitions = definitions
        self.cursor: str | None = None
        self.last_tick: float | None = None
        self.instance = instance or dg.DagsterInstance.ephemeral()

    def __call__(self) -> Any:
        context = dg.build_sensor_context(
            instance=self.instance,
            instance_ref=None if self.instance.is_ephemeral else self.instance.get_ref(),
            cursor=self.cursor,
            definitions=self.definitions,
            sensor_name="watch",
        )
        context._last_tick_completion_time = self.last_tick
        data = self.definitions.resolve_sensor_def("watch").evaluate_tick(context)
        self.cursor = data.cursor
        return data


def set_clock(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Dagster's clock, by which partitions end."""
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    monkeypatch.setattr("dagster._time._mockable_get_current_datetime", lambda: now)


def run_key(table: DeltaTable, start: int, end: int) -> str:
    last = table.snapshot(version=end)
    return f"{last.metadata.id}:{start}-{end}@{last.timestamp_ms}"


def keys(tick: Any) -> list[str | None]:
    return [request.partition_key for request in tick.run_requests]


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[FaultStore]:
    """The stores that sensors opened, each with the calls made on it."""
    opened: list[FaultStore] = []

    def open_counting(*arguments: Any) -> FaultStore:
        opened.append(FaultStore(open_store(*arguments)))
        return opened[-1]

    monkeypatch.setattr(sensor_module, "open_table_store", open_counting)
    return opened


def test_nothing_new_costs_one_head(table: DeltaTable, stores: list[FaultStore]) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table))
    tick()
    stores.clear()
    for _ in range(3):
        data = tick()
        assert data.run_requests == []
        assert data.skip_message == "Nothing new since version 0."
    assert [store.counts() for store in stores] == [{"head": 1}] * 3


def test_a_table_that_does_not_exist_yet(table: DeltaTable, stores: list[FaultStore]) -> None:
    tick = Ticks(build(table))
    tick()
    assert tick.cursor == ":-1"
    stores.clear()
    tick()
    assert stores[0].counts() == {"head": 1}
    table.append(rows("a"))
    assert len(tick().run_requests) == 1


def test_one_run_for_all_that_is_new(table: DeltaTable) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table))
    first = tick()
    table_id = table.snapshot().metadata.id
    assert first.run_requests == []
    assert tick.cursor == f"{table_id}:0"
    table.append(rows("b"))
    table.append(rows("c"))
    (request,) = tick().run_requests
    assert request.run_key == run_key(table, 1, 2)
    assert request.tags["delta/starting_version"] == "1"
    assert request.tags["delta/ending_version"] == "2"
    assert tick.cursor == f"{table_id}:2"
    assert tick().run_requests == []


def test_from_the_beginning(table: DeltaTable) -> None:
    table.append(rows("a"))
    (request,) = Ticks(build(table, start="beginning"))().run_requests
    assert request.run_key == run_key(table, 0, 0)


def test_maintenance_is_passed_over(table: DeltaTable) -> None:
    table.append(rows("a"))
    table.append(rows("a"))
    quiet = Ticks(build(table))
    quiet()
    table.optimize()
    skipped = quiet()
    assert skipped.run_requests == []
    assert "change no data" in skipped.skip_message
    assert quiet.cursor == f"{table.snapshot().metadata.id}:2"


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.string(), str),
        (pa.date32(), date.fromisoformat),
        (pa.timestamp("us"), lambda day: datetime.fromisoformat(day).replace(hour=17)),
        (pa.timestamp("us", "UTC"), lambda day: datetime.fromisoformat(day + "T17:00:00+00:00")),
        (pa.int32(), lambda day: int(day.replace("-", ""))),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_touched_partitions_become_keys(table: DeltaTable, data_type: pa.DataType, value: Callable[[str], Any]) -> None:
    table.append(rows(value("2013-01-01"), data_type=data_type), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=DAYS))
    tick()
    table.append(rows(value("2013-01-03"), value("2013-01-02"), data_type=data_type))
    table.append(rows(value("2013-01-03"), value("2012-12-31"), None, data_type=data_type))
    data = tick()
    # One run a day; the null and the day before the first are no partitions.
    assert keys(data) == ["2013-01-02", "2013-01-03"]
    assert [request.run_key for request in data.run_requests] == [
        f"{run_key(table, 1, 2)}:{day}" for day in ("2013-01-02", "2013-01-03")
    ]


def test_nothing_but_foreign_partitions(table: DeltaTable) -> None:
    table.append(rows("2012-12-31", "2013-01-10", None), partition_by=["day"])
    data = Ticks(build(table, partitions_def=DAYS, start="beginning"))()
    assert data.run_requests == []
    assert "touch none of the partitions" in data.skip_message


@pytest.mark.parametrize(
    ("partitions_def", "values", "arguments"),
    [
        # It used to be passed over, and the cursor moved on.
        (DAYS, ["2013-01-03", "nonsense"], {}),
        (dg.MonthlyPartitionsDefinition("2013-01-01"), ["2013-01-05"], {}),
        (dg.HourlyPartitionsDefinition("2013-01-01-00:00"), [date(2013, 1, 2)], {}),
        (DAYS, ["2013-01-03"], {"partition_format": "%d.%m.%Y"}),
        (DAYS, [1.5], {}),
        (dg.StaticPartitionsDefinition(["1.5"]), [1.5], {}),
        (DAYS, ["2013-01-03"], {"partition_key_of": lambda values: "never"}),
    ],
    ids=["no day", "a day of a month", "a date of hours", "another format", "a float", "a static float", "own"],
)
def test_what_maps_to_no_key_fails_the_tick(
    table: DeltaTable, partitions_def: Any, values: list[Any], arguments: dict[str, Any]
) -> None:
    table.append(pa.table({"day": values, "n": range(len(values))}), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=partitions_def, start="beginning", **arguments))
    for _ in range(2):
        # The cursor stays: what is repaired later is not lost.
        with pytest.raises(InvalidRequestError):
            tick()
        assert tick.cursor is None


def test_a_format_of_ones_own(table: DeltaTable) -> None:
    table.append(rows("03.01.2013"), partition_by=["day"])
    assert keys(Ticks(build(table, partitions_def=DAYS, partition_format="%d.%m.%Y", start="beginning"))()) == [
        "2013-01-03"
    ]


def test_an_hour_that_a_change_of_clocks_repeats(table: DeltaTable) -> None:
    hours = dg.HourlyPartitionsDefinition("2013-11-03-00:00", end_date="2013-11-04-00:00", timezone="America/New_York")
    moment = datetime.fromisoformat("2013-11-03T06:30:00+00:00")
    table.append(rows(moment, data_type=pa.timestamp("us", "UTC")), partition_by=["day"])
    assert keys(Ticks(build(table, partitions_def=hours, start="beginning"))()) == ["2013-11-03-01:00-0500"]


def test_today_is_requested_when_it_is_over(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(rows("2013-01-02", "2013-01-03"), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=dg.DailyPartitionsDefinition("2013-01-01"), start="beginning"))
    set_clock(monkeypatch, "2013-01-03 12:00")
    assert keys(tick()) == ["2013-01-02"]
    assert tick().run_requests == []
    set_clock(monkeypatch, "2013-01-04 00:01")
    assert keys(tick()) == ["2013-01-03"]
    assert tick().run_requests == []
    assert tick.cursor == f"{table.snapshot().metadata.id}:0"


def test_no_more_runs_a_tick(table: DeltaTable) -> None:
    table.append(rows(*(f"2013-01-0{day}" for day in range(1, 6))), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=DAYS, start="beginning", max_runs_per_tick=2))
    ticks = [keys(tick()) for _ in range(4)]
    assert [len(found) for found in ticks] == [2, 2, 1, 0]
    assert [key for found in ticks for key in found] == [f"2013-01-0{day}" for day in range(1, 6)]
    assert tick.cursor == f"{table.snapshot().metadata.id}:0"


def test_runs_that_wait_when_the_partitions_change(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def days(start: str) -> dg.Definitions:
        return build(table, partitions_def=dg.DailyPartitionsDefinition(start), start="beginning", max_runs_per_tick=1)

    table.append(rows(*(f"2013-01-0{day}" for day in range(1, 6))), partition_by=["day"])
    set_clock(monkeypatch, "2013-01-05 12:00")
    tick = Ticks(days("2013-01-01"))
    assert keys(tick()) == ["2013-01-01"]
    waiting = tick.cursor
    # Three are left, and the last one is not over.
    for other in (
        {"partitions_def": dg.HourlyPartitionsDefinition("2013-01-01-00:00")},
        {"partitions_def": dg.MonthlyPartitionsDefinition("2013-01-01")},
        {"partitions_def": dg.MultiPartitionsDefinition({"day": DAYS, "of": DAYS}), "partition_key_of": str},
        {},
    ):
        tick.definitions = build(table, **other)
        with pytest.raises(InvalidRequestError, match="no longer fits the sensor's partitions"):
            tick()
        assert tick.cursor == waiting
    tick.definitions = days("2013-01-03")
    assert [keys(tick()) for _ in range(3)] == [["2013-01-03"], ["2013-01-04"], []]
    set_clock(monkeypatch, "2013-01-06 00:01")
    assert keys(tick()) == ["2013-01-05"]
    assert tick.cursor == f"{table.snapshot().metadata.id}:0"


def test_neighbors_in_one_run(table: DeltaTable) -> None:
    table.append(rows("2013-01-01", "2013-01-02", "2013-01-04"), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=DAYS, start="beginning", max_partitions_per_run=9))
    first, second = tick().run_requests
    assert (first.partition_key, second.partition_key) == (None, "2013-01-04")
    assert first.partition_key_range == dg.PartitionKeyRange("2013-01-01", "2013-01-02")


def test_nothing_while_a_run_is_active(table: DeltaTable) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table, max_active_runs=1, start="beginning"))
    run = tick.instance.create_run_for_job(
        tick.definitions.resolve_implicit_global_asset_job_def(),
        tags={"dagster/sensor_name": "watch"},
        status=dg.DagsterRunStatus.STARTED,
    )
    assert "still active" in tick().skip_message
    assert tick.cursor is None
    tick.instance.report_run_failed(run)
    table.append(rows("b"))
    (request,) = tick().run_requests
    assert request.run_key == run_key(table, 0, 1)


def test_no_more_runs_at_once(table: DeltaTable) -> None:
    table.append(rows(*(f"2013-01-0{day}" for day in range(1, 6))), partition_by=["day"])
    tick = Ticks(build(table, partitions_def=DAYS, start="beginning", max_active_runs=2))
    job = tick.definitions.resolve_implicit_global_asset_job_def()

    def started() -> dg.DagsterRun:
        status = dg.DagsterRunStatus.STARTED
        return tick.instance.create_run_for_job(job, tags={"dagster/sensor_name": "watch"}, status=status)

    assert keys(tick()) == ["2013-01-01", "2013-01-02"]
    runs = [started(), started()]
    before = tick.cursor
    assert "2 are still active" in tick().skip_message
    assert tick.cursor == before
    tick.instance.report_run_failed(runs.pop())
    assert keys(tick()) == ["2013-01-03"]
    tick.instance.report_run_failed(runs.pop())
    assert keys(tick()) == ["2013-01-04", "2013-01-05"]
    with pytest.raises(InvalidRequestError, match="below 1"):
        build(table, max_active_runs=0)


def test_runs_of_another_code_location_are_not_counted(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table, start="beginning", max_active_runs=1))
    job = tick.definitions.resolve_implicit_global_asset_job_def()
    started = tick.instance.create_run_for_job(
        job, tags={"dagster/sensor_name": "watch"}, status=dg.DagsterRunStatus.STARTED
    )
    places = {"runs": "there"}

    def get_runs(*arguments: Any, **more: Any) -> list[SimpleNamespace]:
        assert [run.run_id for run in list_runs(*arguments, **more)] == [started.run_id]
        return [SimpleNamespace(remote_job_origin=SimpleNamespace(location_name=places["runs"]))]

    list_runs = tick.instance.get_runs
    monkeypatch.setattr(tick.instance, "get_runs", get_runs)
    here = SimpleNamespace(location_name="here")
    monkeypatch.setattr(dg.SensorEvaluationContext, "code_location_origin", property(lambda _: here))
    assert len(tick().run_requests) == 1
    table.append(rows("b"))
    places["runs"] = "here"
    assert "1 are still active" in tick().skip_message


def test_a_dropped_table_is_told(table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table))
    tick()
    (tmp_path / "t").rename(tmp_path / "old")
    tick.last_tick = 0.0
    assert "is gone" in tick().skip_message


@pytest.mark.parametrize("cursor", ["x:-5", ":7", "x:--1", "x:1 {", 'x:1 {"waiting": []}', 'x:1 {"left": 3}', "x:1 {]"])
def test_cursors_that_are_none(table: DeltaTable, cursor: str) -> None:
    tick = Ticks(build(table))
    tick.cursor = cursor
    with pytest.raises(InvalidRequestError, match="Reset the cursor"):
        tick()


def test_static_partitions(table: DeltaTable) -> None:
    stores = dg.StaticPartitionsDefinition(["1", "2"])
    table.append(rows(2, 3, data_type=pa.int64()), partition_by=["day"])
    assert keys(Ticks(build(table, partitions_def=stores, start="beginning"))()) == ["2"]


def test_dynamic_partitions_are_added(table: DeltaTable, tmp_path: Path) -> None:
    definition = dg.DynamicPartitionsDefinition(name="stores")
    table.append(rows("x", "y"), partition_by=["day"])
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        data = Ticks(build(table, partitions_def=definition, start="beginning"), instance)()
    assert keys(data) == ["x", "y"]
    (addition,) = data.dynamic_partitions_requests
    assert (addition.partitions_def_name, list(addition.partition_keys)) == ("stores", ["x", "y"])


def test_multi_dimensional_partitions(table: DeltaTable) -> None:
    definition = dg.MultiPartitionsDefinition({"date": DAYS, "origin": dg.StaticPartitionsDefinition(["JFK"])})
    data = pa.table({"flight_date": [date(2013, 1, 2)], "airport": ["JFK"], "n": [1]})
    table.append(data, partition_by=["airport", "flight_date"])
    tick = Ticks(
        build(
            table,
            partitions_def=definition,
            partition_expr={"date": "flight_date", "origin": "airport"},
            start="beginning",
        )
    )
    assert keys(tick()) == ["2013-01-02|JFK"]


def test_a_bar_is_in_no_key_of_several_dimensions(table: DeltaTable) -> None:
    stores = dg.DynamicPartitionsDefinition(name="stores")
    definition = dg.MultiPartitionsDefinition({"date": DAYS, "store": stores})
    table.append(
        pa.table({"day": ["2013-01-02"] * 2, "store": ["x", "y|z"], "n": [1, 2]}), partition_by=["day", "store"]
    )
    expr = {"date": "day", "store": "store"}
    tick = Ticks(build(table, partitions_def=definition, partition_expr=expr, start="beginning", max_runs_per_tick=1))
    with pytest.raises(InvalidRequestError, match=r"'y\|z' of store"):
        tick()


def test_a_dimension_of_dynamic_partitions_is_added_to(table: DeltaTable, tmp_path: Path) -> None:
    stores = dg.DynamicPartitionsDefinition(name="stores")
    definition = dg.MultiPartitionsDefinition({"date": DAYS, "store": stores})
    data = pa.table({"day": ["2013-01-02", "2013-01-03"], "store": ["x", "y"], "n": [1, 2]})
    table.append(data, partition_by=["day", "store"])
    expr = {"date": "day", "store": "store"}
    defs = build(table, partitions_def=definition, partition_expr=expr, start="beginning")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        data = Ticks(defs, instance)()
        assert keys(data) == ["2013-01-02|x", "2013-01-03|y"]
        (addition,) = data.dynamic_partitions_requests
        assert (addition.partitions_def_name, sorted(addition.partition_keys)) == ("stores", ["x", "y"])
        resource = DeltaTableResource(table_uri=table.uri)
        found = report_existing_partitions(instance, "t", resource, definition, partition_expr=expr)
        assert found == ("2013-01-02|x", "2013-01-03|y")
        assert sorted(instance.get_dynamic_partitions("stores")) == ["x", "y"]


@pytest.mark.parametrize("data_type", [pa.string(), pa.date32()])
def test_a_day_that_the_definition_leaves_out(table: DeltaTable, data_type: pa.DataType) -> None:
    weekdays = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-10", exclusions=["0 0 * * 6", "0 0 * * 0"])
    days = [date(2013, 1, day) for day in (4, 5, 7)]
    data = rows(*days, data_type=pa.date32())
    table.append(data.set_column(0, "day", data["day"].cast(data_type)), partition_by=["day"])
    assert keys(Ticks(build(table, partitions_def=weekdays, start="beginning"))()) == ["2013-01-04", "2013-01-07"]


def test_a_mapping_of_ones_own(table: DeltaTable) -> None:
    table.append(rows("2013-01-05 x", "skip"), partition_by=["day"])
    tick = Ticks(
        build(
            table,
            partitions_def=DAYS,
            partition_key_of=lambda values: None if values["day"] == "skip" else values["day"][:10],
            start="beginning",
        )
    )
    assert keys(tick()) == ["2013-01-05"]


@pytest.mark.parametrize(
    ("at", "key"),
    [
        (pa.array([datetime(2013, 1, 2, 3, tzinfo=UTC)], pa.timestamp("us", "UTC")), "2013-01-01"),
        (pa.array([datetime(2013, 1, 2, 3)], pa.timestamp("us")), "2013-01-02"),
        (pa.array([date(2013, 1, 2)], pa.date32()), "2013-01-02"),
    ],
)
def test_days_of_a_zone(table: DeltaTable, at: pa.Array, key: str) -> None:
    """A time without a zone is one of the partitions' zone."""
    new_york = dg.DailyPartitionsDefinition("2013-01-01", timezone="America/New_York", end_date="2013-01-10")
    table.append(pa.table({"at": at, "n": [1]}), partition_by=["at"])
    assert keys(Ticks(build(table, partitions_def=new_york, start="beginning"))()) == [key]


def test_a_recreated_table_counts_as_new(table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows("a"), partition_by=["day"])
    tick = Ticks(build(table))
    tick()
    (tmp_path / "t").rename(tmp_path / "old")
    again = DeltaTable(table.uri)
    again.append(rows("b"), partition_by=["day"])
    again.append(rows("c"))
    (request,) = tick().run_requests
    assert request.run_key == run_key(again, 0, 1)
    assert tick.cursor == f"{again.snapshot().metadata.id}:1"


def test_commits_that_follow_on_a_backup_have_runs_of_their_own(table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows("a"))
    copytree(tmp_path / "t", tmp_path / "backup")
    tick = Ticks(build(table))
    tick()
    table.append(rows("b"))
    (first,) = tick().run_requests
    (tmp_path / "t").rename(tmp_path / "lost")
    (tmp_path / "backup").rename(tmp_path / "t")
    tick.cursor = None
    tick()
    DeltaTable(table.uri).append(rows("c"))
    (second,) = tick().run_requests
    # Dagster passes over a request whose key had a run.
    assert (first.tags, first.run_key != second.run_key) == (second.tags, True)


def test_the_rare_cases_are_looked_for_now_and_then(
    table: DeltaTable, stores: list[FaultStore], tmp_path: Path
) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table))
    tick()
    tick.last_tick = 0.0
    tick()
    assert stores[-1].counts() == {"head": 1, "list_from": 1, "read_bytes": 2}
    # A table that is dropped and written anew each day has one version, like the one before.
    (tmp_path / "t").rename(tmp_path / "old")
    again = DeltaTable(table.uri)
    again.append(rows("b"))
    (request,) = tick().run_requests
    assert request.run_key == run_key(again, 0, 0)


def test_runs_are_launched_and_read_the_partition(table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows("2013-01-02", "2013-01-02", "2013-01-03"), partition_by=["day"])
    counted: dict[str, int] = {}

    @dg.asset(partitions_def=DAYS)
    def daily(context) -> None:  # type: ignore[no-untyped-def]
        where = f"day = '{context.partition_key}'"
        counted[context.partition_key] = table.snapshot().scan(where=where).to_arrow().num_rows

    sensor = build_delta_log_sensor(
        name="watch", table_uri=table.uri, target=[daily], partitions_def=DAYS, start="beginning"
    )
    definitions = dg.Definitions(assets=[daily], sensors=[sensor])
    instance = dg.DagsterInstance.ephemeral()
    context = dg.build_sensor_context(instance=instance, definitions=definitions, sensor_name="watch")
    for request in some(sensor.evaluate_tick(context).run_requests):
        dg.materialize([daily], instance=instance, partition_key=request.partition_key)
    assert counted == {"2013-01-02": 2, "2013-01-03": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": "yesterday"}, "must be one of 'latest', 'beginning'"),
        ({"on_recreated": "ignore"}, "must be one of 'restart', 'error'"),
        ({"max_partitions_per_run": 2}, "need partitions_def"),
        ({"tables": {}}, "one table or several"),
        ({"partition_expr": "day"}, "need partitions_def"),
        ({"partitions_def": DAYS, "partition_expr": {"a": "b"}}, "one column"),
        ({"partitions_def": dg.MultiPartitionsDefinition({"a": DAYS, "b": DAYS})}, "each of a, b"),
    ],
)
def test_arguments_are_checked(table: DeltaTable, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        build(table, **arguments)


def test_partitions_of_a_table_that_has_none(table: DeltaTable) -> None:
    table.append(rows("2013-01-01"))
    with pytest.raises(InvalidRequestError, match="is not partitioned"):
        Ticks(build(table, partitions_def=DAYS, start="beginning"))()


def test_a_column_that_is_no_partition_column(table: DeltaTable) -> None:
    table.append(rows("2013-01-01"), partition_by=["day"])
    with pytest.raises(InvalidRequestError, match="is not a partition column"):
        Ticks(build(table, partitions_def=DAYS, partition_expr="n", start="beginning"))()


def test_a_cursor_that_is_none(table: DeltaTable) -> None:
    tick = Ticks(build(table))
    tick.cursor = "nonsense"
    with pytest.raises(InvalidRequestError, match="Reset the cursor"):
        tick()


def build_many(tables: dict[str, DeltaTable], **arguments: Any) -> dg.Definitions:
    resources = {name: DeltaTableResource(table_uri=table.uri) for name, table in tables.items()}
    return build(next(iter(tables.values())), tables=resources, **arguments)


def test_many_tables_cost_one_head_each(tmp_path: Path, stores: list[FaultStore]) -> None:
    tables = {name: DeltaTable(tmp_path / name) for name in ("a", "b é", "not there")}
    tables["a"].append(rows("x"))
    tables["b é"].append(rows("x"))
    tick = Ticks(build_many(tables))
    tick()
    stores.clear()
    assert tick().skip_message == "Nothing new in 3 tables."
    assert [store.counts() for store in stores] == [{"head": 1}] * 3
    tables["b é"].append(rows("y"))
    tables["not there"].append(rows("y"))
    second, third = tick().run_requests
    assert (second.tags["delta/table"], third.tags["delta/table"]) == ("b é", "not there")
    assert second.run_key == f"b é:{run_key(tables['b é'], 1, 1)}"
    assert tick().run_requests == []


def test_copies_of_a_table_have_runs_of_their_own(tmp_path: Path) -> None:
    DeltaTable(tmp_path / "one").append(rows("x"))
    copytree(tmp_path / "one", tmp_path / "two")
    tables = {name: DeltaTable(tmp_path / name) for name in ("one", "two")}
    requests = Ticks(build_many(tables, start="beginning"))().run_requests
    assert len({request.run_key for request in requests}) == 2


def test_no_table_waits_behind_a_busy_one(tmp_path: Path) -> None:
    tables = {name: DeltaTable(tmp_path / name) for name in ("busy", "calm")}
    tick = Ticks(build_many(tables, start="beginning", max_runs_per_tick=1))
    tables["calm"].append(rows("x"))
    asked = []
    for _ in range(4):
        tables["busy"].append(rows("x"))
        asked += [request.tags["delta/table"] for request in tick().run_requests]
    assert asked == ["busy", "calm", "busy", "busy"]


def test_a_broken_table_holds_no_other_up(tmp_path: Path) -> None:
    tables = {name: DeltaTable(tmp_path / name) for name in ("broken", "sound")}
    for table in tables.values():
        table.append(rows("x"))
    tick = Ticks(build_many(tables))
    tick()
    before = json.loads(some(tick.cursor))
    (tmp_path / "broken" / "_delta_log" / f"{1:020}.json").write_text("{")
    tables["sound"].append(rows("y"))
    assert [request.tags["delta/table"] for request in tick().run_requests] == ["sound"]
    assert json.loads(some(tick.cursor))["broken"] == before["broken"]
    with pytest.raises(DeltaError):
        tick()


def test_a_recreated_table_can_be_an_error(table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows("a"))
    tick = Ticks(build(table, on_recreated="error"))
    tick()
    (tmp_path / "t").rename(tmp_path / "old")
    again = DeltaTable(table.uri)
    again.append(rows("b"))
    again.append(rows("c"))
    with pytest.raises(InvalidRequestError, match="was recreated"):
        tick()
    tick.cursor = None
    tick()
    assert tick.cursor == f"{again.snapshot().metadata.id}:1"


def test_a_range_has_no_more_partitions_than_allowed(table: DeltaTable) -> None:
    table.append(rows(*(f"2013-01-0{day}" for day in (1, 2, 3, 4, 5, 7))), partition_by=["day"])
    arguments: dict[str, Any] = {"partitions_def": DAYS, "start": "beginning"}
    requests = Ticks(build(table, max_partitions_per_run=2, **arguments))().run_requests
    ends = [(tags.get(RANGE_START), tags.get(RANGE_END)) for tags in (request.tags for request in requests)]
    assert ends == [("2013-01-01", "2013-01-02"), ("2013-01-03", "2013-01-04"), (None, None), (None, None)]
    assert keys(Ticks(build(table, max_partitions_per_run=1, **arguments))())[:2] == ["2013-01-01", "2013-01-02"]


def test_a_store_out_of_reach_holds_no_table_of_another_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster ends a tick after a minute, which is as long as one request waits by default."""
    asked = list[str]()

    def opened(uri: str, options: Any) -> Any:
        if not uri.startswith("s3://away/"):
            return open_store(uri, options)
        asked.append(uri)
        patience = Patience()
        while patience.wait():
            pass
        raise StorageError("Out of reach", retryable=True)

    monkeypatch.setattr(sensor_module, "open_table_store", opened)
    monkeypatch.setattr(sensor_module, "PATIENCE_S", 0.05)
    there = DeltaTable(tmp_path / "there")
    there.append(rows("x"))
    places = {"a": "s3://away/a", "b": "s3://away/b", "no store": "s3://[no/d"}
    tables: dict[str, Any] = {name: SimpleNamespace(uri=uri) for name, uri in places.items()} | {"c": there}
    tick = Ticks(build_many(tables, start="beginning"))
    assert [run.tags["delta/table"] for run in tick().run_requests] == ["c"]
    assert asked == ["s3://away/a"]
    with pytest.raises(StorageError, match="Out of reach"):
        tick()
