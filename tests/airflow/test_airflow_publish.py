"""Write, audit, publish: nobody sees rows before they are checked, and they are committed once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaCheckOperator,
    DeltaHook,
    DeltaPublishOperator,
    DeltaWriteOperator,
    delta_write_audit_publish,
)
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

CHECKS: dict[str, dict[str, Any]] = {
    "amounts": {"rows": {"positive": "amount >= 0"}},
    "enough": {"min_rows": 1, "columns": {"id": "long"}},
}


def rows(*amounts: int) -> pa.Table:
    return pa.table({"id": pa.array(range(len(amounts)), pa.int64()), "amount": pa.array(amounts, pa.int64())})


def content(uri: Path) -> list[int]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["amount"].to_pylist())


def states(runs: Runs, run: Any, *tasks: str) -> list[str]:
    return [runs.state(run, f"wap.{task}") for task in tasks]


def dag_of(name: str, uri: Path, function: Any, **more: Any) -> DAG:
    with DAG(name, schedule=None) as dag:
        delta_write_audit_publish(
            "wap", table_uri=uri, audit=CHECKS, python_callable=function,
            default_args={"retries": 1, "retry_delay": timedelta(0)}, **more,
        )  # fmt: skip
    return dag


@pytest.mark.parametrize("mode", [{"write": "append"}, {"write": "overwrite"}, {"merge_keys": ["id"]}])
def test_what_passes_is_published_and_told(runs: Runs, tmp_path: Path, mode: dict[str, Any]) -> None:
    from tests.airflow.conftest import asset_events

    DeltaTable(tmp_path / "t").append(rows(5))
    name = f"published_{len(mode)}_{next(iter(mode.values()))}".replace("['id']", "keys")
    outlet = Asset(name=name, uri=f"delta://file{tmp_path}/t")
    run = runs.run(dag_of(name, tmp_path / "t", lambda: rows(7, 8), outlets=[outlet], **mode))
    assert str(run.state) == "success"
    assert content(tmp_path / "t") == ([5, 7, 8] if mode == {"write": "append"} else [7, 8])
    staged, published = runs.xcom(run, "wap.stage"), runs.xcom(run, "wap.publish")
    assert (staged["version"], published["version"], published["outcome"]) == (None, 1, "written")
    assert [event.extra["version"] for event in asset_events(name)] == [1]


@pytest.mark.long
def test_a_group_cleared_after_its_publication_was_never_acknowledged(runs: Runs, tmp_path: Path) -> None:
    """The commit is there, and Airflow does not know: the whole group, cleared, replaces its rows."""
    dag = dag_of("unheard", tmp_path / "t", lambda: rows(7))
    publish: Any = dag.get_task("wap.publish")

    def die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            raise RuntimeError("killed after the commit")

    publish.retries, publish._post_execute_hook = 0, die
    run = runs.run(dag)
    assert (str(run.state), content(tmp_path / "t")) == ("failed", [7])
    group = [f"wap.{name}" for name in ("stage", "amounts", "enough", "publish")]
    run = runs.clear(dag, run, *group)
    assert (str(run.state), content(tmp_path / "t")) == ("success", [7])
    assert [runs.xcom(run, f"wap.{name}")["version"] for name in ("stage", "publish")] == [None, 1]
    assert runs.xcom(run, "wap.publish")["outcome"] == "replaced"
    run = runs.clear(dag, run, *group)
    assert (str(run.state), content(tmp_path / "t")) == ("success", [7])


@pytest.mark.long
def test_what_fails_is_seen_by_nobody_and_written_anew_after_clearing(
    runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    DeltaTable(tmp_path / "t").append(rows(5))
    given = [rows(-1), rows(9)]
    dag = dag_of("audited", tmp_path / "t", lambda: given.pop(0))
    run = runs.run(dag)
    assert states(runs, run, "stage", "amounts", "enough", "publish") == [
        "success", "failed", "success", "upstream_failed",
    ]  # fmt: skip
    assert DeltaTable(tmp_path / "t").version() == 0
    output = "".join(capfd.readouterr())
    assert "What is staged for" in output and "clear the staging task with downstream" in output
    runs.clear(dag, run, "wap.stage", "wap.amounts", "wap.enough", "wap.publish")
    assert states(runs, run, "amounts", "publish") == ["success", "success"]
    assert content(tmp_path / "t") == [5, 9]


@pytest.mark.long
def test_publishing_again_is_one_commit(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("republished", tmp_path / "t", lambda: rows(1))
    for task in dag.tasks:
        if task.task_id == "wap.publish":
            task._post_execute_hook = die_once
    run = runs.run(dag)
    assert str(run.state) == "success"
    xcom = runs.xcom(run, "wap.publish")
    assert (xcom["version"], xcom["outcome"]) == (0, "recovered")
    runs.clear(dag, run, "wap.publish")
    assert content(tmp_path / "t") == [1]
    runs.clear(dag, run, "wap.stage", "wap.amounts", "wap.enough", "wap.publish")
    assert content(tmp_path / "t") == [1], "clearing all replaces the rows"


@pytest.mark.long
def test_what_was_undone_is_not_published_again(runs: Runs, tmp_path: Path) -> None:
    """A unit that was undone is as if it had never been done: publishing alone cannot do it again."""
    table = DeltaTable(tmp_path / "t")
    table.append(rows(5))
    dag = dag_of("undone", tmp_path / "t", lambda: rows(7))
    run = runs.run(dag)
    for take_back in (lambda: table.undo(run=run.run_id), lambda: table.restore(0)):
        assert content(tmp_path / "t") == [5, 7]
        take_back()
        runs.clear(dag, run, "wap.publish")
        assert (states(runs, run, "publish"), content(tmp_path / "t")) == (["failed"], [5])
        runs.clear(dag, run, "wap.stage", "wap.amounts", "wap.enough", "wap.publish")


def die_once(context: Any, result: Any) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


def test_a_retried_stage_publishes_only_its_last_attempt(runs: Runs, tmp_path: Path) -> None:
    with DAG("restaged", schedule=None) as dag:
        stage = DeltaWriteOperator(
            task_id="stage", table_uri=tmp_path / "t", python_callable=lambda ti: rows(ti.try_number), stage=True,
            retries=1, retry_delay=timedelta(0), post_execute=die_once,
        )  # fmt: skip
        DeltaPublishOperator(task_id="publish", table_uri=tmp_path / "t", staged=stage.output)
    run = runs.run(dag)
    assert str(run.state) == "success"
    assert content(tmp_path / "t") == [2]


def test_the_reference_opens_what_is_staged(runs: Runs, tmp_path: Path) -> None:
    seen: list[int] = []

    def look(snapshot: Any) -> bool:
        seen.append(snapshot.num_files)
        return True

    with DAG("referenced", schedule=None) as dag:
        stage = DeltaWriteOperator(
            task_id="stage", table_uri=tmp_path / "t", sql="SELECT 3 AS amount", engine="local", stage=True
        )
        DeltaCheckOperator(
            task_id="look", table_uri=tmp_path / "t", reference=stage.output,
            python_callable=look,
        )  # fmt: skip
    run = runs.run(dag)
    assert str(run.state) == "success"
    assert seen == [1]
    xcom = runs.xcom(run, "stage")
    assert DeltaHook().snapshot(xcom).scan().to_arrow()["amount"].to_pylist() == [3]
    with pytest.raises(InvalidRequestError, match="names no table"):
        DeltaHook().snapshot({**xcom, "staged": 7})


def test_constraints_of_the_table_and_functions_are_checked(runs: Runs, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(rows(1, 2))
    table.alter().add_constraint("small", "amount < 10").commit()
    log = tmp_path / "t" / "_delta_log"
    # Another writer, that does not enforce them.
    loose = DeltaTable(tmp_path / "loose")
    loose.append(rows(99))
    (file,) = (tmp_path / "loose").glob("*.parquet")
    file.rename(tmp_path / "t" / "other.parquet")
    with DAG("constraints", schedule=None) as dag:
        DeltaCheckOperator(task_id="own", table_uri=table.uri, constraints=True)
        DeltaCheckOperator(task_id="function", table_uri=table.uri, python_callable=lambda snapshot: None)
    run = runs.run(dag)
    assert (runs.state(run, "own"), runs.state(run, "function")) == ("success", "failed")
    size = (tmp_path / "t" / "other.parquet").stat().st_size
    (log / f"{table.version() + 1:020}.json").write_text(
        '{"add":{"path":"other.parquet","partitionValues":{},"modificationTime":0,"dataChange":true,'
        f'"size":{size}}}}}'
    )
    assert runs.state(runs.run(dag), "own") == "failed"


@pytest.mark.parametrize(
    "checks", [{}, None, {"stage": {"min_rows": 1}}, {"publish": {"min_rows": 1}}, {"c": {}}, {"c": {"version": 1}}]
)
def test_wrong_checks_are_refused_when_the_dag_is_parsed(checks: Any) -> None:
    with DAG("wrong", schedule=None), pytest.raises(InvalidRequestError):
        delta_write_audit_publish("wap", table_uri="/t", audit=checks, python_callable=rows)


@pytest.mark.long
@pytest.mark.parametrize("if_unchanged", [None, False])
def test_an_audit_of_the_whole_table_holds_for_the_version_that_is_published(
    runs: Runs, tmp_path: Path, *, if_unchanged: bool | None
) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).append(rows(5))

    def unique(snapshot: Any) -> bool:
        found = sorted(snapshot.scan().to_arrow()["amount"].to_pylist())
        DeltaTable(uri).append(rows(7))  # Another writer, while this one is looking.
        return found == [5, 7]

    with DAG(f"audited_{if_unchanged}", schedule=None) as dag:
        delta_write_audit_publish(
            "wap",
            table_uri=uri,
            audit={"unique": {"python_callable": unique}},
            python_callable=lambda: rows(7),
            if_unchanged=if_unchanged,
        )
    state = runs.state(runs.run(dag), "wap.publish")
    assert (state, content(uri)) == (("success", [5, 7, 7]) if if_unchanged is False else ("failed", [5, 7]))


@pytest.mark.parametrize(
    ("check", "default"),
    [
        ({"rows": {"r": "id > 0"}}, False),
        ({"min_rows": 1, "where": "id > 0"}, False),
        ({"min_rows": 1}, True),
    ],
)
def test_what_holds_for_each_row_needs_no_unchanged_table(check: dict[str, Any], *, default: bool) -> None:
    with DAG("defaults", schedule=None):
        group = delta_write_audit_publish("g", table_uri="/t", python_callable=lambda: None, audit={"c": check})
    assert group.children["g.publish"].if_unchanged is default
