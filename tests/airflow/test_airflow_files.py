"""`DeltaIncrementalOperator` with a `FileSource`: the rows of each file once, whatever happens to the task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_orch import DeltaTable, Expect, FileSource
from delta_orch.airflow import DeltaFileTrigger, DeltaIncrementalOperator
from delta_orch.errors import InvalidRequestError, StorageError
from delta_orch.pipeline.incremental import FileBatch
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


# Watching a source


def trigger_of(landing: Landing, table: Path, **how: Any) -> DeltaFileTrigger:
    """As the triggerer makes it, from what Airflow's database has."""
    kind, arguments = DeltaFileTrigger(landing.source(**how), str(table), poll_interval_s=0.01).serialize()
    assert kind == f"{DeltaFileTrigger.__module__}.DeltaFileTrigger"
    return DeltaFileTrigger(**json.loads(json.dumps(arguments)))


async def paths_of(events: AsyncIterator[TriggerEvent]) -> list[str]:
    event = await asyncio.wait_for(anext(events), 60)
    paths: list[str] = event.payload["paths"]
    return paths


async def is_quiet(following: asyncio.Task[list[str]]) -> bool:
    await asyncio.sleep(0.3)
    return not following.done()


def test_files_that_arrive_are_events(landing: Landing, tmp_path: Path) -> None:
    table, source = DeltaTable(tmp_path / "target"), landing.source(on_changed="replace", source_file=True)

    async def watch() -> None:
        how = {"on_changed": "replace", "source_file": True, "options": {"multiline": False}}
        events = trigger_of(landing, tmp_path / "target", **how).run()
        event = await anext(events)
        assert event.payload == {
            "source_uri": source.uri,
            "table_uri": table.uri,
            "files": 1,
            "size_bytes": (landing.root / "a.json").stat().st_size,
            "paths": ["a.json"],
        }
        following = asyncio.ensure_future(paths_of(events))
        # The same files wait. Some of them are loaded.
        landing.put("_b.json", 2)
        assert await is_quiet(following)
        table.ingest(source)
        assert await is_quiet(following)
        landing.put("b.json", 3)
        assert await following == ["b.json"]
        landing.put("a.json", 10, 20)
        assert await paths_of(events) == ["a.json"]
        # A triggerer that starts anew reports what is not loaded.
        assert await paths_of(trigger_of(landing, tmp_path / "target", **how).run()) == ["a.json", "b.json"]
        table.ingest(source)
        following = asyncio.ensure_future(paths_of(trigger_of(landing, tmp_path / "target", **how).run()))
        assert await is_quiet(following)
        # Rows that are taken back bring their files back.
        table.restore(0)
        assert await following == ["a.json", "b.json"]

    asyncio.run(watch())


def test_a_load_in_many_commits_reports_no_file_again(landing: Landing, tmp_path: Path) -> None:
    async def watch() -> None:
        landing.put("b.json", 3)
        landing.put("c.json", 4)
        events = trigger_of(landing, tmp_path / "target", max_files=1).run()
        assert await paths_of(events) == ["a.json", "b.json", "c.json"]
        following = asyncio.ensure_future(paths_of(events))
        for _ in range(2):
            DeltaTable(tmp_path / "target").ingest(landing.source(max_files=1), max_commits=1)
            assert await is_quiet(following)
        landing.put("d.json", 5)
        assert await following == ["d.json"]

    asyncio.run(watch())


def test_outages_and_changed_files(landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, failures = FileSource.list_files, 2

    def failing(source: FileSource, start_path: str = "") -> pa.Table:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StorageError("The store cannot be reached", retryable=True)
        return listed(source, start_path)

    async def watch() -> None:
        DeltaTable(tmp_path / "target").ingest(landing.source())
        monkeypatch.setattr(FileSource, "list_files", failing)
        landing.put("a.json", 10, 20)
        # The run that it starts fails, and says so.
        assert await paths_of(trigger_of(landing, tmp_path / "target").run()) == ["a.json"]
        quiet = trigger_of(landing, tmp_path / "target", on_changed="ignore").run()
        assert await is_quiet(asyncio.ensure_future(paths_of(quiet)))

    asyncio.run(watch())
    assert failures < 0


def test_a_trigger_keeps_no_secrets(landing: Landing) -> None:
    with pytest.raises(InvalidRequestError, match="storage options"):
        DeltaFileTrigger(landing.source(storage_options={"key": "secret"}), "/lake/orders")
    with pytest.raises(InvalidRequestError):
        DeltaFileTrigger(landing.source(), "/lake/orders", poll_interval_s=0)
    trigger = DeltaFileTrigger(landing.source(schema=pa.schema([("id", pa.int64())])), "/lake/orders")
    asset = Asset("landed orders", watchers=[AssetWatcher(name="files", trigger=trigger)])
    assert BaseEventTrigger.hash(*trigger.serialize()) == BaseEventTrigger.hash(*asset.watchers[0].trigger.serialize())


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
