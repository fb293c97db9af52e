"""`DeltaFileTrigger`: files that arrive become asset events, so that DAGs run when there is something to load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import orjson
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

import delta_orch.arrow_compute as pc
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import location_text
from delta_orch.airflow.triggers import ensure_interval
from delta_orch.arrival.file_source import FileSource
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.protocol.arrow_building import one_chunk

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable

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
        return "delta_orch.airflow.file_trigger.DeltaFileTrigger", {
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
