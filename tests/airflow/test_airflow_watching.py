"""Scheduling by data: the commit trigger under a dying triggerer, the relay of partitions, `@task.delta_changes`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, task

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaCommitTrigger, DeltaPartitionRelayOperator, delta_table_asset
from delta_orch.errors import DeltaError, InvalidRequestError, StorageError
from tests.airflow.internals import needs_state

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs


def rows(*days: str | None) -> pa.Table:
    return pa.table({"day": pa.array(days, pa.string()), "v": pa.array(range(len(days)), pa.int64())})


class StateStore:
    """Airflow's asset state store, as a trigger has it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def __getitem__(self, asset: Any) -> StateStore:
        assert asset.name == "flights"
        return self

    async def aget(self, key: str) -> str | None:
        return self.values.get(key)

    async def aset(self, key: str, value: str) -> None:
        self.values[key] = value


def trigger_of(uri: Path, store: StateStore, **arguments: Any) -> DeltaCommitTrigger:
    trigger = DeltaCommitTrigger(str(uri), "flights", poll_interval_s=0.01, **arguments)
    trigger.asset_state_store = store
    return trigger


def events_of(trigger: DeltaCommitTrigger, count: int, meanwhile: Callable[[], object] | None = None) -> list[Any]:
    """So many events of a triggerer that is killed right after it took the last of them.

    `meanwhile` happens when the trigger has begun to watch: it has noted where, or told the first event.
    """

    async def take() -> list[Any]:
        taken: list[Any] = []
        stream = trigger.run()
        following = asyncio.ensure_future(anext(stream))
        if trigger.start == "latest":
            while not trigger.asset_state_store.values:
                await asyncio.sleep(0.01)
            if meanwhile is not None:
                meanwhile()
        while True:
            taken.append((await asyncio.wait_for(following, 60)).payload)
            if len(taken) == count:
                return taken
            if len(taken) == 1 and trigger.start == "earliest" and meanwhile is not None:
                meanwhile()
            following = asyncio.ensure_future(anext(stream))

    return asyncio.run(take())


def test_a_commit_is_an_event_and_none_is_missed_when_the_triggerer_dies(tmp_path: Path) -> None:
    table, store = DeltaTable(tmp_path / "t"), StateStore()
    table.append(rows("a"), partition_by=["day"])
    (event,) = events_of(trigger_of(tmp_path / "t", store), 1, lambda: table.append(rows("b", "c")))
    assert (event["version"], event["operations"]) == (1, ["WRITE"])
    assert sorted(row["day"] for row in event["partitions"]) == ["b", "c"]
    # It died before it could note that. While it was dead there were commits: one that is no news, one that is.
    table.optimize()
    table.append(rows("d"))
    (again,) = events_of(trigger_of(tmp_path / "t", store), 1)
    assert (again["starting_version"], again["ending_version"]) == (1, table.version())
    assert {row["day"] for row in again["partitions"]} == {"b", "c", "d"}


def test_the_watermark_moves_after_the_event_was_handed_over(tmp_path: Path) -> None:
    table, store = DeltaTable(tmp_path / "t"), StateStore()
    table.append(rows("a"))
    first, second = events_of(trigger_of(tmp_path / "t", store, start="earliest"), 2, lambda: table.append(rows("b")))
    assert (first["version"], second["version"]) == (0, 1)
    assert store.values["delta_orch_cursor"].endswith(":0")


@pytest.mark.parametrize("commits", [1, 3])
def test_a_table_that_is_created_anew_is_told_as_such(tmp_path: Path, commits: int) -> None:
    table, store = DeltaTable(tmp_path / "t"), StateStore()
    for day in "abc":
        table.append(rows(day))

    def recreate() -> None:
        # In one moment, as far as the trigger sees it.
        new = tmp_path / "new"
        for _ in range(commits):
            DeltaTable(new).append(rows("z"))
        (tmp_path / "t").rename(tmp_path / "old")
        new.rename(tmp_path / "t")

    (event,) = events_of(trigger_of(tmp_path / "t", store), 1, recreate)
    assert (event["recreated"], event["version"]) == (True, commits - 1)


def test_outages_are_ridden_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import delta_orch.pipeline.tail as tail

    table, store, poll, failures = DeltaTable(tmp_path / "t"), StateStore(), tail.poll, 2

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StorageError("The store cannot be reached", retryable=True)
        return poll(*arguments, **options)

    table.append(rows("a"))
    monkeypatch.setattr(tail, "poll", failing)
    (event,) = events_of(trigger_of(tmp_path / "t", store, start="earliest"), 1)
    assert (event["version"], failures < 0) == (0, True)


def test_assets_of_one_table_share_their_polling(tmp_path: Path) -> None:
    one, two = (DeltaCommitTrigger(str(tmp_path / "t"), name) for name in ("one", "two"))
    assert one.shared_stream_key() == two.shared_stream_key()
    assert one.serialize() != two.serialize()
    table = DeltaTable(tmp_path / "t")
    table.append(rows("a"))
    kind, serialized = one.serialize()
    arguments: dict[str, Any] = dict(serialized)
    assert kind.endswith("triggers.DeltaCommitTrigger")

    async def shared() -> list[Any]:
        from delta_orch.airflow.triggers import Look

        polling = DeltaCommitTrigger.create_shared_stream_producer({**arguments, "poll_interval_s": 0.01})
        stream = polling.open_stream()
        await anext(stream)
        table.append(rows("b"))
        while not (await anext(stream))[0].has_news:
            pass

        async def looks() -> AsyncIterator[Look]:
            yield Look()

        late = DeltaCommitTrigger(**{**arguments, "start": "earliest"})
        return [event.payload["version"] async for event in late.filter_shared_stream(looks())]

    assert asyncio.run(shared()) == [1]


@needs_state
def test_the_watermark_waits_until_airflow_has_the_event(tmp_path: Path) -> None:
    """A triggerer hands events on a second after it took them, and may die meanwhile."""
    from airflow.triggers.shared_stream import SharedStreamManager

    one, two = StateStore(), StateStore()
    DeltaTable(tmp_path / "t").append(rows("a"))

    async def watch() -> None:
        streams, following, kept = SharedStreamManager(), [], []
        for number, store in enumerate((one, two)):
            trigger = trigger_of(tmp_path / "t", store, start="earliest")
            key = trigger.shared_stream_key()
            events = trigger.filter_shared_stream(streams.subscribe(trigger_id=number, trigger=trigger, key=key))
            following.append(events)
        for number, events in enumerate(following):
            assert (await anext(events)).payload["version"] == 0
            kept.append(streams.bind_pending_event(trigger_id=number, key=key))
        goes_on = [asyncio.ensure_future(anext(events)) for events in following]
        streams.confirm_persisted(kept[:1])
        await asyncio.sleep(0.2)
        assert (one.values, two.values) == ({}, {})
        streams.confirm_persisted(kept[1:])
        while not (one.values and two.values):
            await asyncio.sleep(0.01)
        for going in goes_on:
            going.cancel()
        await streams.stop_all()

    asyncio.run(asyncio.wait_for(watch(), 60))
    assert [store.values["delta_orch_cursor"].rpartition(":")[2] for store in (one, two)] == ["0", "0"]


def test_a_watched_asset_has_a_watcher(tmp_path: Path) -> None:
    asset = delta_table_asset("watched", tmp_path / "a b#c", watch=True, poll_interval=5, delta_conn_id="lake")
    (watcher,) = asset.watchers
    assert watcher.trigger.serialize()[1] == {
        "table_uri": str(tmp_path / "a b#c"),
        "asset_name": "watched",
        "delta_conn_id": "lake",
        "poll_interval_s": 5,
        "start": "latest",
    }
    assert delta_table_asset("unwatched", tmp_path / "t").watchers == []


class Events(dict[Any, Any]):
    def __missing__(self, asset: Any) -> Any:
        self[asset] = SimpleNamespace(keys=[], add_partitions=lambda keys: self[asset].keys.extend(keys))
        return self[asset]


def relayed(table: DeltaTable, payloads: list[dict[str, Any]], **arguments: Any) -> tuple[list[str], Any]:
    daily = Asset(name="flights by day", uri="delta://file/by/day")
    operator = DeltaPartitionRelayOperator(task_id="relay", table_uri=table.uri, outlets=[daily], **arguments)
    events = Events()
    told = [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in payloads]
    context: Any = {"triggering_asset_events": {daily: told}, "outlet_events": events}
    xcom = operator.execute_on_table(context, None, table)  # type: ignore[arg-type]
    return events[daily].keys if daily in events else [], xcom


def test_touched_partitions_become_keys(tmp_path: Path) -> None:
    table, store = DeltaTable(tmp_path / "t"), StateStore()
    table.append(rows("a"), partition_by=["day"])
    payloads = events_of(trigger_of(tmp_path / "t", store), 1, lambda: table.append(rows("b", "c")))
    table.append(rows("later"))
    keys, xcom = relayed(table, payloads)
    assert keys == xcom["partition_keys"] == ["b", "c"]
    assert relayed(table, [])[1]["outcome"] == "nothing new"
    assert relayed(table, [{**payloads[0], "table_uri": "file:///elsewhere"}])[0] == []
    operators: list[dict[str, Any]] = [{"table_uri": table.uri, "version": 2, "outcome": "written"}]
    assert relayed(table, operators)[0] == ["later"]
    operators[0]["starting_version"] = 0
    assert relayed(table, operators)[0] == ["a", "b", "c", "later"]


@needs_state
@pytest.mark.parametrize("day", [None, " "])
def test_a_partition_that_is_no_key_is_an_error(tmp_path: Path, day: str | None) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(rows(day), partition_by=["day"])
    with pytest.raises(DeltaError, match="cannot be a partition key"):
        relayed(table, [{"table_uri": table.uri, "version": 0}])
    with pytest.raises(DeltaError, match="partitioned by day"):
        relayed(table, [{"table_uri": table.uri, "version": 0}], column="v")


@needs_state
def test_a_relay_needs_assets_to_tell() -> None:
    with pytest.raises(InvalidRequestError, match="must be assets"):
        DeltaPartitionRelayOperator(task_id="relay", table_uri="/t")


def test_changes_as_a_decorator(runs: Runs, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "s").append(rows("a", "b"))
    with DAG("changes", schedule=None) as dag:

        @task.delta_changes(source=tmp_path / "s", target=tmp_path / "t", write="append")
        def copy(batch: Any, factor: int, ds: str | None = None) -> pa.Table:
            found = batch.scan().to_arrow()
            return found.set_column(1, "v", pa.array([factor * v for v in found["v"].to_pylist()], pa.int64()))

        copy(factor=10)
    run = runs.run(dag)
    assert runs.state(run, "copy") == "success"
    assert sorted(DeltaTable(tmp_path / "t").snapshot().scan().to_arrow()["v"].to_pylist()) == [0, 10]
