"""`delta_asset` with a `FileSource`: the rows of each file once, whatever becomes of the run."""

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, Expect
from delta_orch.dagster import DeltaTableResource, FileBatch, build_delta_file_sensor, delta_asset
from delta_orch.errors import InvalidRequestError
from tests.arrival.landing import Landing, ids_of


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path / "landing")
    made.put("a.json", 1, 2)
    return made


def loaded(
    landing: Landing, tmp_path: Path, how: dict[str, Any] | None = None, **arguments: Any
) -> dg.AssetsDefinition:
    table = DeltaTableResource(table_uri=str(tmp_path / "orders"))

    @delta_asset(incremental_from=landing.source(**(how or {})), table=table, **arguments)
    def orders(batch: FileBatch) -> Any:
        return batch.rows(as_table=True)

    return orders


def test_runs_and_reruns(landing: Landing, tmp_path: Path) -> None:
    instance = dg.DagsterInstance.ephemeral()
    asset = loaded(landing, tmp_path, {"max_files": 1, "on_error": "quarantine", "on_changed": "ignore"})
    landing.put("b.json", 3)
    first = dg.materialize([asset], instance=instance)
    (event,) = first.asset_materializations_for_node("orders")
    assert event.metadata["delta/files"].value == 2
    assert ids_of(tmp_path / "orders") == [1, 2, 3]
    quiet = dg.materialize([asset], instance=instance)
    assert not quiet.asset_materializations_for_node("orders")
    landing.put("c.json", 4)
    (landing.root / "bad.json").write_text('{"id"')
    second = dg.materialize([asset], instance=instance)
    (event,) = second.asset_materializations_for_node("orders")
    set_aside: Any = event.metadata["delta/files_set_aside"].value
    assert [file["path"] for file in set_aside] == ["bad.json"]
    config = {"ops": {"orders": {"config": {"full_refresh": True}}}}
    (landing.root / "bad.json").unlink()
    (landing.root / "c.json").unlink()
    dg.materialize([asset], instance=instance, run_config=config)
    assert ids_of(tmp_path / "orders") == [1, 2, 3]


def orders_job() -> dg.JobDefinition:
    """Dagster executes only jobs again that it can import."""
    root = Path(os.environ["DELTA_TEST_ROOT"])
    expect = {"id is positive": Expect("id > 0")}
    asset = loaded(Landing(root / "landing"), root, {"on_changed": "ignore"}, expect=expect)
    return dg.Definitions([asset], jobs=[dg.define_asset_job("orders_job", "*")]).resolve_job_def("orders_job")


def test_all_steps_again(landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DELTA_TEST_ROOT", str(tmp_path))
    job = dg.reconstructable(orders_job)
    with dg.DagsterInstance.get() as instance:
        landing.put("a.json", 1, 2, -1)
        first = dg.execute_job(job, instance)
        landing.put("b.json", 3, -4)
        assert dg.execute_job(job, instance).success
        landing.put("a.json", 10, -5)
        again = dg.ReexecutionOptions(first.run_id)
        assert dg.execute_job(job, instance, reexecution_options=again).success
    table = DeltaTable(tmp_path / "orders")
    bad = table.quarantine().snapshot().scan(["row"]).to_arrow()["row"].to_pylist()
    assert (ids_of(table), sorted(json.loads(row)["id"] for row in bad)) == ([3, 10], [-5, -4])


def test_rules_for_the_rows_of_files(landing: Landing, tmp_path: Path) -> None:
    instance = dg.DagsterInstance.ephemeral()
    expect = {"id is positive": Expect("id > 0")}
    asset = loaded(landing, tmp_path, {"source_file": True}, expect=expect, max_quarantined=0.5)
    landing.put("a.json", 1, -2)
    first = dg.materialize([asset], instance=instance)
    (check,) = first.get_asset_check_evaluations()
    assert not check.passed
    landing.put("b.json", -3, 4)
    dg.materialize([asset], instance=instance)
    table = DeltaTable(tmp_path / "orders")
    rows = table.quarantine().snapshot().scan(["row", "source_file"]).to_arrow().to_pylist()
    bad = sorted((json.loads(row["row"])["id"], row["source_file"].rpartition("/")[2]) for row in rows)
    assert (ids_of(table), bad) == ([1, 4], [(-3, "b.json"), (-2, "a.json")])
    landing.put("c.json", -5, -6)
    assert not dg.materialize([asset], instance=instance, raise_on_error=False).success
    assert ids_of(table) == [1, 4]


def test_a_function_and_merge(landing: Landing, tmp_path: Path) -> None:
    table = DeltaTableResource(table_uri=str(tmp_path / "orders"))

    @delta_asset(incremental_from=landing.source(), table=table, write="merge", merge_keys=["id"])
    def orders(batch: FileBatch) -> pa.Table:
        return batch.to_arrow().select(["id"])

    dg.materialize([orders])
    landing.put("b.json", 2, 3)
    dg.materialize([orders])
    assert ids_of(tmp_path / "orders") == [1, 2, 3]


@pytest.mark.parametrize("write", ["overwrite_changed", "overwrite_partitions"])
def test_what_would_lose_rows_is_refused(landing: Landing, tmp_path: Path, write: str) -> None:
    with pytest.raises(InvalidRequestError, match="loads files"):
        loaded(landing, tmp_path, write=write)


@pytest.mark.parametrize("max_active_runs", [1, None])
def test_a_sensor_requests_a_failed_run_again(landing: Landing, tmp_path: Path, max_active_runs: int | None) -> None:
    asset, instance = loaded(landing, tmp_path), dg.DagsterInstance.ephemeral()
    sensor = build_delta_file_sensor(
        name="arrivals",
        source=landing.source(),
        table=DeltaTableResource(table_uri=str(tmp_path / "orders")),
        target=[asset],
        max_active_runs=max_active_runs,
    )
    job = dg.Definitions([asset]).resolve_implicit_global_asset_job_def()
    requested: set[str | None] = set()

    def tick() -> dg.DagsterRun | None:
        """As the daemon: a run for each new run key."""
        found: Any = sensor(dg.build_sensor_context(instance=instance))
        if isinstance(found, dg.SkipReason) or found.run_key in requested:
            return None
        requested.add(found.run_key)
        tags = {**found.tags, "dagster/sensor_name": "arrivals"}
        return instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.STARTED)

    for _ in range(3):
        run = tick()
        assert run is not None
        assert tick() is None  # It is still active.
        instance.report_run_failed(run)
    assert tick() is None
    landing.put("b.json", 3)
    run = tick()
    assert run is not None
    instance.report_run_canceled(run)
    assert tick() is None
    landing.put("c.json", 4)
    run = tick()
    assert run is not None
    dg.materialize([asset])
    landing.put("d.json", 5)
    assert (tick() is None) == (max_active_runs == 1)
    limits: list[dict[str, Any]] = [{"max_active_runs": 0}, {"max_retries": -1}]
    for limit in limits:
        table = DeltaTableResource(table_uri=str(tmp_path / "orders"))
        with pytest.raises(InvalidRequestError, match="is below"):
            build_delta_file_sensor(name="a", source=landing.source(), table=table, target=[asset], **limit)


def test_a_sensor_requests_a_run_for_new_files(landing: Landing, tmp_path: Path) -> None:
    asset = loaded(landing, tmp_path)
    table = DeltaTableResource(table_uri=str(tmp_path / "orders"))
    sensor = build_delta_file_sensor(name="arrivals", source=landing.source(), table=table, target=[asset])

    instance = dg.DagsterInstance.ephemeral()

    def tick() -> Any:
        found = sensor(dg.build_sensor_context(instance=instance))
        return found.run_key if isinstance(found, dg.RunRequest) else None

    first = tick()
    assert first is not None
    assert tick() == first
    landing.put("b.json", 3)
    assert tick() not in (None, first)
    dg.materialize([asset])
    assert tick() is None
    landing.put("c.json", 4)
    assert tick() is not None
    with pytest.raises(InvalidRequestError, match="target or a job"):
        build_delta_file_sensor(name="arrivals", source=landing.source(), table=table)
