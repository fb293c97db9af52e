"""The triggers that deferred sensors wait on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.pipeline.conditions import ConditionWatch, VersionWatch, WatchGoal, condition_from_json

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable

FOUND = "found"
FAILED = "failed"
TIMED_OUT = "timed out"
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="delta-orch-trigger")
"""Where stores are waited for: the event loop's own threads stay free, however many stores hang."""


class Found(Protocol):
    """The result of a look at a table."""

    def report(self, table_uri: str) -> dict[str, object]: ...


class Watch(Protocol):
    """Looks at a table; `seen_version` is what another process goes on from."""

    seen_version: int | None

    def check(self) -> Found | None: ...


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
        seen_version: A version that was looked at already.
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
        """What is asked at every poll."""
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

    async def _look(self, watch: Watch) -> Found | None:
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
