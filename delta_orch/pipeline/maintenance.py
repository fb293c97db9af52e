"""What the log alone says about a table: its health, its number of rows; the policy for maintenance; and what vacuum
and cleanup of the log must keep for who still has to read the table."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked_constructor
from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
from delta_orch.errors import InvalidRequestError, VersionNotFoundError
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS as ROW_COUNT_COLUMNS  # its users import both
from delta_orch.log.files.file_columns import FileTable, live_row_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.verbs.optimize import files_to_cluster, plan_compaction

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.read.table_log import TableLog


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The state of one version of a table.

    Attributes:
        version: Which version.
        num_files: Live files.
        size_bytes: Their sizes together.
        target_file_size_bytes: What compaction aims at: `delta.targetFileSize`, or the default.
        num_small_files: Live files below half of the target size.
        num_compactable_files: Files that compaction would merge: small ones that share their partition with others. Of
            a clustered table those that are not clustered yet.
        commits_since_checkpoint: Commits a reader replays after the last checkpoint.
        checkpoint_version: Of the last checkpoint, None without one.
        num_expired_tombstones: Removed files older than `delta.deletedFileRetentionDuration`: vacuum deletes them, and
            files that no commit ever named, if they are still there.
        deleted_rows_ratio: Rows that deletion vectors mark, of the rows in files, 0 to 1; 0 where statistics do not
            tell.
        num_expired_log_files: Files of the log that its cleanup would delete; 0 where the table keeps its history
            (`delta.enableExpiredLogCleanup` is false). None where nobody has listed them.
    """

    version: int
    num_files: int
    size_bytes: int
    target_file_size_bytes: int
    num_small_files: int
    num_compactable_files: int
    commits_since_checkpoint: int
    checkpoint_version: int | None
    num_expired_tombstones: int
    deleted_rows_ratio: float
    num_expired_log_files: int | None = None

    def as_metadata(self) -> Mapping[str, int | float]:
        """Name → number, for an orchestrator's metadata; what is None is left out."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value is not None}


def read_table_health(snapshot: Snapshot, *, log: TableLog | None = None, now_ms: int | None = None) -> TableHealth:
    """The health of a snapshot. Decodes sizes, partitions, vectors and tombstones; opens no data file.

    Take a freshly loaded snapshot: one that was advanced knows nothing of checkpoints written since it was loaded.

    Args:
        log: Of the table, to count what has expired in it, which lists its directory.
        now_ms: Milliseconds since the epoch, by default the clock's.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: With `log`, where this release must not write to the table.
    """
    target = snapshot.properties.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
    sizes = FileTable(snapshot.files(["size"])).size
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    checkpoint = snapshot.segment.checkpoint
    deleted_ms = FileTable(snapshot.tombstones(["deletion_timestamp"])).deletion_timestamp
    return TableHealth(
        version=snapshot.version,
        num_files=snapshot.num_files,
        size_bytes=pc.sum(sizes).as_py() or 0,
        target_file_size_bytes=target,
        num_small_files=_count_below(sizes, target // 2),
        num_compactable_files=_count_compactable(snapshot, target),
        commits_since_checkpoint=len(snapshot.segment.commits),
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        num_expired_tombstones=_count_below(
            pc.fill_null(deleted_ms, 0),
            now - snapshot.properties.deleted_file_retention_ms,
        ),
        deleted_rows_ratio=deleted_rows_ratio(snapshot.files(ROW_COUNT_COLUMNS)),
        num_expired_log_files=None if log is None else _count_expired(log, snapshot, now),
    )


def _count_expired(log: TableLog, snapshot: Snapshot, now_ms: int) -> int:
    if not snapshot.properties.enable_expired_log_cleanup:
        return 0
    from delta_orch.log.upkeep.log_cleanup import clean_up_log

    return len(clean_up_log(log, snapshot, dry_run=True, now_ms=now_ms).paths)


def _count_compactable(snapshot: Snapshot, target_file_size_bytes: int) -> int:
    if snapshot.clustering:
        return int(files_to_cluster(snapshot).num_rows)
    return sum(files.num_rows for files in plan_compaction(snapshot, None, target_file_size_bytes))


def _count_below(values: pa.ChunkedArray, limit: int) -> int:
    return pc.sum(pc.less(values, limit)).as_py() or 0


@checked_constructor
@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """The limits from which maintenance is worth a run.

    Attributes:
        min_compactable_files: Compact once so many files could be merged; at least 2.
        max_commits_since_checkpoint: Write a checkpoint once more commits than that follow the last one.
        min_expired_tombstones: Vacuum once so many removed files have expired; 0 vacuums always (which also finds files
            that no commit ever named).
        max_deleted_rows_ratio: Purge once deletion vectors mark a greater share of the rows in files, 0 to 1.
        min_expired_log_files: Clean up the log once so many of its files have expired; at least 1.
    """

    min_compactable_files: int = 10
    max_commits_since_checkpoint: int = 10
    min_expired_tombstones: int = 1
    max_deleted_rows_ratio: float = 0.1
    min_expired_log_files: int = 1

    def __post_init__(self) -> None:
        limits = (
            self.min_compactable_files, self.max_commits_since_checkpoint, self.min_expired_tombstones,
            self.min_expired_log_files,
        )  # fmt: skip
        if not all(isinstance(limit, int) and not isinstance(limit, bool) for limit in limits):
            raise InvalidRequestError(f"The limits of a maintenance policy are integers, not {limits!r:.200}")
        if self.min_compactable_files < 2:
            raise InvalidRequestError("min_compactable_files must be at least 2", cause="One file cannot be merged")
        if self.max_commits_since_checkpoint < 0 or self.min_expired_tombstones < 0:
            raise InvalidRequestError("The limits of a maintenance policy are not negative")
        if self.min_expired_log_files < 1:
            raise InvalidRequestError("min_expired_log_files must be at least 1")
        if not 0 <= self.max_deleted_rows_ratio <= 1:
            raise InvalidRequestError("max_deleted_rows_ratio is not a share", remedy="Pass a number from 0 to 1")

    def needs_optimize(self, health: TableHealth) -> bool:
        """Whether compaction is due."""
        return health.num_compactable_files >= self.min_compactable_files

    def needs_checkpoint(self, health: TableHealth) -> bool:
        """Whether a checkpoint is due."""
        return health.commits_since_checkpoint > self.max_commits_since_checkpoint

    def needs_vacuum(self, health: TableHealth) -> bool:
        """Whether vacuum is due."""
        return health.num_expired_tombstones >= self.min_expired_tombstones

    def needs_purge(self, health: TableHealth) -> bool:
        """Whether rows that are marked as deleted are to leave their files."""
        return health.deleted_rows_ratio > self.max_deleted_rows_ratio

    def needs_log_cleanup(self, health: TableHealth) -> bool:
        """Whether cleanup of the log is due; not where its files were not counted."""
        return (health.num_expired_log_files or 0) >= self.min_expired_log_files


ALWAYS = MaintenancePolicy(
    min_compactable_files=2, max_commits_since_checkpoint=0, min_expired_tombstones=0, max_deleted_rows_ratio=0.0
)
"""Do whatever there is to do."""


def count_rows(files: pa.Table) -> int | None:
    """The rows in live files: `numRecords` without those that deletion vectors mark.

    Args:
        files: At least the columns `ROW_COUNT_COLUMNS` of `log.files.file_columns.ADD_SCHEMA`.

    Returns: None where a file carries no statistics: then nobody knows without reading it.
    """
    counts = live_row_counts(files)
    return None if counts.null_count else int(pc.sum(counts).as_py() or 0)


def deleted_rows_ratio(files: pa.Table) -> float:
    """Rows that deletion vectors mark, of the rows in files, 0 to 1; 0 where statistics do not tell.

    Args:
        files: At least the columns `ROW_COUNT_COLUMNS`.
    """
    rows = count_rows(files)
    marked = pc.sum(pc.struct_field(FileTable(files).deletion_vector, "cardinality")).as_py() or 0
    return marked / (rows + marked) if rows is not None and rows + marked else 0.0


_HOUR_MS = 3_600_000


def retention_hours_for(source: DeltaTable, consumers: Sequence[DeltaTable], retention_hours: float | None) -> float:
    """The retention with which a vacuum of `source` leaves every file that a consumer has to read.

    A consumer that has read up to version v reads the files that v's successors added and removed. So whatever was
    removed after v was committed is kept.

    Args:
        source: The table that is vacuumed.
        consumers: Tables that incremental steps fill from it (`pipeline.incremental`).
        retention_hours: The retention that the caller passes. None takes the table's own.

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
    from delta_orch.log.upkeep.log_cleanup import cut_off_ms

    usual = cut_off_ms(source.snapshot().properties, time.time_ns() // 1_000_000)
    needed = int(min(_read_until_ms(source, consumer) for consumer in consumers))
    return needed if needed < usual else None


def _read_until_ms(source: DeltaTable, consumer: DeltaTable) -> float:
    """When the last version was committed that every cursor of a consumer has behind it."""
    snapshot = source.snapshot()
    suffix = f"<-{snapshot.metadata.id}"
    recorded_txns = consumer.snapshot().txns.named(("cdc:",), suffix) if consumer.exists() else {}
    cursors = [version for version in recorded_txns.values() if version >= 0]
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
