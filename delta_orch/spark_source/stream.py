"""`spark.readStream.format("delta_orch")`: finds the files between two offsets, and the end of each batch.

Offsets are those of Delta on Spark: a version, the number of its files that were read, and whether the version is read
completely, like the first version of a stream. An offset does not depend on the process, so a query can continue from
its checkpoint anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.change_feed.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeFeed,
    read_changes,
    without_repeats,
)
from delta_orch.change_feed.changed_files import (
    CHANGED_FILE_SCHEMA,
    ChangeRange,
    resolve_change_range,
    schema_differences,
)
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import (
    InvalidRequestError,
    MetadataChangedError,
    ProtocolViolationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.time_travel import parse_timestamp_ms
from delta_orch.protocol.actions import JsonValue
from delta_orch.protocol.arrow_building import int64_array, string_array
from delta_orch.protocol.paths import commit_path
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import SCAN_COLUMNS, ScanTask, scan_of_files, split_scan
from delta_orch.spark_source.options import StreamOptions
from delta_orch.table.column_mapping import physical_name

if TYPE_CHECKING:
    from delta_orch.engines.scan_plan import ScanPlan
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.storage.base import FileMeta

_LOOKS = 100
"""The number of polls without a new version after which the log is listed, because its next commits may have been
cleaned up."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a reader: it has read all versions before `version`, and the first `index` files of it. `first`
    is the start of the query, because Spark logs only the end of the first batch."""

    table_id: str
    version: int
    index: int = 0
    is_starting: bool = False
    first: int | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the offset under the names that checkpoints of Delta on Spark use."""
        return {
            "sourceVersion": 1,
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.is_starting,
            "firstVersion": self.first,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> Offset:
        """Raises ProtocolViolationError if the checkpoint belongs to another source."""
        try:
            fields = value["reservoirId"], value["reservoirVersion"], value["index"], value["isStartingVersion"]
        except KeyError as e:
            raise ProtocolViolationError(
                "The offset in the checkpoint belongs to another source", cause=str(value)
            ) from e
        return cls(*fields, value.get("firstVersion"))

    @property
    def after(self) -> Offset:
        return Offset(self.table_id, self.version + 1, first=self.first)


class StreamPlanner:
    """Plans the batches of one query, in the process that Spark runs for it.

    Args:
        version: The version whose schema the rows have, for as long as the query runs.
    """

    def __init__(self, options: StreamOptions, version: int | None = None) -> None:
        self._options = options
        self._table = DeltaTable(options.path, options.storage_options)
        self._log = self._table.log
        newest = self._table.snapshot()
        self._shape: Snapshot = newest if version in (None, newest.version) else self._table.snapshot(version)
        self._last: int | None = None
        self._known: dict[tuple[int, bool], pa.Table] = {}
        self._looked = self._polls = 0
        self._checked_from = False
        self._seen: FileMeta | None = None

    @property
    def version(self) -> int:
        return self._shape.version

    @property
    def schema(self) -> StructType:
        columns = self._shape.schema
        return StructType((*columns, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)) if self._is_feed else columns

    @property
    def max_files(self) -> int:
        return self._options.max_files

    @property
    def _is_feed(self) -> bool:
        return self._options.read_change_feed

    def initial(self) -> Offset:
        """Return the start of a query without a checkpoint.

        Raises VersionNotFoundError, TimestampOutOfRangeError: There is no such version.
        """
        options, newest = self._options, self._table.snapshot()
        table_id = newest.metadata.id
        if options.starting_version == "latest":
            return Offset(table_id, newest.version + 1, first=newest.version + 1)
        if options.starting_version is None and options.starting_timestamp is None:
            return Offset(table_id, newest.version, 0, True, newest.version)
        moment = None if options.starting_timestamp is None else parse_timestamp_ms(options.starting_timestamp)
        version = None if options.starting_version is None else int(options.starting_version)
        start, _ = resolve_change_range(self._log, newest, ChangeRange(version, None, moment, None, False))
        return Offset(table_id, start, first=start)

    def stop_at_newest(self) -> None:
        """Ignore versions that are committed from now on."""
        self._last = self._table.snapshot().version

    def latest(self, start: Offset, *, is_limited: bool) -> Offset:
        """Return the end of a batch from `start`.

        Raises:
            InvalidRequestError, MetadataChangedError, UnsupportedFeatureError: The stream cannot follow a version, or
                the table was replaced.
            VersionNotFoundError: The log was cleaned up before the stream read it.
        """
        self._ensure_same_table(start)
        files, size, at = self._options.max_files, self._options.max_bytes, start
        num_files = num_bytes = 0
        while self._exists(at):
            new_files = self._files(at)
            sizes = [value or 0 for value in FileTable(new_files).size.to_pylist()][at.index :]
            num_taken = 0
            for value in sizes:
                is_full = num_files >= files or (size is not None and num_files > 0 and num_bytes + value > size)
                if is_limited and is_full and not (self._is_feed and not at.is_starting and num_taken):
                    break
                num_files, num_bytes, num_taken = num_files + 1, num_bytes + value, num_taken + 1
            if num_taken < len(sizes):
                at = replace(at, index=at.index + num_taken)
                break
            at = at.after
        if at != start:
            self._ensure_still_same_table(start.table_id, at.version if at.index else at.version - 1)
        return at

    def tasks(self, start: Offset, end: Offset) -> list[ScanTask]:
        """Return the tasks between two offsets. Repeated calls return the same tasks. Raises as `latest`."""
        self._ensure_same_table(start)
        if start.first != end.first is not None:
            # If a query was killed in its first batch, it requests the start again. The newest version may have
            # changed.
            start = replace(start, version=end.first, first=end.first)
        plans, at = [], start
        commits: list[pa.Table] = []
        first = None
        while at.version < end.version or (at.version == end.version and at.index < end.index):
            if not self._exists(at):
                raise self._cleaned_up(at.version)
            files = self._files(at)
            stop = end.index if at.version == end.version else files.num_rows
            part = files.slice(at.index, stop - at.index)
            if at.is_starting:
                plans += self._starting_plans(at.version, part)
            else:
                first = at.version if first is None else first
                commits.append(part)
            at = at.after if at.version < end.version else end
        if commits and self._is_feed:
            changes = ChangeRange(first, end.version - 1, None, None, False)
            feed = read_changes(self._log, self._table.snapshot(), changes, schema_version=self._shape.version)
            plans += [] if feed.is_empty else feed.plans()
        elif commits:
            plans += [scan_of_files(self._shape, part) for part in without_repeats(pa.concat_tables(commits))]
        self._known.clear()
        return [task for plan in plans for task in split_scan(plan, self._options.max_partition_bytes)]

    def _starting_plans(self, version: int, files: pa.Table) -> list[ScanPlan]:
        if not self._is_feed:
            return [scan_of_files(self._shape, files)] if files.num_rows else []
        count, moment = files.num_rows, self._log.snapshot(version=version).timestamp_ms
        values = {
            "change_type": string_array(["insert"] * count),
            "commit_version": int64_array([version] * count),
            "commit_timestamp_ms": int64_array([moment] * count),
            # A stream has no predicate that excludes files.
            "stats": pa.nulls(count, pa.string()),
        }
        columns = [values.get(name) for name in CHANGED_FILE_SCHEMA.names]
        made = [files.column(f.name) if c is None else c for f, c in zip(CHANGED_FILE_SCHEMA, columns, strict=True)]
        changed = pa.Table.from_arrays(made, schema=CHANGED_FILE_SCHEMA)
        return ChangeFeed(self._shape, version, version, changed).plans() if count else []

    def _exists(self, at: Offset) -> bool:
        if at.is_starting:
            return True
        if self._last is not None and at.version > self._last:
            return False
        if (at.version, False) in self._known or self._log.has_version(at.version):
            self._polls = 0
            return True
        self._polls += 1
        if self._polls % _LOOKS == 1 and self._log.latest_version() >= at.version:
            raise self._cleaned_up(at.version)
        return False

    def _cleaned_up(self, version: int) -> VersionNotFoundError:
        return VersionNotFoundError(
            f"The stream has not read version {version}, and its commit is no longer in the log",
            cause="The log was cleaned up, or the table was restored from a backup, while the stream did not run",
            remedy="Start a new query with a new checkpoint, and set delta.logRetentionDuration above the longest "
            "pause of a stream",
            version=version,
        )

    def _ensure_same_table(self, start: Offset) -> None:
        if self._checked_from:
            return
        newest = self._table.snapshot()
        self._ensure_id(newest, start.table_id)
        if self._is_feed and start.index and not start.is_starting:
            raise InvalidRequestError(
                f"The checkpoint is in the middle of version {start.version}, and changes are read by whole versions",
                cause="The query read rows before, and was stopped within a version",
                remedy="Run it once more without readChangeFeed, or start a new query with a checkpoint of its own",
                version=start.version,
            )
        # The schema may change between two batches only if the options allow it.
        has_read = not start.is_starting and not start.index and 0 < start.version != start.first
        for version in (start.version - 1, start.version) if has_read else (start.version,):
            if version > newest.version:
                break
            try:
                self._ensure_followed(self._log.snapshot(version=version))
            except VersionNotFoundError:
                # The commit may exist nevertheless. Reading the rows detects the remaining differences.
                if start.is_starting:
                    raise
        self._checked_from = True

    def _ensure_id(self, newest: Snapshot, table_id: str) -> None:
        if newest.metadata.id != table_id:
            raise InvalidRequestError(
                "The table is not the table that the stream read",
                cause="It was dropped and created again: its id changed",
                remedy="Start a new query with a checkpoint of its own",
            )
        self._seen = self._log.store.head(commit_path(newest.version))

    def _ensure_still_same_table(self, table_id: str, version: int) -> None:
        """Check the table as `_ensure_same_table` does, while the query runs. Another table at the same path may have
        such a version."""
        store = self._log.store
        # This commit is older than the known commit. While the known commit exists, both belong to the same table.
        next_seen = store.head(commit_path(version))
        if self._seen is None or store.head(self._seen.path) != self._seen:
            self._ensure_id(DeltaTable(self._options.path, self._options.storage_options).snapshot(), table_id)
        self._seen = next_seen

    def _files(self, at: Offset) -> pa.Table:
        """Return the files of a version in a fixed order."""
        key = (at.version, at.is_starting)
        if key not in self._known:
            self._known[key] = self._starting_files(at.version) if at.is_starting else self._new_files(at.version)
        return self._known[key]

    def _starting_files(self, version: int) -> pa.Table:
        files = self._log.snapshot(version=version).files(SCAN_COLUMNS)
        order = pc.sort_indices(files, [("modification_time", "ascending"), ("path", "ascending")])
        return files.take(order)

    def _new_files(self, version: int) -> pa.Table:
        commit = self._log.read_commit(version)
        if commit.metadata is not None or commit.protocol is not None:
            self._ensure_followed(self._log.snapshot(version=version))
        adds, removes = _changing(commit.adds), _changing(commit.removes)
        if self._is_feed:
            # A commit is read completely or not at all, because an update is a pair of rows.
            return adds.select(SCAN_COLUMNS)
        options = self._options
        if removes.num_rows and options.skip_change_commits:
            adds = adds.slice(0, 0)
        elif removes.num_rows and adds.num_rows and not options.ignore_changes:
            raise self._not_appended(commit, "changes", "ignoreChanges to read new files whole, old rows included")
        elif removes.num_rows and not (options.ignore_changes or options.ignore_deletes):
            raise self._not_appended(commit, "deletes", "ignoreDeletes to pass over deleted rows")
        return adds.select(SCAN_COLUMNS)

    def _not_appended(self, commit: Commit, what: str, option: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"Version {commit.version} {what} rows that the stream may have read",
            cause="A stream of rows can only return new rows",
            remedy=f"Read the changes (readChangeFeed), or set skipChangeCommits to pass over it, or {option}",
            version=commit.version,
        )

    def _ensure_followed(self, state: Snapshot) -> None:
        """Check that files of a version can be read with the columns of the query.

        Raises:
            MetadataChangedError: The columns changed after the query was started.
            UnsupportedFeatureError: The columns changed before, in a way that loses or renames values.
        """
        ours, theirs = self._shape, state
        is_repartitioned = ours.configuration.physical_partitions != theirs.configuration.physical_partitions
        if theirs.version > ours.version:
            if is_repartitioned or _plain(theirs.schema) != _plain(ours.schema):
                raise MetadataChangedError(
                    f"Version {theirs.version} changed the columns of the table",
                    cause="A query keeps the columns with which it was started",
                    remedy="Start the query again from its checkpoint. It continues with the new columns",
                    winning_version=theirs.version,
                )
            return
        options = self._options
        problems = schema_differences(theirs, ours, allow_dropped=options.allow_dropped)
        if not options.allow_renamed:
            problems += _renamed(theirs.schema, ours.schema)
        if is_repartitioned:
            problems.append("the partition columns changed")
        if problems:
            raise UnsupportedFeatureError(
                f"Rows of version {theirs.version} do not fit the columns of version {ours.version}",
                cause="; ".join(problems),
                remedy="Set allowSourceColumnDrop or allowSourceColumnRename to always where that is the reason, or "
                "start a new query",
                features=[],
                version=theirs.version,
            )


def _changing(files: pa.Table) -> pa.Table:
    return files.filter(pc.fill_null(FileTable(files).data_change, True))


def _plain(schema: StructType) -> list[tuple[str, str, str]]:
    return [(f.name, physical_name(f), str(f.data_type)) for f in schema]


def _renamed(older: StructType, newer: StructType) -> Iterator[str]:
    names = {physical_name(f): f.name for f in newer}
    for f in older:
        now = names.get(physical_name(f), f.name)
        if now != f.name:
            yield f"column {f.name} is now {now}"
