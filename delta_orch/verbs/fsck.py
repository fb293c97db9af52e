"""`fsck`: checks that a version of a table is complete and consistent. Nothing is changed. `repair`: removes missing
files from the log. The reference implementation calls it FSCK REPAIR TABLE."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import StatisticsPolicy
from delta_orch.engines.footer_statistics import StatisticsColumn, statistics_columns
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.read_errors import reading
from delta_orch.errors import (
    CorruptDataError,
    CorruptLogError,
    DeltaError,
    MissingFileError,
    ProtocolViolationError,
    StorageError,
)
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.listing import LogListing, list_log
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vector
from delta_orch.log.read.log_check import Problem, check_log, problem_of
from delta_orch.log.read.segment import LogSegment, ensure_log_exists, oldest_version, plan_segment
from delta_orch.log.read.skipping.file_statistics import ColumnBounds, bound_type, read_bounds
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult, ensure_unscoped
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import python_values, string_array
from delta_orch.protocol.paths import canonical_paths
from delta_orch.protocol.schema import without_char
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files
from delta_orch.storage.base import LogStore
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import physical_path
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS
from delta_orch.writing.target import existing_target

FILE_CHECK_COLUMNS = ("path", "size", "deletion_vector")
_CHUNK_ROWS = 512
# Any other error comes from the store, and further checks would fail as well.
_OF_THE_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)


def check_data_files(store: LogStore, files: pa.Table) -> Iterator[Problem]:
    """Check that every data file exists and has the size that the log records.

    Args:
        files: Columns `FILE_CHECK_COLUMNS`.

    Raises:
        StorageError: The store does not answer.
    """
    filesystem = store.data_filesystem()[0]
    chunks = files.select(["path", "size"]).to_batches(_CHUNK_ROWS)
    yield from chain.from_iterable(map_ahead(partial(_check_chunk, store, filesystem), chunks, FAR_THREADS))


def _check_chunk(store: LogStore, filesystem: pafs.FileSystem, chunk: pa.RecordBatch) -> list[Problem]:
    problems: list[Problem] = []
    counted: list[tuple[str, int]] = []
    locations: list[str] = []
    for path, size in zip(FileTable(chunk).path.to_pylist(), FileTable(chunk).size.to_pylist(), strict=True):
        try:
            locations.append(store.resolve(path))
            counted.append((path, size))
        except DeltaError as e:
            problems.append(problem_of(e, "error"))
    for (path, size), info in zip(counted, _look_up(filesystem, locations), strict=True):
        if isinstance(info, Exception):
            error = StorageError(f"The existence of the data file {path} cannot be checked", cause=str(info), path=path)
            problems.append(problem_of(error, "error"))
        elif info.type != pafs.FileType.File:
            remedy = "Restore it, or remove it from the table"
            gone = MissingFileError(f"The data file {path} does not exist", remedy=remedy, path=path)
            problems.append(problem_of(gone, "error"))
        elif info.size is not None and info.size != size:
            cause = f"The log says {size}"
            damaged = CorruptDataError(f"The data file {path} has {info.size} bytes", cause=cause, path=path)
            problems.append(problem_of(damaged, "error"))
    return problems


def _look_up(filesystem: pafs.FileSystem, locations: list[str]) -> list[pafs.FileInfo | Exception]:
    """Return for each location the file, or the error of the store."""
    try:
        return list(filesystem.get_file_info(locations))
    except (OSError, ValueError) as e:
        if len(locations) == 1 and (isinstance(e, ValueError) or e.errno in _OF_THE_PATH):
            return [e]
        if len(locations) < 2:
            raise StorageError("The data files cannot be listed", cause=str(e)) from e
    return [file for location in locations for file in _look_up(filesystem, [location])]


def check_deletion_vectors(store: LogStore, files: pa.Table) -> Iterator[Problem]:
    """Read every deletion vector, and verify its size, its checksum and its number of rows.

    Args:
        files: Columns `FILE_CHECK_COLUMNS`.
    """
    with_vector = pc.filter(files, pc.is_valid(FileTable(files).deletion_vector))
    paths = FileTable(with_vector).path.to_pylist()
    try:
        descriptors = deletion_vector_descriptors(with_vector)
    except DeltaError as e:
        yield problem_of(e, "error")
        return

    def check(task: tuple[str, DeletionVectorDescriptor | None]) -> Problem | None:
        path, descriptor = task
        assert descriptor is not None
        try:
            read_deletion_vector(store, descriptor)
        except DeltaError as e:
            about = {**e.context, "path": e.context.get("path") or path}
            error = type(e)(f"The deletion vector of {path}: {e.problem}", cause=e.cause, remedy=e.remedy, **about)
            return problem_of(error, "error")
        return None

    problems = map_ahead(check, zip(paths, descriptors, strict=True), FAR_THREADS)
    yield from (problem for problem in problems if problem is not None)


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The checked parts of a table, and the problems.

    Attributes:
        uri: The location of the table.
        version: The version that was checked.
        oldest_version: The oldest version that can still be read.
        num_commits, num_checkpoints, num_compactions: The number of files of each kind in the log. Incomplete
            checkpoints do not count.
        checksum_fields: The fields of the version checksum that agree with the log. Empty if there is no checksum, or
            if it does not agree.
        num_files, size_bytes: The live files of the version. None if the version cannot be read.
        num_deletion_vectors: The deletion vectors of the version. None if the version cannot be read.
        files_checked: Whether the existence of data files and deletion vectors was checked.
        rows_checked: Whether every data file was read.
        problems: Errors first.
    """

    uri: str
    version: int
    oldest_version: int
    num_commits: int
    num_checkpoints: int
    num_compactions: int
    checksum_fields: tuple[str, ...]
    num_files: int | None
    size_bytes: int | None
    num_deletion_vectors: int | None
    files_checked: bool
    rows_checked: bool
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether the checks found no error. There may be warnings."""
        return all(p.severity != "error" for p in self.problems)


def fsck(
    table_log: TableLog, version: int | None = None, *, check_files: bool = False, deep: bool = False
) -> FsckReport:
    """Check the log, the state of one version, and its checksum. With `check_files`, also check that the data files
    exist. With `deep`, also read the data. Log compactions are compared with their commits, and checkpoints with their
    version checksums.

    The report lists the problems. They raise no error.

    Args:
        version: By default the newest.
        check_files: Check name and size of data files. Read and verify deletion vectors.
        deep: Also compare checkpoints with the commits before them, and read every data file: its footer, each page
            with its checksum, and each row. Each row must lie within the statistics of its file. Memory is bounded. The
            check takes as long as reading the table twice.

    Raises:
        TableNotFoundError: There is no table.
        VersionNotFoundError: The version does not exist, or its log was cleaned up.
        UnsupportedFeatureError, UnsupportedVersionError: This release cannot check the version.
        StorageError: The store does not answer.
    """
    store = table_log.store
    listing = list_log(store)
    ensure_log_exists(store, listing)
    target = listing.latest_version if version is None else version
    assert target is not None
    problems: list[Problem] = []
    snapshot = _load(table_log, target, problems)
    in_use = _planned(listing, target) if snapshot is None else snapshot.segment
    _add_new(problems, check_log(store, listing, in_use, deep=deep))
    files = None if snapshot is None else _check_state(snapshot, problems)
    checksum_fields = () if snapshot is None or files is None else _check_checksum(snapshot, problems)
    if files is not None and (check_files or deep):
        _add_new(problems, check_data_files(store, files))
        _add_new(problems, check_deletion_vectors(store, files))
    if snapshot is not None and files is not None and deep:
        _add_new(problems, check_rows(snapshot))
    return FsckReport(
        uri=store.uri,
        version=target,
        oldest_version=oldest_version(listing),
        num_commits=len(listing.commits),
        num_checkpoints=sum(map(len, listing.checkpoints.values())),
        num_compactions=len(listing.compactions),
        checksum_fields=checksum_fields,
        num_files=None if files is None else files.num_rows,
        size_bytes=None if files is None else FileTable(files).size_bytes,
        num_deletion_vectors=None if files is None else len(files) - FileTable(files).deletion_vector.null_count,
        files_checked=(check_files or deep) and files is not None,
        rows_checked=deep and files is not None,
        problems=tuple(sorted(problems, key=lambda p: p.severity != "error")),
    )


def _planned(listing: LogListing, version: int) -> LogSegment | None:
    """List the files of the log that an unreadable version needs."""
    try:
        return plan_segment(listing, version)
    except DeltaError:
        return None


def _load(table_log: TableLog, version: int, problems: list[Problem]) -> Snapshot | None:
    try:
        return table_log.snapshot(version)
    except CorruptLogError as e:
        problems.append(problem_of(e, "error"))
        return None


def _check_state(snapshot: Snapshot, problems: list[Problem]) -> pa.Table | None:
    """Decode all parts of the version, piece by piece. Return the columns of its files that later checks need."""
    kept: list[pa.Table] = []
    try:
        for piece in snapshot.iter_files():
            kept.append(piece.select(FILE_CHECK_COLUMNS))
        for _ in snapshot.iter_tombstones(["path", "deletion_timestamp"]):
            pass
        _ = snapshot.txns, snapshot.domain_metadata
    except (CorruptLogError, StorageError) as e:
        _add_new(problems, [problem_of(e, "error")])
        return None
    files = pa.concat_tables(kept)
    problems.extend(_files_twice(files))
    return files


def _files_twice(files: pa.Table) -> Iterator[Problem]:
    counts = pc.value_counts(canonical_paths(FileTable(files).path).combine_chunks())
    for row in pc.filter(counts, pc.greater(counts.field("counts"), 1)).to_pylist():
        error = ProtocolViolationError(
            f"The data file {row['values']} is in the table {row['counts']} times, with different deletion vectors",
            cause="Readers return its rows more than once",
            path=row["values"],
        )
        yield problem_of(error, "error")


def _check_checksum(snapshot: Snapshot, problems: list[Problem]) -> tuple[str, ...]:
    try:
        return snapshot.validate().checked
    except (CorruptLogError, StorageError) as e:
        problems.append(problem_of(e, "error"))
        return ()


def _add_new(problems: list[Problem], new_problems: Iterable[Problem]) -> None:
    """Add a problem once. A damaged file causes the same error at every read."""
    reported = {(p.code, p.path or p.version) for p in problems}
    problems.extend(p for p in new_problems if (p.code, p.path or p.version) not in reported)


# `fsck(deep=True)`: reads every page of every data file, and compares the rows with the statistics in the log


_BATCH_ROWS = 64 * 1024
_PREFIX_CHARS = 32
_WRONG_STATISTICS = (
    "Queries may leave the file out, and its rows with it. Rewrite the file: update one of its rows, or overwrite "
    "its partition with its own rows"
)


def check_rows(snapshot: Snapshot) -> Iterator[Problem]:
    """Read every data file: the footer, each page with its checksum (if it has one), and the rows as a scan reads them.
    No value may lie outside the statistics of its column.

    Raises:
        StorageError: The store does not answer.
    """
    in_files = StructType(tuple(f for f in snapshot.schema if f.name not in snapshot.partition_columns))
    columns = statistics_columns(in_files, StatisticsPolicy(-1))
    columns = tuple(column for column in columns if bound_type(column.data_type) is not None)
    files = snapshot.files((*SCAN_COLUMNS, "stats"))

    def check(row: int) -> list[Problem]:
        file = files.slice(row, 1)
        path = FileTable(file).path[0].as_py()
        try:
            num_rows = _read_pages(snapshot, path)
            return list(_check_statistics(snapshot, file.combine_chunks(), columns, num_rows))
        except DeltaError as e:
            return [replace(problem_of(e, "error"), path=path, version=None)]

    yield from chain.from_iterable(map_ahead(check, range(files.num_rows)))


def _read_pages(snapshot: Snapshot, path: str) -> int:
    """Decode a whole file, and return its number of rows."""
    store = snapshot.store
    location = store.resolve(path)
    store.ensure_regular([location])
    with reading(location), store.data_filesystem()[0].open_input_file(location) as source:
        footer = read_footer(source)
        footer.ensure_sound_chunks()
        file = pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True)
        num_rows = sum(batch.num_rows for batch in file.iter_batches(_BATCH_ROWS)) if footer.metadata.num_columns else 0
        if footer.metadata.num_columns and num_rows != footer.metadata.num_rows:
            raise pa.ArrowInvalid(f"It holds {num_rows} rows, its footer says {footer.metadata.num_rows}")
        return int(footer.metadata.num_rows)


def _check_statistics(
    snapshot: Snapshot, file: pa.Table, columns: tuple[StatisticsColumn, ...], num_rows: int
) -> Iterator[Problem]:
    path, text = FileTable(file).path[0].as_py(), FileTable(file).stats[0].as_py()
    if text is None:
        return
    recorded = _number_of_records(text)
    if recorded is not None and recorded != num_rows:
        yield _wrong(path, f"The data file {path} has {num_rows} rows", f"Its statistics say {recorded}")
    physical = {column.path: physical_path(snapshot.schema, column.path) for column in columns}
    bounds = read_bounds(FileTable(file).stats, {physical[column.path]: column.data_type for column in columns})
    reported: set[tuple[str, ...]] = set()
    plan = scan_of_files(snapshot, file.select(SCAN_COLUMNS))
    # Statistics are computed from texts as they are stored, without padding.
    plan = replace(plan, schema=without_char(plan.schema))
    for batch in LocalEngine().scan(plan).to_reader():
        for column in columns:
            if column.path in reported:
                continue
            what = _outside(_leaf(batch, column.path), bounds[physical[column.path]])
            if what is not None:
                reported.add(column.path)
                name = ".".join(column.path)
                yield _wrong(path, f"The data file {path} has {what} in {name}", "Its statistics say otherwise")


def _number_of_records(text: str) -> int | None:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    num_records = parsed.get("numRecords") if isinstance(parsed, dict) else None
    return num_records if isinstance(num_records, int) else None


def _leaf(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column = batch.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _outside(values: pa.Array, bounds: ColumnBounds) -> str | None:
    """Report values that lie outside the statistics of their file."""
    if values.null_count and not bounds.may_be_null[0].as_py():
        return "a null"
    present_values = pc.drop_null(values)
    if len(present_values) and not bounds.may_be_value[0].as_py():
        return "a value that is not null"
    if pa.types.is_floating(present_values.type):
        present_values = pc.filter(present_values, pc.invert(pc.is_nan(present_values)))
    if not len(present_values):
        return None
    extremes: Any = pc.min_max(present_values)
    lower, upper = (_value_of(bound[0]) for bound in (bounds.lower, bounds.upper))
    least, greatest = (
        _as_bound(_value_of(extremes[name]), lower if lower is not None else upper) for name in ("min", "max")
    )
    if isinstance(upper, str) and len(upper) >= _PREFIX_CHARS:
        greatest = greatest[: len(upper)]
    if lower is not None and least < lower:
        return _shown(extremes["min"])
    return _shown(extremes["max"]) if upper is not None and greatest > upper else None


def _shown(scalar: pa.Scalar) -> str:
    (value,) = python_values(pa.array([scalar], scalar.type))
    return f"{value!r:.100}"


def _value_of(scalar: pa.Scalar) -> Any:
    """Return dates and times as Arrow's numbers, because Python cannot express all of them."""
    kind = {32: pa.int32(), 64: pa.int64()}.get(scalar.type.bit_width if pa.types.is_temporal(scalar.type) else 0)
    return (scalar if kind is None else pc.cast(scalar, kind)).as_py()


def _as_bound(value: Any, bound: Any) -> Any:
    return float(value) if isinstance(bound, float) else value


def _wrong(path: str, problem: str, cause: str) -> Problem:
    return problem_of(CorruptDataError(problem, cause=cause, remedy=_WRONG_STATISTICS, path=path), "error")


_MOST_NAMED = 5


def repair(log: TableLog, snapshot: Snapshot, options: CommitOptions) -> CommitResult:
    """Remove the data files that are no longer in the store from the table, in one commit. The existence of every live
    file is checked, but no file is read. The rows of missing files are lost, and the change feed cannot show them.

    Files that exist stay. A file with a wrong size or a missing deletion vector is damaged, but still holds rows.
    `fsck(check_files=True)` lists such files.

    Returns: `skipped` if no file is missing.

    Raises as `DeltaTable.repair`.
    """
    ensure_unscoped(options, "A repair applies to the whole table")
    transaction = Transaction(log, snapshot, operation="FSCK", **options)
    if transaction.stale_txns():
        return transaction.commit()
    existing_target(snapshot)
    files = snapshot.files(REMOVED_FILE_COLUMNS)
    gone = pc.filter(files, pc.is_in(FileTable(files).path, value_set=_paths_gone(snapshot, files)))
    if not gone.num_rows:
        return transaction.skip()
    transaction.remove_files(gone)
    transaction.set_operation_metrics(
        {
            "numMissingFiles": gone.num_rows,
            "numFilesScanned": files.num_rows,
            "sizeOfMissingFiles": FileTable(gone).size_bytes,
        }
    )
    return transaction.commit()


def _paths_gone(snapshot: Snapshot, files: pa.Table) -> pa.Array:
    problems = list(check_data_files(snapshot.store, files))
    unknown = [problem for problem in problems if problem.code not in (MissingFileError.code, CorruptDataError.code)]
    if unknown:
        raise StorageError(
            f"The existence of {len(unknown)} data files cannot be checked",
            cause=" ".join(problem.message for problem in unknown[:_MOST_NAMED]),
            remedy="Make the store readable first, because the files may exist",
            paths=[problem.path for problem in unknown[:_MOST_NAMED]],
        )
    return string_array([p.path for p in problems if p.code == MissingFileError.code])
