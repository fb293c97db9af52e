"""The reads of a transaction that others could have changed, and its staged actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_json import serialize_actions, serialize_adds, serialize_changes, serialize_removes
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, known_records, live_rows
from delta_orch.log.files.partition_columns import file_partition_keys, partition_keys
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol, Remove, Txn
from delta_orch.protocol.arrow_building import all_booleans, one_chunk
from delta_orch.protocol.paths import canonical_paths
from delta_orch.table.configuration import TableConfiguration

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot

_REQUIRED = ("path", "partition_values", "size")


_KEY_COLUMNS = ("path", "dv_id")

RowLook = Callable[[pa.Table, Expression], str | None]
"""Reads the live rows of some files (columns of `ADD_SCHEMA`) and gives the path of one that has a certain row, or
None. The function gets the predicate for which the files are suspected."""


@dataclass(slots=True)
class ReadSet:
    """The rows and files a transaction depends on; empty for a blind append.

    Attributes:
        whole_table: Every row.
        predicates: The transaction read the rows for which one of them is true. They are resolved against the table's
            schema.
        partitions: The rows of these partitions: tables of string columns, spelled as in the log.
        files: Keys (`reconcile.file_keys`) of single files.
        moved: Keys of files into which other commits moved rows that may have been read (compaction).
        looked_at: Canonical paths of files of which every row was looked at, whatever else names them: the transaction
            depends on none of them but those that it deletes.
        unnamed_files: It adds files that the log does not name, or no longer, and that a vacuum may delete.
        across_scopes: What another run adds to partitions that it has settled counts, too: a row must not be in two.
        is_checked: Somebody has looked at the commits of others before it (`ResumedTransaction`): it depends on no row
            of theirs, but is no blind append any more.
        look: Tells which of some files has a row that was read, or would have been, where only the statistics of the
            files let one of the predicates match.
    """

    whole_table: bool = False
    predicates: list[Expression] = field(default_factory=list)
    partitions: list[pa.Table] = field(default_factory=list)
    files: list[pa.Array] = field(default_factory=list)
    moved: list[pa.Array] = field(default_factory=list)
    looked_at: list[pa.Array] = field(default_factory=list)
    unnamed_files: bool = False
    across_scopes: bool = False
    is_checked: bool = False
    look: RowLook | None = None

    @property
    def reads_rows(self) -> bool:
        """Whether a file that is new to the table may hold rows this transaction should have read."""
        return self.whole_table or bool(self.predicates) or bool(self.partitions)

    @property
    def is_empty(self) -> bool:
        return not (self.reads_rows or self.files or self.looked_at or self.is_checked)

    def may_hold_read_rows(self, files: pa.Table, table: TableConfiguration) -> pa.Array:
        """For each file (columns of `file_columns`), false only if none of its rows can have been read."""
        from delta_orch.log.read.skipping.data_skipping import match_files

        rows, partition_columns = files.num_rows, table.partition_columns
        if self.whole_table:
            return all_booleans(True, rows)
        # A remove may lack its partition values (PROTOCOL, "Add File and Remove File"): then it may lie anywhere.
        values = FileTable(files).partition_values
        touched = one_chunk(pc.is_null(values)) if partition_columns else all_booleans(False, rows)
        for predicate in self.predicates:
            touched = pc.or_(touched, match_files(files, predicate, table.schema, partition_columns).may_match)
        return pc.or_(touched, self.lie_in_read_partitions(files, table)) if self.partitions else touched

    def lie_in_read_partitions(self, files: pa.Table, table: TableConfiguration) -> pa.Array:
        """For each file whether all of its rows were read: with the whole table, or with its partition."""
        if self.whole_table:
            return all_booleans(True, files.num_rows)
        is_read, columns = all_booleans(False, files.num_rows), list(table.partition_columns)
        if self.partitions:
            keys = file_partition_keys(files, table.schema, columns, equal_zeros=True)
            for partitions in self.partitions:
                read = partition_keys(partitions.select(columns), table.schema, equal_zeros=True)
                is_read = pc.or_(is_read, pc.is_in(keys, value_set=read))
        return is_read

    def keys_in(self, snapshot: Snapshot) -> pa.Array:
        """The keys of all files of a snapshot that may hold rows that were read. Partition values and statistics of the
        snapshot decide: the `remove` of a file repeats no statistics.

        Raises as `Snapshot.files`.
        """
        keys = list(self.files)
        if self.whole_table:
            keys.append(keys_of(snapshot.files(_KEY_COLUMNS)))
        else:
            keys += [keys_of(snapshot.files(_KEY_COLUMNS, where)) for where in self.predicates]
            if self.partitions:
                files = snapshot.files((*_KEY_COLUMNS, "partition_values"))
                by_value = ReadSet(partitions=self.partitions)
                hit = by_value.may_hold_read_rows(files, snapshot.configuration)
                keys.append(keys_of(pc.filter(files, hit)))
        return pa.concat_arrays(keys) if keys else pa.nulls(0, pa.string())


@dataclass(slots=True)
class StagedActions:
    """The actions of a commit, apart from `commitInfo` and `txn`.

    Attributes:
        adds, changes: Files of `add` and `cdc` actions, columns of `file_columns.ADD_SCHEMA`.
        moved: For each table of `adds`, how many of its rows the commit moves there from other files; None if nobody
            knows.
        removes: Files of `remove` actions, each table with whether removing them changes data.
        tombstones: Paths of files other than data files that vacuum must keep for now.
    """

    adds: list[pa.Table] = field(default_factory=list)
    removes: list[tuple[pa.Table, bool]] = field(default_factory=list)
    changes: list[pa.Table] = field(default_factory=list)
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    domain_metadata: dict[str, DomainMetadata] = field(default_factory=dict)
    tombstones: tuple[str, ...] = ()
    moved: list[int | None] = field(default_factory=list)

    def add(self, files: pa.Table, moved: int | None = 0) -> None:
        """Stage files of `add` actions. See `adds` and `moved`."""
        self.adds.append(files)
        self.moved.append(moved)

    def _narrow(self, wanted: Callable[[pa.Table], pa.Table]) -> None:
        """Leave out files that are added or removed."""
        before, self.adds = self.adds, [wanted(files) for files in self.adds]
        self.moved = [
            # Rows that are moved and others may be in any of the files.
            moved if not moved or rest is files else live_rows(rest) if moved == live_rows(files) else None
            for moved, files, rest in zip(self.moved, before, self.adds, strict=True)
        ]
        self.removes = [(wanted(files), data_change) for files, data_change in self.removes]

    @property
    def num_added(self) -> int:
        return sum(map(len, self.adds))

    @property
    def num_removed(self) -> int:
        return sum(files.num_rows for files, _ in self.removes)

    @property
    def removes_data(self) -> bool:
        return any(data_change and files.num_rows for files, data_change in self.removes)

    @property
    def changes_data(self) -> bool:
        """Whether any file changes what a reader of the table sees; false for compaction."""
        return self.removes_data or any(
            "data_change" not in files.column_names or pc.any(_is_not_false(FileTable(files).data_change)).as_py()
            for files in self.adds
            if files.num_rows
        )

    @property
    def is_empty(self) -> bool:
        small = self.metadata or self.protocol or self.domain_metadata or self.tombstones
        return not small and not self.num_added and not self.num_removed

    def removed_keys(self) -> pa.Array:
        """`reconcile.file_keys` of every file removed."""
        return (
            pa.concat_arrays([keys_of(files) for files, _ in self.removes])
            if self.removes
            else pa.nulls(0, pa.string())
        )

    def forget_files(self, paths: pa.Array) -> None:
        """Leave out what is staged of these data files (canonical paths)."""

        def others(files: pa.Table) -> pa.Table:
            return _rest(files, pc.is_in(canonical_paths(FileTable(files).path), value_set=paths))

        self._narrow(others)

    def added_again(self, known_keys: Sequence[pa.Array]) -> pa.Array:
        """Canonical paths of live data files that are added again: with another deletion vector, or with more metadata.

        Args:
            known_keys: Keys of files that were read; those that are removed count as well.
        """
        known_paths = [paths_of(keys) for keys in (*known_keys, self.removed_keys())]
        added = [canonical_paths(FileTable(files).path) for files in self.adds if files.num_rows]
        if not added or not any(len(paths) for paths in known_paths):
            return pa.nulls(0, pa.string())
        value_set = pa.concat_arrays(known_paths)
        return pa.concat_arrays(
            [pc.filter(paths, pc.is_in(paths, value_set=value_set)) for paths in map(one_chunk, added)]
        )

    def drop_files_in(self, scope: Expression, table: TableConfiguration) -> None:
        """Leave out every file for whose partition `scope`, a predicate over partition columns, is true."""
        from delta_orch.log.read.skipping.data_skipping import match_files

        def outside(files: pa.Table) -> pa.Table:
            if not files.num_rows:
                return files
            match = match_files(files, scope, table.schema, table.partition_columns)
            return _rest(files, match.may_match)

        self._narrow(outside)
        self.changes = [outside(files) for files in self.changes]

    def result_after(self, table: TableConfiguration | None) -> TableConfiguration:
        """The table once this is committed; `table` itself where protocol and metadata stay.

        Raises:
            InvalidRequestError: The table is to be created, and one of them is missing.
        """
        if table is not None:
            return table.after(self.protocol, self.metadata)
        if self.protocol is None or self.metadata is None:
            raise InvalidRequestError(
                "A transaction without a snapshot creates the table: it needs metadata and protocol"
            )
        return TableConfiguration(self.protocol, self.metadata)

    def ensure_consistent(self) -> None:
        """Check that no two actions are about the same logical file, and no two adds or removes about the same data
        file (PROTOCOL, "Add File and Remove File", "Delta Log Entries"); one may be removed with one deletion vector
        and added with another.

        Raises:
            InvalidRequestError: Two are. Nothing was committed.
        """
        num_files = self.num_added + self.num_removed
        if num_files < 2:
            return
        removes = [files for files, _ in self.removes]
        keys = [keys_of(files) for files in (*self.adds, *removes)]
        paths = ([canonical_paths(FileTable(files).path) for files in some] for some in (self.adds, removes))
        if not all(map(_are_distinct, (keys, *paths))):
            raise InvalidRequestError(
                "The commit names a file twice: each may be added or removed once",
                commit_files=num_files,
            )

    def serialize(self, txns: Sequence[Txn], deletion_timestamp_ms: int) -> bytes:
        """The lines of the commit after `commitInfo`."""
        kept = [Remove(path, False, deletion_timestamp_ms) for path in self.tombstones]
        table = [action for action in (self.protocol, self.metadata) if action is not None]
        lines = [serialize_actions([*table, *txns, *self.domain_metadata.values(), *kept])]
        for files, data_change in self.removes:
            lines.append(serialize_removes(files, deletion_timestamp_ms=deletion_timestamp_ms, data_change=data_change))
        return b"".join([*lines, *map(serialize_adds, self.adds), *map(serialize_changes, self.changes)])

    def recount(self, metrics: Mapping[str, int | str]) -> dict[str, int | str]:
        """Operation metrics after files were omitted. Counts of files, bytes and rows are computed again."""
        removed = [files for files, _ in self.removes]
        added_bytes = sum(FileTable(files).size_bytes for files in self.adds)
        counts: dict[str, int] = {
            "numFiles": self.num_added,
            "numAddedFiles": self.num_added,
            "numOutputBytes": added_bytes,
            "numAddedBytes": added_bytes,
            "numOutputRows": known_records(self.adds) if "numOutputRows" in metrics else 0,
            "numRemovedFiles": self.num_removed,
            "numRemovedBytes": sum(FileTable(files).size_bytes for files in removed),
        }
        return {key: counts.get(key, value) for key, value in metrics.items()}


def _rest(files: pa.Table, is_left_out: pa.Array) -> pa.Table:
    """The files themselves where none is left out."""
    return pc.filter(files, pc.invert(is_left_out)) if pc.any(is_left_out).as_py() else files


def _are_distinct(parts: Sequence[pa.Array | pa.ChunkedArray]) -> bool:
    values = pa.chunked_array(
        [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])],
        pa.string(),
    )
    return bool(pc.count_distinct(values).as_py() == len(values))


def ensure_partitioned(adds: pa.Table, partition_columns: Sequence[str]) -> None:
    """Raise InvalidRequestError unless each file has one value for each partition column (PROTOCOL, "Consistency
    Between Table Metadata and Data Files")."""
    for maps in FileTable(adds).partition_values.chunks:
        counts = pc.subtract(maps.offsets.slice(1), maps.offsets.slice(0, len(maps)))
        bounds = pc.min_max(counts)
        if len(maps) and {bounds["min"].as_py(), bounds["max"].as_py()} != {len(partition_columns)}:
            raise InvalidRequestError(
                "A new file does not have one value for each partition column",
                partition_columns=list(partition_columns),
            )


def ensure_file_table(files: pa.Table) -> pa.Table:
    """Files as staged: their columns of `ADD_SCHEMA`, in its types.

    Raises:
        InvalidRequestError: A required column is missing or holds nulls, or a column has another type.
    """
    if not files.schema.equals(ADD_SCHEMA):
        missing = [name for name in _REQUIRED if name not in files.column_names]
        if missing:
            raise InvalidRequestError(f"A table of files lacks the columns {', '.join(missing)}", columns=missing)
        names = [name for name in ADD_SCHEMA.names if name in files.column_names]
        file_schema = pa.schema([ADD_SCHEMA.field(name) for name in names])
        files = files.select(names)
        if files.schema.types != file_schema.types:
            try:
                files = files.cast(file_schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
                raise InvalidRequestError("A table of files has columns of the wrong type", cause=str(e)) from None
    for name in _REQUIRED:
        if files.column(name).null_count:
            raise InvalidRequestError(f"A file needs {', '.join(_REQUIRED)}: {name} is null")
    return files


def _is_not_false(flags: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.or_kleene(flags, pc.is_null(flags))


def keys_of(files: pa.Table) -> pa.Array:
    """`reconcile.file_keys` of a table of files; without a column `dv_id`, no file has a deletion vector."""
    from delta_orch.log.read.reconcile import file_keys

    dv_ids = FileTable(files).dv_id if "dv_id" in files.column_names else pa.nulls(files.num_rows, pa.string())
    return file_keys(canonical_paths(FileTable(files).path), dv_ids)


def paths_of(keys: pa.Array) -> pa.Array:
    """The canonical paths of files, from their keys."""
    return pc.replace_substring_regex(keys, pattern="(?s)\x00.*", replacement="")
