"""The record of the files that a table has loaded from a source: Parquet files under `_delta_orch/loaded`.

An ordinary `txn` of the table refers to the record. Its application id identifies the source, and its version the file.
So the record changes in the same commit as the rows, and a restore takes back both.

Each commit writes one file and changes none. It holds the new entries, and the names of the earlier files with the
other entries. Small files are merged into it, so that their number stays low. An entry is copied once for each
doubling, and never beyond `_MOST_MERGED`. Entries are sorted by path. If a path has several entries, the newest counts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_source import LISTING_SCHEMA
from delta_orch.errors import (
    ConcurrentTransactionError,
    DeltaError,
    FileExistsInStoreError,
    FileMissingInStoreError,
    MissingFileError,
)
from delta_orch.log.files.txn import TxnId
from delta_orch.protocol.arrow_building import all_booleans, int64_array, int64_range, one_chunk, string_array
from delta_orch.protocol.paths import LOADED_DIRECTORY
from delta_orch.storage.base import storage_error
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from delta_orch.arrival.file_source import FileSource
    from delta_orch.storage.base import LogStore

ENTRY_SCHEMA = pa.schema([*LISTING_SCHEMA, ("version", pa.int64()), ("state", pa.int8())])
"""The columns of an entry: a listed file, the record version that added its rows, and its state."""

LOADED, SET_ASIDE, FORGOTTEN = 0, 1, 2
"""The states of an entry. Files of `FORGOTTEN` entries are loaded again, because their rows were removed."""

_SEGMENTS = b"delta_orch.segments"
_GROUP_ROWS = 100_000
_ALWAYS_MERGED, _MOST_MERGED = 1000, 1_000_000

_LOOKUP = """
SELECT row, max(e.version) AS version, arg_max(CASE WHEN e.state = 2 THEN 0 ELSE 1 + 2 * e.state + CAST(NOT (
    e.size = l.size AND CASE WHEN e.etag IS NULL OR l.etag IS NULL
    THEN e.modification_time_ms = l.modification_time_ms ELSE e.etag = l.etag END) AS TINYINT) END, e.version) AS state
FROM entries AS e JOIN listed AS l ON e.path = l.path GROUP BY row
"""


def cursor_id(source: FileSource) -> str:
    """Return the application id of a source's record. It differs from cursors on tables, which have a name before the
    arrow."""
    return f"{CURSOR_PREFIX}{source.uri}"


CURSOR_PREFIX = "cdc:<-"


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the record: its version, its number of entries, the least and the greatest path, and whether some of
    its files must be loaded again."""

    version: int
    rows: int
    first: str
    last: str
    forgets: bool


@dataclass(frozen=True)
class LoadedFiles:
    """The files of a source that a version of a table has loaded.

    Attributes:
        store: The table's root.
        cursor: The application id.
        recorded: The version that the table has recorded for the cursor, or -1. The next version follows it.
        version: The version that was read, or -1. It is older than `recorded` if the rows were restored without the
            record.
        segments: The files that hold the entries, newest first.
    """

    store: LogStore
    cursor: str
    recorded: int = -1
    version: int = -1
    segments: tuple[Segment, ...] = ()

    @classmethod
    def read(cls, store: LogStore, cursor: str, recorded: int, version: int) -> LoadedFiles:
        """Read the list of files of a version of the record, from one footer.

        Raises:
            MissingFileError: The record does not exist, so the loaded files are unknown.
            StorageError: The record cannot be read.
        """
        record = cls(store, cursor, recorded, version)
        if version < 0:
            return record
        with record._open(version) as file:
            segments = file.metadata.metadata[_SEGMENTS]
        return replace(record, segments=tuple(Segment(**one) for one in orjson.loads(segments)))

    @property
    def versions(self) -> set[int]:
        """Return the files of the record, by their versions."""
        return {self.version, *(segment.version for segment in self.segments)} - {-1}

    @property
    def last_path(self) -> str:
        """Return the greatest path. Empty if there is none, or if files before it must be loaded again."""
        if any(segment.forgets for segment in self.segments):
            return ""
        return max((segment.last for segment in self.segments), default="")

    # Lookups

    def select(self, listed: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the files of a listing that were not loaded, and the loaded files that have changed.

        A file has changed if its size or its etag differs. Without etags, the modification time is compared. A skipped
        file that has changed counts as not loaded.

        Args:
            listed: Files as `file_source.LISTING_SCHEMA`, each path once.

        Returns: Rows of `listed`, in its order.
        """
        entries = self._look_up(listed)
        # 0: not loaded. 1: loaded. 2: loaded, and changed. 3: set aside. 4: set aside, and changed.
        states = pc.fill_null(one_chunk(entries["state"]).cast(pa.int8()), 0)
        is_new, is_changed = (pc.is_in(states, value_set=_codes(codes)) for codes in ([0, 4], [2]))
        return pc.filter(listed, is_new), pc.filter(listed, is_changed)

    def _look_up(self, listed: pa.Table) -> pa.Table:
        """Return the newest entry of each file: its `version` and the file's `state`. Null if there is no entry."""
        if not self.segments or not listed.num_rows:
            return pa.table({name: pa.nulls(listed.num_rows, pa.int64()) for name in ("version", "state")})
        bounds = pc.min_max(listed["path"])
        entries = self._entries(bounds["min"].as_py(), bounds["max"].as_py())
        rows = int64_range(0, listed.num_rows)
        from delta_orch.engines.local.duckdb_session import connect, duckdb_errors

        failures: list[BaseException] = []
        try:
            with duckdb_errors("The record of loaded files could not be searched"), connect() as connection:
                # The listing is the right side of the join, which DuckDB keeps in memory.
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
                connection.register("entries", _watched(entries, failures))
                connection.register("listed", listed.append_column("row", rows))
                known = connection.sql(_LOOKUP).to_arrow_table()
        except DeltaError:
            if failures:
                raise failures[0] from None
            raise
        places = pc.index_in(rows, value_set=one_chunk(known["row"]))
        return pc.take(known.select(["version", "state"]), places)

    def of_versions(self, versions: Collection[int] | None = None, *, since: int = 0) -> pa.Table:
        """Return the entries whose rows came with some record versions, as `ENTRY_SCHEMA`, sorted by version and path.

        Args:
            versions: Only these versions. None means all.
            since: Only this and later versions.
        """
        parts = [pa.RecordBatch.from_pylist([], ENTRY_SCHEMA)]
        asked = None if versions is None else int64_array(list(versions))
        for batch in self._entries("", None):
            is_asked = pc.and_(pc.greater_equal(batch["version"], since), pc.equal(batch["state"], _codes([LOADED])[0]))
            if asked is not None:
                is_asked = pc.and_(is_asked, pc.is_in(batch["version"], value_set=asked))
            parts.append(pc.filter(batch, is_asked))
        entries = pa.Table.from_batches(parts)
        # Newer entries may exist for the same path.
        is_newest = pc.equal(self._look_up(entries.select(LISTING_SCHEMA.names))["version"], entries["version"])
        return pc.sort_by(pc.filter(entries, is_newest), "version", "path")

    def _entries(self, first: str, last: str | None) -> pa.RecordBatchReader:
        """Return all entries with paths in a range. The result may have other entries as well."""
        groups = self._groups([s for s in self.segments if s.last >= first and (last is None or s.first <= last)])

        def read(task: tuple[pq.ParquetFile, int]) -> pa.Table:
            file, group = task
            paths = file.metadata.row_group(group).column(0).statistics
            if (
                paths is not None
                and paths.has_min_max
                and (paths.max < first or (last is not None and paths.min > last))
            ):
                return ENTRY_SCHEMA.empty_table()
            return file.read_row_group(group)

        threads = None if self.store.is_near else FAR_THREADS
        tables = map_ahead(read, groups, threads)
        batches = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(ENTRY_SCHEMA, batches)

    def _groups(self, segments: list[Segment]) -> Iterator[tuple[pq.ParquetFile, int]]:
        files = map_ahead(
            self._open, [segment.version for segment in segments], 0 if self.store.is_near else FAR_THREADS
        )
        for file in files:
            yield from ((file, group) for group in range(file.num_row_groups))

    def _open(self, version: int) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        path = record_path(self.cursor, version)
        try:
            return pq.ParquetFile(self.store.open_input(path))
        except FileMissingInStoreError as e:
            raise MissingFileError(
                f"The record of the files that {self.store.uri} has loaded does not exist",
                cause=f"The file {path} was deleted. Without it, the loaded files are unknown",
                remedy="Restore the file, or load all files again into another table",
                path=path,
            ) from e
        except OSError as e:
            raise storage_error(e, "read", path) from e

    # Changes

    def next_version(self) -> int:
        """Return a version for the next change. Later versions are greater, even if other writers choose them."""
        return max(self.recorded + 1, time.time_ns() // 1000)

    def write(self, version: int, files: pa.Table, state: int = LOADED, *, set_aside: Collection[str] = ()) -> None:
        """Write the record with some new files, for the commit that adds their rows.

        Args:
            version: A version from `next_version`. The `txn` of the commit records it as the successor of `recorded`.
            files: Columns of `file_source.LISTING_SCHEMA`.
            state: The state of these files.
            set_aside: The paths of files that could not be read.

        Raises:
            ConcurrentTransactionError: Another run chose the same version. Nothing was written.
            StorageError: Nothing was written.
        """
        count = files.num_rows
        states = _codes([state] * count)
        if set_aside:
            is_aside = pc.is_in(one_chunk(files["path"]), value_set=string_array(sorted(set_aside)))
            states = pc.if_else(is_aside, _codes([SET_ASIDE])[0], states)
        versions = pc.take(int64_array([version]), pa.nulls(count, pa.int64()).fill_null(0))
        columns = [*(files[name] for name in LISTING_SCHEMA.names), versions, states]
        entries = pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA)
        kept, merged = list(self.segments), list[Segment]()
        while kept and kept[0].rows <= max(count, _ALWAYS_MERGED) and count + kept[0].rows <= _MOST_MERGED:
            merged.append(kept.pop(0))
            count += merged[-1].rows
        earlier = replace(self, segments=tuple(merged))._entries("", None)
        entries = _newest(pa.concat_tables([pa.Table.from_batches(earlier, ENTRY_SCHEMA), entries]))
        try:
            self.store.put_if_absent(record_path(self.cursor, version), _serialized(version, entries, kept))
        except FileExistsInStoreError as e:
            raise ConcurrentTransactionError(
                f"Another run loads files into {self.store.uri}",
                cause=f"The other run wrote version {version} of the record of loaded files",
                remedy="Run the operation again. It loads the remaining files",
            ) from e

    def copy_to(self, store: LogStore) -> None:
        """Copy the record to the root of another table. Raises StorageError."""
        for version in self.versions:
            path = record_path(self.cursor, version)
            content = self.store.read_bytes(path)
            try:
                store.put_if_absent(path, content)
            except FileExistsInStoreError:
                if store.read_bytes(path) != content:  # The file must not be from an earlier clone.
                    raise

    def txn(self, version: int) -> TxnId:
        """Return the transaction id with which a commit records a written version."""
        return TxnId(self.cursor, version, follows=self.recorded)


def record_directory(cursor: str) -> str:
    """Return the directory of the record of a cursor, relative to the table's root."""
    return f"{LOADED_DIRECTORY}/{hashlib.sha256(cursor.encode()).hexdigest()[:32]}"


def _watched(rows: pa.RecordBatchReader, failures: list[BaseException]) -> pa.RecordBatchReader:
    """Return the same rows, and keep an error of reading them. DuckDB passes on only the message of an error."""

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except BaseException as e:
            failures.append(e)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def record_path(cursor: str, version: int) -> str:
    """Return the file of a version of a record, relative to the table's root."""
    return f"{record_directory(cursor)}/{version:020d}.parquet"


def _codes(values: list[int]) -> pa.Array:
    return int64_array(values).cast(pa.int8())


def _newest(entries: pa.Table) -> pa.Table:
    """Return the entry with the greatest version of each path, sorted by path."""
    entries = pc.sort_by(entries, "path", "version").combine_chunks()
    if entries.num_rows < 2:
        return entries
    paths = one_chunk(entries["path"])
    is_last = pc.not_equal(paths[:-1], paths[1:])
    return pc.filter(entries, pa.concat_arrays([is_last, all_booleans(True, 1)]))


def _serialized(version: int, entries: pa.Table, others: list[Segment]) -> pa.Buffer:
    import pyarrow.parquet as pq

    own = []
    if entries.num_rows:
        first, last = entries["path"][0].as_py(), entries["path"][-1].as_py()
        forgets = bool(pc.any(pc.equal(entries["state"], _codes([FORGOTTEN])[0])).as_py())
        own.append(Segment(version, entries.num_rows, first, last, forgets))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        ENTRY_SCHEMA,
        compression="zstd",
        use_dictionary=["version", "state"],
        column_encoding={"path": "DELTA_BYTE_ARRAY"},
    ) as writer:
        writer.write_table(entries, row_group_size=_GROUP_ROWS)
        writer.add_key_value_metadata({_SEGMENTS: orjson.dumps([asdict(segment) for segment in (*own, *others)])})
    return sink.getvalue()
