"""Both orchestrators on one table: a commit by Dagster is an event in Airflow, whose cursor a Dagster sensor awaits."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

pytest.importorskip("dagster", reason="Dagster is not installed")

import dagster as dg

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaIncrementalOperator, DeltaTxnSensor
from delta_orch.dagster import DeltaLakeIOManager
from tests.airflow.conftest import DAY_2
from tests.airflow.test_airflow_watching import StateStore, events_of, trigger_of

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs


def test_a_handshake_there_and_back(runs: Runs, tmp_path: Path) -> None:
    silver, gold = DeltaTable(tmp_path / "silver"), DeltaTable(tmp_path / "gold")

    @dg.asset(name="silver")
    def made() -> pa.Table:
        return pa.table({"i": [1, 2, 3]})

    def materialize() -> None:
        resources = {"io_manager": DeltaLakeIOManager(root_uri=str(tmp_path))}
        assert dg.materialize([made], instance=dg.DagsterInstance.ephemeral(), resources=resources).success

    def by_dagster() -> None:
        # Dagster has event loops of its own.
        other = Thread(target=materialize)
        other.start()
        other.join()

    # What the triggerer does for a watched asset.
    (event,) = events_of(trigger_of(tmp_path / "silver", StateStore()), 1, by_dagster)
    assert (event["table_uri"], event["version"]) == (silver.uri, silver.version())

    cursor = f"cdc:gold<-{silver.snapshot().metadata.id}"

    @dg.sensor(name="gold_is_there", job_name="report")
    def gold_is_there(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        done = gold.txns().get(cursor, -1) if gold.exists() else -1
        if done < 0:
            return dg.SkipReason("Airflow has read nothing yet")
        return dg.RunRequest(run_key=str(done))

    def new_rows(batch: Any) -> pa.Table:
        if batch.is_bootstrap:
            return batch.scan().to_arrow()
        return batch.changes.to_arrow().select(["i"])

    def asked() -> Any:
        return gold_is_there(dg.build_sensor_context())

    assert isinstance(asked(), dg.SkipReason)
    with DAG("gold", schedule=None) as dag:
        step = DeltaIncrementalOperator(
            task_id="gold", source=event["table_uri"], target=tmp_path / "gold", write="append",
            python_callable=new_rows,
        )  # fmt: skip
        step >> DeltaTxnSensor(
            task_id="done", table_uri=tmp_path / "gold", app_id=cursor, min_version=event["version"], timeout=60
        )
    assert str(runs.run(dag).state) == "success"
    assert sorted(gold.snapshot().scan().to_arrow()["i"].to_pylist()) == [1, 2, 3]
    request = asked()
    assert isinstance(request, dg.RunRequest)
    assert request.run_key == str(event["version"])

    # Commits without rows are no news: the cursor stays behind the version, and Dagster starts nothing.
    silver.alter().set_properties({"mine": "1"}).commit()
    assert str(runs.run(dag).state) == "success"
    assert silver.version() > event["version"]
    again = asked()
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == request.run_key

    # Rows are.
    silver.append(pa.table({"i": [4]}))
    assert str(runs.run(dag, DAY_2).state) == "success"
    after = asked()
    assert isinstance(after, dg.RunRequest)
    assert int(after.run_key or -1) == silver.version()
    assert sorted(gold.snapshot().scan().to_arrow()["i"].to_pylist()) == [1, 2, 3, 4]
