"""Secrets that templates bring into arguments: whatever the task does with them, nothing of them is kept or said.

Operators, arguments and spellings are made up by hypothesis. One DAG run has a task for each, and its tables, logs,
errors and the whole home of Airflow are searched afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import delta_orch.airflow
from delta_orch.airflow import DeltaHook
from delta_orch.airflow.versions import RELEASE
from tests.airflow.internals import redact, without_requests

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY_1 = datetime(2024, 1, 1, tzinfo=UTC)
PLACES = (
    "s3://key:{}@bucket/t",
    "S3A://key:{}@bucket/t",
    "abfss://c:{}@account.dfs.core.windows.net/t",
    "https://account.blob.core.windows.net/c/t?sv=1&sig={}",
    "az://c/t?sig={}",
    "delta://s3/key:{}@bucket/t",
)
SETTINGS = (
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "DB_PASSWORD",
)


def rows() -> pa.Table:
    return pa.table({"id": pa.array([1], pa.int64())})


Argument = tuple[str, Callable[[Any], Any], dict[str, Any]]
LOCATED: Mapping[str, Argument] = {
    "DeltaOptimizeOperator.table_uri": ("DeltaOptimizeOperator", lambda secret: {"table_uri": secret}, {}),
    "DeltaCheckpointOperator.table_uri": ("DeltaCheckpointOperator", lambda secret: {"table_uri": secret}, {}),
    "DeltaDeleteOperator.table_uri": ("DeltaDeleteOperator", lambda secret: {"table_uri": secret}, {"all_rows": True}),
    "DeltaRestoreOperator.table_uri": ("DeltaRestoreOperator", lambda secret: {"table_uri": secret}, {"version": 0}),
    "DeltaUndoOperator.table_uri": ("DeltaUndoOperator", lambda secret: {"table_uri": secret}, {"unit": "u"}),
    "DeltaUpdateOperator.table_uri": ("DeltaUpdateOperator", lambda secret: {"table_uri": secret}, {"set": {"a": "1"}}),
    "DeltaWriteOperator.table_uri": (
        "DeltaWriteOperator", lambda secret: {"table_uri": secret}, {"python_callable": rows}
    ),
    "DeltaMergeOperator.table_uri": (
        "DeltaMergeOperator", lambda secret: {"table_uri": secret}, {"python_callable": rows, "merge_keys": ["id"]}
    ),
    "DeltaWriteOperator.tables": (
        "DeltaWriteOperator", lambda secret: {"tables": {"a": secret}}, {"sql": "SELECT * FROM a", "engine": "local"}
    ),
    "DeltaWriteOperator.tables.table_uri": (
        "DeltaWriteOperator",
        lambda secret: {"tables": {"a": {"table_uri": secret, "version": 0}}},
        {"sql": "SELECT * FROM a", "engine": "local"},
    ),
    "DeltaIncrementalOperator.source": (
        "DeltaIncrementalOperator", lambda secret: {"source": secret}, {"python_callable": len, "target": "/t"}
    ),
    "DeltaIncrementalOperator.sources": (
        "DeltaIncrementalOperator", lambda secret: {"source": {"a": secret}}, {"python_callable": len, "target": "/t"}
    ),
    "DeltaIncrementalOperator.target": (
        "DeltaIncrementalOperator", lambda secret: {"target": secret}, {"python_callable": len, "source": "/s"}
    ),
    "DeltaCloneOperator.source": ("DeltaCloneOperator", lambda secret: {"source": secret}, {"target": "/t"}),
    "DeltaCloneOperator.target": ("DeltaCloneOperator", lambda secret: {"target": secret}, {"source": "/s"}),
    "DeltaVacuumOperator.respect_consumers": (
        "DeltaVacuumOperator", lambda secret: {"respect_consumers": [secret]}, {}
    ),
    "DeltaCheckOperator.reference": ("DeltaCheckOperator", lambda secret: {"reference": secret}, {"min_rows": 1}),
    "DeltaCheckOperator.reference.table_uri": (
        "DeltaCheckOperator", lambda secret: {"reference": {"table_uri": secret, "version": 0}}, {"min_rows": 1}
    ),
    "DeltaPublishOperator.staged.table_uri": (
        "DeltaPublishOperator", lambda secret: {"staged": {"table_uri": secret, "staged": "x"}}, {}
    ),
    "DeltaSparkSubmitOperator.table_uri": (
        "DeltaSparkSubmitOperator", lambda secret: {"table_uri": secret}, {"application": "none.py"}
    ),
    "DeltaRowSensor.table_uri": ("DeltaRowSensor", lambda secret: {"table_uri": secret}, {"timeout": 0.1}),
    "DeltaTxnSensor.table_uri": (
        "DeltaTxnSensor", lambda secret: {"table_uri": secret}, {"timeout": 0.1, "app_id": "a", "deferrable": True}
    ),
}  # fmt: skip
"""Arguments that are locations: how a template stands in each, and what else the operator needs."""
SET: Mapping[str, Argument] = {
    "DeltaSparkSubmitOperator.spark_conf": (
        "DeltaSparkSubmitOperator", lambda setting: {"spark_conf": setting}, {"application": "none.py"}
    ),
    "DeltaSparkSubmitOperator.env_vars": (
        "DeltaSparkSubmitOperator", lambda setting: {"env_vars": setting}, {"application": "none.py"}
    ),
    "DeltaSparkSubmitOperator.application_args": (
        "DeltaSparkSubmitOperator",
        lambda setting: {"application_args": [part for name, one in setting.items() for part in (f"--{name}", one)]},
        {"application": "none.py"},
    ),
    "DeltaWriteOperator.properties": (
        "DeltaWriteOperator", lambda setting: {"properties": setting}, {"python_callable": rows}
    ),
    "DeltaMergeOperator.properties": (
        "DeltaMergeOperator", lambda setting: {"properties": setting}, {"python_callable": rows, "merge_keys": ["id"]}
    ),
    "DeltaCloneOperator.properties": (
        "DeltaCloneOperator", lambda setting: {"properties": setting}, {"source": "/s", "target": "/t"}
    ),
}  # fmt: skip
"""Arguments that are settings by name."""
FORMS = st.one_of(
    st.tuples(st.sampled_from(sorted(LOCATED)), st.sampled_from(PLACES), st.just("")),
    st.tuples(st.sampled_from(sorted(SET)), st.just("{}"), st.sampled_from(SETTINGS)),
)


def kept(secrets: Mapping[str, str]) -> list[str]:
    """Those that are in Airflow's home. Another process reads its database: see `test_airflow_credentials`."""
    found = subprocess.run(
        ["grep", "-rahoE", "Q7[0-9a-f]{32}", os.environ["AIRFLOW_HOME"]], capture_output=True, check=False
    ).stdout.decode()
    return sorted({secrets[secret] for secret in found.split() if secret in secrets})


def test_every_argument_that_takes_a_location_or_settings_is_tried() -> None:
    """A new operator is covered by being there."""
    tried = {name.partition(".")[0] for name in (*LOCATED, *SET)}
    same = {"DeltaTableVersionSensor", "DeltaPartitionSensor", "DeltaFreshnessSensor", "DeltaPartitionRelayOperator"}
    operators = {name for name in delta_orch.airflow.__all__ if name.endswith(("Operator", "Sensor"))}
    assert operators - same == tried


@pytest.mark.long
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # A run takes seconds: what fails is not made smaller.
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
@pytest.mark.filterwarnings("ignore:The recursion limit will not be reset")  # Airflow 3.0 raises it.
@given(forms=st.lists(FORMS, min_size=8, max_size=16, unique=True), is_mapped=st.booleans())
def test_what_templates_bring_into_arguments_is_kept_nowhere(
    runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str], forms: list[tuple[str, str, str]], is_mapped: bool
) -> None:
    secrets: dict[str, str] = {}
    dag = DAG(f"s{uuid.uuid4().hex}", schedule=None, start_date=DAY_1)
    with pytest.MonkeyPatch.context() as patch:
        for number, (name, form, setting) in enumerate(forms):
            secret = f"Q7{uuid.uuid4().hex}"
            secrets[secret] = f"{name} {form} {setting}"
            patch.setenv(f"AIRFLOW_VAR_VALUE_{number}", form.format(secret))
            template: Any = f"{{{{ var.value.value_{number} }}}}"
            kind, given_as, needed = {**LOCATED, **SET}[name]
            public: Any = getattr(delta_orch.airflow, kind)
            arguments = given_as({setting: template} if setting else template)
            others = {**({} if "target" in (*needed, *arguments) else {"table_uri": f"{tmp_path}/t{number}"}), **needed}
            others = {key: value for key, value in others.items() if key not in arguments}
            if is_mapped:
                expanded = {key: [value] for key, value in arguments.items()}
                public.partial(task_id=f"t{number}", dag=dag, **others).expand(**expanded)
            else:
                public(task_id=f"t{number}", dag=dag, **others, **arguments)
        run = runs.run(dag)
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    located = [f"t{number}" for number, (name, _, _) in enumerate(forms) if name in LOCATED]
    assert {states[task] for task in located} <= {"failed"}, states
    output = without_requests("".join(capfd.readouterr()))
    if RELEASE >= (3, 1):  # On 3.0, `dag.test()` prints what a worker does not.
        assert sorted(about for secret, about in secrets.items() if secret in output) == []
    assert kept(secrets) == []


CONNECTIONS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "root": lambda secret: {"table_root": f"s3://key:{secret}@bucket/x"},
    "plain": lambda secret: {"secret": secret},
    "text": lambda secret: {"storage_options": f'{{"account_key": "{secret}"}}'},
    "hidden": lambda secret: {"secret_storage_options": {"whatever": secret}},
    "sas": lambda secret: {"storage_options": {"sas_token": f"?sv=1&sig={secret}"}},
    "endpoint": lambda secret: {"endpoint_url": f"http://user:{secret}@localhost:9"},
    "connection string": lambda secret: {
        "connection_string": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={secret};EndpointSuffix=x.y"
    },
}


@pytest.mark.long
@pytest.mark.parametrize("form", CONNECTIONS)
def test_what_a_connection_holds_is_kept_nowhere(
    runs: Runs, tmp_path: Path, connection: Callable[[str, str], None], capfd: pytest.CaptureFixture[str], form: str
) -> None:
    secret = f"Q7{uuid.uuid4().hex}"
    connection("holds", json.dumps({"conn_type": "delta", "extra": CONNECTIONS[form](secret)}))

    with DAG(f"holds_{form.replace(' ', '_')}", schedule=None, start_date=DAY_1) as dag:
        for name, place in (("writes", str(tmp_path / "t")), ("named", "name")):
            delta_orch.airflow.DeltaWriteOperator(
                task_id=name, table_uri=place, delta_conn_id="holds", python_callable=rows
            )
        delta_orch.airflow.DeltaRowSensor(
            task_id="waits", table_uri="name", delta_conn_id="holds", timeout=0.2, poke_interval=0.1, deferrable=True
        )
    runs.run(dag)
    said = without_requests("".join(capfd.readouterr())) + DeltaHook("holds").test_connection()[1]
    assert secret not in said
    assert secret not in str(redact(f"Whoever says {secret}, it is masked"))
    assert kept({secret: form}) == []
