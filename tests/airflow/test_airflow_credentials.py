"""A marked secret in an Airflow connection: tasks on S3 that succeed and fail; afterwards it is looked for."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaIncrementalOperator,
    DeltaOptimizeOperator,
    DeltaSparkSubmitOperator,
    DeltaTableVersionSensor,
)
from delta_orch.airflow.hook import DeltaHook
from delta_orch.errors import DeltaError
from tests.airflow.internals import without_requests
from tests.harness.emulators import Emulator, EmulatorMissingError, s3_emulator
from tests.stores.test_stores_redaction import LOCATIONS

DAY_1 = datetime(2024, 1, 1, tzinfo=UTC)
# Made now: Airflow keeps the source of DAGs, and this file is one.
MARKS = (f"MARKED-SECRET-{uuid.uuid4()}", f"MARKED-TOKEN-{uuid.uuid4()}")


@pytest.fixture(scope="module")
def s3() -> Iterator[Emulator]:
    try:
        with s3_emulator() as emulator:
            yield emulator
    except EmulatorMissingError as e:
        pytest.skip(str(e))


def _connection(s3: Emulator, **more: str) -> str:
    options = {**s3.storage_options, "secret": MARKS[0], "token": MARKS[1], **more}
    extra = {"table_root": s3.root.rstrip("/"), "storage_options": json.dumps(options)}
    return json.dumps({"conn_type": "delta", "extra": extra})


def _kept(text: str) -> str:
    """What Airflow's home has of a text, its database included.

    Another process reads it: a process that closes a file of SQLite loses all its locks on it, and other processes of
    Airflow then damage the database.
    """
    found = subprocess.run(
        ["grep", "-raoE", f".{{0,200}}{re.escape(text)}", os.environ["AIRFLOW_HOME"]], capture_output=True, check=False
    )
    assert found.returncode in (0, 1), found.stderr
    return found.stdout.decode(errors="replace")


@pytest.mark.long
def test_a_connections_secrets_stay_in_it(
    runs: Any,
    s3: Emulator,
    connection: Callable[[str, str], None],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    connection("lake", _connection(s3))
    connection(
        "lost", _connection(s3, endpoint_url="http://127.0.0.1:9", config_kwargs='{"retries": {"max_attempts": 0}}')
    )
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.DEBUG)

    with DAG("secrets", schedule="@daily", start_date=DAY_1) as dag:

        @task.delta(table_uri="airflow/flights", delta_conn_id="lake", partition_by=["day"])
        def load(ds: str) -> pa.Table:
            return pa.table({"day": [ds], "flight": [1]})

        @task.delta(table_uri="airflow/flights", delta_conn_id="lake")
        def load_wrong() -> pa.Table:
            return pa.table({"nonsense": [1]})

        @task.delta(table_uri="airflow/flights", delta_conn_id="lost")
        def load_nowhere(ds: str) -> pa.Table:
            return pa.table({"day": [ds], "flight": [2]})

        load() >> load_wrong()
        load_nowhere()
    run = runs.run(dag, DAY_1)
    assert [runs.state(run, t) for t in ("load", "load_wrong", "load_nowhere")] == ["success", "failed", "failed"]

    xcom = runs.xcom(run, "load")
    assert (xcom["table_uri"], xcom["version"]) == (f"{s3.root}airflow/flights", 0)
    ok, words = DeltaHook("lost").test_connection()
    assert not ok
    table = DeltaTable(s3.table_uri("airflow/flights"), s3.storage_options)
    written = b"".join(table.store.read_bytes(f.path) for f in table.store.list_recursive())
    said = "".join(capfd.readouterr()) + caplog.text + words + str(xcom)
    assert "airflow/flights" in said
    for mark in MARKS:
        assert mark not in said
        assert mark.encode() not in written
        assert not _kept(mark)


@pytest.mark.parametrize("location", LOCATIONS)
def test_no_location_with_a_secret_is_kept_in_a_dag(location: str) -> None:
    secret = f"Q7{uuid.uuid4().hex}"
    with pytest.raises(DeltaError) as caught:
        task.delta(lambda: pa.table({"n": [1]}), task_id="write", table_uri=location.replace("{}", secret))()
    assert secret not in f"{caught.value} {caught.value.context}"


@pytest.mark.parametrize("is_mapped", [False, True])
def test_no_rendered_location_with_a_secret_is_kept(
    runs: Any, is_mapped: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    secret = f"Q7{uuid.uuid4().hex}"
    monkeypatch.setenv("AIRFLOW_VAR_RENDERED_PLACE", f"s3://key:{secret}@bucket/t")
    template = "{{ var.value.rendered_place }}"
    with DAG(f"rendered_{is_mapped}", schedule=None, start_date=DAY_1) as dag:
        if is_mapped:
            DeltaOptimizeOperator.partial(task_id="optimize").expand(table_uri=[template])
            DeltaTableVersionSensor.partial(task_id="wait", after_version=0).expand(table_uri=[template])
        else:
            DeltaOptimizeOperator(task_id="optimize", table_uri=template)
            DeltaTableVersionSensor(task_id="wait", table_uri=template, after_version=0)
            DeltaIncrementalOperator(
                task_id="follow", python_callable=len, target=str(tmp_path), source={"a": template}, write="append"
            )
    run = runs.run(dag)
    assert {instance.state for instance in run.get_task_instances()} <= {"failed", "up_for_retry"}
    said = without_requests("".join(capfd.readouterr()))
    assert "carries a login" in said
    assert secret not in said
    assert not _kept(secret)


SETTING = "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net"


def test_secret_settings_are_kept_nowhere(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In no rendered field, log or XCom is what a template rendered to, in tasks that are mapped and others."""
    secrets: list[str] = []

    def settings(name: str) -> dict[str, str]:
        secrets.append(f"Q7{uuid.uuid4().hex}")
        monkeypatch.setenv(f"AIRFLOW_VAR_SETTING_{len(secrets)}", secrets[-1])
        return {name: f"{{{{ var.value.setting_{len(secrets)} }}}}"}

    with DAG("secret_settings", schedule=None, start_date=DAY_1) as dag:
        common: dict[str, Any] = {"retries": 0, "table_uri": tmp_path / "t", "application": "none.py"}
        DeltaSparkSubmitOperator(
            task_id="submit",
            spark_conf=settings(SETTING),
            env_vars=settings("AZURE_STORAGE_ACCOUNT_KEY"),
            **common,
        )
        DeltaSparkSubmitOperator.partial(task_id="mapped", **common).expand(spark_conf=[settings(SETTING)])
    run = runs.run(dag)
    # There is no application to submit: what is looked at was rendered and kept before.
    assert [runs.state(run, "submit"), runs.state(run, "mapped", 0)] == ["failed", "failed"]
    said = without_requests("".join(capfd.readouterr()))
    # Another process reads, as in `_kept`.
    home = subprocess.run(
        ["grep", "-rahoE", "Q7[0-9a-f]{32}", os.environ["AIRFLOW_HOME"]], capture_output=True, check=False
    ).stdout
    assert [number for number, secret in enumerate(secrets) if secret.encode() in home] == []
    assert not [secret for secret in secrets if secret in said]
