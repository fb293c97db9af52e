"""The trigger a deferred `DeltaTableVersionSensor` waits on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.triggers.base import BaseTrigger, TriggerEvent

from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.errors import DeltaError
from delta_orch.pipeline.version_watch import VersionWatch, WatchGoal

FOUND = "found"
FAILED = "failed"

_ARGUMENTS = ["table_uri", "delta_conn_id", "after_version", "after_timestamp_ms", "seen_version", "poll_interval_s"]


class DeltaVersionTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires once, when the table has a version after `after_version` or a commit after `after_timestamp_ms`.

    A poll that finds nothing new costs one metadata request, made in a worker thread so that the triggerer's event
    loop never waits for storage. Only the connection's id is serialised, never its storage options.

    The event is `{"status": "found", table_uri, version, timestamp_ms}`, or, where the table cannot be read,
    `{"status": "failed", code, message, retryable}`.

    Args:
        table_uri: As for the sensor, already rendered.
        delta_conn_id: The connection with the storage options.
        after_version: See `WatchGoal`.
        after_timestamp_ms: See `WatchGoal`.
        seen_version: Where the sensor's own look at the table ended; see `VersionWatch`.
        poll_interval_s: Seconds between polls.
    """

    def __init__(
        self,
        table_uri: str,
        delta_conn_id: str = DEFAULT_CONN_ID,
        after_version: int | None = None,
        after_timestamp_ms: int | None = None,
        seen_version: int | None = None,
        poll_interval_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.table_uri = table_uri
        self.delta_conn_id = delta_conn_id
        self.after_version = after_version
        self.after_timestamp_ms = after_timestamp_ms
        self.seen_version = seen_version
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, object]]:
        return (
            "delta_orch.airflow.triggers.DeltaVersionTrigger",
            {name: getattr(self, name) for name in _ARGUMENTS},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            yield TriggerEvent({"status": FOUND, **await self._wait()})
        except DeltaError as error:
            self.log.exception("Watching %s failed", self.table_uri)
            failure = {"code": error.code, "message": str(error), "retryable": error.retryable}
            yield TriggerEvent({"status": FAILED, **failure})

    async def _wait(self) -> dict[str, object]:
        table = await DeltaHook(self.delta_conn_id).async_table(self.table_uri)
        watch = VersionWatch(table.log, WatchGoal(self.after_version, self.after_timestamp_ms), self.seen_version)
        while True:
            found = await asyncio.to_thread(watch.check)
            if found is not None:
                return found.report(table.uri)
            await asyncio.sleep(self.poll_interval_s)
