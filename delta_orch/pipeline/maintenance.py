"""The state of tables, as their logs tell it: health, number of rows, due maintenance, and a report on a whole lake.

Also what vacuum and log cleanup must keep for consumers that still have to read the table. No function here changes a
table.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked, checked_constructor
from delta_orch.catalog.discovery import list_tables
from delta_orch.catalog.names import is_catalog_uri, parse_table_name
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
from delta_orch.errors import DeltaError, InvalidRequestError, TableNotFoundError, VersionNotFoundError
from delta_orch.log.files.commit_reader import Commit, user_metadata_of
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS as ROW_COUNT_COLUMNS  # its users import both
from delta_orch.log.files.file_columns import FileTable, live_row_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.pipeline.tail import changes_data
from delta_orch.redaction import kept
from delta_orch.storage.open import open_store
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.verbs.optimize import files_to_cluster, plan_compaction
from delta_orch.verbs.units import list_units

if TYPE_CHECKING:
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
"""Every kind of maintenance is due at once."""


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


MAX_COMMITS = 1000
"""So many commits of a table are read, the newest ones."""
_DAY_MS = 24 * 60 * 60 * 1000
_LINKS = ("run_url", "log_url")
"""The pages of a run that Dagster's and Airflow's plugin write into the user metadata of a commit."""


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The newest commit that changed rows, or the newest of all where none of those read did.

    Attributes:
        operation, engine, orchestrator, run: None where the commit does not say.
        link: The page of the run; None where the commit names no http or https address.
    """

    version: int
    timestamp_ms: int
    operation: str | None
    engine: str | None
    orchestrator: str | None
    run: str | None
    link: str | None


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """How far a table has read another one incrementally.

    Attributes:
        uri: The table that reads.
        consumer: The name of its cursor.
        cursor: The last version of the source that it has read.
        versions_behind: Versions of the source after it. Below 0 the source is not the table that was read.
        commits_behind: Those of them that changed data; None where they are older than the days of the report.
        behind_since_ms: When the oldest of these was committed; None without one.
    """

    uri: str
    consumer: str
    cursor: int
    versions_behind: int
    commits_behind: int | None
    behind_since_ms: int | None


@dataclass(frozen=True, slots=True)
class UnitState:
    """The newest commit of a unit of work.

    Attributes:
        commits: Commits that recorded the unit, of those that were read. More than one: it was done again.
        rows: Rows that the unit wrote; None where the log does not tell.
        rows_removed: Rows that its newest commit removed; None where the log does not tell.
    """

    unit: str
    run: str | None
    version: int
    timestamp_ms: int
    commits: int
    rows: int | None
    rows_removed: int | None


@dataclass(frozen=True, slots=True)
class CommitState:
    """A commit, and the live files after it; None where removed files do not tell their sizes."""

    version: int
    timestamp_ms: int
    has_changed_data: bool
    num_files: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one table in a report.

    Attributes:
        uri: Its location.
        path: The location relative to the root that was asked for; the location's last part if it is the root.
        error: Why the table cannot be read. All attributes below are empty then.
        due: The maintenance that is due: `optimize`, `purge`, `checkpoint`, `vacuum`.
        num_rows: None where a file has no statistics.
        consumers: The tables of the report that read this one.
        units: Those committed in the days of the report, the newest first. A unit that failed has no commit.
        commits: Those of these days and one before, the newest first.
        cursors: How far this table has read others: application id → version.
    """

    uri: str
    path: str
    error: str | None = None
    name: str | None = None
    table_id: str | None = None
    health: TableHealth | None = None
    due: tuple[str, ...] = ()
    num_rows: int | None = None
    last_write: LastWrite | None = None
    consumers: tuple[ConsumerLag, ...] = ()
    units: tuple[UnitState, ...] = ()
    commits: tuple[CommitState, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LakeReport:
    """The tables of a lake, in the order of their roots and paths.

    Attributes:
        timestamp_ms: When it was made, milliseconds since the epoch.
        days: How many days back units and commits go.
    """

    timestamp_ms: int
    days: int
    tables: tuple[TableState, ...]


@checked
def read_lake(
    roots: Sequence[str], storage_options: Mapping[str, object] | None = None, *, days: int = 7
) -> LakeReport:
    """Read the logs of all tables at and below some locations, several at once. A table that cannot be read is in the
    report with its error.

    Args:
        roots: Locations of tables, or of directories that tables lie in; or schemas, `uc://catalog.schema`.
        storage_options: Of the stores of all roots.
        days: How many days back units and commits go; at least 1.

    Raises:
        InvalidRequestError: `days` is below 1, or a root is not a location.
        TableNotFoundError: There is no table at or below a root.
        StorageError: A root cannot be listed.
    """
    if days < 1:
        raise InvalidRequestError(f"A report of {days} days is empty", remedy="Give a number of days from 1")
    now_ms = time.time_ns() // 1_000_000
    places = dict(chain.from_iterable(_find_tables(root, storage_options) for root in roots))
    read = partial(_read_table, storage_options=storage_options, since_ms=now_ms - days * _DAY_MS)
    tables = list(map_ahead(read, places.items(), FAR_THREADS))
    return LakeReport(now_ms, days, tuple(replace(table, consumers=_consumers(table, tables)) for table in tables))


def _find_tables(root: str, storage_options: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """The location of each table, and its path relative to the root."""
    if is_catalog_uri(root):
        return [(uri, parse_table_name(uri).table) for uri in list_tables(root, storage_options)]
    store = open_store(root, storage_options)
    # In a URI of a file a percent sign would begin an escape.
    base = store.root if store.uri.startswith("file:") else store.uri
    paths = sorted(store.table_directories())
    if not paths:
        raise TableNotFoundError(
            f"There is no table at or below {store.uri}",
            cause="No directory there has a _delta_log",
            remedy="Name a table, or a directory that tables lie in",
            uri=store.uri,
        )
    return [(f"{base}/{path}" if path else base, path or base.rpartition("/")[2]) for path in paths]


def _read_table(place: tuple[str, str], storage_options: Mapping[str, object] | None, since_ms: int) -> TableState:
    state = TableState(*place)
    try:
        table = DeltaTable(state.uri, storage_options)
        state = replace(state, uri=kept(table.uri))
        snapshot, policy = table.snapshot(), MaintenancePolicy()
        commits, health = _recent_commits(table, snapshot, since_ms), read_table_health(snapshot)
        steps = ("optimize", "purge", "checkpoint", "vacuum")
        return replace(
            state,
            name=kept(snapshot.metadata.name),
            table_id=snapshot.metadata.id,
            health=health,
            due=tuple(step for step in steps if getattr(policy, f"needs_{step}")(health)),
            num_rows=count_rows(snapshot.files(ROW_COUNT_COLUMNS)),
            last_write=_last_write(commits),
            units=_units(table, snapshot, commits, since_ms),
            commits=_with_sizes(commits, health),
            cursors=snapshot.txns.named(("cdc:",)),
        )
    except DeltaError as e:
        return replace(state, error=str(e))


def _recent_commits(table: DeltaTable, snapshot: TableSnapshot, since_ms: int) -> list[Commit]:
    """The newest first. The last one may be older: the state before the days that are asked for."""
    commits: list[Commit] = []
    for commit in table.log.newest_first(snapshot.version):
        commits.append(commit)
        if commit.timestamp_ms < since_ms or len(commits) == MAX_COMMITS:
            break
    return commits


def _last_write(commits: Sequence[Commit]) -> LastWrite | None:
    commit = next(filter(changes_data, commits), next(iter(commits), None))
    if commit is None:
        return None
    about = {**user_metadata_of(commit.commit_info), **(commit.commit_info or {})}
    words: dict[str, Any] = {name: kept(str(value)) for name, value in about.items() if value}
    links = (words.get(name, "") for name in _LINKS)
    link = next((link for link in links if link.startswith(("https://", "http://"))), None)
    operation, engine, orchestrator, run = map(words.get, ("operation", "engineInfo", "orchestrator", "run_id"))
    return LastWrite(commit.version, commit.timestamp_ms, operation, engine, orchestrator, run, link)


def _units(
    table: DeltaTable, snapshot: TableSnapshot, commits: Sequence[Commit], since_ms: int
) -> tuple[UnitState, ...]:
    rows, units = list_units(table.log, snapshot, since_ms), []
    versions = set(rows["version"].to_pylist())
    effects = {commit.version: effect_of(commit) for commit in commits if commit.version in versions}
    counts = Counter(txn.app_id for commit in commits for txn in commit.txns)
    # As integers: a log may tell times that no calendar has.
    times = rows["timestamp"].cast("int64").to_pylist()
    for row, timestamp_ms in zip(rows.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
        effect, name, run = effects.get(row["version"]), kept(row["unit"]), kept(row["run"])
        removed = None if effect is None else effect.rows_removed
        units.append(UnitState(name, run, row["version"], timestamp_ms, counts[row["unit"]], row["rows"], removed))
    return tuple(sorted(units, key=lambda unit: -unit.version))


def _with_sizes(commits: Sequence[Commit], health: TableHealth) -> tuple[CommitState, ...]:
    """Counted backwards from the newest version, as far as removed files tell their sizes."""
    size: tuple[int | None, int | None] = (health.num_files, health.size_bytes)
    states = []
    for commit in commits:
        states.append(CommitState(commit.version, commit.timestamp_ms, changes_data(commit), *size))
        added, removed = FileTable(commit.adds).size, FileTable(commit.removes).size
        if size[0] is None or size[1] is None or removed.null_count:
            size = (None, None)
        else:
            grown = (pc.sum(added).as_py() or 0) - (pc.sum(removed).as_py() or 0)
            size = (size[0] - len(added) + len(removed), size[1] - grown)
    return tuple(states)


def _consumers(source: TableState, tables: Sequence[TableState]) -> tuple[ConsumerLag, ...]:
    lags = []
    for table in tables if source.commits else ():
        for app_id, cursor in table.cursors.items():
            consumer, _, source_id = app_id.removeprefix("cdc:").partition("<-")
            if source_id != source.table_id or cursor < 0:
                continue
            behind = [one.timestamp_ms for one in source.commits if one.has_changed_data and one.version > cursor]
            is_whole = source.commits[-1].version <= cursor + 1
            count, since_ms = (len(behind), min(behind, default=None)) if is_whole else (None, None)
            versions = source.commits[0].version - cursor
            lags.append(ConsumerLag(table.uri, kept(consumer), cursor, versions, count, since_ms))
    return tuple(lags)
