"""Finds the files through which a commit changed rows, and checks that another version's schema can read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_traits import read_num_rows
from delta_orch.errors import CorruptLogError, InvalidRequestError, TimestampOutOfRangeError, VersionNotFoundError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import DELETION_VECTOR_TYPE, FileTable, deletion_vector_array, record_counts
from delta_orch.log.files.listing import list_log
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import ensure_version
from delta_orch.protocol.arrow_building import STRING_MAP, int64_array, string_array
from delta_orch.protocol.deletion_vector import DeletionVector, marks_inside
from delta_orch.protocol.paths import canonical_paths
from delta_orch.protocol.types import VOID, DataType, StructType, parts_beside
from delta_orch.storage.base import LogStore
from delta_orch.table.column_mapping import ColumnMappingMode, field_id, physical_name
from delta_orch.table.type_widening import is_followable


def schema_differences(older: Snapshot, newer: Snapshot, *, allow_dropped: bool = False) -> list[str]:
    """Return the differences between two schemas that a reader cannot bridge: missing columns, and types that do not
    widen.

    Columns are the same if their physical names are the same, so renaming makes no difference. New columns are null in
    older files, and so are columns without a type (void). If files are read by field ids, an id must not belong to
    another column. Other writers, and a clone that replaced the table, may assign ids again.

    Args:
        allow_dropped: Whether columns may be missing in `newer`, because their values are not read.
    """
    goes_by_id = newer.configuration.column_mapping is ColumnMappingMode.ID
    return list(_in_struct(older.schema, newer.schema, (), allow_dropped, goes_by_id))


def _in_struct(
    older: StructType, newer: StructType, path: tuple[str, ...], allow_dropped: bool, goes_by_id: bool
) -> Iterator[str]:
    by_physical = {physical_name(field).lower(): field for field in newer}
    by_id = {field_id(field): field for field in newer} if goes_by_id else {}
    for field in older:
        now = by_physical.get(physical_name(field).lower())
        here = (*path, field.name)
        same_id = None if field_id(field) is None else by_id.get(field_id(field), now)
        if same_id is not now and same_id is not None:
            yield f"column {'.'.join(here)} had the field id of what is column {same_id.name} now"
        elif now is not None:
            yield from _in_type(field.data_type, now.data_type, here, allow_dropped, goes_by_id)
        elif not allow_dropped:
            yield f"column {'.'.join(here)} was {field.data_type} and is gone"


def _in_type(
    older: DataType, newer: DataType, path: tuple[str, ...], allow_dropped: bool, goes_by_id: bool
) -> Iterator[str]:
    if isinstance(older, StructType) and isinstance(newer, StructType):
        yield from _in_struct(older, newer, path, allow_dropped, goes_by_id)
    elif parts := parts_beside(older, newer):
        for name, before, after in parts:
            yield from _in_type(before, after, (*path, name), allow_dropped, goes_by_id)
    elif older not in (newer, VOID) and not is_followable(older, newer):
        yield f"column {'.'.join(path)} was {older} and is {newer}"


CHANGED_FILE_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("partition_values", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("deletion_vector", DELETION_VECTOR_TYPE),
        pa.field("change_type", pa.string()),
        pa.field("commit_version", pa.int64(), nullable=False),
        pa.field("commit_timestamp_ms", pa.int64(), nullable=False),
    ]
)
"""The columns of changed files. `change_type` is null for change data files, where each row has its own.
`deletion_vector` marks the rows of the file that did *not* change."""


def read_changed_files(table_log: TableLog, snapshot: Snapshot, commit: Commit) -> pa.Table:
    """Return the files that hold the changes of a commit, as `CHANGED_FILE_SCHEMA`.

    Args:
        snapshot: The table at the end of the range, for its schema and partition columns.
        commit: The commit. Its `timestamp_ms` becomes the time of the changes.

    Raises:
        CorruptLogError: The commit removes a file that the log never added.
        MissingFileError, CorruptDeletionVectorError: A changed deletion vector cannot be read. Or the footer of its
            file cannot be read, and the statistics lack the number of rows.
    """
    if commit.cdc.num_rows:
        return _changed(commit, commit.cdc, None)
    if _only_copies(commit.commit_info or {}):
        return CHANGED_FILE_SCHEMA.empty_table()
    adds = pc.filter(commit.adds, _changes_data(commit.adds))
    removes = _complete_removes(table_log, snapshot, commit, pc.filter(commit.removes, _changes_data(commit.removes)))
    in_adds, in_removes = canonical_paths(FileTable(adds).path), canonical_paths(FileTable(removes).path)
    # If a file is on both sides, only its deletion vector changed (PROTOCOL, "Reader Requirements for AddCDCFile").
    kept = pc.is_in(in_adds, value_set=in_removes)
    still_there = pc.is_in(in_removes, value_set=in_adds)
    before = pc.take(removes, pc.index_in(pc.filter(in_adds, kept), value_set=in_removes))
    return pa.concat_tables(
        [
            _changed(commit, pc.filter(removes, pc.invert(still_there)), "delete"),
            _changed(commit, pc.filter(adds, pc.invert(kept)), "insert"),
            *_changed_vectors(table_log, commit, before, pc.filter(adds, kept)),
        ]
    )


def _only_copies(commit_info: Mapping[str, object]) -> bool:
    """Whether the commit is a merge that changed no row. The reference implementation then commits files with copied
    rows, without change data files, and reports no change."""
    metrics = commit_info.get("operationMetrics")
    counts = (f"numTargetRows{what}" for what in ("Inserted", "Updated", "Deleted"))
    is_merge = commit_info.get("operation") == "MERGE"
    return is_merge and isinstance(metrics, Mapping) and all(str(metrics.get(count)) == "0" for count in counts)


def _changed_vectors(table_log: TableLog, commit: Commit, before: pa.Table, after: pa.Table) -> Iterator[pa.Table]:
    """Return the changes of files with a new deletion vector. Rows that only the new vector marks were deleted, and
    rows that only the old vector marked were inserted."""
    store = table_log.store
    old_vectors = map(_bitmap, read_deletion_vectors(store, deletion_vector_descriptors(before)))
    new_vectors = map(_bitmap, read_deletion_vectors(store, deletion_vector_descriptors(after)))
    differences = [(new - old, old - new) for old, new in zip(old_vectors, new_vectors, strict=True)]
    changed = [row for row, (deleted, restored) in enumerate(differences) if deleted or restored]
    after = pc.take(after, int64_array(changed))
    marked = [(deleted | restored).max() + 1 for deleted, restored in map(differences.__getitem__, changed)]
    for row, (num_rows, index) in enumerate(zip(_num_rows(store, after, marked), changed, strict=True)):
        for change_type, rows in zip(("delete", "insert"), differences[index], strict=True):
            if rows := marks_inside(rows, num_rows):
                yield _changed(commit, _only_rows(after.slice(row, 1), rows, num_rows), change_type)


def _bitmap(vector: DeletionVector | None) -> BitMap64:
    return BitMap64() if vector is None else vector.bitmap


def _only_rows(file: pa.Table, rows: BitMap64, num_rows: int) -> pa.Table:
    """Return the file with a deletion vector that marks all other rows."""
    others = BitMap64(range(num_rows)) - rows
    others.run_optimize()
    descriptor = DeletionVector(others).inline_descriptor()
    marked = deletion_vector_array([descriptor])
    return file.set_column(file.schema.get_field_index("deletion_vector"), "deletion_vector", marked)


def _num_rows(store: LogStore, files: pa.Table, marked: list[int]) -> list[int]:
    """Return the number of rows in each file, including deleted rows. It comes from the footer if the statistics lack
    it, or if it is less than `marked`."""
    counts = record_counts(files).to_pylist()
    untold = [row for row, count in enumerate(counts) if count is None or count < marked[row]]
    paths = pc.take(FileTable(files).path, int64_array(untold)).to_pylist()
    read = dict(zip(untold, read_num_rows(store, paths), strict=True))
    return [read.get(row, count) for row, count in enumerate(counts)]


def _changes_data(files: pa.Table) -> pa.ChunkedArray:
    # A missing dataChange counts as true, because showing a change twice is better than losing one.
    return pc.fill_null(FileTable(files).data_change, True)


def _changed(commit: Commit, files: pa.Table, change_type: str | None) -> pa.Table:
    count = files.num_rows
    columns = [
        FileTable(files).path,
        FileTable(files).partition_values,
        FileTable(files).size,
        FileTable(files).stats if "stats" in files.column_names else pa.nulls(count, pa.string()),
        FileTable(files).deletion_vector
        if "deletion_vector" in files.column_names
        else pa.nulls(count, DELETION_VECTOR_TYPE),
        string_array([change_type] * count),
        int64_array([commit.version] * count),
        int64_array([commit.timestamp_ms] * count),
    ]
    return pa.Table.from_arrays(columns, schema=CHANGED_FILE_SCHEMA)


def _complete_removes(table_log: TableLog, snapshot: Snapshot, commit: Commit, removes: pa.Table) -> pa.Table:
    """Add the partition values and sizes that old writers omit in `remove`, from the previous version."""
    lacks_size = FileTable(removes).size.null_count > 0
    lacks_values = bool(snapshot.partition_columns) and FileTable(removes).partition_values.null_count > 0
    if not (lacks_size or lacks_values):
        return removes
    before = table_log.snapshot(commit.version - 1).files(["path", "partition_values", "size"])
    rows = pc.index_in(canonical_paths(FileTable(removes).path), value_set=canonical_paths(FileTable(before).path))
    if rows.null_count:
        missing = FileTable(pc.filter(removes, pc.is_null(rows))).path[0].as_py()
        raise CorruptLogError(
            f"Version {commit.version} removes a file that was not in the table: {missing}",
            cause="The writer of this or of an earlier commit violated the protocol",
            remedy="Read the change feed up to the version before. Check the rest of the log with fsck()",
            version=commit.version,
            path=missing,
        )
    for name in ("partition_values", "size"):
        column = pc.take(before.column(name), rows)
        removes = removes.set_column(removes.schema.get_field_index(name), name, column)
    return removes


# The range of a change feed, by version or by time, within the versions of the log


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The requested bounds of a change feed, both inclusive. The start is required, the end is optional.

    Attributes:
        starting_version, ending_version: The versions, by number.
        starting_timestamp_ms: The first version committed at this time or later.
        ending_timestamp_ms: The last version committed at this time or earlier.
        allow_out_of_range: Whether bounds may lie after the newest version. The range then ends at the newest version,
            and a start after it makes the range empty.
    """

    starting_version: int | None = None
    ending_version: int | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    allow_out_of_range: bool = False


def resolve_change_range(table_log: TableLog, latest: Snapshot, change_range: ChangeRange) -> tuple[int, int]:
    """Return the first and the last version. The first is greater only if the range is allowed to be empty.

    Raises:
        InvalidRequestError: There is no start, or there are two starts or two ends. A version is not an integer of at
            least 0, or the end is before the start.
        VersionNotFoundError, TimestampOutOfRangeError: A bound lies after the newest version, or the end lies before
            the first version.
    """
    _ensure_well_formed(change_range)
    start, end = change_range.starting_version, change_range.ending_version
    if change_range.starting_timestamp_ms is not None:
        start = _first_since(table_log, latest, change_range.starting_timestamp_ms, change_range.allow_out_of_range)
    if change_range.ending_timestamp_ms is not None:
        end = _last_until(table_log, latest, change_range.ending_timestamp_ms, change_range.allow_out_of_range)
    assert start is not None
    end = latest.version if end is None else end
    if max(start, end) > latest.version and not change_range.allow_out_of_range:
        missing = start if start > latest.version else end
        raise VersionNotFoundError(
            f"Version {missing} does not exist",
            cause=f"The newest version is {latest.version}",
            remedy="End at the newest version, or pass allow_out_of_range=True to read the existing versions",
            version=missing,
            newest_version=latest.version,
        )
    if start > end and not (start > latest.version and change_range.allow_out_of_range):
        raise InvalidRequestError(
            f"The range is empty: it starts at version {start} and ends at version {end}",
            remedy="Pass a start that is not after the end",
        )
    return start, min(end, latest.version)


def _ensure_well_formed(change_range: ChangeRange) -> None:
    if change_range.starting_version is not None:
        ensure_version(change_range.starting_version, "starting_version")
    if change_range.ending_version is not None:
        ensure_version(change_range.ending_version, "ending_version")
    if (change_range.starting_version is None) is (change_range.starting_timestamp_ms is None):
        raise InvalidRequestError(
            "A change feed needs a starting_version or a starting_timestamp, and not both",
            remedy="Give one of them",
        )
    if change_range.ending_version is not None and change_range.ending_timestamp_ms is not None:
        raise InvalidRequestError("Both an ending_version and an ending_timestamp are given", remedy="Give one of them")


def _first_since(table_log: TableLog, latest: Snapshot, timestamp_ms: int, allow_out_of_range: bool) -> int:
    try:
        # This is the newest version before the time, so the next version is the first one that is not earlier.
        return table_log.snapshot(timestamp_ms=timestamp_ms - 1).version + 1
    except TimestampOutOfRangeError as e:
        if _is_before(e, timestamp_ms - 1):
            return _oldest_commit(table_log, latest)
        if allow_out_of_range:
            return latest.version + 1
        table_log.snapshot(timestamp_ms=timestamp_ms)  # It says so of the time that was asked for.
        raise


def _last_until(table_log: TableLog, latest: Snapshot, timestamp_ms: int, allow_out_of_range: bool) -> int:
    try:
        return table_log.snapshot(timestamp_ms=timestamp_ms).version
    except TimestampOutOfRangeError as e:
        if not _is_before(e, timestamp_ms) and allow_out_of_range:
            return latest.version
        raise


def _is_before(error: TimestampOutOfRangeError, timestamp_ms: int) -> bool:
    earliest_ms = error.context.get("earliest_ms")
    return isinstance(earliest_ms, int) and timestamp_ms < earliest_ms


def _oldest_commit(table_log: TableLog, latest: Snapshot) -> int:
    """Return the first commit of the log from which there is no gap up to the newest."""
    commits = list_log(table_log.store).commits
    version = latest.version
    while version - 1 in commits:
        version -= 1
    return version
