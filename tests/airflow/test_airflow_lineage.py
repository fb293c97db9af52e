"""What tasks tell of themselves: assets that are filled in, the link to the table's page, OpenLineage's facets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.definitions.asset import AssetUriRef

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaHook,
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaWriteOperator,
    delta_table_asset,
)
from delta_orch.airflow.table_operator import DeltaTableLink, Source, dataset_name, is_by_name, origins
from delta_orch.airflow.versions import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.airflow.conftest import Runs


def rows() -> pa.Table:
    return pa.table({"id": [1, 2], "delay": [3.5, None]})


def events(dag_id: str) -> list[tuple[str, dict[str, Any]]]:
    from airflow.models.asset import AssetEvent  # noqa: TID251 (looking at what Airflow stored)
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag_id)).all()
        return [(event.asset.name, event.extra) for event in found]


def test_assets_given_as_locations_are_outlets_and_inlets(tmp_path: Path) -> None:
    source, target = (delta_table_asset(f"given {name}", tmp_path / name) for name in "st")
    watched = delta_table_asset("given w", tmp_path / "w", watch=True)
    step: dict[str, Any] = {"source": source, "python_callable": len}
    task = DeltaIncrementalOperator(task_id="a", target=target, **step)
    assert (task.inlets, task.outlets) == ([source], [target])
    assert DeltaIncrementalOperator(task_id="b", target=watched, **step).outlets == []
    assert DeltaIncrementalOperator(task_id="c", target=target, outlets=[], inlets=[], **step).outlets == []
    assert DeltaWriteOperator(task_id="d", table_uri="/d/t", python_callable=rows).outlets == [
        AssetUriRef("delta://file/d/t")
    ]
    for unknown in ("t", "{{ params.uri }}"):
        assert DeltaWriteOperator(task_id="e", table_uri=unknown, python_callable=rows).outlets == []
    assert DeltaOptimizeOperator(task_id="f", table_uri=target).outlets == []


def test_a_declared_asset_is_told_by_whoever_writes_its_table(
    runs: Runs, tmp_path: Path, connection: Callable[[str, str], None]
) -> None:
    connection("rooted", f'{{"conn_type": "delta", "extra": {{"table_root": "{tmp_path}"}}}}')
    declared = delta_table_asset("declared", tmp_path / "declared")
    watched = delta_table_asset("seen by the triggerer", tmp_path / "watched", watch=True)
    with DAG("consumer", schedule=[declared, watched]) as consumer:
        DeltaOptimizeOperator(task_id="o", table_uri=declared)
    runs.register(consumer)
    with DAG("producer", schedule=None) as dag:
        for name in ("declared", "watched", "unknown"):
            DeltaWriteOperator(task_id=name, table_uri=name, delta_conn_id="rooted", python_callable=rows)
    run = runs.run(dag)
    assert str(run.state) == "success"
    assert events("producer") == [
        ("declared", {"table_uri": f"file://{tmp_path}/declared", "version": 0, "outcome": "written", "rows": 2,
                      "partitions": None, "table_id": DeltaTable(tmp_path / "declared").snapshot().metadata.id})
    ]  # fmt: skip


def test_link_to_the_page_of_the_table(runs: Runs, tmp_path: Path, connection: Callable[[str, str], None]) -> None:
    extra = {"table_root": str(tmp_path), "table_page": "https://lake.example/t?at={table_uri}&v={version}"}
    connection("paged", json.dumps({"conn_type": "delta", "extra": extra}))
    with DAG("links", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="linked", table_uri="a b", delta_conn_id="paged", python_callable=rows, write="overwrite"
        )
        DeltaWriteOperator(task_id="bare", table_uri=tmp_path / "u", python_callable=rows, write="overwrite")
    run = runs.run(dag)
    uri = f"file%3A%2F%2F{str(tmp_path).replace('/', '%2F')}%2Fa%2520b"
    assert runs.xcom(run, "linked", key="_link_DeltaTableLink") == f"https://lake.example/t?at={uri}&v=0"
    assert not runs.xcom(run, "bare", key="_link_DeltaTableLink")
    (back,) = (entry.user_metadata for entry in DeltaTable(tmp_path / "a b").history())
    told = json.loads(str(back)).get("log_url")
    # Airflow 3.0 does not tell a task its page.
    assert told is None if RELEASE < (3, 1) else "/dags/links/runs/" in told


def test_a_mapped_task_that_was_refused_has_no_link() -> None:
    with DAG("refused_links", schedule=None):
        mapped = DeltaWriteOperator.partial(task_id="m", write="overwrite", python_callable=rows).expand(
            table_uri=["/d/t"]
        )
    assert DeltaTableLink().get_link(mapped, ti_key=None) == ""


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///data/t", ("file", "/data/t")),
        ("/data/t", ("file", "/data/t")),
        ("s3://lake/bronze/t/", ("s3://lake", "bronze/t")),
        ("abfss://c@a.dfs.core.windows.net/t", ("abfss://c@a.dfs.core.windows.net", "t")),
    ],
)
def test_datasets_are_named_as_spark_names_them(uri: str, name: tuple[str, str]) -> None:
    assert dataset_name(uri) == name


def test_columns_are_followed_by_their_names(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "s")
    names = ["id", "b", "a.b", "with space"]
    table.create(pa.schema([(name, pa.int64()) for name in names]), properties={"delta.columnMapping.mode": "name"})
    source = Source(table.uri, table.snapshot())

    def found(sql: str, *written: str) -> dict[str, list[str]]:
        return {name: [field for _, field in made] for name, made in origins(sql, {"S": source}, written).items()}

    assert found("SELECT * FROM s", *names) == {name: [name] for name in names}
    assert found("SELECT `a.b` + b AS x, `with space` AS Y FROM s", "x", "Y") == {
        "x": ["a.b", "b"],
        "Y": ["with space"],
    }
    # Of a table with another column.
    assert found("SELECT id FROM s", "id", "later") == {"id": ["id"]}
    assert found("no query", "id") == {}


def test_a_merge_that_names_its_columns_tells_no_origins(tmp_path: Path) -> None:
    def merge(**clause: dict[str, Any]) -> DeltaMergeOperator:
        more: dict[str, Any] = {"table_uri": tmp_path / "t", "tables": {"s": tmp_path / "s"}}
        return DeltaMergeOperator(
            task_id="m", sql="SELECT id, other FROM s", on="source.id = target.id", clauses=[clause], **more
        )

    assert is_by_name(merge(when_matched_update_all={"condition": "source.id > 1"}))
    assert not is_by_name(merge(when_not_matched_insert={"values": {"id": "source.other"}}))


def test_facets(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "airflow.providers.openlineage.extractors", reason="apache-airflow-providers-openlineage is not installed"
    )
    DeltaTable(tmp_path / "s").append(rows())
    told: list[Any] = []

    def tell(context: Any, result: Any) -> None:
        # The listener asks in a process forked off, where Airflow answers nobody.
        with monkeypatch.context() as patch:
            patch.setattr(DeltaHook, "get_connection", lambda *_: pytest.fail("a connection was asked for"))
            told.append(context["ti"].task.get_openlineage_facets_on_complete(context["ti"]))

    with DAG("lineage", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "t", tables={"src": tmp_path / "s"}, write="overwrite",
            sql="SELECT id, delay * 60 AS seconds, 'x' AS c FROM src WHERE id > 0", post_execute=tell,
        )  # fmt: skip
    # `post_execute` runs before Airflow's listeners, after `execute`.
    assert runs.state(runs.run(dag), "load") == "success"
    (lineage,) = told
    (source,), (target,) = lineage.inputs, lineage.outputs
    assert (source.namespace, source.name) == ("file", f"{tmp_path}/s")
    assert source.facets["version"].datasetVersion == "0"
    assert [(field.name, field.type) for field in target.facets["schema"].fields] == [
        ("id", "long"), ("seconds", "double"), ("c", "string"),
    ]  # fmt: skip
    assert target.outputFacets["outputStatistics"].rowCount == 2
    assert target.outputFacets["outputStatistics"].fileCount == 1
    columns = target.facets["columnLineage"].fields
    assert {name: [one.field for one in field.inputFields] for name, field in columns.items()} == {
        "id": ["id"], "seconds": ["delay"],
    }  # fmt: skip


def test_a_task_that_has_not_run_has_no_lineage() -> None:
    pytest.importorskip(
        "airflow.providers.openlineage.extractors", reason="apache-airflow-providers-openlineage is not installed"
    )
    asset = Asset(name="x", uri="delta://file/d/t")
    task = DeltaWriteOperator(task_id="d", table_uri=asset, python_callable=rows, write="overwrite")
    assert task.get_openlineage_facets_on_complete(None).outputs == []
