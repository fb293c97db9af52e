"""Any Spark session, through public DataFrame calls only: Spark Connect, and classic sessions without the bridge."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from delta_orch.engines.spark.host import DataFrame, SparkHost, WrittenFile, is_connect
from delta_orch.engines.spark.scan_portable import portable_scan

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.spark.scan_files import ScanFiles
    from delta_orch.storage.base import LogStore


class PortableHost(SparkHost):
    """A session whose plans cannot leave it: settings are put on it while rows are pulled, and taken back."""

    is_time_zone_pinned = False

    def __init__(self, session: Any) -> None:
        self.session = session
        self._overlay = _SettingsOverlay(session.conf)

    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        return rows

    def unpinned(self, rows: DataFrame) -> DataFrame:
        return rows

    def analysed(self, rows: DataFrame) -> DataFrame:
        # Connect analyses on the server, when first asked for the schema.
        _ = rows.schema
        return rows

    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        return self._overlay.hold(settings)

    def pinned_session(self) -> Any:
        return self.session

    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        return portable_scan(self.session, files, positioned=positioned)

    def write_files(
        self,
        rows: DataFrame,
        store: LogStore,
        root_uri: str,
        directory: str,
        partition_columns: Sequence[str],
        options: Mapping[str, str],
    ) -> list[WrittenFile]:
        # A directory of its own: what Spark moved there when the job committed is exactly what counts.
        own = f"{directory}/write-{uuid.uuid4()}".lstrip("/")
        writer = rows.write.mode("error").options(**options)
        if partition_columns:
            writer = writer.partitionBy(*partition_columns)
        writer.parquet(f"{root_uri}/{own}")
        return [
            WrittenFile(meta.path, meta.size, meta.modification_time_ms)
            for meta in store.list_recursive(own)
            if meta.path.endswith(".parquet") and not meta.path.rpartition("/")[2].startswith((".", "_"))
        ]

    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not is_connect(self.session):
            yield from rows.toArrow().to_batches()
            return
        client = rows.sparkSession.client
        for part in client.to_table_as_iterator(rows._plan.to_proto(client), {}):
            if hasattr(part, "to_batches"):
                yield from part.to_batches()


class _SettingsOverlay:
    """Settings on a session for as long as somebody holds them; the values before return with the last holder."""

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._before: dict[str, str | None] = {}
        self._defaults: dict[str, str | None] = {}

    @contextmanager
    def hold(self, settings: Mapping[str, str]) -> Iterator[None]:
        with self._lock:
            user = self._conf.getAll
            for key, value in settings.items():
                if not self._holders.get(key) and user.get(key, self._default(key)) != value:
                    self._before[key] = user.get(key)
                    self._conf.set(key, value)
                self._holders[key] = self._holders.get(key, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                for key in settings:
                    self._holders[key] -= 1
                    if self._holders[key] == 0 and key in self._before:
                        self._restore(key, self._before.pop(key))

    def _default(self, key: str) -> str | None:
        """What holds where the user has set nothing; asked once, as each question is a round trip."""
        if key not in self._defaults:
            try:
                self._defaults[key] = self._conf.get(key)
            except Exception as e:
                if not type(e).__module__.startswith("pyspark"):
                    raise
                # Not a setting of this release of Spark: nothing to pin.
                self._defaults[key] = None
        return self._defaults[key]

    def _restore(self, key: str, before: str | None) -> None:
        if before is None:
            self._conf.unset(key)
        else:
            self._conf.set(key, before)
