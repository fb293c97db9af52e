"""The state of every table of a lake, as the logs tell it: health, growth, the last write, units of work, and how far
each consumer has read. Reads logs only, and changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked
from delta_orch.catalog.discovery import list_tables
from delta_orch.catalog.names import is_catalog_uri, parse_table_name
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import DeltaError, InvalidRequestError, TableNotFoundError
from delta_orch.log.files.commit_reader import Commit, user_metadata_of
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, FileTable
from delta_orch.pipeline.maintenance import MaintenancePolicy, TableHealth, count_rows, read_table_health
from delta_orch.pipeline.tail import changes_data
from delta_orch.redaction import kept
from delta_orch.storage.open import open_store
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.verbs.units import list_units

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
    """What a report says of one table.

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
