"""`DeltaCommitTrigger`: new commits of a table become asset events, so that DAGs run when data comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.definitions.asset import AssetNameRef
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_orch.airflow.arguments import ensure_choice
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import location_text
from delta_orch.airflow.triggers import ensure_interval
from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.pipeline.conditions import LOOKS_UNTIL_VERIFIED

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

    from delta_orch.airflow.commit_polling import Look
    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.tail import TailBatch, TailCursor

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
                cause="Older ones keep no state of assets: commits made while no triggerer runs would never be told",
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
        return "delta_orch.airflow.commit_trigger.DeltaCommitTrigger", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        return "delta_orch", self.table_uri, self.delta_conn_id, self.poll_interval_s

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """The polling that triggers of one table share."""
        from delta_orch.airflow.commit_polling import CommitPolling

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
            # Only now: an event that Airflow has not kept is told again.
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
        from delta_orch.airflow.commit_polling import Look
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
            # At once: what is committed from here on must be told, also by a triggerer that starts later.
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
    """What an asset event tells of new commits."""
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
