"""The triggers: those that deferred sensors wait on, and those that make commits and new files events of an asset."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakValueDictionary

import orjson
from airflow.sdk.definitions.asset import AssetNameRef
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

import delta_orch.arrow_compute as pc
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import location_text
from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.arrival.file_source import FileSource
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.pipeline.conditions import (
    LOOKS_UNTIL_VERIFIED,
    ConditionWatch,
    VersionWatch,
    WatchGoal,
    condition_from_json,
)
from delta_orch.pipeline.write_settings import ensure_choice
from delta_orch.protocol.arrow_building import one_chunk

if keeps_state():
    from airflow.triggers.shared_stream import SharedStreamProducer
else:
    SharedStreamProducer = object

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.triggers.shared_stream import AdvanceItem

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.tail import TailBatch, TailCursor


FOUND = "found"
FAILED = "failed"
TIMED_OUT = "timed out"
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="delta-orch-trigger")
"""Where stores are waited for: the event loop's own threads stay free, however many stores hang."""


class Result(Protocol):
    """The result of a look at a table."""

    def report(self, table_uri: str) -> dict[str, object]: ...


class Watch(Protocol):
    """Looks at a table; `seen_version` is what another process goes on from."""

    seen_version: int | None

    def check(self) -> Result | None: ...


class SharedTable:
    """One table for all triggers of this process that wait for it: one of them asks the store, at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._table: DeltaTable | None = None
        self._quiet: tuple[int, float] | None = None

    async def open(self, delta_conn_id: str, table_uri: str) -> DeltaTable:
        async with self.lock:
            if self._table is None:
                self._table = await DeltaHook(delta_conn_id).async_table(table_uri)
            return self._table

    def is_quiet(self, seen_version: int | None, within_s: float) -> bool:
        """Whether another trigger has just found that there is nothing after this version."""
        if self._quiet is None or seen_version != self._quiet[0]:
            return False
        return time.monotonic() - self._quiet[1] < within_s

    def note_quiet(self, seen_version: int | None) -> None:
        self._quiet = None if seen_version is None else (seen_version, time.monotonic())


_SHARED: WeakValueDictionary[tuple[int, str, str], SharedTable] = WeakValueDictionary()


def _shared_table(delta_conn_id: str, table_uri: str) -> SharedTable:
    key = (id(asyncio.get_running_loop()), delta_conn_id, table_uri)
    shared = _SHARED.get(key)
    if shared is None:
        shared = _SHARED[key] = SharedTable()
    return shared


class WatchTrigger(BaseTrigger):  # type: ignore[misc]
    """Base of the triggers that wait for something in one table; subclasses say what, by `watch`.

    A poll that finds nothing new costs one metadata request, made in a worker thread so that the triggerer's event
    loop never waits for storage. Triggers of one table and connection share it:
    in half a poll interval one of them asks. Only the connection's id is serialized, never its storage options. An
    error that passes (`DeltaError.retryable`: the store cannot be reached) is logged and ridden out, until
    `end_time_ms` at the latest.

    The event is `{"status": "found", table_uri, version, timestamp_ms, …}`, where the table cannot be read
    `{"status": "failed", code, message, retryable}`, and at the end `{"status": "timed out"}`.

    Args:
        table_uri: As for the sensor, already rendered.
        delta_conn_id: The connection with the storage options.
        seen_version: A version that was checked already.
        poll_interval_s: Seconds between polls.
        end_time_ms: When to give up, in milliseconds since the epoch; None for never.
    """

    arguments: tuple[str, ...] = ("table_uri", "delta_conn_id", "seen_version", "poll_interval_s", "end_time_ms")

    def __init__(
        self,
        table_uri: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        seen_version: int | None = None,
        poll_interval_s: float = 60.0,
        end_time_ms: int | None = None,
    ) -> None:
        super().__init__()
        ensure_interval(poll_interval_s)
        self.table_uri = table_uri
        self.delta_conn_id = delta_conn_id
        self.seen_version = seen_version
        self.poll_interval_s = poll_interval_s
        self.end_time_ms = end_time_ms

    def watch(self, table: DeltaTable) -> Watch:
        """The question of each poll."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, object]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in self.arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        left_s = None if self.end_time_ms is None else self.end_time_ms / 1000 - time.time()
        try:
            # Airflow ends a deferral at its time-out, but `dag.test()` does not.
            async with asyncio.timeout(left_s) as end:
                event = {"status": FOUND, **await self._wait()}
        except TimeoutError:
            if not end.expired():
                raise
            event = {"status": TIMED_OUT}
        except DeltaError as error:
            self.log.exception("Watching %s failed", self.table_uri)
            event = {"status": FAILED, "code": error.code, "message": str(error), "retryable": error.retryable}
        yield TriggerEvent(event)

    async def _wait(self) -> dict[str, object]:
        shared = _shared_table(self.delta_conn_id, self.table_uri)
        table = await shared.open(self.delta_conn_id, self.table_uri)
        watch = self.watch(table)
        while True:
            async with shared.lock:
                if not shared.is_quiet(watch.seen_version, self.poll_interval_s / 2):
                    result = await self._look(watch)
                    if result is not None:
                        return result.report(table.uri)
                    shared.note_quiet(watch.seen_version)
            await asyncio.sleep(self.poll_interval_s)

    async def _look(self, watch: Watch) -> Result | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(_THREADS, watch.check)
        except DeltaError as error:
            if not error.retryable:
                raise
            self.log.warning("Reading the log of %s failed; the trigger tries again: %s", self.table_uri, error)
            return None


def ensure_interval(poll_interval_s: float) -> None:
    """Refuse a pause that is not positive."""
    if poll_interval_s <= 0:
        raise InvalidRequestError(
            f"{poll_interval_s!r} is not a time between two looks at a table", remedy="Pass seconds above 0"
        )


class DeltaVersionTrigger(WatchTrigger):
    """Fires once, when the table has a version after `after_version` or a commit after `after_timestamp_ms`.

    Args:
        table_uri: As for the sensor, already rendered.
        after_version: See `WatchGoal`.
        after_timestamp_ms: See `WatchGoal`.
        **kwargs: See `WatchTrigger`.
    """

    arguments = (*WatchTrigger.arguments, "after_version", "after_timestamp_ms")

    def __init__(
        self,
        table_uri: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        after_version: int | None = None,
        after_timestamp_ms: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(table_uri, delta_conn_id, **kwargs)
        self.after_version = after_version
        self.after_timestamp_ms = after_timestamp_ms
        if (after_version is None) == (after_timestamp_ms is None):
            raise InvalidRequestError("The trigger waits for after_version or after_timestamp_ms, exactly one of them")

    def watch(self, table: DeltaTable) -> Watch:
        return VersionWatch(table.log, WatchGoal(self.after_version, self.after_timestamp_ms), self.seen_version)


class DeltaConditionTrigger(WatchTrigger):
    """Fires once, when the table fulfills a condition.

    Args:
        table_uri: As for the sensor, already rendered.
        condition: `Condition.as_json()`.
        **kwargs: See `WatchTrigger`.
    """

    arguments = (*WatchTrigger.arguments, "condition")

    def __init__(
        self, table_uri: str, condition: Mapping[str, object], delta_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any
    ) -> None:
        super().__init__(table_uri, delta_conn_id, **kwargs)
        self.condition = condition
        condition_from_json(condition)

    def watch(self, table: DeltaTable) -> Watch:
        return ConditionWatch(table, condition_from_json(self.condition), self.seen_version)


class Look:
    """One look at a table, for all triggers that watch it.

    Attributes:
        has_news: There may be something to read, or was.
        is_kept: Airflow's database has the events that came of it.
    """

    has_news = False
    is_kept = False

    def keep(self, kept: asyncio.Event) -> None:
        """Its events are kept. The next look comes at once, for the triggers to note it, and to read on."""
        self.is_kept = True
        if self.has_news:
            kept.set()


class CommitPolling(SharedStreamProducer):  # type: ignore[misc]
    """Hands out looks at a table. A look is kept when every trigger has gone on to the next one, and Airflow's database
    has the events of all; a trigger that has failed meanwhile begins anew."""

    def __init__(self, looks: Callable[[asyncio.Event], AsyncIterator[Look]]) -> None:
        self._looks = looks
        self._kept = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[Look, Look]]:
        async for look in self._looks(self._kept):
            yield look, look

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            item.broker_payload.keep(self._kept)


CURSOR_KEY = "delta_orch_cursor"
"""Under which Airflow's asset state store holds how far the table was seen."""

Start = Literal["latest", "earliest"]
_UNREADABLE = "Reading the log of %s failed; the trigger tries again"


class DeltaCommitTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires for commits that change data. Give it to an `AssetWatcher`, or use `delta_table_asset(watch=True)`.

    The position in the table is kept in the asset's state store. It moves when Airflow's database has the event. So no
    commit is missed, even if the triggerer dies, and a commit may be reported twice. The event says if the table was
    dropped and recreated. Commits that change no data (compaction, properties) are not events. Triggers of one table
    and connection share their polling: each poll is one metadata request, in a worker thread. Errors are logged, and
    the polling continues.

    The event's payload is `{table_uri, version, starting_version, ending_version, table_id, run_key, operations,
    partitions, recreated, missed}`; `partitions` is None where there are none, or too many for an event.

    Args:
        table_uri: Absolute, or below the connection's `table_root`.
        asset_name: The asset that is watched. Each asset of a table has a position of its own.
        delta_conn_id: The connection with the storage options.
        poll_interval_s: Seconds between polls.
        start: Where the first watch begins: `latest` with the next commit, `earliest` with the first commit that is
            there.
    """

    def __init__(
        self,
        table_uri: TableLocation,
        asset_name: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        poll_interval_s: float = 60.0,
        start: Start = "latest",
    ) -> None:
        super().__init__()
        if not keeps_state():
            raise needs_newer(
                "Watching a table (DeltaCommitTrigger, watch=True)",
                cause="Older ones keep no state of assets: commits while no triggerer runs would never become events",
                remedy="Let the writing tasks tell the asset (outlets), or wait with DeltaTableVersionSensor",
            )
        ensure_interval(poll_interval_s)
        ensure_choice("start", start, ("latest", "earliest"))
        if not asset_name:
            raise InvalidRequestError("The trigger names no asset", remedy="Pass the name of the watched asset")
        self.table_uri = location_text(table_uri)
        self.asset_name = asset_name
        self.delta_conn_id = delta_conn_id
        self.poll_interval_s = poll_interval_s
        self.start = start

    def serialize(self) -> tuple[str, dict[str, object]]:
        names = ("table_uri", "asset_name", "delta_conn_id", "poll_interval_s", "start")
        return "delta_orch.airflow.triggers.DeltaCommitTrigger", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        return "delta_orch", self.table_uri, self.delta_conn_id, self.poll_interval_s

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """The polling that triggers of one table share."""

        trigger = cls(**kwargs)
        return CommitPolling(trigger.looks)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """As it runs where polling is not shared."""
        kept = asyncio.Event()

        async def looks() -> AsyncIterator[Look]:
            async for look in self.looks(kept):
                yield look
                look.keep(kept)

        async for event in self.filter_shared_stream(looks()):
            yield event

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        from delta_orch.pipeline.tail import poll

        table = await self._table()
        cursor = await self._started(table)
        is_behind = True
        yielded: deque[tuple[Look, TailCursor]] = deque()
        async for look in shared_stream:
            # Only now, because an event that Airflow has not stored is sent again.
            while yielded and yielded[0][0].is_kept:
                await self._remember(yielded.popleft()[1])
            is_behind |= look.has_news
            if not is_behind:
                continue
            try:
                batch = await asyncio.to_thread(poll, table.log, cursor, verify=True)
            except DeltaError:
                self.log.exception(_UNREADABLE, self.table_uri)
                continue
            is_behind = batch is not None
            if batch is not None:
                look.has_news = True
                cursor = batch.cursor
                yielded.append((look, cursor))
                if batch.data_changed:
                    yield TriggerEvent(payload_of(table, batch))

    async def looks(self, kept: asyncio.Event) -> AsyncIterator[Look]:
        """One after each poll, or when events were kept."""
        from delta_orch.pipeline.tail import current_cursor

        table = await self._table()
        seen: TailCursor | None = None
        for polls in count():
            look = Look()
            try:
                if seen is None or await asyncio.to_thread(_has_moved, table, seen, polls):
                    seen = await asyncio.to_thread(current_cursor, table.log)
                    look.has_news = True
            except DeltaError:
                self.log.exception(_UNREADABLE, self.table_uri)
            yield look
            with suppress(TimeoutError):
                await asyncio.wait_for(kept.wait(), self.poll_interval_s)
            kept.clear()

    async def _table(self) -> DeltaTable:
        return await DeltaHook(self.delta_conn_id).async_table(self.table_uri)

    async def _started(self, table: DeltaTable) -> TailCursor:
        from delta_orch.pipeline.tail import NO_TABLE, current_cursor, parse_cursor

        stored = await self._stored()
        if stored is not None:
            return parse_cursor(stored)
        while self.start == "latest":
            try:
                cursor = await asyncio.to_thread(current_cursor, table.log)
            except DeltaError:
                self.log.exception(_UNREADABLE, self.table_uri)
                await asyncio.sleep(self.poll_interval_s)
                continue
            # At once, so that a triggerer that starts later reports every commit from here on.
            await self._remember(cursor)
            return cursor
        return NO_TABLE

    async def _stored(self) -> str | None:
        store = self.asset_state_store
        if store is None:
            return None
        cursor = await store[AssetNameRef(self.asset_name)].aget(CURSOR_KEY)
        return None if cursor is None else str(cursor)

    async def _remember(self, cursor: TailCursor) -> None:
        store = self.asset_state_store
        if store is not None:
            await store[AssetNameRef(self.asset_name)].aset(CURSOR_KEY, str(cursor))


def payload_of(table: DeltaTable, batch: TailBatch) -> dict[str, object]:
    """The payload of an asset event for new commits."""
    from delta_orch.pipeline.tail import partitions_as_text

    return {
        "table_uri": table.uri,
        "version": batch.ending_version,
        "starting_version": batch.starting_version,
        "ending_version": batch.ending_version,
        "table_id": batch.cursor.table_id,
        "run_key": batch.run_key,
        "operations": list(batch.operations),
        "partitions": partitions_as_text(batch.partitions),
        "recreated": batch.recreated,
        "missed": batch.missed,
    }


def _has_moved(table: DeltaTable, seen: TailCursor, polls: int) -> bool:
    from delta_orch.pipeline.tail import current_cursor

    if table.log.has_version(seen.version + 1):
        return True
    # A table that was dropped and created again may have no more versions than the old one.
    return polls % LOOKS_UNTIL_VERIFIED == 0 and current_cursor(table.log) != seen


_MOST_NAMED = 20
_NOT_STORED = ("schema", "storage_options")
"""Fields of a source that do not select files, and fields that may hold secrets."""


class DeltaFileTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires when files are in a source that a table has not loaded. Give it to an `AssetWatcher`.

    Each poll lists the source and looks the files up in the table's own record. A file is reported once, and once more
    if it changes. After a restart of the triggerer, the files that are not loaded yet are reported again, so no file is
    missed: a run that finds them loaded loads nothing. If a load fails, its files are not reported again: give the task
    retries. A file that has changed is reported unless `on_changed` is `ignore`, so the load fails by name with
    `on_changed='error'`. The trigger logs errors and continues.

    The event's payload is `{source_uri, table_uri, files, size_bytes, paths}`: how many files are reported, their size,
    and the paths of the first 20 of them, below the source.

    Args:
        source: The source of the task that loads the files. Its store has the options of the connection. Airflow's
            database keeps it as JSON.
        table_uri: The table of that task, which need not exist yet. Absolute, or below the connection's `table_root`.
        delta_conn_id: The connection with the storage options, of the table and of the source.
        poll_interval_s: Seconds between polls.

    Raises:
        InvalidRequestError: The source has storage options of its own, or an argument is not valid.
    """

    def __init__(
        self,
        source: FileSource | str,
        table_uri: TableLocation,
        delta_conn_id: str = DEFAULT_CONN_ID,
        poll_interval_s: float = 60.0,
    ) -> None:
        super().__init__()
        # Releases of Airflow encode nested arguments in different ways, so the source is kept as a text.
        self.source = source if isinstance(source, FileSource) else FileSource(**orjson.loads(source))
        if self.source.storage_options is not None:
            raise InvalidRequestError(
                f"The source {self.source.uri} of a DeltaFileTrigger has storage options",
                cause="Airflow would keep them in its database",
                remedy="Leave them out, and put them into the connection (delta_conn_id)",
            )
        ensure_interval(poll_interval_s)
        self.table_uri = location_text(table_uri)
        self.delta_conn_id = delta_conn_id
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, object]]:
        names = (one.name for one in fields(self.source) if one.name not in _NOT_STORED)
        source = {name: value for name in names if (value := getattr(self.source, name)) is not None}
        own = {name: getattr(self, name) for name in ("table_uri", "delta_conn_id", "poll_interval_s")}
        return "delta_orch.airflow.triggers.DeltaFileTrigger", {
            "source": orjson.dumps(source, default=dict).decode(),
            **own,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = DeltaHook(self.delta_conn_id)
        table = await hook.async_table(self.table_uri)
        source = replace(self.source, storage_options=hook.storage_options())
        reported: pa.Array | None = None
        while True:
            try:
                waiting = await asyncio.to_thread(_waiting, source, table)
            except DeltaError:
                self.log.exception("Looking for files in %s failed; the trigger tries again", source.uri)
            else:
                # Files that are loaded by now are forgotten: if their rows are taken back, they are reported again.
                identities = _identities(waiting)
                files = (
                    waiting if reported is None else waiting.filter(pc.invert(pc.is_in(identities, value_set=reported)))
                )
                reported = identities
                if files.num_rows:
                    yield TriggerEvent(_payload(source, table, files))
            await asyncio.sleep(self.poll_interval_s)


def _waiting(source: FileSource, table: DeltaTable) -> pa.Table:
    from delta_orch.arrival.file_look import FileLook
    from delta_orch.pipeline.target_table import snapshot_or_none

    return FileLook(source, table.log).waiting_files(snapshot_or_none(table))


def _identities(files: pa.Table) -> pa.Array:
    """A text for each file that is another one if it changes."""
    names = ("path", "size", "modification_time_ms")
    return pc.binary_join_element_wise(*(pc.cast(one_chunk(files[name]), "string") for name in names), " ")


def _payload(source: FileSource, table: DeltaTable, new_files: pa.Table) -> dict[str, object]:
    return {
        "source_uri": str(source.uri),
        "table_uri": table.uri,
        "files": new_files.num_rows,
        "size_bytes": pc.sum(new_files["size"]).as_py(),
        "paths": new_files["path"].slice(0, _MOST_NAMED).to_pylist(),
    }
