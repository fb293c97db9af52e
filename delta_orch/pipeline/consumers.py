"""Who still has to read a table: how far its incremental readers have come, and what vacuum and cleanup of the log must
keep for them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError, VersionNotFoundError
from delta_orch.log.upkeep.log_cleanup import cut_off_ms

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable

_HOUR_MS = 3_600_000


def retention_hours_for(source: DeltaTable, consumers: Sequence[DeltaTable], retention_hours: float | None) -> float:
    """The retention with which a vacuum of `source` leaves every file that a consumer has to read.

    A consumer that has read up to version v reads the files that v's successors added and removed. So whatever was
    removed after v was committed is kept.

    Args:
        source: The table that is vacuumed.
        consumers: Tables that incremental steps fill from it (`pipeline.incremental`).
        retention_hours: What is asked for; None for the table's own.

    Raises:
        InvalidRequestError: A consumer has never read the source, or a version it has not read is gone already.
        DeltaError: A log cannot be read.
    """
    snapshot = source.snapshot()
    asked_ms = snapshot.properties.deleted_file_retention_ms if retention_hours is None else retention_hours * _HOUR_MS
    now_ms = time.time() * 1000
    needed_ms = [now_ms - _read_until_ms(source, consumer) for consumer in consumers]
    # A millisecond more: what was removed at that very moment is kept.
    return max([asked_ms, *(math.ceil(lag_ms) + 1 for lag_ms in needed_ms)]) / _HOUR_MS


def log_cut_off_for(source: DeltaTable, consumers: Sequence[DeltaTable]) -> int | None:
    """Until when versions of `source` may leave its log, milliseconds since the epoch, so that every consumer finds the
    commits that it has not read. None where the properties of the table decide: there is no consumer, or none is so
    far behind.

    Args:
        source: The table whose log is cleaned up.
        consumers: Tables that incremental steps fill from it (`pipeline.incremental`).

    Raises:
        InvalidRequestError: A consumer has never read the source, or a version it has not read is gone already.
        DeltaError: A log cannot be read.
    """
    if not consumers:
        return None
    usual = cut_off_ms(source.snapshot().properties, time.time_ns() // 1_000_000)
    needed = int(min(_read_until_ms(source, consumer) for consumer in consumers))
    return needed if needed < usual else None


def _read_until_ms(source: DeltaTable, consumer: DeltaTable) -> float:
    """When the last version was committed that every cursor of a consumer has behind it."""
    snapshot = source.snapshot()
    suffix = f"<-{snapshot.metadata.id}"
    txns = consumer.snapshot().txns if consumer.exists() else {}
    names = [name for name, version in txns.items() if version >= 0]
    cursors = [txns[name] for name in names if name.startswith("cdc:") and name.endswith(suffix)]
    if not cursors:
        raise InvalidRequestError(
            f"{consumer.uri} has not read {source.uri} incrementally",
            cause="The files that its first run needs are not known",
            remedy="Run it once, or leave it out of the consumers",
            consumer=consumer.uri,
        )
    try:
        return source.log.read_commit(min(cursors)).timestamp_ms
    except VersionNotFoundError as error:
        raise InvalidRequestError(
            f"{consumer.uri} has read {source.uri} up to version {min(cursors)}, which is no longer in its log",
            cause="The log was cleaned up while the consumer lagged behind",
            remedy="Run the consumer, or rebuild it",
            consumer=consumer.uri,
        ) from error
