"""What names a table: each kind of location is taken as it is meant, or refused when the DAG is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, ObjectStoragePath, task, task_group

from delta_orch.airflow import DeltaIncrementalOperator, DeltaTableVersionSensor, DeltaWriteOperator, delta_table_asset
from delta_orch.airflow.hook import DeltaHook
from delta_orch.airflow.locations import asset_uri_of_table, table_uri_of_asset
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import needs_rendered_group


@pytest.mark.parametrize("name", ["t", "a b", "a#b", "a?b=c", "100%", "a%20b", "ü", "p=1/t", "it's", "a:b", "a;b"])
def test_every_path_survives_as_an_asset(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    # Airflow 3.0 takes only ASCII as a name.
    asset = delta_table_asset(f"asset {name.encode().hex()}", path)
    assert table_uri_of_asset(asset.uri) == path
    assert DeltaHook().table(asset).uri == DeltaHook().table(path).uri == DeltaHook().table(tmp_path / name).uri


def test_kinds_of_locations_mean_one_table(tmp_path: Path) -> None:
    uri = DeltaHook().table(str(tmp_path / "t")).uri
    asset = delta_table_asset("kinds", tmp_path / "t")
    for location in (tmp_path / "t", f"file://{tmp_path}/t", ObjectStoragePath(f"file://{tmp_path}/t"), asset):
        operator = DeltaWriteOperator(task_id="load", table_uri=location, python_callable=lambda: {})
        assert DeltaHook().table(operator.table_uri).uri == uri
        assert DeltaTableVersionSensor(task_id="wait", table_uri=location, after_version=1).table_uri
        assert asset_uri_of_table(location) == asset.uri


BENT = [
    "raw:flights",
    "C:\\lake\\t",
    "C:/lake/t",
    "..\\t",
    "../t",
    "a/../../t",
    "s3://lake/t#part",
    "s3://lake/t?versionId=1",
    "delta://s3/lake/t?x=1",
    "delta://s3",
    "s3://",
    "",
    " ",
    7,
    None,
    b"/t",
    ObjectStoragePath("file://conn@/t"),
]


@pytest.mark.parametrize("location", BENT, ids=repr)
def test_what_would_be_bent_is_refused_when_the_dag_is_parsed(location: Any) -> None:
    with pytest.raises(InvalidRequestError):
        DeltaWriteOperator(task_id="load", table_uri=location, python_callable=lambda: {})
    with pytest.raises(InvalidRequestError):
        DeltaTableVersionSensor(task_id="wait", table_uri=location, after_version=1)


def test_templates_and_outputs_wait_for_the_run() -> None:
    with DAG("outputs", schedule=None):
        operator = DeltaWriteOperator(task_id="load", table_uri="{{ params.table }}", python_callable=lambda: {})
        assert operator.table_uri == "{{ params.table }}"
        taken: Any = DeltaWriteOperator(
            task_id="next", table_uri=operator.output["table_uri"], python_callable=lambda: {}
        )
    assert taken.table_uri.operator is operator


def test_an_asset_of_a_relative_name_is_below_the_root(connection: Any, tmp_path: Path) -> None:
    connection("lake", f'{{"conn_type": "delta", "extra": {{"table_root": "{tmp_path}"}}}}')
    assert DeltaHook("lake").table(Asset("flights")).uri == f"file://{tmp_path}/flights"
    assert DeltaHook("lake").table("./raw:flights").uri.endswith("raw%3Aflights")
    with pytest.raises(InvalidRequestError, match="leads out"):
        DeltaHook("lake").table("x/../../flights")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"engine": "duckdb"}, "engine='duckdb'"),
        ({"partition_by": "day"}, "partition_by must be a list"),
        ({"properties": "delta.appendOnly=true"}, "properties must be a mapping"),
        ({"max_versions": 0}, "max_versions=0"),
        ({"bootstrap": "all"}, "bootstrap='all'"),
        ({"on_recreated": "ignore"}, "on_recreated='ignore'"),
        ({"target": "/s"}, "one table as source and target"),
    ],
)
def test_wrong_arguments_of_an_incremental_task_are_refused(arguments: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"source": "/s", "target": "/t", "python_callable": lambda: {}, **arguments}
    with pytest.raises(InvalidRequestError, match=problem):
        DeltaIncrementalOperator(task_id="silver", **given)


@pytest.mark.parametrize("hours", [-1, "-1", "a week", float("nan"), True])
def test_wrong_retention_is_refused(hours: Any) -> None:
    from delta_orch.airflow import DeltaVacuumOperator

    with pytest.raises(InvalidRequestError, match="retention_hours"):
        DeltaVacuumOperator(task_id="vacuum", table_uri="/t", retention_hours=hours)
    with pytest.raises(InvalidRequestError, match="dry_run"):
        DeltaVacuumOperator(task_id="vacuum", table_uri="/t", dry_run=cast("Any", "no"))


@needs_rendered_group
def test_locations_are_rendered_from_the_functions_arguments(runs: Any, tmp_path: Path) -> None:
    """Of a mapped task group, too: its arguments come with the task."""

    def rows(name: str) -> pa.Table:
        return pa.table({"name": [name]})

    with DAG("rendered_locations", schedule=None) as dag:

        @task_group
        def each(name: str) -> None:
            task.delta(table_uri=f"{tmp_path}/{{{{ task.op_kwargs['name'] }}}}")(rows)(name=name)

        each.expand(name=["a", "b"])
        DeltaWriteOperator(
            task_id="nested",
            table_uri=f"{tmp_path}/{{{{ task.op_kwargs['name'] }}}}",
            op_kwargs={"name": "{{ dag.dag_id }}"},
            python_callable=rows,
        )
    assert str(runs.run(dag).state) == "success"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a", "b", "rendered_locations"]


def test_a_template_that_renders_to_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="has not been rendered"):
        DeltaHook().table(f"{tmp_path}/{{{{ ds }}}}")


def test_a_local_object_storage_path_is_not_encoded(tmp_path: Path) -> None:
    place = tmp_path / "a b #1 %20 é"
    assert DeltaHook().table(ObjectStoragePath(f"file://{place}")).uri == DeltaHook().table(place).uri
