"""The record of the files that a table has loaded from a source: Parquet files under `_delta_orch/loaded`.

An ordinary `txn` of the table names the record: its application id says the source, its version the file. So the record
changes in the commit of the rows, and goes back with them.

Each commit writes one file and changes none. It holds the new entries, and the names of the earlier files that hold the
others. Small ones are merged into it, so that there are few: a file's entries are copied once for each doubling, and
never beyond `_MOST_MERGED`. Entries are sorted by path. Of entries of one path the newest counts.
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
"""An entry: a listed file, the version of the record with which its rows came, and its state."""

LOADED, SET_ASIDE, FORGOTTEN = 0, 1, 2
"""States of an entry. Files of `FORGOTTEN` entries are loaded again: their rows were taken back."""

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
    """The application id of a source's record. No cursor on a table has an empty name before the arrow."""
    return f"{CURSOR_PREFIX}{source.uri}"


CURSOR_PREFIX = "cdc:<-"


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the record: its version, how many entries it has, the least and the greatest path, and whether files
    among them are to be loaded again."""

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
        recorded: The version that the table has recorded for it; -1 for none. The next one follows it.
        version: The version that was read; -1 for none. It is an older one where the rows were restored without it.
        segments: The files that hold the entries, newest first.
    """

    store: LogStore
    cursor: str
    recorded: int = -1
    version: int = -1
    segments: tuple[Segment, ...] = ()

    @classmethod
    def read(cls, store: LogStore, cursor: str, recorded: int, version: int) -> LoadedFiles:
        """Read which files make up a version of the record: one footer.

        Raises:
            MissingFileError: The record is gone. Nothing is known of what was loaded.
            StorageError: It cannot be read.
        """
        found = cls(store, cursor, recorded, version)
        if version < 0:
            return found
        with found._open(version) as file:
            segments = file.metadata.metadata[_SEGMENTS]
        return replace(found, segments=tuple(Segment(**one) for one in orjson.loads(segments)))

    @property
    def versions(self) -> set[int]:
        """The files that the record is made of, by their versions."""
        return {self.version, *(segment.version for segment in self.segments)} - {-1}

    @property
    def last_path(self) -> str:
        """The greatest path; empty where there is none, or where files before it are to be loaded again."""
        if any(segment.forgets for segment in self.segments):
            return ""
        return max((segment.last for segment in self.segments), default="")

    # Lookups

    def select(self, listed: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The files of a listing that were not loaded, and those that were and have changed since.

        A file has changed if its size has, or its etag; where the store has no etags, if its modification time has. A
        file that was set aside, and has changed, counts as one that was not loaded.

        Args:
            listed: Columns of `file_source.LISTING_SCHEMA`, each path once.

        Returns: Rows of `listed`, in its order.
        """
        known = self._look_up(listed)
        # 0: not loaded. 1: loaded. 2: loaded, and changed. 3: set aside. 4: set aside, and changed.
        states = pc.fill_null(one_chunk(known["state"]).cast(pa.int8()), 0)
        is_new, is_changed = (pc.is_in(states, value_set=_codes(codes)) for codes in ([0, 4], [2]))
        return pc.filter(listed, is_new), pc.filter(listed, is_changed)

    def _look_up(self, listed: pa.Table) -> pa.Table:
        """The newest entry of each file: its `version`, and the file's `state`; null where there is none."""
        if not self.segments or not listed.num_rows:
            return pa.table({name: pa.nulls(listed.num_rows, pa.int64()) for name in ("version", "state")})
        bounds = pc.min_max(listed["path"])
        entries = self._entries(bounds["min"].as_py(), bounds["max"].as_py())
        rows = int64_range(0, listed.num_rows)
        from delta_orch.engines.local.duckdb_session import connect, duckdb_errors

        failures: list[BaseException] = []
        try:
            with duckdb_errors("The record of loaded files could not be searched"), connect() as connection:
                # The listing is the side that is kept in memory: it is the right one.
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
        """The entries of files whose rows came with some versions, columns of `ENTRY_SCHEMA`, by version and path.

        Args:
            versions: These alone; None for all.
            since: These and later ones.
        """
        parts = [pa.RecordBatch.from_pylist([], ENTRY_SCHEMA)]
        asked = None if versions is None else int64_array(list(versions))
        for batch in self._entries("", None):
            is_asked = pc.and_(pc.greater_equal(batch["version"], since), pc.equal(batch["state"], _codes([LOADED])[0]))
            if asked is not None:
                is_asked = pc.and_(is_asked, pc.is_in(batch["version"], value_set=asked))
            parts.append(pc.filter(batch, is_asked))
        entries = pa.Table.from_batches(parts)
        # Others may have come since for the same path.
        is_newest = pc.equal(self._look_up(entries.select(LISTING_SCHEMA.names))["version"], entries["version"])
        return pc.sort_by(pc.filter(entries, is_newest), "version", "path")

    def _entries(self, first: str, last: str | None) -> pa.RecordBatchReader:
        """All entries with paths in a range, and some others."""
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
                f"The record of the files that {self.store.uri} has loaded is not there",
                cause=f"Something has deleted {path}, and which files were loaded is not known without it",
                remedy="Bring the file back, or load everything anew into another table",
                path=path,
            ) from e
        except OSError as e:
            raise storage_error(e, "read", path) from e

    # Changes

    def next_version(self) -> int:
        """A version for the next change. Later ones are greater, also those that others choose."""
        return max(self.recorded + 1, time.time_ns() // 1000)

    def write(self, version: int, files: pa.Table, state: int = LOADED, *, set_aside: Collection[str] = ()) -> None:
        """Write the record as it is with some files, for the commit that brings their rows.

        Args:
            version: Of `next_version`. The commit records it, and that it follows `recorded` (`txn`).
            files: Columns of `file_source.LISTING_SCHEMA`.
            state: What they are.
            set_aside: The paths of those that could not be read.

        Raises:
            ConcurrentTransactionError: Another run has chosen the same version. Nothing was written.
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
                cause=f"It has written version {version} of the record of loaded files",
                remedy="Run the operation again: it loads what is left",
            ) from e

    def copy_to(self, store: LogStore) -> None:
        """Copy the record to the root of another table. Raises StorageError."""
        for version in self.versions:
            path = record_path(self.cursor, version)
            content = self.store.read_bytes(path)
            try:
                store.put_if_absent(path, content)
            except FileExistsInStoreError:
                if store.read_bytes(path) != content:  # Not from an earlier clone.
                    raise

    def txn(self, version: int) -> TxnId:
        """The transaction with which a commit records a version that was written."""
        return TxnId(self.cursor, version, follows=self.recorded)


def record_directory(cursor: str) -> str:
    """Where the record of a cursor lies, relative to the table's root."""
    return f"{LOADED_DIRECTORY}/{hashlib.sha256(cursor.encode()).hexdigest()[:32]}"


def _watched(rows: pa.RecordBatchReader, failures: list[BaseException]) -> pa.RecordBatchReader:
    """The same rows. What reading them raises is kept, because DuckDB passes on its words alone."""

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except BaseException as e:
            failures.append(e)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def record_path(cursor: str, version: int) -> str:
    """The file of a version of a record, relative to the table's root."""
    return f"{record_directory(cursor)}/{version:020d}.parquet"


def _codes(values: list[int]) -> pa.Array:
    return int64_array(values).cast(pa.int8())


def _newest(entries: pa.Table) -> pa.Table:
    """Of each path the entry of the greatest version, sorted by path."""
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
