"""Following a table's log from commit to commit, for a sensor that starts runs; `conditions` is for one that waits.

Asking "anything new?" costs one HEAD of the next commit's name while there is nothing new, and never a listing then.
Only what is new is read. The state between two polls is a short text, `{table id}:{version}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.change_feed.changed_files import read_changed_files
from delta_orch.errors import InvalidRequestError, ProtocolViolationError, TableNotFoundError, VersionNotFoundError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import distinct_rows, typed_partitions
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.pipeline.partitions import key_text
from delta_orch.scan.file_listing import list_partitions

MAX_PARTITIONS = 1000
"""So many partitions an event names."""


@dataclass(frozen=True, slots=True)
class TailCursor:
    """How far a log has been seen. `NO_TABLE` stands for a table that did not exist then."""

    table_id: str
    version: int

    def __str__(self) -> str:
        return f"{self.table_id}:{self.version}"


NO_TABLE = TailCursor("", -1)


def parse_cursor(text: str) -> TailCursor:
    """The inverse of `str(cursor)`.

    Raises:
        InvalidRequestError: The text is not a cursor.
    """
    table_id, separator, version = text.rpartition(":")
    if text != str(NO_TABLE) and not (separator and table_id and version.isdecimal()):
        raise InvalidRequestError(
            f"{text!r} is not a cursor", cause="A cursor is {table id}:{version}", remedy="Reset the cursor"
        )
    return TailCursor(table_id, int(version))


@dataclass(frozen=True, slots=True)
class TailBatch:
    """New commits, from `starting_version` to `ending_version`, both included.

    Attributes:
        cursor: Where the next poll goes on.
        previous: Where this one started.
        data_changed: Whether any of them changed data. Compaction and changes of properties do not.
        operations: The distinct values of `commitInfo.operation`, in order.
        partitions: The distinct partitions in which data changed: one typed column a partition column. No columns for a
            table that is not partitioned.
        timestamp_ms: When the last of them was committed.
        recreated: The log is of another table than the cursor, or has less history: everything in it counts as new.
        missed: Commits between the cursor and `starting_version` are no longer in the log: every live partition counts
            as touched.
    """

    cursor: TailCursor
    previous: TailCursor
    starting_version: int
    ending_version: int
    data_changed: bool
    operations: tuple[str, ...]
    partitions: pa.Table
    timestamp_ms: int
    recreated: bool = False
    missed: bool = False

    @property
    def run_key(self) -> str:
        """`{table id}:{start}-{end}@{timestamp}`: the same for the same commits, however often they are seen, and
        another one for those that follow on a backup under the same numbers."""
        return f"{self.cursor.table_id}:{self.starting_version}-{self.ending_version}@{self.timestamp_ms}"


def current_cursor(log: TableLog) -> TailCursor:
    """The cursor of a watcher that wants only what comes from now on."""
    if not log.exists():
        return NO_TABLE
    snapshot = log.snapshot()
    return TailCursor(snapshot.metadata.id, snapshot.version)


def poll(
    log: TableLog, cursor: TailCursor, *, verify: bool = False, max_versions: int | None = 1000
) -> TailBatch | None:
    """Read the commits since the cursor. Returns None if there are none.

    One HEAD if there is nothing new. That one HEAD cannot tell "nothing new" from a log whose next commits were
    cleaned up unseen, or from a table that was recreated and is not longer than the old one; with `verify` the table is
    opened, which finds both. Ask for it now and then, and after a pause.

    Args:
        log: The table's log.
        cursor: The state of the watcher.
        verify: Look for the two rare cases even where nothing seems new.
        max_versions: Read at most so many commits; the next poll goes on. None for all.

    Raises:
        TableNotFoundError: The table that the cursor is about was dropped (found with `verify` only).
        CorruptLogError, UnsupportedFeatureError: The log cannot be read. The cursor stays valid.
    """
    if log.has_version(cursor.version + 1):
        return _read_new(log, cursor, max_versions)
    if not verify:
        return None
    try:
        return _read_new(log, cursor, max_versions)
    except TableNotFoundError as error:
        if cursor.version < 0:
            return None
        raise TableNotFoundError(
            f"The table at {log.store.uri} is gone",
            cause=f"The table existed at version {cursor.version} and was dropped since then",
            remedy="Create it again, or stop watching it",
            uri=log.store.uri,
        ) from error


def _read_new(log: TableLog, cursor: TailCursor, max_versions: int | None) -> TailBatch | None:
    latest = log.snapshot()
    is_same = cursor.table_id in ("", latest.metadata.id) or _was_here(log, cursor)
    if not is_same or latest.version < cursor.version:
        return _whole_table(latest, cursor, starting_version=0, recreated=True)
    if latest.version == cursor.version:
        return None
    start = cursor.version + 1
    if not log.has_version(start):
        return _whole_table(latest, cursor, starting_version=start, missed=True)
    end = latest.version if max_versions is None else min(latest.version, cursor.version + max_versions)
    commits = list(log.commits(start, end))
    changing = [commit for commit in commits if changes_data(commit)]
    return TailBatch(
        cursor=TailCursor(latest.metadata.id, end),
        previous=cursor,
        starting_version=start,
        ending_version=end,
        data_changed=bool(changing),
        operations=_operations(commits),
        partitions=_touched_partitions(log, latest, changing),
        timestamp_ms=commits[-1].timestamp_ms,
    )


def _was_here(log: TableLog, cursor: TailCursor) -> bool:
    """Whether the table of the cursor has this log: one that replaced it since, as a clone does, is a commit in it."""
    try:
        return log.snapshot(cursor.version).metadata.id == cursor.table_id
    except VersionNotFoundError:
        return False


def _whole_table(
    latest: Snapshot, cursor: TailCursor, *, starting_version: int, recreated: bool = False, missed: bool = False
) -> TailBatch:
    return TailBatch(
        cursor=TailCursor(latest.metadata.id, latest.version),
        previous=cursor,
        starting_version=starting_version,
        ending_version=latest.version,
        data_changed=True,
        operations=(),
        partitions=list_partitions(latest),
        timestamp_ms=latest.recorded_timestamp_ms,
        recreated=recreated,
        missed=missed,
    )


def changes_data(commit: Commit) -> bool:
    """Whether any file action carries `dataChange = true`; compaction only moves rows from file to file."""
    return commit.cdc.num_rows > 0 or any(
        files.num_rows > 0 and pc.any(FileTable(files).data_change).as_py() for files in (commit.adds, commit.removes)
    )


def _touched_partitions(log: TableLog, latest: Snapshot, commits: Sequence[Commit]) -> pa.Table:
    if not latest.partition_columns:
        return pa.table({})
    files = [read_changed_files(log, latest, commit).select(["partition_values"]) for commit in commits]
    try:
        touched = pa.concat_tables(files) if files else latest.files(["partition_values"]).slice(0, 0)
        return distinct_rows(typed_partitions(touched, latest.schema, latest.partition_columns))
    except ProtocolViolationError:
        # The partition column had another type, and what was removed then has no value of this one.
        return list_partitions(latest)


def partitions_as_text(partitions: pa.Table) -> list[dict[str, str | None]] | None:
    """Partitions as an event names them: one object each, its values as text by column; None where there are more than
    an event should hold, or the table has none."""
    if not partitions.column_names or partitions.num_rows > MAX_PARTITIONS:
        return None
    return [
        {name: None if value is None else key_text(value) for name, value in row.items()}
        for row in partitions.to_pylist()
    ]


def partitions_of_versions(log: TableLog, first: int, last: int) -> pa.Table:
    """The distinct partitions in which commits changed data; no columns for a table that is not partitioned.

    Raises:
        VersionNotFoundError: A commit was cleaned up.
    """
    changing = [commit for commit in log.commits(first, last) if changes_data(commit)]
    return _touched_partitions(log, log.snapshot(version=last), changing)


def _operations(commits: Sequence[Commit]) -> tuple[str, ...]:
    names = [commit.commit_info.get("operation") for commit in commits if commit.commit_info]
    return tuple(dict.fromkeys(str(name) for name in names if name))
