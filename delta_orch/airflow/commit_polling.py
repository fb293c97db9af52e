"""The polling that commit triggers of one table share, in a triggerer that says which of their events it has kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer


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
