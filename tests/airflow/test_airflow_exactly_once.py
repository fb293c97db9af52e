"""Exactly once, in three sentences: real DAG runs in which tasks die, are cleared and come late."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaUndoOperator,
    DeltaUpdateOperator,
    DeltaWriteOperator,
)
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY_5, DAY_6, DAY_7 = (datetime(2024, 1, day, tzinfo=UTC) for day in (5, 6, 7))
START = datetime(2024, 1, 1, tzinfo=UTC)


def rows(*values: object) -> pa.Table:
    return pa.table({"v": pa.array([str(value) for value in values], pa.string())})


def content(uri: Path) -> list[str]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


RETRIED: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0), "post_execute": die_once}
APPEND: dict[str, Any] = {"write": "append"}
DAY: dict[str, Any] = {"write": "overwrite", "replace_where": "v LIKE '{{ ds }}%'"}
WHOLE: dict[str, Any] = {"write": "overwrite"}


def dag_of(name: str, uri: Path, function: Callable[..., object], **arguments: Any) -> DAG:
    with DAG(name, schedule="@daily", start_date=START) as dag:
        DeltaWriteOperator(task_id="load", python_callable=function, table_uri=uri, **arguments)
    return dag


def written(ds: str, ti: Any) -> pa.Table:
    return rows(f"{ds} try {ti.try_number}")


SLOW = pytest.mark.long
WAYS = [
    pytest.param(APPEND, id="append"),
    pytest.param({**APPEND, "unit_column": "load_id"}, id="column", marks=SLOW),
    pytest.param(DAY, id="day", marks=SLOW),
    pytest.param(WHOLE, id="whole", marks=SLOW),
]


@pytest.mark.parametrize("how", WAYS)
def test_a_crash_never_doubles(runs: Runs, tmp_path: Path, how: dict[str, Any]) -> None:
    dag = dag_of(f"crash_{len(str(how))}", tmp_path / "t", written, **how, **RETRIED)
    run = runs.run(dag, DAY_5)
    assert (content(tmp_path / "t"), runs.tries(run, "load")) == (["2024-01-05 try 1"], 2)
    report = runs.xcom(run, "load")
    assert (report["version"], report["outcome"]) == (0, "recovered")


@pytest.mark.parametrize("how", WAYS)
def test_doing_it_again_replaces(runs: Runs, tmp_path: Path, how: dict[str, Any]) -> None:
    """The corrected rows instead of the old ones, beside those of another run."""
    dag = dag_of(f"again_{len(str(how))}", tmp_path / "t", written, **how)
    run = runs.run(dag, DAY_5)
    others = [] if how == WHOLE else ["2024-01-06 try 1"]
    if others:
        runs.run(dag, DAY_6)
    for attempt in (2, 3):
        runs.clear(dag, run, "load")
        assert content(tmp_path / "t") == [f"2024-01-05 try {attempt}", *others]
        report = runs.xcom(run, "load")
        assert (report["outcome"], report["rows_replaced"]) == ("replaced", 1)
    runs.run(dag, DAY_5)  # The run is deleted and created again, under the same id.
    assert content(tmp_path / "t") == ["2024-01-05 try 1", *others]


@pytest.mark.long
def test_a_crash_after_a_clear_is_recovered(runs: Runs, tmp_path: Path) -> None:
    def die_in_second(context: Any, result: Any) -> None:
        if context["ti"].try_number == 2:
            raise RuntimeError("killed after the commit")

    more: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0), "post_execute": die_in_second}
    dag = dag_of("cleared_then_crashed", tmp_path / "t", written, **APPEND, **more)
    run = runs.run(dag, DAY_5)
    runs.clear(dag, run, "load")
    assert (content(tmp_path / "t"), runs.tries(run, "load")) == (["2024-01-05 try 2"], 3)
    assert runs.xcom(run, "load")["outcome"] == "recovered"


@pytest.mark.long
def test_a_clear_of_an_attempt_that_airflow_took_for_failed_replaces_its_rows(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("failed_then_cleared", tmp_path / "t", written, **APPEND, retries=0, post_execute=die_once)
    run = runs.run(dag, DAY_5)
    assert runs.state(run, "load") == "failed"
    runs.clear(dag, run, "load")
    assert content(tmp_path / "t") == ["2024-01-05 try 2"]


@pytest.mark.long
def test_a_late_run_never_replaces_the_table_of_a_newer_one(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("late_whole", tmp_path / "t", written, **WHOLE)
    newer = runs.run(dag, DAY_6)
    late = runs.run(dag, DAY_5)
    assert content(tmp_path / "t") == ["2024-01-06 try 1"]
    report = runs.xcom(late, "load")
    assert (report["outcome"], report["fenced_by"]) == ("fenced", newer.run_id)
    runs.clear(dag, newer, "load")
    assert content(tmp_path / "t") == ["2024-01-06 try 2"]


@pytest.mark.long
def test_a_run_of_the_schedule_that_is_cleared_after_a_manual_run_writes(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("after_manual", tmp_path / "t", lambda ti: rows(f"try {ti.try_number} of {ti.run_id[:9]}"), **WHOLE)
    run = runs.run(dag, DAY_5)
    runs.run(dag, None)
    assert content(tmp_path / "t") == ["try 1 of manual__2"]
    runs.clear(dag, run, "load")
    assert content(tmp_path / "t") == ["try 2 of manual__2"]
    assert runs.xcom(run, "load")["outcome"] == "replaced"


def test_on_redo(runs: Runs, tmp_path: Path) -> None:
    with DAG("on_redo", schedule="@daily", start_date=START) as dag:
        for kind in ("replace", "keep", "add"):
            DeltaWriteOperator(task_id=kind, table_uri=tmp_path / kind, python_callable=written, on_redo=kind)
        DeltaWriteOperator(task_id="off", table_uri=tmp_path / "off", python_callable=written, exactly_once=False)
    run = runs.run(dag, DAY_5)
    runs.clear(dag, run, "replace", "keep", "add", "off")
    first, second = "2024-01-05 try 1", "2024-01-05 try 2"
    assert {kind: content(tmp_path / kind) for kind in ("replace", "keep", "add", "off")} == {
        "replace": [second], "keep": [first], "add": [first, second], "off": [first, second]
    }  # fmt: skip


@pytest.mark.long
def test_a_redo_without_rows_is_refused_until_the_unit_is_undone(runs: Runs, tmp_path: Path) -> None:
    source = ["a"]
    dag = dag_of("drained", tmp_path / "t", lambda: rows(*source), **APPEND)
    with dag:
        DeltaUndoOperator(task_id="undo", table_uri=tmp_path / "t", run="{{ params.run }}", params={"run": "none"})
    run = runs.run(dag, DAY_5)
    source.clear()
    runs.clear(dag, run, "load")
    assert (runs.state(run, "load"), content(tmp_path / "t")) == ("failed", ["a"])
    (unit,) = DeltaTable(tmp_path / "t").units()["unit"].to_pylist()
    assert unit == "airflow:drained.load:2024-01-05T00:00:00+00:00"
    DeltaTable(tmp_path / "t").undo(unit=unit)
    runs.clear(dag, run, "load")
    assert (runs.state(run, "load"), content(tmp_path / "t")) == ("success", [])


@pytest.mark.long
def test_updates_are_recovered_and_not_done_again(runs: Runs, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "t").append(pa.table({"n": [1]}))
    with DAG("updates", schedule="@daily", start_date=START) as dag:
        DeltaUpdateOperator(task_id="update", table_uri=tmp_path / "t", set={"n": "n + 1"}, **RETRIED)
    run = runs.run(dag, DAY_5)
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow()["n"].to_pylist() == [2]
    assert runs.xcom(run, "update")["outcome"] == "recovered"
    runs.clear(dag, run, "update")
    assert runs.state(run, "update") == "failed"
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow()["n"].to_pylist() == [2]


@pytest.mark.long
@pytest.mark.parametrize("kind", [DeltaMergeOperator, DeltaDeleteOperator])
def test_merges_by_keys_and_deletes_are_done_again(runs: Runs, tmp_path: Path, kind: Any) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).append(rows("a", "b"))
    how: dict[str, Any] = {"where": "v = 'a'"}
    if kind is DeltaMergeOperator:
        how = {"merge_keys": ["v"], "python_callable": lambda: rows("a", "c")}
    with DAG(f"done_again_{kind.__name__}", schedule="@daily", start_date=START) as dag:
        kind(task_id="change", table_uri=uri, **how, **RETRIED)
    run = runs.run(dag, DAY_5)
    expected = ["a", "b", "c"] if kind is DeltaMergeOperator else ["b"]
    assert (content(uri), runs.xcom(run, "change")["outcome"]) == (expected, "recovered")
    if kind is DeltaDeleteOperator:
        DeltaTable(uri).append(rows("a"))
    runs.clear(dag, run, "change")
    assert (content(uri), runs.xcom(run, "change")["outcome"]) == (expected, "replaced")


@pytest.mark.long
def test_the_list_of_a_mapped_append_grows_and_is_cleared(runs: Runs, tmp_path: Path) -> None:
    items = ["b", "c"]

    with DAG("mapped_append", schedule="@daily", start_date=START) as dag:

        @task
        def listed() -> list[dict[str, str]]:
            return [{"item": item} for item in items]

        DeltaWriteOperator.partial(
            task_id="load", table_uri=tmp_path / "t", python_callable=lambda item, ti: rows(f"{item}{ti.try_number}")
        ).expand(op_kwargs=listed())
    run = runs.run(dag, DAY_5)
    assert content(tmp_path / "t") == ["b1", "c1"]
    items.insert(0, "a")
    runs.clear(dag, run, "listed", "load")
    # The third index is new; the others have tries of their own.
    assert content(tmp_path / "t") == ["a2", "b2", "c1"]
    units = DeltaTable(tmp_path / "t").units()["unit"].to_pylist()
    assert len(units) == 3 and 'mapped_append.load[{"op_kwargs"%3A{"item"%3A"a"}}]:2024' in units[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [APPEND, {"write": "overwrite", "replace_where": "v LIKE 'a%'"}], ids=["append", "where"]
)
def test_a_unit_that_no_instance_names_any_more_is_undone_first(
    runs: Runs, tmp_path: Path, how: dict[str, Any]
) -> None:
    """The mapped arguments have changed when the task is cleared: no instance would replace the rows that are there."""
    uri = tmp_path / "t"
    listed: list[dict[str, object]] = [{"item": "a"}]

    def item_row(item: str, ti: Any, fast: bool = False) -> pa.Table:
        return rows(f"{item}{ti.try_number}")

    def dag_of_list() -> DAG:
        with DAG(f"renamed_{how['write']}", schedule="@daily", start_date=START) as dag:
            DeltaWriteOperator.partial(task_id="load", table_uri=uri, python_callable=item_row, **how).expand(
                op_kwargs=listed
            )
        return dag

    run = runs.run(dag_of_list(), DAY_5)
    runs.run(dag_of_list(), DAY_6) if how == APPEND else None
    listed[0] = {"item": "a", "fast": True}
    runs.register(dag := dag_of_list())
    before = content(uri)
    runs.clear(dag, run, "load")
    assert (runs.state(run, "load", 0), content(uri)) == ("failed", before)
    DeltaTable(uri).undo(
        unit=f'airflow:{dag.dag_id}.load[{{"op_kwargs"%3A{{"item"%3A"a"}}}}]:{DAY_5.isoformat()}'
    ) if how == APPEND else DeltaTable(uri).undo(run=run.run_id)
    runs.clear(dag, run, "load")
    assert (runs.state(run, "load", 0), content(uri)) == ("success", sorted(["a3", *before[1:]]))


@pytest.mark.long
def test_instances_that_run_at_the_same_time_do_not_hide_a_unit_without_one(runs: Runs, tmp_path: Path) -> None:
    """Both new instances begin while the table holds only the unit of the old one."""
    uri = tmp_path / "t"
    listed = [{"item": "a"}]

    def item_row(item: str) -> pa.Table:
        if other := {"b": "c", "c": "b"}.get(item):
            name = f'airflow:at_once.load[{{"op_kwargs"%3A{{"item"%3A"{other}"}}}}]:{DAY_5.isoformat()}'
            DeltaTable(uri).append(rows(other), txn=(name, 1))  # The other instance, meanwhile.
        return rows(item)

    def dag_of_list() -> DAG:
        with DAG("at_once", schedule="@daily", start_date=START) as dag:
            DeltaWriteOperator.partial(task_id="load", table_uri=uri, python_callable=item_row).expand(op_kwargs=listed)
        return dag

    run = runs.run(dag_of_list(), DAY_5)
    listed[:] = [{"item": "b"}, {"item": "c"}]
    runs.register(dag := dag_of_list())
    runs.clear(dag, run, "load")
    assert (content(uri), [runs.state(run, "load", index) for index in (0, 1)]) == (["a", "b", "c"], ["failed"] * 2)


@pytest.mark.long
def test_tasks_of_one_writer_are_all_instances_of_it(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with DAG("one_writer", schedule="@daily", start_date=START) as dag:
        for name in ("a", "b", "c"):
            DeltaWriteOperator(
                task_id=name,
                table_uri=uri,
                python_callable=lambda ti: rows(f"{ti.task_id}{ti.try_number}"),
                writer="one_writer.load" if name != "c" else "{{ 'one_writer.load' }}",
                identity=name,
            )
    run = runs.run(dag, DAY_5)
    runs.clear(dag, run, "a")
    assert (content(uri), runs.state(run, "a")) == (["a2", "b1", "c1"], "success")


@pytest.mark.long
def test_a_task_that_is_mapped_since_or_no_longer(runs: Runs, tmp_path: Path) -> None:
    def dag_of_kind(uri: Path, *, is_mapped: bool, **how: Any) -> DAG:
        def row(ti: Any, item: str = "a") -> pa.Table:
            return rows(f"{item}{ti.try_number}")

        with DAG(f"{uri.name}_since", schedule="@daily", start_date=START) as dag:
            if is_mapped:
                mapped = DeltaWriteOperator.partial(task_id="load", table_uri=uri, python_callable=row, **how)
                mapped.expand(op_kwargs=[{"item": "a"}, {"item": "b"}])
            else:
                DeltaWriteOperator(task_id="load", table_uri=uri, python_callable=row, **how)
        runs.register(dag)
        return dag

    uri = tmp_path / "plain"
    run = runs.run(dag_of_kind(uri, is_mapped=False), DAY_5)
    runs.clear(dag_of_kind(uri, is_mapped=True), run, "load")
    assert (content(uri), [runs.state(run, "load", index) for index in (0, 1)]) == (["a1"], ["failed"] * 2)
    uri = tmp_path / "mapped"
    run = runs.run(dag_of_kind(uri, is_mapped=True), DAY_5)
    runs.clear(dag_of_kind(uri, is_mapped=False), run, "load")  # Airflow runs both instances of the plain task.
    assert (content(uri), [runs.state(run, "load", index) for index in (0, 1)]) == (["a1", "b1"], ["failed"] * 2)
    run = runs.run(dag_of_kind(uri, is_mapped=False), DAY_5)
    assert (content(uri), runs.state(run, "load")) == (["a1", "b1"], "failed")
    # An overwrite selects the rows that it replaces, whoever wrote them.
    run = runs.run(dag_of_kind(uri, is_mapped=False, **WHOLE), DAY_5)
    assert (runs.state(run, "load"), content(uri)) == ("success", ["a1"])


@pytest.mark.long
def test_mapped_instances_of_one_unit_are_refused(runs: Runs, tmp_path: Path) -> None:
    with DAG("one_unit", schedule="@daily", start_date=START) as dag:

        @task
        def listed() -> list[dict[str, str]]:
            return [{"item": "a"}, {"item": "a"}]

        DeltaWriteOperator.partial(
            task_id="load", table_uri=tmp_path / "t", python_callable=lambda item: rows(item)
        ).expand(op_kwargs=listed())
    run = runs.run(dag, DAY_5)
    assert content(tmp_path / "t") == ["a"]
    assert sorted(runs.state(run, "load", index) for index in (0, 1)) == ["failed", "success"]
    with pytest.raises(InvalidRequestError, match="twice"):
        DeltaWriteOperator.partial(task_id="load", table_uri="/t", python_callable=lambda item: rows(item)).expand(
            op_kwargs=[{"item": "a"}, {"item": "a"}]
        )
    with pytest.raises(InvalidRequestError, match="identity"):
        DeltaWriteOperator.partial(task_id="load", table_uri="/t", python_callable=lambda item: rows(item)).expand(
            op_kwargs=[{"item": DAY_5}]
        )
