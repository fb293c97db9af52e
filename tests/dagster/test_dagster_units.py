"""Runs, retries, re-executions, rematerializations and zombies, on a real instance on disk."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

# Nothing public executes a run that was created before.
from dagster._core.execution.api import execute_run  # noqa: TID251

from delta_orch.dagster import DeltaLakeIOManager, DeltaTableResource, build_delta_undo_op
from delta_orch.dagster.run import read_run
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, RedoNotPossibleError
from tests.dagster.dagster_jobs import (
    added_job,
    appended_job,
    both_job,
    flights_job,
    followed_job,
    killed_once_job,
    readings_job,
)
from tests.dagster.lake import Lake, metadata_of

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-08")
FIRST = {"dagster/partition": "2013-01-01"}

# Two runs of one process wait a minute for each other's capture of output.
INSTANCE = """
compute_logs: {module: dagster._core.storage.noop_compute_log_manager, class: NoOpComputeLogManager}
telemetry: {enabled: false}
"""


class Jobs:
    """Runs of the jobs in `dagster_jobs` on an instance on disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.root = folder / "lake"
        (folder / "home").mkdir()
        (folder / "home" / "dagster.yaml").write_text(INSTANCE)
        monkeypatch.setenv("DELTA_TEST_ROOT", str(self.root))
        monkeypatch.setenv("DELTA_TEST_ON_REDO", "replace")
        monkeypatch.setenv("DELTA_TEST_SEEN", str(folder / "seen"))
        monkeypatch.setenv("DAGSTER_HOME", str(folder / "home"))
        for name in ("source", "one", "two"):
            monkeypatch.setenv(f"DELTA_TEST_{name.upper()}", str(self.root / name))
        self.instance = dg.DagsterInstance.get()

    def run(self, job: Any = flights_job, *, fault: str = "", tags: dict[str, str] | None = None, **extras: Any) -> Any:
        self.monkeypatch.setenv("DELTA_TEST_FAULT", fault)
        extras = {"raise_on_error": not fault, **extras}
        return dg.execute_job(dg.reconstructable(job), self.instance, tags=tags, **extras)

    def day(self, day: str, **extras: Any) -> Any:
        return self.run(tags={"dagster/partition": day}, **extras)

    def span(self, first: str, last: str, **extras: Any) -> Any:
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return self.run(tags=tags, **extras)

    def again(self, earlier: Any, job: Any = flights_job, *, fault: str = "", everything: bool = False) -> Any:
        """Re-execute from failure, or all steps, for the same partitions."""
        made = dg.ReexecutionOptions
        options = made(earlier.run_id) if everything else made.from_failure(earlier.run_id, self.instance)
        parent = self.instance.get_run_by_id(earlier.run_id)
        assert parent is not None
        tags = {key: value for key, value in parent.tags.items() if "partition" in key}
        return self.run(job, fault=fault, tags=tags, reexecution_options=options)

    def killed(self, job: str, tags: dict[str, str]) -> Any:
        """A run whose process is killed after its commit."""
        script = (
            "import dagster as dg, dagster_jobs\n"
            f"dg.execute_job(dg.reconstructable(dagster_jobs.{job}), dg.DagsterInstance.get(), tags={tags})\n"
        )
        environment = {**os.environ, "DELTA_TEST_FAULT": "kill", "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == -9, done.stderr.decode()
        run = self.instance.get_run_records(limit=1)[0].dagster_run
        assert run.status == dg.DagsterRunStatus.STARTED
        # What Dagster's run monitoring does with a run whose worker is gone.
        self.instance.report_run_failed(run)
        return run

    @property
    def flights(self) -> DeltaTable:
        return DeltaTable(self.root / "bronze" / "flights")

    def runs(self, *path: str) -> list[str]:
        """The run of each row of a table."""
        rows = DeltaTable(self.root.joinpath(*path)).snapshot().scan().to_arrow()
        return sorted(rows["run"].to_pylist())

    def writers(self) -> dict[str, str]:
        """Day → the run whose row is in the table; a day with two rows fails."""
        rows = self.flights.snapshot().scan().to_arrow().to_pylist()
        days = [row["day"] for row in rows]
        assert len(days) == len(set(days)), f"rows were duplicated: {rows}"
        return {row["day"]: row["run"] for row in rows}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path, monkeypatch)
    yield jobs
    jobs.instance.dispose()


def outcomes(result: Any, node: str = "bronze__flights") -> list[str]:
    return [event.metadata["delta/outcome"].value for event in result.asset_materializations_for_node(node)]


# 1. A crash never doubles


@pytest.mark.parametrize(
    ("job", "name", "place"),
    [
        (flights_job, "flights_job", ("bronze", "flights")),
        pytest.param(readings_job, "readings_job", ("readings",), marks=pytest.mark.long),
        pytest.param(added_job, "added_job", ("added",), marks=pytest.mark.long),
    ],
)
def test_a_process_killed_after_its_commit_is_recovered(
    jobs: Jobs, job: Any, name: str, place: tuple[str, ...]
) -> None:
    tags = {} if name == "readings_job" else FIRST
    lost = jobs.killed(name, tags)
    version = DeltaTable(jobs.root.joinpath(*place)).version()
    retried = jobs.again(lost, job)
    node = "__".join(place)
    assert retried.run_id != lost.run_id
    assert outcomes(retried, node) == ["recovered"]
    (event,) = retried.asset_materializations_for_node(node)
    # It links to the run that did commit, and says in which version.
    assert event.metadata["delta/committed_by"].value == lost.run_id
    assert event.metadata["delta/version"].value == version
    assert jobs.runs(*place) == [lost.run_id]
    # Once more: Dagster has seen that one end.
    done = jobs.again(retried, job, everything=True)
    assert (outcomes(done, node), jobs.runs(*place)) == (["replaced"], [done.run_id])


@pytest.mark.long
def test_a_step_whose_process_is_killed_is_retried_by_its_run_and_recovered(jobs: Jobs) -> None:
    result = jobs.run(killed_once_job, fault="kill", raise_on_error=True)
    assert result.success
    assert [event.is_step_up_for_retry for event in result.all_events].count(True) == 1
    assert outcomes(result, "killed_once") == ["recovered"]
    assert jobs.runs("killed_once") == [result.run_id]


# 2. Doing it again replaces


def test_a_failure_after_the_commit_is_done_again(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="after")
    assert not lost.success
    retried = jobs.again(lost)
    assert outcomes(retried) == ["replaced"]
    assert jobs.writers() == {"2013-01-01": retried.run_id}
    # And again: its root is still the first run.
    once_more = jobs.again(retried, everything=True)
    assert jobs.writers() == {"2013-01-01": once_more.run_id}
    (said,) = {entry.user_metadata for entry in jobs.flights.history(limit=1)}
    told = json.loads(said or "")
    assert {name: told[name] for name in ("run_id", "root_run_id", "step_key", "retry_number")} == {
        "run_id": once_more.run_id,
        "root_run_id": lost.run_id,
        "step_key": "bronze__flights",
        "retry_number": 0,
    }


def test_a_failure_before_the_commit_leaves_nothing_to_replace(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="before")
    retried = jobs.again(lost)
    assert outcomes(retried) == ["written"]
    assert jobs.writers() == {"2013-01-01": retried.run_id}


@pytest.mark.parametrize(
    ("job", "place", "tags"),
    [
        (added_job, ("added",), FIRST),
        pytest.param(readings_job, ("readings",), {}, marks=pytest.mark.long),
        pytest.param(flights_job, ("bronze", "flights"), FIRST, marks=pytest.mark.long),
    ],
)
def test_all_steps_of_a_green_run_are_done_again(
    jobs: Jobs, job: Any, place: tuple[str, ...], tags: dict[str, str]
) -> None:
    other = jobs.run(job, tags={"dagster/partition": "2013-01-02"} if tags else {})
    green = jobs.run(job, tags=tags)
    assert jobs.runs(*place) == sorted([other.run_id, green.run_id])
    again = jobs.again(green, job, everything=True)
    assert outcomes(again, "__".join(place)) == ["replaced"]
    (event,) = again.asset_materializations_for_node("__".join(place))
    assert event.metadata["delta/rows_replaced"].value == 1
    assert jobs.runs(*place) == sorted([other.run_id, again.run_id])


@pytest.mark.long
def test_all_steps_of_a_green_job_of_ops_are_done_again(jobs: Jobs) -> None:
    green = jobs.run(appended_job)
    again = jobs.again(green, appended_job, everything=True)
    seen = Path(os.environ["DELTA_TEST_SEEN"]).read_text().split()
    assert seen == [green.run_id, again.run_id]
    assert jobs.runs("appended_job", "appended", "result") == [again.run_id]
    (unit,) = DeltaTable(jobs.root / "appended_job" / "appended" / "result").units()["unit"].to_pylist()
    assert unit == f"dagster-op:appended_job/appended:run:{green.run_id}"


@pytest.mark.parametrize(("on_redo", "rows"), [("replace", ["2"]), ("keep", ["1"]), ("add", ["1", "2"])])
def test_a_partition_of_an_appending_asset_is_materialized_again(tmp_path: Path, on_redo: str, rows: list[str]) -> None:
    lake, values = Lake(tmp_path, write="append", on_redo=on_redo), iter("102")

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key], "v": [next(values)]})

    for day in ("2013-01-01", "2013-01-02", "2013-01-01"):
        result = lake.run(readings, partition=day)
    assert [row["v"] for row in lake.rows("readings") if row["day"] == "2013-01-01"] == rows
    assert [row["v"] for row in lake.rows("readings") if row["day"] == "2013-01-02"] == ["0"]
    told = {"replace": "replaced", "keep": "recovered", "add": "written"}
    assert metadata_of(result, "readings")["delta/outcome"] == told[on_redo]
    assert next(iter(metadata_of(result, "readings"))) == "delta/outcome"


def test_many_runs_add_to_one_partition(tmp_path: Path) -> None:
    """Hourly loads into a day: each run is a unit, and done again it replaces its own rows."""
    lake, loads = Lake(tmp_path, write="append"), iter([[1], [2, 3], [4]])

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "unit": "run"})
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        numbers = next(loads)
        return pa.table({"day": [context.partition_key] * len(numbers), "n": numbers})

    first = lake.run(readings, partition="2013-01-01")
    second = lake.run(readings, partition="2013-01-01")
    assert [row["n"] for row in lake.rows("readings")] == [1, 2, 3]
    names = [f"dagster:readings:2013-01-01:run:{run.run_id}" for run in (first, second)]
    assert lake.table("readings").units()["unit"].to_pylist() == sorted(names)
    lake.table("readings").undo(run=second.run_id)
    assert [row["n"] for row in lake.rows("readings")] == [1]
    assert lake.run(readings, partition="2013-01-01").success
    assert [row["n"] for row in lake.rows("readings")] == [1, 4]


@pytest.mark.parametrize("unit_column", [None, "load_id"])
def test_a_unit_column_survives_a_compaction(tmp_path: Path, unit_column: str | None) -> None:
    lake, values = Lake(tmp_path, write="append", unit_column=unit_column), iter("abcd")

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "partition_by": []})
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key], "v": [next(values)]})

    for day in ("2013-01-01", "2013-01-02"):
        lake.run(readings, partition=day)
    table = lake.table("readings")
    assert not table.optimize().skipped
    if unit_column is None:
        error = lake.fails(readings, partition="2013-01-01")
        assert isinstance(error, RedoNotPossibleError)
        assert "OPTIMIZE in version 2" in str(error)
        assert [row["v"] for row in lake.rows("readings")] == ["a", "b"]
        return
    lake.run(readings, partition="2013-01-01")
    rows = {row["v"]: row["load_id"] for row in lake.rows("readings")}
    assert rows == {"c": "dagster:readings:2013-01-01", "b": "dagster:readings:2013-01-02"}


def test_a_unit_column_names_each_day_of_a_range(tmp_path: Path) -> None:
    lake, loads = Lake(tmp_path, write="append", unit_column="load_id"), iter("abcd")

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        keys = context.partition_keys
        return pa.table({"day": list(keys), "v": [next(loads)] * len(keys)})

    def days() -> dict[str, str]:
        rows = lake.rows("readings")
        assert all(row["load_id"] == f"dagster:readings:{row['day']}" for row in rows)
        assert len({row["day"] for row in rows}) == len(rows)
        return {row["day"][-1]: row["v"] for row in rows}

    lake.run(readings, span=("2013-01-01", "2013-01-03"))
    assert days() == {"1": "a", "2": "a", "3": "a"}
    lake.run(readings, span=("2013-01-02", "2013-01-02"))
    lake.table("readings").optimize()
    lake.run(readings, span=("2013-01-02", "2013-01-04"))
    assert days() == {"1": "a", "2": "c", "3": "c", "4": "c"}


def test_a_drained_source_is_refused_and_its_remedies_work(tmp_path: Path) -> None:
    lake, loads = Lake(tmp_path, write="append"), [["a"]]

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        values = loads[-1]
        return pa.table({"day": [context.partition_key] * len(values), "v": pa.array(values, pa.string())})

    lake.run(readings, partition="2013-01-01")
    loads.append([])
    error = lake.fails(readings, partition="2013-01-01")
    assert isinstance(error, RedoNotPossibleError)
    assert [row["v"] for row in lake.rows("readings")] == ["a"]
    # "pass on_redo='keep'"
    kept = Lake(tmp_path, write="append", on_redo="keep")
    assert kept.run(readings, partition="2013-01-01").success
    assert [row["v"] for row in lake.rows("readings")] == ["a"]
    # "To empty the unit on purpose: DeltaTable(…).undo(unit=…)"
    command = str(error).partition("on purpose: ")[2].partition(". To leave")[0]
    assert command.endswith("undo(unit='dagster:readings:2013-01-01')"), str(error)
    eval(command, {"DeltaTable": DeltaTable})
    assert lake.rows("readings") == []
    assert lake.run(readings, partition="2013-01-01").success


def test_a_step_retried_within_its_run_commits_its_rows_once(tmp_path: Path) -> None:
    class LosesTheFirst(DeltaLakeIOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            super().handle_output(context, obj)
            if context.step_context.previous_attempt_count == 0:
                raise dg.RetryRequested(max_retries=1)

    @dg.asset(metadata={"write": "append"})
    def readings() -> pa.Table:
        return pa.table({"n": [1]})

    result = run([readings], dg.DagsterInstance.ephemeral(), LosesTheFirst(root_uri=str(tmp_path)))
    assert result.success
    assert outcomes(result, "readings") == ["replaced"]
    assert DeltaTable(tmp_path / "readings").snapshot().scan().to_arrow().num_rows == 1


# Incremental steps


def values(jobs: Jobs, name: str) -> list[tuple[int, str]]:
    rows = DeltaTable(jobs.root / name).snapshot().scan().to_arrow().to_pylist()
    return sorted((row["v"], row["run"]) for row in rows)


def test_an_incremental_run_done_again_reads_the_same_versions(jobs: Jobs) -> None:
    source = DeltaTable(jobs.root / "source")
    source.append(pa.table({"v": [1]}))
    first = jobs.run(followed_job)
    source.append(pa.table({"v": [2]}))
    second = jobs.run(followed_job)
    assert outcomes(second, "followed") == ["written"]
    source.append(pa.table({"v": [3]}))
    again = jobs.again(second, followed_job, everything=True)
    assert outcomes(again, "followed") == ["replaced"]
    assert values(jobs, "one") == [(1, first.run_id), (2, again.run_id), (3, again.run_id)]
    # A new run reads what is new.
    assert jobs.run(followed_job).asset_materializations_for_node("followed") == []


@pytest.mark.long
def test_an_incremental_run_killed_after_its_commit_goes_on_from_its_cursor(jobs: Jobs) -> None:
    source = DeltaTable(jobs.root / "source")
    source.append(pa.table({"v": [1]}))
    lost = jobs.killed("followed_job", {})
    again = jobs.again(lost, followed_job)
    assert outcomes(again, "followed") == ["recovered"]
    assert values(jobs, "one") == [(1, lost.run_id)]


@pytest.mark.long
def test_after_one_output_has_failed_both_are_of_one_generation(jobs: Jobs) -> None:
    source = DeltaTable(jobs.root / "source")
    source.append(pa.table({"v": [1]}))
    lost = jobs.run(both_job, fault="second")
    assert not lost.success
    assert values(jobs, "one") == [(1, lost.run_id)]
    again = jobs.again(lost, both_job)
    assert again.success
    assert values(jobs, "one") == values(jobs, "two") == [(1, again.run_id)]


# Several partitions in one run


@pytest.mark.long
def test_a_late_range_leaves_out_the_day_that_is_newer(tmp_path: Path) -> None:
    lake, inner = Lake(tmp_path), list[str]()

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
    def flights(context: dg.AssetExecutionContext) -> pa.Table:
        if not inner:
            inner.append("started")
            assert lake.run(flights, partition="2013-01-03").success
        keys = list(context.partition_keys)
        return pa.table({"day": keys, "n": [len(keys)] * len(keys)})

    assert lake.run(flights, span=("2013-01-01", "2013-01-04")).success
    rows = [(row["day"], row["n"]) for row in lake.rows("flights")]
    assert rows == [("2013-01-01", 4), ("2013-01-02", 4), ("2013-01-03", 1), ("2013-01-04", 4)]


@pytest.mark.parametrize("write", ["append", "overwrite", "merge"])
def test_each_day_of_a_range_is_a_unit_of_its_own(tmp_path: Path, write: str) -> None:
    lake, generation = Lake(tmp_path, write=write, merge_keys=["day"] if write == "merge" else []), iter("abc")

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        keys = list(context.partition_keys)
        return pa.table({"day": keys, "v": [next(generation)] * len(keys)})

    lake.run(readings, span=("2013-01-01", "2013-01-03"))
    assert lake.table("readings").units()["unit"].to_pylist() == [f"dagster:readings:2013-01-0{n}" for n in (1, 2, 3)]
    lake.run(readings, partition="2013-01-02")
    assert [row["v"] for row in lake.rows("readings")] == ["a", "b", "a"]
    lake.run(readings, span=("2013-01-02", "2013-01-04"))
    assert [row["v"] for row in lake.rows("readings")] == ["a", "c", "c", "c"]


@pytest.mark.parametrize("write", ["append", "overwrite"])
def test_a_range_in_a_table_that_is_partitioned_otherwise_is_refused(tmp_path: Path, write: str) -> None:
    def asset(layout: list[str] | None, policy: dg.BackfillPolicy, name: str = "readings") -> dg.AssetsDefinition:
        said = {"partition_expr": "at", **({} if layout is None else {"partition_by": layout})}

        @dg.asset(name=name, partitions_def=DAYS, metadata=said, backfill_policy=policy)
        def readings(context: dg.AssetExecutionContext) -> pa.Table:
            starts = [DAYS.time_window_for_partition_key(key).start for key in context.partition_keys]
            return pa.table({"at": pa.array(starts, pa.timestamp("us", "UTC")), "n": [1] * len(starts)})

        return readings

    lake, span = Lake(tmp_path, write=write), ("2013-01-01", "2013-01-03")
    # Timestamps are no directories by themselves.
    error = str(lake.fails(asset(None, dg.BackfillPolicy.single_run()), span=span))
    assert "BackfillPolicy.multi_run(1)" in error
    assert not lake.table("readings").exists()
    assert "metadata {\"partition_by\": ['at']}" in error
    assert lake.run(asset(["at"], dg.BackfillPolicy.single_run(), "other"), span=span).success
    assert lake.table("other").snapshot().partition_columns == ("at",)
    for day in ("2013-01-01", "2013-01-02"):
        assert lake.run(asset(None, dg.BackfillPolicy.multi_run(1)), partition=day).success
    assert len(lake.rows("readings")) == 2
    assert lake.table("readings").snapshot().partition_columns == ()


# 3. Late never wins


def test_a_run_that_is_executed_again_after_a_newer_one_has_the_newest_rows(jobs: Jobs) -> None:
    """Run A fails before its commit, run B commits, A is re-executed: that attempt began last."""
    lost = jobs.day("2013-01-01", fault="before")
    jobs.day("2013-01-01")
    late = jobs.again(lost)
    assert outcomes(late) == ["replaced"]
    assert jobs.writers() == {"2013-01-01": late.run_id}


def test_a_run_that_a_queue_started_later_is_the_newer_one(jobs: Jobs) -> None:
    first, second = (jobs.instance.create_run_for_job(flights_job(), tags=FIRST) for _ in range(2))
    jobs.monkeypatch.setenv("DELTA_TEST_FAULT", "")
    for each in (second, first):
        assert execute_run(dg.reconstructable(flights_job), each, jobs.instance).success
    assert jobs.writers() == {"2013-01-01": first.run_id}


class Race:
    """An attempt at an asset that waits with its rows, and another one meanwhile."""

    def __init__(self, folder: Path, metadata: dict[str, Any]) -> None:
        self.started, self.may_end = threading.Event(), threading.Event()
        self.runs: list[str] = []
        self.results: list[Any] = []
        self.table = DeltaTable(folder / "lake" / "flights")
        self.io_manager = DeltaLakeIOManager(root_uri=str(folder / "lake"))
        self.instance = dg.DagsterInstance.local_temp(str(folder))

        @dg.asset(partitions_def=DAYS, metadata=metadata)
        def flights(context: dg.AssetExecutionContext) -> pa.Table:
            self.runs.append(context.run.run_id)
            if len(self.runs) == 1:
                self.started.set()
                assert self.may_end.wait(60)
            return pa.table({"day": [context.partition_key], "run": [context.run.run_id]})

        self.asset = flights

    def materialize(self, **extras: Any) -> Any:
        return run([self.asset], self.instance, self.io_manager, partition_key="2013-01-01", **extras)

    def zombie(self, meanwhile: Any) -> tuple[Any, Any]:
        """The result of the attempt that waited, and of the one meanwhile."""
        waiting = threading.Thread(target=lambda: self.results.append(self.materialize()))
        waiting.start()
        assert self.started.wait(60)
        time.sleep(0.01)
        newer = meanwhile()
        self.may_end.set()
        # Dagster 1.12 waits a minute for the processes that capture the output of two runs in one process.
        waiting.join(180)
        return self.results[0], newer


@pytest.mark.long
@pytest.mark.parametrize("write", ["overwrite", "append"])
def test_a_zombie_that_ends_after_a_newer_run_is_fenced_off(tmp_path: Path, write: str) -> None:
    race = Race(tmp_path, {"partition_expr": "day", "write": write})
    late, newer = race.zombie(race.materialize)
    assert late.success
    assert outcomes(late, "flights") == ["fenced"]
    (event,) = late.asset_materializations_for_node("flights")
    assert event.metadata["delta/fenced_by"].value == newer.run_id
    assert race.table.snapshot().scan().to_arrow()["run"].to_pylist() == [newer.run_id]


@pytest.mark.parametrize("late_day", ["x", "y"])
def test_a_late_run_that_replaces_the_partitions_of_its_rows(tmp_path: Path, late_day: str) -> None:
    """Without partitions, each run is a unit. Late rows neither replace those of a newer run nor are they lost."""
    lake, newer, attempts = Lake(tmp_path, write="overwrite_partitions"), list[str](), list[int]()

    @dg.asset(metadata={"partition_by": ["day"]})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        is_late = context.run.tags.get("who") == "late"
        if is_late:
            attempts.append(context.retry_number)
        if is_late and not newer:
            newer.append(run([events], lake.instance, lake.io_manager).run_id)
        return pa.table({"day": [late_day if is_late else "x"], "run": [context.run.run_id], "try": [len(attempts)]})

    late = run([events], lake.instance, lake.io_manager, tags={"who": "late"})
    assert outcomes(late, "events") == ["written"]
    # The step runs again where its rows would replace newer ones.
    assert attempts == ([0, 1] if late_day == "x" else [0])
    expected = [("x", late.run_id, 2)] if late_day == "x" else [("x", newer[0], 1), ("y", late.run_id, 1)]
    assert [(row["day"], row["run"], row["try"]) for row in lake.rows("events")] == expected


# What a unit is


def test_a_predicate_says_which_rows_are_replaced(tmp_path: Path) -> None:
    lake, generation = Lake(tmp_path), iter(range(1, 9))

    def asset(name: str, region: str) -> dg.AssetsDefinition:
        @dg.asset(key=[name, "t"], metadata={"schema": "s", "replace_where": f"region = '{region}'"})
        def t() -> pa.Table:
            return pa.table({"region": [region], "v": [next(generation)]})

        return t

    north, south = asset("north", "north"), asset("south", "south")
    for each in (north, south, north):
        result = lake.run(each)
    assert outcomes(result, "north__t") == ["replaced"]
    assert [(row["region"], row["v"]) for row in lake.rows("s", "t")] == [("north", 3), ("south", 2)]
    # Each has a scope of its own.
    assert "would replace rows that dagster:south/t:" in str(lake.fails(asset("other", "south")))


def test_a_predicate_is_no_matter_of_one_run(tmp_path: Path) -> None:
    """The unit is the asset: a late run with another predicate would be fenced off, and its rows would be missing."""

    @dg.asset
    def t(context: dg.AssetExecutionContext) -> dg.Output[pa.Table]:
        return dg.Output(pa.table({"day": ["1"]}), metadata={"replace_where": "day = '1'"})

    assert "'replace_where' belongs to the definition" in str(Lake(tmp_path).fails(t))


def test_units_do_not_depend_on_the_code_location(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.span("2013-01-01", "2013-01-02")
    jobs.day("2013-01-01")
    assert sorted(jobs.flights.txns()) == [f"dagster:bronze/flights:2013-01-0{day}" for day in (1, 2)]


@pytest.mark.parametrize(
    ("write", "name"),
    [("overwrite", "dagster:a/b:"), ("append", "dagster:a/b:run:{run}"), ("merge", "dagster:a/b:run:{run}")],
)
def test_the_unit_of_an_asset_without_partitions(tmp_path: Path, write: str, name: str) -> None:
    lake = Lake(tmp_path, write=write, merge_keys=["n"] if write == "merge" else [])

    @dg.asset(key=["a", "b"])
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    result = lake.run(numbers)
    assert lake.table("a", "b").units()["unit"].to_pylist() == [name.format(run=result.run_id)]
    assert lake.table("a", "b").units()["run"].to_pylist() == [result.run_id]


def test_every_run_of_an_appending_asset_without_partitions_adds_its_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="append")

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    assert [outcomes(lake.run(numbers), "numbers") for _ in range(2)] == [["written"], ["written"]]
    assert len(lake.rows("numbers")) == 2


def test_a_unit_of_a_run_is_for_writes_that_add(tmp_path: Path) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "unit": "run"})
    def readings() -> pa.Table:
        return pa.table({"day": ["2013-01-01"], "n": [1]})

    lake = Lake(tmp_path)
    assert "unit='run'" in str(lake.fails(readings, partition="2013-01-01"))
    assert Lake(tmp_path, write="append").run(readings, partition="2013-01-01").success


# Without exactly once


def run(assets: list[Any], instance: dg.DagsterInstance, io_manager: Any, **extras: Any) -> Any:
    return dg.materialize(assets, instance=instance, resources={"io_manager": io_manager}, **extras)


def test_without_exactly_once_every_attempt_writes(tmp_path: Path) -> None:
    @dg.asset(metadata={"write": "append"})
    def readings() -> pa.Table:
        return pa.table({"n": [1]})

    instance = dg.DagsterInstance.ephemeral()
    io_manager = DeltaLakeIOManager(root_uri=str(tmp_path), exactly_once=False)
    for _ in range(2):
        run([readings], instance, io_manager)
    table = DeltaTable(tmp_path / "readings")
    assert table.snapshot().scan().to_arrow().num_rows == 2
    assert dict(table.txns()) == {}
    # The commits name their runs all the same.
    named = [json.loads(entry.user_metadata or "{}") for entry in table.history()]
    assert len({one["run_id"] for one in named}) == 2
    assert {one["asset_key"] for one in named} == {"readings"}


def test_without_exactly_once_no_run_is_needed(tmp_path: Path) -> None:
    io_manager = DeltaLakeIOManager(root_uri=str(tmp_path), exactly_once=False)
    io_manager.handle_output(dg.build_output_context(asset_key=["x"]), pa.table({"n": [1]}))
    assert DeltaTable(tmp_path / "x").snapshot().scan().to_arrow().num_rows == 1


def test_a_context_without_a_run_has_no_attempt() -> None:
    with pytest.raises(InvalidRequestError, match="inside a Dagster run"):
        read_run(dg.build_output_context(asset_key=["x"]))


@pytest.mark.long
def test_first_writers_of_different_days_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def flights(context: dg.AssetExecutionContext) -> pa.Table:
        barrier.wait(60)
        return pa.table({"day": [context.partition_key], "n": [1]})

    instance, io_manager = dg.DagsterInstance.local_temp(str(tmp_path)), DeltaLakeIOManager(root_uri=str(tmp_path))
    days = [f"2013-01-0{number}" for number in range(1, 5)]
    errors: list[BaseException] = []

    def materialize(day: str) -> None:
        try:
            run([flights], instance, io_manager, partition_key=day)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=materialize, args=(day,)) for day in days]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    rows = DeltaTable(tmp_path / "flights").snapshot().scan().to_arrow().column("day").to_pylist()
    assert sorted(rows) == days


# Undo


def test_an_op_takes_back_what_a_unit_or_a_run_wrote(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="append")

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def readings(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key], "n": [1]})

    runs = [lake.run(readings, partition=f"2013-01-0{day}") for day in (1, 2, 3)]

    @dg.job
    def undo() -> None:
        build_delta_undo_op(DeltaTableResource(table_uri=lake.table("readings").uri))()

    def taken_back(**config: Any) -> list[str]:
        result = undo.execute_in_process(instance=lake.instance, run_config={"ops": {"delta_undo": {"config": config}}})
        assert result.success
        return [row["day"][-2:] for row in lake.rows("readings")]

    assert taken_back(unit="dagster:readings:2013-01-02", dry_run=True) == ["01", "02", "03"]
    assert taken_back(unit="dagster:readings:2013-01-02") == ["01", "03"]
    assert taken_back(run=runs[0].run_id) == ["03"]
    # As if it had never been done.
    again = lake.run(readings, partition="2013-01-02")
    assert metadata_of(again, "readings")["delta/outcome"] == "written"
    with pytest.raises(InvalidRequestError, match="no unit"):
        taken_back(unit="dagster:readings:2013-01-07")
