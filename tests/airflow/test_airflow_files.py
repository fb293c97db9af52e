"""`DeltaIncrementalOperator` with a `FileSource`: the rows of each file once, whatever happens to the task."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable, Expect
from delta_orch.airflow import DeltaIncrementalOperator
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.file_reader import FileBatch
from tests.arrival.landing import Landing, ids_of

NO_DELAY = {"retries": 1, "retry_delay": timedelta(0)}


def day_of(number: int) -> datetime:
    return datetime(2024, 1, number, tzinfo=UTC)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path / "landing")
    made.put("a.json", 1, 2)
    return made


def loading(tmp_path: Path, name: str, landing: Landing, how: dict[str, Any] | None = None, **arguments: Any) -> DAG:
    with DAG(name, schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="load",
            source=landing.source(**(how or {})),
            target=str(tmp_path / "target"),
            **{**NO_DELAY, **arguments},
        )
    return dag


def test_runs_retries_and_clears(runs: Any, landing: Landing, tmp_path: Path) -> None:
    def die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            raise RuntimeError("killed after the commit")

    dag = loading(tmp_path, "files", landing, {"on_changed": "ignore", "on_error": "quarantine"}, post_execute=die)
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("success", 2)
    assert ids_of(tmp_path / "target") == [1, 2]
    landing.put("b.json", 3)
    (landing.root / "bad.json").write_text('{"id"')
    later = runs.run(dag, day_of(2))
    report = runs.xcom(later, "load")
    assert runs.xcom(runs.run(dag, day_of(3)), "load")["outcome"] == "nothing new"
    assert (report["files"], report["files_set_aside"], report["set_aside"]) == (1, 1, ["bad.json"])
    landing.put("a.json", 10)
    runs.clear(dag, run, "load")
    assert runs.xcom(run, "load")["outcome"] == "replaced"
    assert ids_of(tmp_path / "target") == [3, 10]


def test_a_function_and_a_refresh(runs: Any, landing: Landing, tmp_path: Path) -> None:
    def doubled(batch: FileBatch) -> pa.Table:
        rows = batch.to_arrow()
        return pa.table({"id": [2 * value for value in rows["id"].to_pylist()]})

    dag = loading(
        tmp_path,
        "doubled",
        landing,
        python_callable=doubled,
        write="merge",
        merge_keys=["id"],
        params={"full_refresh": False},
    )
    runs.run(dag)
    landing.put("b.json", 3)
    runs.run(dag, day_of(2))
    assert ids_of(tmp_path / "target") == [2, 4, 6]
    (landing.root / "a.json").unlink()
    with DAG("refreshed", schedule=None) as anew:
        DeltaIncrementalOperator(
            task_id="load", source=landing.source(), target=str(tmp_path / "target2"), full_refresh=True
        )
    assert runs.xcom(runs.run(anew), "load")["outcome"] == "written"
    assert ids_of(tmp_path / "target2") == [3]


def test_rules_for_the_rows_of_files(runs: Any, landing: Landing, tmp_path: Path) -> None:
    expect = {"id is positive": Expect("id > 0"), "id is small": Expect("id < 100", "drop")}
    how = {"source_file": True, "on_changed": "ignore"}
    dag = loading(tmp_path, "rules", landing, how, expect=expect, max_quarantined=2)
    landing.put("a.json", 1, -2, 100)
    first = runs.run(dag)
    assert runs.xcom(first, "load")["broken_rules"] == {"id is positive": 1, "id is small": 1}
    landing.put("b.json", -3, 4)
    runs.run(dag, day_of(2))
    landing.put("a.json", 5, -6)
    runs.clear(dag, first, "load")
    assert ids_of(tmp_path / "target") == [4, 5]
    rows = DeltaTable(tmp_path / "target").quarantine().snapshot().scan(["row", "source_file"]).to_arrow().to_pylist()
    bad = sorted((json.loads(row["row"])["id"], row["source_file"].rpartition("/")[2]) for row in rows)
    assert bad == [(-6, "a.json"), (-3, "b.json")]


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_versions": 1},
        {"consumer": "me"},
        {"bootstrap": "error"},
        {"write": "overwrite_changed"},
        {"write": "merge"},
    ],
)
def test_what_is_about_tables_is_refused(landing: Landing, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        DeltaIncrementalOperator(task_id="load", source=landing.source(), target="t", **arguments)
    with pytest.raises(InvalidRequestError, match="python_callable"):
        DeltaIncrementalOperator(task_id="load", source="s", target="t")
