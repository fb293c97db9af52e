"""`DeltaCommitTrigger`: new commits of a table become asset events, so that DAGs run when data comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.definitions.asset import AssetNameRef
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_orch.airflow.checked import CheckedArguments
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import location_text
from delta_orch.airflow.triggers import ensure_interval
from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.errors import DeltaError, InvalidRequestError

if TYPE_CHECKING:
    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.tail import TailBatch, TailCursor

CURSOR_KEY = "delta_orch_cursor"
"""Under which Airflow's asset state store holds how far the table was seen."""

Start = Literal["latest", "earliest"]
# A HEAD of the next commit cannot tell a table that was created anew and is shorter: now and then that is asked, too.
_POLLS_UNTIL_VERIFIED = 10


class DeltaCommitTrigger(CheckedArguments, BaseEventTrigger):  # type: ignore[misc]
    """Fires for commits that change data. Give it to an `AssetWatcher`, or use `delta_table_asset(watch=True)`.

    The position in the table is kept in the asset's state store. It moves after the event was delivered. So no commit
    is missed, even if the triggerer dies, and a commit may be reported twice. The event says if the table was dropped
    and recreated. Commits that change no data (compaction, properties) are not events. Triggers of one table and
    connection share their polling: each poll is one metadata request, in a worker thread. Errors are logged, and the
    polling continues.

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
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[str]:
        """The polling that triggers of one table share: says when there is something to look at."""
        trigger = cls(**kwargs)
        async for news in trigger._news(await trigger._table()):
            yield news

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in self._follow(shared_stream):
            yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """As it runs where polling is not shared."""
        async for event in self._follow(self._news(await self._table())):
            yield event

    async def _follow(self, news: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        table = await self._table()
        cursor = await self._started(table)
        async for batch in self._since(table, cursor):
            cursor = batch.cursor
            if batch.data_changed:
                yield TriggerEvent(payload_of(table, batch))
            await self._remember(cursor)
        async for _ in news:
            async for batch in self._since(table, cursor):
                cursor = batch.cursor
                if batch.data_changed:
                    yield TriggerEvent(payload_of(table, batch))
                # Only now: an event that was not handed over is told again.
                await self._remember(cursor)

    async def _since(self, table: DeltaTable, cursor: TailCursor) -> AsyncIterator[TailBatch]:
        from delta_orch.pipeline.tail import poll

        while True:
            try:
                batch = await asyncio.to_thread(poll, table.log, cursor, verify=True)
            except DeltaError:
                self.log.exception("Reading the log of %s failed; the trigger tries again", self.table_uri)
                await asyncio.sleep(self.poll_interval_s)
                continue
            if batch is None:
                return
            cursor = batch.cursor
            yield batch

    async def _news(self, table: DeltaTable) -> AsyncIterator[str]:
        from delta_orch.pipeline.tail import current_cursor

        seen: TailCursor | None = None
        polls = 0
        while True:
            try:
                if seen is None or await asyncio.to_thread(_has_moved, table, seen, polls):
                    seen = await asyncio.to_thread(current_cursor, table.log)
                    yield str(seen)
            except DeltaError:
                self.log.exception("Reading the log of %s failed; the trigger tries again", self.table_uri)
            await asyncio.sleep(self.poll_interval_s)
            polls += 1

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
                self.log.exception("Reading the log of %s failed; the trigger tries again", self.table_uri)
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
        found = await store[AssetNameRef(self.asset_name)].aget(CURSOR_KEY)
        return None if found is None else str(found)

    async def _remember(self, cursor: TailCursor) -> None:
        store = self.asset_state_store
        if store is not None:
            await store[AssetNameRef(self.asset_name)].aset(CURSOR_KEY, str(cursor))


def payload_of(table: DeltaTable, batch: TailBatch) -> dict[str, object]:
    """What an asset event tells of new commits."""
    from delta_orch.airflow.events import partitions_as_text

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
    return polls % _POLLS_UNTIL_VERIFIED == 0 and current_cursor(table.log) != seen
