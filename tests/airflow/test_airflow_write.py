"""`DeltaWriteOperator` and `@task.delta` in real DAG runs: what is written, and that it is written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, AssetAlias, task

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaWriteOperator
from delta_orch.errors import InvalidRequestError
from tests.certain import some

DAY_1 = datetime(2024, 1, 1, tzinfo=UTC)
DAY_2 = datetime(2024, 1, 2, tzinfo=UTC)
NO_DELAY: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


def day_of_flights(day: str, *numbers: int) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(numbers), pa.string()), "flight": pa.array(numbers, pa.int64())})


def rows(uri: Path) -> list[tuple[str, int]]:
    table = DeltaTable(str(uri)).snapshot().scan(columns=["day", "flight"]).to_arrow()
    return sorted(zip(table["day"].to_pylist(), table["flight"].to_pylist(), strict=True))


def die_after_commit(context: Any, result: Any) -> None:
    """The worst moment for a writer that does not know what it wrote."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


DIES_AFTER_COMMIT: dict[str, Any] = {**NO_DELAY, "post_execute": die_after_commit}


class Source:
    """A function for tasks that counts its calls."""

    def __init__(self, *tables: pa.Table) -> None:
        self.tables = list(tables)
        self.calls = 0

    def __call__(self) -> pa.Table:
        self.calls += 1
        return self.tables[min(self.calls, len(self.tables)) - 1]


def test_append_creates_the_table_and_reports_the_commit(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("append", schedule="@daily", start_date=DAY_1) as dag:

        @task.delta(table_uri=str(tmp_path / "t"), partition_by=["day"], properties={"delta.checkpointInterval": "7"})
        def load(ds: str) -> pa.Table:
            return day_of_flights(ds, 1, 2)

        load()
    run = runs.run(dag, DAY_1)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 2)]
    xcom = runs.xcom(run, "load")
    assert (xcom["table_uri"], xcom["version"], xcom["outcome"]) == (f"file://{tmp_path}/t", 0, "written")
    assert xcom["operation_metrics"]["numOutputRows"] in (2, "2")
    snapshot = DeltaTable(str(tmp_path / "t")).snapshot()
    assert snapshot.partition_columns == ("day",)
    assert snapshot.properties.checkpoint_interval == 7
    written_by = json.loads(some(DeltaTable(str(tmp_path / "t")).history()[0].user_metadata))
    assert written_by["dag_id"] == "append"
    assert written_by["run_id"] == run.run_id
    assert (written_by["task_id"], written_by["try_number"]) == ("load", 1)


def test_retry_after_the_commit_writes_nothing_and_computes_nothing(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = Source(day_of_flights("2024-01-01", 1, 2))
    with DAG("retry_after_commit", schedule=None) as dag:
        DeltaWriteOperator(task_id="load", python_callable=source, table_uri=str(tmp_path / "t"), **DIES_AFTER_COMMIT)
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("success", 2)
    assert source.calls == 1
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 2)]
    report = runs.xcom(run, "load")
    assert (report["version"], report["outcome"]) == (0, "recovered")
    assert report["operation_metrics"]["numOutputRows"] in (2, "2")
    assert DeltaTable(str(tmp_path / "t")).version() == 0


def test_retry_before_the_commit_writes(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("retry_before_commit", schedule=None) as dag:

        @task.delta(table_uri=str(tmp_path / "t"), **NO_DELAY)
        def load(ti: Any) -> pa.Table:
            if ti.try_number == 1:
                raise RuntimeError("killed before the commit")
            return day_of_flights("2024-01-01", 1)

        load()
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("success", 2)
    assert runs.xcom(run, "load")["outcome"] == "written"
    assert json.loads(some(DeltaTable(str(tmp_path / "t")).history()[0].user_metadata))["try_number"] == 2
    assert rows(tmp_path / "t") == [("2024-01-01", 1)]


def test_without_exactly_once_every_attempt_writes(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("not_exactly_once", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=Source(day_of_flights("2024-01-01", 1)),
            table_uri=str(tmp_path / "t"),
            exactly_once=False,
            **DIES_AFTER_COMMIT,
        )
    runs.run(dag)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 1)]
    assert DeltaTable(str(tmp_path / "t")).txns() == {}


def daily_replace(name: str, uri: Path, source: Callable[..., pa.Table]) -> DAG:
    with DAG(name, schedule="@daily", start_date=DAY_1) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=source,
            table_uri=str(uri),
            write="overwrite",
            replace_where="day = '{{ ds }}'",
            partition_by=["day"],
        )
    return dag


def test_cleared_task_replaces_what_it_wrote(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = Source(day_of_flights("2024-01-01", 1, 2), day_of_flights("2024-01-01", 3))
    dag = daily_replace("cleared", tmp_path / "t", source)
    run = runs.run(dag, DAY_1)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 2)]
    runs.clear(dag, run, "load")
    assert source.calls == 2
    assert rows(tmp_path / "t") == [("2024-01-01", 3)]


def test_backfill_of_an_older_day_is_not_dropped(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def source(ds: str) -> pa.Table:
        return day_of_flights(ds, int(ds[-2:]))

    dag = daily_replace("backfill", tmp_path / "t", source)
    runs.run(dag, DAY_2)
    runs.run(dag, DAY_1)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-02", 2)]


def test_zombie_of_an_older_attempt_is_fenced(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The older attempt computes, hangs, and comes to its commit after a newer one of the same day has committed."""
    newer = daily_replace("zombie", tmp_path / "t", lambda: day_of_flights("2024-01-01", 2))

    def hang() -> pa.Table:
        runs.run(newer, DAY_1)
        return day_of_flights("2024-01-01", 1)

    table = DeltaTable(str(tmp_path / "t"))
    table.append(day_of_flights("2024-01-01", 0), partition_by=["day"])
    operator = daily_replace("zombie", tmp_path / "t", hang).get_task("load")
    assert operator.execute(context_of_older_attempt(operator))["outcome"] == "fenced"
    assert rows(tmp_path / "t") == [("2024-01-01", 2)]


def context_of_older_attempt(operator: Any) -> dict[str, Any]:
    """The context of an attempt that another process works on: Airflow runs one DAG at a time in one process."""
    from types import SimpleNamespace

    operator.replace_where = "day = '2024-01-01'"
    ti = SimpleNamespace(
        dag_id=operator.dag_id,
        task_id=operator.task_id,
        map_index=-1,
        run_id="older",
        try_number=1,
        max_tries=0,
        task=operator,
        id="00000000-0000-7000-8000-000000000000",
        xcom_pull=lambda **_: [],
    )
    dag_run = SimpleNamespace(
        clear_number=0,
        run_type="manual",
        logical_date=DAY_1,
        data_interval_start=DAY_1,
        data_interval_end=DAY_1,
        run_after=DAY_1,
        start_date=DAY_1,
    )
    return {"ti": ti, "dag_run": dag_run, "dag": operator.dag, "outlets": [], "outlet_events": {}}


def test_mapped_tasks_each_write(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("mapped", schedule="@daily", start_date=DAY_1) as dag:

        @task.delta(table_uri=str(tmp_path / "t"), partition_by=["day"])
        def load(flight: int, ds: str) -> pa.Table:
            return day_of_flights(ds, flight)

        load.expand(flight=[1, 2, 3])
    run = runs.run(dag, DAY_1)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 2), ("2024-01-01", 3)]
    assert {runs.xcom(run, "load", index)["version"] for index in range(3)} == {0, 1, 2}
    assert len(DeltaTable(str(tmp_path / "t")).txns()) == 3


def test_mapped_operators_take_mapped_arguments(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("mapped_operator", schedule=None) as dag:
        DeltaWriteOperator.partial(
            task_id="load", python_callable=lambda n: day_of_flights("d", n), table_uri=str(tmp_path / "t")
        ).expand(op_kwargs=[{"n": 1}, {"n": 2}])
    runs.run(dag)
    assert rows(tmp_path / "t") == [("d", 1), ("d", 2)]


def test_templates(runs, tmp_path: Path, connection) -> None:  # type: ignore[no-untyped-def]
    connection("delta_default", json.dumps({"conn_type": "delta", "extra": {"table_root": str(tmp_path)}}))
    with DAG("templates", schedule="@daily", start_date=DAY_1, params={"name": "flights"}) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=lambda day, number: day_of_flights(day, int(number)),
            op_args=["{{ ds }}"],
            op_kwargs={"number": "{{ logical_date.day }}"},
            table_uri="{{ params.name }}_{{ ds_nodash }}",
        )
    run = runs.run(dag, DAY_2)
    assert runs.xcom(run, "load")["table_uri"] == f"file://{tmp_path}/flights_20240102"
    assert rows(tmp_path / "flights_20240102") == [("2024-01-02", 2)]


@pytest.mark.long
@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.to_reader(), lambda t: t.to_pandas(), pl.from_arrow],
    ids=["arrow", "reader", "pandas", "polars"],
)
def test_kinds_of_rows(runs, tmp_path: Path, convert: Callable[[pa.Table], Any]) -> None:  # type: ignore[no-untyped-def]
    with DAG("kinds", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=lambda: convert(day_of_flights("2024-01-01", 1)),
            table_uri=str(tmp_path / "t"),
        )
    run = runs.run(dag)
    assert runs.state(run, "load") == "success"
    assert rows(tmp_path / "t") == [("2024-01-01", 1)]
    assert isinstance(convert(day_of_flights("d")), pa.Table | pa.RecordBatchReader | pd.DataFrame | pl.DataFrame)


def test_overwrite_of_partitions(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    table = DeltaTable(str(tmp_path / "t"))
    table.append(pa.concat_tables([day_of_flights("a", 1), day_of_flights("b", 2)]), partition_by=["day"])
    with DAG("dynamic", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=lambda: day_of_flights("b", 3),
            table_uri=str(tmp_path / "t"),
            write="overwrite_partitions",
        )
    runs.run(dag)
    assert rows(tmp_path / "t") == [("a", 1), ("b", 3)]


def test_sql_over_tables_on_the_local_engine(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    DeltaTable(str(tmp_path / "flights")).append(pa.concat_tables([day_of_flights("a", 1, 2), day_of_flights("b", 3)]))
    with DAG("sql", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            sql="SELECT day, max(flight) AS flight FROM flights WHERE day <> '{{ params.without }}' GROUP BY day",
            params={"without": "b"},
            tables={"flights": str(tmp_path / "flights")},
            table_uri=str(tmp_path / "t"),
            engine="local",
        )
    run = runs.run(dag)
    assert runs.state(run, "load") == "success"
    assert rows(tmp_path / "t") == [("a", 2)]


@pytest.mark.long
def test_mode_error_creates_once_and_survives_its_own_retry(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def dag_of(name: str) -> DAG:
        with DAG(name, schedule=None) as dag:
            DeltaWriteOperator(
                task_id="load",
                python_callable=lambda: day_of_flights("a", 1),
                table_uri=str(tmp_path / "t"),
                write="error",
                **DIES_AFTER_COMMIT,
            )
        return dag

    first = runs.run(dag_of("creates"))
    assert (runs.state(first, "load"), runs.tries(first, "load")) == ("success", 2)
    second = runs.run(dag_of("comes_late"))
    assert (runs.state(second, "load"), runs.tries(second, "load")) == ("failed", 1)
    assert rows(tmp_path / "t") == [("a", 1)]


def test_mode_ignore_leaves_an_existing_table(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    DeltaTable(str(tmp_path / "t")).append(day_of_flights("a", 1))
    source = Source(day_of_flights("b", 2))
    with DAG("ignore", schedule=None) as dag:
        DeltaWriteOperator(task_id="load", python_callable=source, table_uri=str(tmp_path / "t"), write="ignore")
    run = runs.run(dag)
    table_id = DeltaTable(str(tmp_path / "t")).snapshot().metadata.id
    reference = {"table_uri": f"file://{tmp_path}/t", "version": 0, "table_id": table_id}
    assert runs.xcom(run, "load") == {**reference, "outcome": "nothing new"}
    assert source.calls == 0


def test_outlets_carry_the_version(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from airflow.models.asset import AssetEvent  # noqa: TID251 (looking at what Airflow stored)
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with DAG("outlets", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=lambda: day_of_flights("a", 1),
            table_uri=str(tmp_path / "t"),
            outlets=[Asset(name="flights", uri=f"delta://file{tmp_path}/t"), AssetAlias("any_flights")],
        )
    run = runs.run(dag)
    with create_session() as session:
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == "outlets")).all()
        extras = [{key: event.extra.get(key) for key in ("table_uri", "version", "outcome")} for event in events]
        names = {event.asset.name for event in events}
    assert runs.state(run, "load") == "success"
    assert extras
    assert extras == [{"table_uri": f"file://{tmp_path}/t", "version": 0, "outcome": "written"}] * len(extras)
    # The alias resolves to the asset that stands for the table, not to a second one with the same URI.
    assert names == {"flights"}


def test_bad_rows_fail_without_retry_and_leave_the_table(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    DeltaTable(str(tmp_path / "t")).append(day_of_flights("a", 1))
    with DAG("bad_rows", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load", python_callable=lambda: pa.table({"other": [1]}), table_uri=str(tmp_path / "t"), **NO_DELAY
        )
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("failed", 1)
    assert rows(tmp_path / "t") == [("a", 1)]
    assert DeltaTable(str(tmp_path / "t")).version() == 0


def test_rows_outside_replace_where_fail_without_retry(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    DeltaTable(str(tmp_path / "t")).append(day_of_flights("2024-01-01", 1), partition_by=["day"])
    dag = daily_replace("outside", tmp_path / "t", lambda: day_of_flights("2024-01-02", 2))
    run = runs.run(dag, DAY_1)
    assert runs.state(run, "load") == "failed"
    assert rows(tmp_path / "t") == [("2024-01-01", 1)]


def test_forgotten_return_fails(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("forgotten", schedule=None) as dag:
        DeltaWriteOperator(task_id="load", python_callable=lambda: None, table_uri=str(tmp_path / "t"), **NO_DELAY)
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("failed", 1)
    assert not DeltaTable(str(tmp_path / "t")).exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "exactly one"),
        ({"python_callable": day_of_flights, "sql": "SELECT 1"}, "exactly one"),
        ({"python_callable": day_of_flights, "write": "upsert"}, "write='upsert'"),
        ({"python_callable": day_of_flights, "write": "merge"}, "merge_keys"),
        ({"python_callable": day_of_flights, "on_redo": "maybe"}, "on_redo='maybe'"),
        ({"python_callable": day_of_flights, "write": "append", "merge_keys": ["a"]}, "merge_keys"),
        ({"python_callable": day_of_flights, "write": "merge", "merge_keys": ["a"], "unit_column": "u"}, "unit_column"),
        ({"python_callable": day_of_flights, "exactly_once": False, "unit_column": "u"}, "unit_column"),
        ({"python_callable": day_of_flights, "writer": "load"}, "no writer of units"),
        ({"python_callable": day_of_flights, "engine": "flink"}, "engine='flink'"),
        ({"python_callable": day_of_flights, "replace_where": "a = 1"}, "replace_where, which write='append'"),
        (
            {"python_callable": day_of_flights, "write": "overwrite_partitions", "replace_where": "a = 1"},
            "replace_where, which write='overwrite_partitions'",
        ),
        ({"python_callable": day_of_flights, "write": "overwrite", "replace_where": ""}, "expression"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        DeltaWriteOperator(task_id="load", table_uri="/t", **arguments)


def test_the_schema_may_follow_the_rows(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("schema_mode", schedule="@daily", start_date=DAY_1) as dag:

        @task.delta(table_uri=str(tmp_path / "t"), schema_mode="merge")
        def load(ds: str) -> pa.Table:
            columns = {"day": [ds], "flight": [1]}
            return pa.table(columns if ds == "2024-01-01" else columns | {"note": ["x"]})

        load()
    runs.run(dag, DAY_1)
    runs.run(dag, DAY_2)
    table = DeltaTable(str(tmp_path / "t")).snapshot().scan().to_arrow().sort_by("day")
    assert table.column("note").to_pylist() == [None, "x"]


@pytest.mark.parametrize(
    "options", [{"schema_mode": "grow"}, {"schema_mode": "overwrite"},
    {"schema_mode": "overwrite", "write": "overwrite", "replace_where": "day = 1"}], ids=["unknown", "append", "where"]
)  # fmt: skip
def test_schema_modes_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="schema_mode"):
        DeltaWriteOperator(task_id="t", table_uri="x", python_callable=lambda: {}, **options)


def test_a_table_of_an_asset_is_not_overwritten(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    table = DeltaTable(str(tmp_path / "t"))
    table.append(day_of_flights("2024-01-01", 1), properties={"delta_orch.owner": "asset flights"})
    source = Source(day_of_flights("2024-01-01", 2))
    with DAG("overwrites", schedule=None) as dag:
        where: dict[str, Any] = {"python_callable": source, "table_uri": str(tmp_path / "t")}
        DeltaWriteOperator(task_id="all", write="overwrite", **where)
        DeltaWriteOperator(task_id="some", write="overwrite", replace_where="day = '2024-01-01'", **where)
        DeltaWriteOperator(task_id="more", write="append", **where)
    run = runs.run(dag)
    states = [runs.state(run, name) for name in ("all", "some", "more")]
    assert (states, source.calls) == (["failed", "failed", "success"], 1)
    assert rows(tmp_path / "t") == [("2024-01-01", 1), ("2024-01-01", 2)]
