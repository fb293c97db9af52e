"""A marked secret in an Airflow connection: tasks on S3 that succeed and fail; afterwards it is looked for."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow.hook import DeltaHook
from tests.harness.emulators import Emulator, EmulatorMissingError, s3_emulator

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
    home = Path(os.environ["AIRFLOW_HOME"])
    kept = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    said = "".join(capfd.readouterr()) + caplog.text + words + str(xcom)
    assert "airflow/flights" in said
    for mark in MARKS:
        assert mark not in said
        assert mark.encode() not in written
        for path, content in kept.items():
            found = content.find(mark.encode())
            assert found < 0, f"{path}: {content[max(found - 1500, 0) : found + 50]!r}"
