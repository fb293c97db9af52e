"""Runs, retries, re-executions and zombies, on a real instance on disk."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

# Nothing public executes a run that was created before.
from dagster._core.execution.api import execute_run  # noqa: TID251

from delta_orch.dagster import DeltaLakeIOManager
from delta_orch.dagster.run import read_run
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.staged_write import StagedWrite
from tests.dagster import dagster_jobs
from tests.dagster.dagster_jobs import flights_job, readings_job
from tests.dagster.lake import Lake

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-08")

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
        monkeypatch.setenv("DAGSTER_HOME", str(folder / "home"))
        self.instance = dg.DagsterInstance.get()

    def run(self, job: Any = flights_job, *, fault: str = "", tags: dict[str, str] | None = None, **extras: Any) -> Any:
        self.monkeypatch.setenv("DELTA_TEST_FAULT", fault)
        return dg.execute_job(dg.reconstructable(job), self.instance, tags=tags, **extras)

    def day(self, day: str, **extras: Any) -> Any:
        return self.run(tags={"dagster/partition": day}, **extras)

    def span(self, first: str, last: str, **extras: Any) -> Any:
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return self.run(tags=tags, **extras)

    def again(self, failed: Any, job: Any = flights_job, *, fault: str = "") -> Any:
        """Re-execute from failure, for the same partitions."""
        options = dg.ReexecutionOptions.from_failure(failed.run_id, self.instance)
        parent = self.instance.get_run_by_id(failed.run_id)
        assert parent is not None
        tags = {key: value for key, value in parent.tags.items() if "partition" in key}
        return self.run(job, fault=fault, tags=tags, reexecution_options=options)

    @property
    def flights(self) -> DeltaTable:
        return DeltaTable(self.root / "bronze" / "flights")

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


def skipped(result: Any, node: str = "bronze__flights") -> list[bool]:
    return [event.metadata["delta/skipped"].value for event in result.asset_materializations_for_node(node)]


def test_a_reexecution_after_the_commit_commits_nothing(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="after", raise_on_error=False)
    assert not lost.success
    version = jobs.flights.version()
    retried = jobs.again(lost)
    assert retried.success
    assert retried.run_id != lost.run_id
    assert skipped(retried) == [True]
    (event,) = retried.asset_materializations_for_node("bronze__flights")
    # It links to the run that did commit, and says in which version.
    assert event.metadata["delta/committed_by"].value == lost.run_id
    assert f"| committed before in version | {version} |" in event.metadata["delta/summary"].value
    assert jobs.flights.version() == version
    assert jobs.writers() == {"2013-01-01": lost.run_id}


@pytest.mark.slow
def test_a_reexecution_of_a_reexecution_still_knows_its_root(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="after", raise_on_error=False)
    lost_again = jobs.again(lost, fault="after")
    assert not lost_again.success
    retried = jobs.again(lost_again)
    assert skipped(retried) == [True]
    assert jobs.writers() == {"2013-01-01": lost.run_id}


@pytest.mark.slow
def test_a_reexecution_with_another_config_does_not_pass_for_the_first_one(jobs: Jobs) -> None:
    def wanted(n: int, **more: Any) -> dict[str, Any]:
        return {"ops": {"readings": {"config": {"n": n}}}, **more}

    lost = jobs.run(readings_job, fault="after", run_config=wanted(1), raise_on_error=False)
    options = dg.ReexecutionOptions(lost.run_id)

    def again(config: dict[str, Any], **extras: Any) -> Any:
        return jobs.run(readings_job, run_config=config, reexecution_options=options, **extras)

    def refuses(config: dict[str, Any]) -> bool:
        (failure,) = [event for event in again(config).all_events if event.is_step_failure]
        return "with another run config or for other partitions. A" in str(failure.step_failure_data.error)

    assert refuses(wanted(2))
    # How it runs and what it logs makes no other rows.
    for config in (wanted(1), wanted(1, loggers={"console": {"config": {"log_level": "ERROR"}}})):
        assert skipped(again(config), "readings") == [True]
    assert DeltaTable(jobs.root / "readings").version() == 0
    # What is not committed is written with the config of the run that does it.
    (lost, n) = (jobs.run(readings_job, fault="before", run_config=wanted(3), raise_on_error=False), 4)
    options = dg.ReexecutionOptions(lost.run_id)
    failed = again(wanted(n), fault="after", raise_on_error=False)
    options = dg.ReexecutionOptions(failed.run_id)
    assert skipped(again(wanted(n)), "readings") == [True]
    assert refuses(wanted(3))
    assert DeltaTable(jobs.root / "readings").version() == 1


def test_a_reexecution_before_the_commit_writes(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="before", raise_on_error=False)
    assert not lost.success
    retried = jobs.again(lost)
    assert skipped(retried) == [False]
    assert jobs.writers() == {"2013-01-01": retried.run_id}


@pytest.mark.slow
def test_a_new_materialization_replaces_the_day(jobs: Jobs) -> None:
    first = jobs.day("2013-01-01")
    other = jobs.day("2013-01-02")
    second = jobs.day("2013-01-01")
    assert skipped(second) == [False]
    assert jobs.writers() == {"2013-01-01": second.run_id, "2013-01-02": other.run_id}
    assert first.run_id not in jobs.writers().values()


def test_a_reexecution_that_comes_after_a_newer_run_is_fenced_off(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="before", raise_on_error=False)
    newer = jobs.day("2013-01-01")
    late = jobs.again(lost)
    (event,) = late.asset_materializations_for_node("bronze__flights")
    assert event.metadata["delta/skip_reason"].value == "a newer run has already written this"
    assert jobs.writers() == {"2013-01-01": newer.run_id}


def test_what_a_long_run_computes_last_is_newer_than_what_came_meanwhile(tmp_path: Path) -> None:
    lake, written = Lake(tmp_path), iter("ab")

    @dg.asset
    def late() -> None:
        if lake.table("source").exists():
            assert lake.run(source, copy, selection=[copy]).success

    @dg.asset(deps=[late])
    def source() -> pa.Table:
        return pa.table({"v": [next(written)]})

    @dg.asset
    def copy(source: pa.Table) -> pa.Table:
        return source

    for expected in "ab":
        assert lake.run(late, source, copy).success
        assert lake.rows("copy") == lake.rows("source") == [{"v": expected}]


def test_a_run_that_a_queue_started_later_is_the_newer_one(jobs: Jobs) -> None:
    tags = {"dagster/partition": "2013-01-01"}
    first, second = (jobs.instance.create_run_for_job(flights_job(), tags=tags) for _ in range(2))
    jobs.monkeypatch.setenv("DELTA_TEST_FAULT", "")
    for run in (second, first):
        assert execute_run(dg.reconstructable(flights_job), run, jobs.instance).success
    assert jobs.writers() == {"2013-01-01": first.run_id}


@pytest.mark.slow
def test_a_late_range_leaves_out_the_day_that_is_newer(jobs: Jobs) -> None:
    lost = jobs.span("2013-01-01", "2013-01-04", fault="before", raise_on_error=False)
    newer = jobs.day("2013-01-03")
    version = jobs.flights.version()
    late = jobs.again(lost)
    assert jobs.flights.version() == version + 1
    assert jobs.writers() == {
        "2013-01-01": late.run_id,
        "2013-01-02": late.run_id,
        "2013-01-03": newer.run_id,
        "2013-01-04": late.run_id,
    }
    events = late.asset_materializations_for_node("bronze__flights")
    (txns,) = {tuple(event.metadata["delta/skipped_txns"].value) for event in events}
    assert [txn.rpartition(":")[2] for txn in txns] == ["2013-01-03"]


@pytest.mark.slow
def test_a_retried_range_commits_nothing_and_a_new_one_replaces(jobs: Jobs) -> None:
    lost = jobs.span("2013-01-01", "2013-01-03", fault="after", raise_on_error=False)
    retried = jobs.again(lost)
    assert skipped(retried) == [True, True, True]
    assert set(jobs.writers().values()) == {lost.run_id}
    newer = jobs.span("2013-01-02", "2013-01-04")
    assert jobs.writers() == {
        "2013-01-01": lost.run_id,
        "2013-01-02": newer.run_id,
        "2013-01-03": newer.run_id,
        "2013-01-04": newer.run_id,
    }


@pytest.mark.slow
def test_one_day_of_a_range_has_the_id_of_the_single_day(jobs: Jobs) -> None:
    jobs.span("2013-01-01", "2013-01-02")
    jobs.day("2013-01-01")
    ids = [f"dagster:local:bronze/flights:2013-01-0{day}" for day in (1, 2)]
    assert sorted(jobs.flights.txns()) == ids


def test_a_process_killed_after_its_commit_is_retried_once(jobs: Jobs, tmp_path: Path) -> None:
    script = (
        "import dagster as dg, dagster_jobs\n"
        "dg.execute_job(dg.reconstructable(dagster_jobs.flights_job), dg.DagsterInstance.get(),"
        " tags={'dagster/partition': '2013-01-01'})\n"
    )
    environment = {**os.environ, "DELTA_TEST_FAULT": "kill", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr.decode()
    (record,) = jobs.instance.get_run_records()
    assert record.dagster_run.status == dg.DagsterRunStatus.STARTED
    assert jobs.writers() == {"2013-01-01": record.dagster_run.run_id}
    # What Dagster's run monitoring does with a run whose worker is gone.
    jobs.instance.report_run_failed(record.dagster_run)
    retried = jobs.again(record.dagster_run)
    assert retried.success
    assert skipped(retried) == [True]
    assert jobs.writers() == {"2013-01-01": record.dagster_run.run_id}


@pytest.mark.slow
def test_an_appended_run_is_retried_without_a_duplicate(jobs: Jobs) -> None:
    table = DeltaTable(jobs.root / "readings")
    first = jobs.run(readings_job)
    lost = jobs.run(readings_job, fault="after", raise_on_error=False)
    jobs.again(lost, readings_job)
    runs = table.snapshot().scan().to_arrow().column("run").to_pylist()
    assert sorted(runs) == sorted([first.run_id, lost.run_id])


def deployed(*said: dict[str, Any]) -> Any:
    """The job of metadata and settings of the IO manager."""
    arguments: Any = tuple(json.dumps(one) for one in said)
    return dg.build_reconstructable_job(dagster_jobs.__name__, "deployed_job", arguments)


_WHOLE: dict[str, Any] = {}
_BY_DAY: dict[str, Any] = {"partition_expr": "day"}
_ADDED: dict[str, Any] = {"mode": "append"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "before_settings", "after", "after_settings"),
    [
        (_WHOLE, {}, _ADDED, {}),
        (_ADDED, {}, _ADDED, {"code_location": "elsewhere"}),
        (_BY_DAY, {}, _BY_DAY | _ADDED, {}),
        (_BY_DAY | _ADDED, {}, _BY_DAY | _ADDED, {"idempotency": "partition"}),
        (_BY_DAY | _ADDED, {"idempotency": "partition"}, _BY_DAY | _ADDED, {}),
        (_ADDED, {"idempotency": "off"}, _ADDED, {}),
    ],
)
def test_a_definition_that_changes_between_two_attempts_adds_nothing_twice(
    jobs: Jobs,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    before_settings: dict[str, Any],
    after: dict[str, Any],
    after_settings: dict[str, Any],
) -> None:
    """Who writes has another name then, under which nothing is recorded."""
    table = DeltaTable(jobs.root / "readings")
    is_by_day = "partition_expr" in before
    tags = {"dagster/partition": "2013-01-01"} if is_by_day else {}

    monkeypatch.setenv("DELTA_TEST_FAULT", "after")
    lost = dg.execute_job(deployed(before, before_settings), jobs.instance, tags=tags)
    monkeypatch.setenv("DELTA_TEST_FAULT", "")
    from_failure = dg.ReexecutionOptions.from_failure(lost.run_id, jobs.instance)
    job = deployed(after, after_settings)
    again = dg.execute_job(job, jobs.instance, tags=tags, reexecution_options=from_failure)
    assert not again.success
    assert f"has the rows of run {lost.run_id} already" in str(again.all_events)
    assert [row["run"] for row in table.snapshot().scan().to_arrow().to_pylist()] == [lost.run_id]
    assert dg.execute_job(job, jobs.instance, tags=tags).success
    assert table.snapshot().scan().to_arrow().num_rows == 2


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_an_attempt_of_the_old_definition_and_one_of_the_new_one_at_once(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The commits decide which of them adds the rows, and not what each has found before."""
    table = DeltaTable(jobs.root / "readings")
    table.append(pa.table({"day": ["2012-12-31"], "run": ["other"]}))
    monkeypatch.setenv("DELTA_TEST_FAULT", "")
    write, publish = DeltaLakeIOManager.handle_output, StagedWrite.publish
    computed, may_write, written = threading.Event(), threading.Event(), threading.Event()

    def wait_to_write(manager: DeltaLakeIOManager, context: dg.OutputContext, obj: Any) -> None:
        if context.step_context.dagster_run.root_run_id is None:
            computed.set()
            assert may_write.wait(60)
        write(manager, context, obj)

    def write_in_between(staged: StagedWrite, **options: Any) -> Any:
        # The new attempt has looked.
        if is_first and not may_write.is_set():
            may_write.set()
            assert written.wait(60)
        return publish(staged, **options)

    monkeypatch.setattr(DeltaLakeIOManager, "handle_output", wait_to_write)
    monkeypatch.setattr(StagedWrite, "publish", write_in_between)
    results: list[Any] = []

    def old_attempt() -> None:
        results.append(execute_run(dg.reconstructable(readings_job), lost, jobs.instance, raise_on_error=False))
        written.set()

    lost = jobs.instance.create_run_for_job(readings_job())
    thread = threading.Thread(target=old_attempt)
    thread.start()
    assert computed.wait(60)
    # Nobody has heard of it for a while.
    jobs.instance.report_run_failed(lost)
    from_failure = dg.ReexecutionOptions.from_failure(lost.run_id, jobs.instance)
    job = deployed(_ADDED, {"code_location": "elsewhere"})
    # As the daemon and the UI launch it.
    tags = {"dagster/root_run_id": lost.run_id}
    again = dg.execute_job(job, jobs.instance, tags=tags, reexecution_options=from_failure)
    may_write.set()
    thread.join(180)
    assert again.success == (not is_first)
    assert f"has the rows of run {lost.run_id} already" in str((again if is_first else results[0]).all_events)
    rows = table.snapshot().scan().to_arrow()["run"].to_pylist()
    assert sorted(rows) == sorted(["other", lost.run_id if is_first else again.run_id])


@pytest.mark.slow
def test_what_an_op_has_added_is_not_added_again_under_another_name(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def op_job(**settings: Any) -> Any:
        return dg.build_reconstructable_job(dagster_jobs.__name__, "deployed_op_job", (json.dumps(settings),))

    table = DeltaTable(jobs.root / "readings_job" / "readings" / "result")
    monkeypatch.setenv("DELTA_TEST_FAULT", "after")
    lost = dg.execute_job(op_job(), jobs.instance)
    monkeypatch.setenv("DELTA_TEST_FAULT", "")
    everything = dg.ReexecutionOptions(lost.run_id)
    again = dg.execute_job(op_job(code_location="elsewhere"), jobs.instance, reexecution_options=everything)
    assert f"has the rows of run {lost.run_id} already" in str(again.all_events)
    assert dg.execute_job(op_job(), jobs.instance, reexecution_options=everything).success
    assert dg.execute_job(op_job(code_location="elsewhere"), jobs.instance).success
    assert table.snapshot().scan().to_arrow().num_rows == 2


@pytest.mark.slow
def test_a_reexecution_for_another_partition_does_not_pass_for_the_first_one(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step that adds rows a run has one identity, whatever its partitions."""
    table = DeltaTable(jobs.root / "readings")
    monkeypatch.setenv("DELTA_TEST_FAULT", "")
    first, second = ({"dagster/partition": f"2013-01-0{day}"} for day in (1, 2))
    job = deployed(_BY_DAY | _ADDED, {})
    made = dg.execute_job(job, jobs.instance, tags=first)
    everything = dg.ReexecutionOptions(made.run_id)
    assert dg.execute_job(job, jobs.instance, tags=first, reexecution_options=everything).success
    again = dg.execute_job(job, jobs.instance, tags=second, reexecution_options=everything)
    assert "for other partitions" in str(again.all_events)
    assert table.snapshot().scan().to_arrow()["day"].to_pylist() == ["2013-01-01"]
    assert dg.execute_job(job, jobs.instance, tags=second).success
    assert sorted(table.snapshot().scan().to_arrow()["day"].to_pylist()) == ["2013-01-01", "2013-01-02"]


@pytest.mark.slow
def test_what_a_restore_has_undone_is_added(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaTable(jobs.root / "readings")
    table.append(pa.table({"day": ["2012-12-31"], "run": ["other"]}), partition_by=["day"])
    tags, added = {"dagster/partition": "2013-01-01"}, _BY_DAY | _ADDED
    monkeypatch.setenv("DELTA_TEST_FAULT", "after")
    lost = dg.execute_job(deployed(added, {"idempotency": "partition"}), jobs.instance, tags=tags)
    # It takes back the marks of partitions, which say that they are written.
    table.restore(version=0)
    monkeypatch.setenv("DELTA_TEST_FAULT", "")
    from_failure = dg.ReexecutionOptions.from_failure(lost.run_id, jobs.instance)
    again = dg.execute_job(deployed(added, {}), jobs.instance, tags=tags, reexecution_options=from_failure)
    assert again.success
    assert sorted(table.snapshot().scan().to_arrow()["run"].to_pylist()) == sorted(["other", again.run_id])


@pytest.mark.slow
def test_an_older_appending_run_loses_nothing(jobs: Jobs) -> None:
    lost = jobs.run(readings_job, fault="before", raise_on_error=False)
    newer = jobs.run(readings_job)
    late = jobs.again(lost, readings_job)
    runs = DeltaTable(jobs.root / "readings").snapshot().scan().to_arrow().column("run").to_pylist()
    assert sorted(runs) == sorted([newer.run_id, late.run_id])


@pytest.mark.parametrize("layout", [["day"], []])
def test_an_older_run_that_appends_to_the_same_days_loses_nothing(tmp_path: Path, layout: list[str]) -> None:
    lake = Lake(tmp_path, mode="append")
    overtaken: list[str] = []

    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day", "partition_by": layout},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def readings(context) -> pa.Table:  # type: ignore[no-untyped-def]
        who = context.run.tags["who"]
        if who == "older" and not overtaken:
            overtaken.append(who)
            run_days("newer")
        return pa.table({"day": list(context.partition_keys), "who": [who] * len(context.partition_keys)})

    def run_days(who: str) -> None:
        span = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-02"}
        assert dg.materialize(
            [readings], instance=lake.instance, resources={"io_manager": lake.io_manager}, tags={"who": who, **span}
        ).success

    run_days("older")
    rows = [(row["day"], row["who"]) for row in lake.rows("readings")]
    assert rows == [(day, who) for day in ("2013-01-01", "2013-01-02") for who in ("newer", "older")]


@pytest.mark.slow
def test_a_run_whose_root_is_gone_is_refused(jobs: Jobs) -> None:
    lost = jobs.day("2013-01-01", fault="before", raise_on_error=False)
    retried = jobs.again(lost, fault="forget")
    assert not retried.success
    errors = [event.step_failure_data.error for event in retried.all_events if event.is_step_failure]
    assert "no longer in the Dagster instance" in str(errors)
    assert not jobs.flights.exists()


# In one process


def run(assets: list[Any], instance: dg.DagsterInstance, io_manager: Any, **extras: Any) -> Any:
    return dg.materialize(assets, instance=instance, resources={"io_manager": io_manager}, **extras)


@pytest.mark.slow
def test_a_zombie_that_ends_after_a_newer_run_is_fenced_off(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()
    runs: list[str] = []

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def flights(context) -> pa.Table:  # type: ignore[no-untyped-def]
        runs.append(context.run.run_id)
        if len(runs) == 1:
            started.set()
            assert may_end.wait(60)
        return pa.table({"day": [context.partition_key], "run": [context.run.run_id]})

    results: list[Any] = []
    io_manager = DeltaLakeIOManager(root_uri=str(tmp_path / "lake"))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        zombie = threading.Thread(
            target=lambda: results.append(run([flights], instance, io_manager, partition_key="2013-01-01"))
        )
        zombie.start()
        assert started.wait(60)
        time.sleep(0.01)
        newer = run([flights], instance, io_manager, partition_key="2013-01-01")
        may_end.set()
        # Dagster 1.12 waits a minute for the processes that capture the output of two runs in one process.
        zombie.join(180)
    (late,) = results
    assert late.success
    (event,) = late.asset_materializations_for_node("flights")
    assert event.metadata["delta/skipped"].value is True
    assert event.metadata["delta/skip_reason"].value == "a newer run has already written this"
    rows = DeltaTable(tmp_path / "lake" / "flights").snapshot().scan().to_arrow().to_pylist()
    assert rows == [{"day": "2013-01-01", "run": newer.run_id}]


def test_a_step_retried_within_its_run_commits_once(tmp_path: Path) -> None:
    class LosesTheFirst(DeltaLakeIOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            super().handle_output(context, obj)
            if context.step_context.previous_attempt_count == 0:
                raise dg.RetryRequested(max_retries=1)

    @dg.asset(metadata={"mode": "append"})
    def readings() -> pa.Table:
        return pa.table({"n": [1]})

    result = run([readings], dg.DagsterInstance.ephemeral(), LosesTheFirst(root_uri=str(tmp_path)))
    assert result.success
    assert skipped(result, "readings") == [True]
    assert DeltaTable(tmp_path / "readings").snapshot().scan().to_arrow().num_rows == 1


@pytest.mark.slow
def test_idempotency_by_partition_writes_each_partition_once(tmp_path: Path) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "mode": "append"})
    def readings(context) -> pa.Table:  # type: ignore[no-untyped-def]
        return pa.table({"day": [context.partition_key], "n": [1]})

    instance, io_manager = (
        dg.DagsterInstance.ephemeral(),
        DeltaLakeIOManager(root_uri=str(tmp_path), idempotency="partition"),
    )
    for day in ("2013-01-01", "2013-01-02", "2013-01-01"):
        result = run([readings], instance, io_manager, partition_key=day)
    assert skipped(result, "readings") == [True]
    table = DeltaTable(tmp_path / "readings")
    assert table.snapshot().scan().to_arrow().num_rows == 2
    # What a restore undoes is written again, and once; another restore brings it back as it was.
    table.restore(version=0)
    for is_done in (False, True):
        result = run([readings], instance, io_manager, partition_key="2013-01-02")
        assert skipped(result, "readings") == [is_done]
        assert table.snapshot().scan().to_arrow().num_rows == 2
    table.restore(version=0)
    table.restore(version=1)
    result = run([readings], instance, io_manager, partition_key="2013-01-02")
    assert skipped(result, "readings") == [True]
    assert table.snapshot().scan().to_arrow().num_rows == 2
    table.restore(version=0)
    elsewhere = DeltaLakeIOManager(root_uri=str(tmp_path), idempotency="partition", code_location="elsewhere")
    run([readings], instance, elsewhere, partition_key="2013-01-02")
    assert table.snapshot().scan().to_arrow().num_rows == 2
    table.create_or_replace(table.snapshot().schema, partition_by=["day"])
    for is_done in (False, True):
        result = run([readings], instance, io_manager, partition_key="2013-01-02")
        assert skipped(result, "readings") == [is_done]
        assert table.snapshot().scan().to_arrow().num_rows == 1


def test_idempotency_off_always_writes(tmp_path: Path) -> None:
    @dg.asset(metadata={"mode": "append"})
    def readings() -> pa.Table:
        return pa.table({"n": [1]})

    instance, io_manager = dg.DagsterInstance.ephemeral(), DeltaLakeIOManager(root_uri=str(tmp_path), idempotency="off")
    for _ in range(2):
        run([readings], instance, io_manager)
    table = DeltaTable(tmp_path / "readings")
    assert table.snapshot().scan().to_arrow().num_rows == 2
    assert table.txns() == {}
    # The commits name their runs all the same.
    named = [json.loads(entry.user_metadata or "{}") for entry in table.history()]
    assert len({one["run_id"] for one in named}) == 2
    assert {one["asset_key"] for one in named} == {"readings"}


def test_idempotency_off_writes_without_a_run_too(tmp_path: Path) -> None:
    io_manager = DeltaLakeIOManager(root_uri=str(tmp_path), idempotency="off")
    io_manager.handle_output(dg.build_output_context(asset_key=["x"]), pa.table({"n": [1]}))
    assert DeltaTable(tmp_path / "x").snapshot().scan().to_arrow().num_rows == 1


def test_idempotency_by_partition_needs_partitions(tmp_path: Path) -> None:
    @dg.asset
    def readings() -> pa.Table:
        return pa.table({"n": [1]})

    io_manager = DeltaLakeIOManager(root_uri=str(tmp_path), idempotency="partition")
    with pytest.raises(InvalidRequestError, match="has no partitions"):
        run([readings], dg.DagsterInstance.ephemeral(), io_manager)


def test_the_code_location_can_be_named(tmp_path: Path) -> None:
    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    run([numbers], dg.DagsterInstance.ephemeral(), DeltaLakeIOManager(root_uri=str(tmp_path), code_location="prod"))
    assert list(DeltaTable(tmp_path / "numbers").txns()) == ["dagster:prod:numbers:"]


def test_a_context_without_a_run_has_no_identity() -> None:
    with pytest.raises(InvalidRequestError, match="inside a Dagster run"):
        read_run(dg.build_output_context(asset_key=["x"]))


@pytest.mark.slow
def test_first_writers_of_different_days_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def flights(context) -> pa.Table:  # type: ignore[no-untyped-def]
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


def test_a_partition_that_is_written_once_is_one_of_this_definition(tmp_path: Path) -> None:
    """A day and a month may have one key; the month does not count as written where the day is."""
    lake = Lake(tmp_path, idempotency="partition", mode="append")

    def dated(definition: Any) -> dg.AssetsDefinition:
        @dg.asset(partitions_def=definition, metadata={"partition_expr": "day", "partition_by": []})
        def dates(context: dg.AssetExecutionContext) -> pa.Table:
            window = context.partition_time_window
            days = [window.start.date() + timedelta(number) for number in range((window.end - window.start).days)]
            return pa.table({"day": days})

        return dates

    assert lake.run(dated(DAYS), partition="2013-01-01").success
    months = dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2013-03-01")
    assert "other partitions" in str(lake.fails(dated(months), partition="2013-01-01"))
    assert lake.run(dated(DAYS), partition="2013-01-02").success
    assert len(lake.rows("dates")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_another_code_location_does_not_add_a_partition_again(tmp_path: Path, mode: str) -> None:
    lakes = [Lake(tmp_path, idempotency="partition", mode=mode, code_location=name) for name in ("old", "new", "old")]

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def days(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key], "n": [1]})

    assert lakes[0].run(days, partition="2013-01-01").success
    assert lakes[1].run(days, partition="2013-01-02").success
    if mode == "append":
        assert "code_location='old'" in str(lakes[1].fails(days, partition="2013-01-01"))
    else:
        assert lakes[1].run(days, partition="2013-01-01").success
    assert lakes[2].run(days, partition="2013-01-01").success
    assert lakes[0].rows("days") == [{"day": day, "n": 1} for day in ("2013-01-01", "2013-01-02")]
