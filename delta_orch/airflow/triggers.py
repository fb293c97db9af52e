"""The triggers that deferred sensors wait on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseTrigger, TriggerEvent

from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.errors import DeltaError
from delta_orch.pipeline.version_watch import VersionWatch, WatchGoal

if TYPE_CHECKING:
    from delta_orch.airflow.sensor_base import Watch
    from delta_orch.delta_table import DeltaTable

FOUND = "found"
FAILED = "failed"


class WatchTrigger(BaseTrigger):  # type: ignore[misc]
    """Base of the triggers that wait for something in one table; subclasses say what, by `watch`.

    A poll that finds nothing new costs one metadata request, made in a worker thread so that the triggerer's event
    loop never waits for storage. Only the connection's id is serialized, never its storage options. An error that
    passes (`DeltaError.retryable`: the store cannot be reached) is logged and ridden out: how long is waited, the
    sensor's own timeout says.

    The event is `{"status": "found", table_uri, version, timestamp_ms, …}`, or, where the table cannot be read,
    `{"status": "failed", code, message, retryable}`.
    """

    arguments: tuple[str, ...] = ("table_uri", "delta_conn_id", "seen_version", "poll_interval_s")

    def __init__(
        self,
        table_uri: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        seen_version: int | None = None,
        poll_interval_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.table_uri = table_uri
        self.delta_conn_id = delta_conn_id
        self.seen_version = seen_version
        self.poll_interval_s = poll_interval_s

    def watch(self, table: DeltaTable) -> Watch:
        """What is asked at every poll."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, object]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in self.arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            yield TriggerEvent({"status": FOUND, **await self._wait()})
        except DeltaError as error:
            self.log.exception("Watching %s failed", self.table_uri)
            failure = {"code": error.code, "message": str(error), "retryable": error.retryable}
            yield TriggerEvent({"status": FAILED, **failure})

    async def _wait(self) -> dict[str, object]:
        table = await DeltaHook(self.delta_conn_id).async_table(self.table_uri)
        watch = self.watch(table)
        while True:
            try:
                found = await asyncio.to_thread(watch.check)
            except DeltaError as error:
                if not error.retryable:
                    raise
                self.log.warning("Reading the log of %s failed; the trigger tries again: %s", self.table_uri, error)
                found = None
            if found is not None:
                return found.report(table.uri)
            await asyncio.sleep(self.poll_interval_s)


class DeltaVersionTrigger(WatchTrigger):
    """Fires once, when the table has a version after `after_version` or a commit after `after_timestamp_ms`.

    Args:
        table_uri: As for the sensor, already rendered.
        delta_conn_id: The connection with the storage options.
        after_version: See `WatchGoal`.
        after_timestamp_ms: See `WatchGoal`.
        seen_version: Where the sensor's own look at the table ended; see `VersionWatch`.
        poll_interval_s: Seconds between polls.
    """

    arguments = (*WatchTrigger.arguments, "after_version", "after_timestamp_ms")

    def __init__(
        self,
        table_uri: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        after_version: int | None = None,
        after_timestamp_ms: int | None = None,
        seen_version: int | None = None,
        poll_interval_s: float = 60.0,
    ) -> None:
        super().__init__(table_uri, delta_conn_id, seen_version, poll_interval_s)
        self.after_version = after_version
        self.after_timestamp_ms = after_timestamp_ms

    def watch(self, table: DeltaTable) -> Watch:
        return VersionWatch(table.log, WatchGoal(self.after_version, self.after_timestamp_ms), self.seen_version)


class DeltaConditionTrigger(WatchTrigger):
    """Fires once, when the table fulfills a condition.

    Args:
        table_uri: As for the sensor, already rendered.
        condition: `Condition.as_json()`.
        delta_conn_id: The connection with the storage options.
        seen_version: A version known not to fulfill it.
        poll_interval_s: Seconds between polls.
    """

    arguments = (*WatchTrigger.arguments, "condition")

    def __init__(
        self,
        table_uri: str,
        condition: Mapping[str, object],
        delta_conn_id: str = DEFAULT_CONN_ID,
        seen_version: int | None = None,
        poll_interval_s: float = 60.0,
    ) -> None:
        super().__init__(table_uri, delta_conn_id, seen_version, poll_interval_s)
        self.condition = condition

    def watch(self, table: DeltaTable) -> Watch:
        from delta_orch.pipeline.conditions import ConditionWatch, condition_from_json

        return ConditionWatch(table, condition_from_json(self.condition), self.seen_version)
