"""`changes`: the rows that a range of versions inserted, updated and deleted. Other rows are not read.

A version with change data files is read from these files. In any other version, the rows of added files were inserted
and the rows of removed files were deleted (PROTOCOL, "Reader Requirements for AddCDCFile"). The same rule serves tables
without the change data feed. Versions that only rearrange files (`dataChange` false) have no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked
from delta_orch.change_feed.changed_files import (
    CHANGED_FILE_SCHEMA,
    ChangeRange,
    read_changed_files,
    resolve_change_range,
    schema_differences,
)
from delta_orch.engines.base import ComputedColumn, Engine, JoinSide, Measure, Relation, as_they_are
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan, output_columns_schema
from delta_orch.engines.select import spark_engine
from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError, VersionNotFoundError
from delta_orch.expressions.column_names import free_name, resolve_column_names
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, Literal, MakeStruct, Not
from delta_orch.expressions.tree import conjunction
from delta_orch.log.files.commit_reader import Commit, in_commit_timestamp_ms
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.files.partition_columns import distinct_rows, typed_partitions
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import ensure_version, read_adjusted_file_times
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.arrow_building import int64_range, one_chunk, string_map_array
from delta_orch.protocol.partition_values import serialize_partition_value
from delta_orch.protocol.schema_check import RESERVED_NAMES
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import LONG, STRING, TIMESTAMP, StructField, StructType
from delta_orch.scan.projection import resolve_projection
from delta_orch.scan.scan import ScanPredicate, resolve_scan_predicate
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

if TYPE_CHECKING:
    from pyarrow.compute import Expression as ArrowExpression

CHANGE_TYPE = StructField("_change_type", STRING)
COMMIT_VERSION = StructField("_commit_version", LONG)
COMMIT_TIMESTAMP = StructField("_commit_timestamp", TIMESTAMP)


@checked
class ChangeFeed:
    """The changes of the versions from `starting_version` to `ending_version`, both included. No row is read yet.

    Attributes:
        starting_version, ending_version: The range. The start is greater than the end only if the feed starts after the
            newest version.
        schema: The table's columns as of `ending_version`, or of the requested version, then `_change_type`,
            `_commit_version` and `_commit_timestamp`. Or the requested columns. `_change_type` is `insert` or `delete`,
            and with change data files also `update_preimage` or `update_postimage`.
        num_files_skipped: The number of files of the range that partition values and statistics exclude. `files` does
            not have them.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        starting_version: int,
        ending_version: int,
        changed_files: pa.Table,
        columns: Sequence[str] | None = None,
        where: str | Expression | ArrowExpression | None = None,
    ) -> None:
        """Args:
        snapshot: The version whose schema the rows have.
        """
        self.starting_version = starting_version
        self.ending_version = ending_version
        self.table_schema = snapshot.schema
        self.partition_columns = snapshot.partition_columns
        self._schema = StructType((*snapshot.schema, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP))
        self._store = snapshot.store
        self._column_mapping = snapshot.configuration.column_mapping
        self._projection = None if columns is None else resolve_projection(columns, self._schema)
        self._predicate = resolve_scan_predicate(where, self._schema)
        self._files = self._that_may_match(changed_files)
        self.num_files_skipped = changed_files.num_rows - self._files.num_rows

    @property
    def schema(self) -> StructType:
        return (
            self._schema if self._projection is None else output_columns_schema(self._projection.output, self._schema)
        )

    @property
    def is_empty(self) -> bool:
        """Whether the range has no file that can contain a requested change."""
        return not self._files.num_rows

    def files(self) -> pa.Table:
        """The files that hold changes, one row each, with the columns of `changed_files.CHANGED_FILE_SCHEMA`."""
        return self._files

    def partitions(self) -> pa.Table:
        """Return the distinct partitions in which rows changed. Each partition column is one typed column.

        Raises:
            InvalidRequestError: The table is not partitioned.
        """
        if not self.partition_columns:
            raise InvalidRequestError(
                "The table is not partitioned, so its changes have no partitions",
                remedy="Read the changed rows with to_arrow()",
            )
        typed = typed_partitions(self._files, self.table_schema, self.partition_columns)
        return distinct_rows(typed)

    def to_arrow(self) -> pa.Table:
        """All changed rows in memory, with the columns of `schema`. The table's columns have the types of
        `Scan.to_arrow`, `_change_type` is string, `_commit_version` int64, `_commit_timestamp` timestamp[us, UTC]."""
        engine = LocalEngine()
        return engine.to_arrow(self.to_relation(engine))

    def to_reader(self) -> pa.RecordBatchReader:
        """The changed rows as a stream in bounded memory, in the types of `to_arrow`. An error of a file is raised when
        its rows are pulled."""
        engine = LocalEngine()
        return engine.to_reader(self.to_relation(engine))

    def to_spark(self, spark: object) -> object:
        """The changed rows as a lazy Spark DataFrame."""
        return self.to_relation(spark_engine(spark))

    def to_relation(self, engine: Engine) -> Any:
        """The changed rows as a relation of any engine.

        Raises:
            MissingFileError: Vacuum has deleted a file of the range (when rows are pulled).
        """
        relations = [engine.scan(plan) for plan in self.plans()]
        return relations[0] if len(relations) == 1 else engine.union(relations)

    def latest(self, keys: Sequence[str]) -> LatestChanges:
        """Return the latest state of each key that changed in the range. Use it as the source of a merge into a copy.

        The result has the rows of a key after the last change, or one row with `_change_type` `delete` if the key was
        deleted.

        Args:
            keys: Columns that identify a row. Null is a key like any other.

        Raises:
            ColumnNotFoundError, InvalidRequestError: A column does not exist, or `keys` is empty.
        """

        if self._projection is not None or self._predicate != ScanPredicate():
            raise InvalidRequestError(
                "The latest changes need the whole feed",
                cause="The arguments columns and where may exclude the last change of a row",
                remedy="Read the feed without columns and where, and filter the result of latest()",
            )
        return latest_changes(self.schema, self.table_schema, keys, self.to_relation)

    def plans(self) -> list[ScanPlan]:
        """Return scans whose rows are the changes. Values that are constant in a file become partition values of the
        file, so engines need no code for change feeds. No plan has a file twice."""
        in_file = pc.is_null(self._files.column("change_type"))
        plans = [self._plan(part, CHANGE_TYPE) for part in without_repeats(pc.filter(self._files, pc.invert(in_file)))]
        plans += [self._plan(part, None) for part in without_repeats(pc.filter(self._files, in_file))]
        return plans or [self._plan(self._files, CHANGE_TYPE)]

    def _plan(self, files: pa.Table, constant: StructField | None) -> ScanPlan:
        names = [f.name for f in (constant, COMMIT_VERSION, COMMIT_TIMESTAMP) if f is not None]
        projection = self._projection
        return ScanPlan(
            store=self._store,
            schema=self._schema,
            partition_columns=(*self.partition_columns, *names),
            files=_with_constants(files, with_change_type=constant is not None),
            columns=None if projection is None else projection.columns,
            where=self._predicate.where,
            column_mapping=self._column_mapping,
            arrow_filter=self._predicate.arrow_filter,
            output=projection.output if projection is not None and projection.is_nested else None,
        )

    def _that_may_match(self, files: pa.Table) -> pa.Table:
        where = self._predicate.where
        if where is None or not files.num_rows:
            return files
        from delta_orch.log.read.skipping.data_skipping import match_files

        in_file = pc.is_null(files.column("change_type"))
        kept = []
        for constant in (CHANGE_TYPE, None):
            part = pc.filter(files, in_file if constant is None else pc.invert(in_file))
            plan = self._plan(part, constant)
            kept.append(pc.filter(part, match_files(plan.files, where, plan.schema, plan.partition_columns).may_match))
        return pa.concat_tables(kept)


def without_repeats(files: pa.Table) -> Iterable[pa.Table]:
    """Split the files into as few tables as possible. In each table every path is unique."""
    while files.num_rows:
        path = one_chunk(FileTable(files).path)
        first = pc.index_in(pc.unique(path), value_set=path)
        if len(first) == files.num_rows:
            break
        chosen = pc.is_in(int64_range(0, files.num_rows), value_set=pc.cast(first, pa.int64()))
        yield pc.filter(files, chosen)
        files = pc.filter(files, pc.invert(chosen))
    if files.num_rows:
        yield files


def _with_constants(files: pa.Table, *, with_change_type: bool) -> pa.Table:
    """Return changed files as files of a scan, with the commit's values as partition values."""
    rows = files.select(["partition_values", "change_type", "commit_version", "commit_timestamp_ms"]).to_pylist()
    maps: list[dict[str, str | None]] = []
    for row in rows:
        values = dict(row["partition_values"] or ())
        if with_change_type:
            values[CHANGE_TYPE.name] = row["change_type"]
        values[COMMIT_VERSION.name] = str(row["commit_version"])
        values[COMMIT_TIMESTAMP.name] = _timestamp_text(row["commit_timestamp_ms"])
        maps.append(values)
    columns = {
        "path": FileTable(files).path,
        "partition_values": string_map_array(maps),
        "size": FileTable(files).size,
        "stats": FileTable(files).stats,
        "modification_time": files.column("commit_timestamp_ms"),
        "deletion_vector": FileTable(files).deletion_vector,
    }
    return pa.Table.from_arrays(
        [columns.get(f.name, pa.nulls(files.num_rows, f.type)) for f in ADD_SCHEMA], schema=ADD_SCHEMA
    )


def _timestamp_text(ms: int) -> str | None:
    return serialize_partition_value(datetime.fromtimestamp(ms / 1000, UTC), TIMESTAMP)


def read_changes(
    table_log: TableLog,
    latest: Snapshot,
    change_range: ChangeRange,
    *,
    require_change_data_feed: bool | None = None,
    schema_version: int | None = None,
    columns: Sequence[str] | None = None,
    where: str | Expression | ArrowExpression | None = None,
) -> ChangeFeed:
    """Return the changes of a range of versions.

    Rows have the columns that the table had at the end of the range. A column that was added in the range is null in
    older rows. A renamed column has its new name, and a widened column its wider type.

    Args:
        require_change_data_feed: Refuse versions written while `delta.enableChangeDataFeed` was off. Only change data
            files distinguish an update from a delete and an insert. Without them, copied rows of a rewrite appear as
            deleted and inserted. None refuses such versions if the table has or had a feed: the property is true
            anywhere in the range, or the newest version has the property (even as false) or the table feature
            changeDataFeed. A table that never had a feed is read from its files.
        schema_version: Return the columns of this version instead. Columns that it does not have are left out.
        columns, where: As for `TableSnapshot.scan`, over the columns of the feed. Files are excluded by partition
            values, statistics, and the version, time and kind of their changes. Only one image of an update may satisfy
            `where`.

    Raises:
        InvalidRequestError: The range is empty or malformed. Or a version was written without the feed, and
            `require_change_data_feed` does not allow it. The first such version is named.
        VersionNotFoundError, TimestampOutOfRangeError: The range ends after the newest version, or its first commits
            were cleaned up.
        UnsupportedFeatureError: The schema changed in the range in a way that the schema of the rows cannot follow.
    """
    own = [name for name in latest.schema.names if name.lower() in RESERVED_NAMES]
    if own:
        raise InvalidRequestError(
            f"The table has columns with names of the change feed: {', '.join(own)}",
            cause="The table probably stores changes of another table",
            remedy="Read the rows of the table, or rename these columns first",
            columns=own,
        )
    if schema_version is not None:
        ensure_version(schema_version, "schema_version")
    start, end = resolve_change_range(table_log, latest, change_range)
    shape = end if schema_version is None else schema_version
    snapshot = latest if shape == latest.version else table_log.snapshot(shape)
    if start > end:
        return ChangeFeed(snapshot, start, end, pa.Table.from_batches([], CHANGED_FILE_SCHEMA), columns, where)
    commits = _with_adjusted_times(table_log, list(table_log.commits(start, end)))
    if require_change_data_feed is not False:
        _ensure_feed_enabled(table_log, latest, commits, always=bool(require_change_data_feed))
    _ensure_one_schema(table_log, snapshot, commits, is_chosen=schema_version is not None)
    parts = _changed_files(table_log, snapshot, commits)
    files = pa.concat_tables([pa.Table.from_batches([], CHANGED_FILE_SCHEMA), *parts])
    return ChangeFeed(snapshot, start, end, files, columns, where)


def _changed_files(table_log: TableLog, snapshot: Snapshot, commits: Sequence[Commit]) -> list[pa.Table]:
    def read(commit: Commit) -> pa.Table:
        return read_changed_files(table_log, snapshot, commit)

    if table_log.store.is_near:
        return list(map(read, commits))
    # Deletion vectors of some commits must be read.
    return list(map_ahead(read, commits, FAR_THREADS))


def _with_adjusted_times(table_log: TableLog, commits: list[Commit]) -> list[Commit]:
    """Return commits without an in-commit timestamp with the time that history and time travel use (PROTOCOL,
    "In-Commit Timestamps")."""
    if all(in_commit_timestamp_ms(commit.commit_info) is not None for commit in commits):
        return commits
    times = read_adjusted_file_times(table_log.store, commits[-1].version)
    return [
        replace(commit, timestamp_ms=times.get(commit.version, commit.timestamp_ms))
        if in_commit_timestamp_ms(commit.commit_info) is None
        else commit
        for commit in commits
    ]


def _ensure_feed_enabled(table_log: TableLog, latest: Snapshot, commits: Sequence[Commit], *, always: bool) -> None:
    had_feed = _feed_by_version(table_log, latest, commits)
    off = next((version for version, has_feed in had_feed.items() if not has_feed), None)
    if off is not None and (always or _knows_feeds(latest) or any(had_feed.values())):
        raise InvalidRequestError(
            f"Version {off} was written without a change data feed",
            cause="The table property delta.enableChangeDataFeed was not true",
            remedy="Start at a later version, or pass require_change_data_feed=False for the changes of whole files",
            version=off,
        )


def _feed_by_version(table_log: TableLog, latest: Snapshot, commits: Sequence[Commit]) -> dict[int, bool]:
    changed = {c.version: _has_feed(c.metadata) for c in commits if c.metadata is not None}
    start, end = commits[0].version, commits[-1].version
    if start in changed or (not changed and end == latest.version):
        has_feed = changed.get(start, _has_feed(latest.metadata))
    else:
        has_feed = _has_feed(table_log.snapshot(start).metadata)
    feeds = {}
    for commit in commits:
        has_feed = feeds[commit.version] = changed.get(commit.version, has_feed)
    return feeds


def _knows_feeds(latest: Snapshot) -> bool:
    """Whether the newest version has a feed, or shows that a feed was switched off."""
    names = latest.protocol.writer_features or ()
    return "delta.enableChangeDataFeed" in latest.metadata.configuration or "changeDataFeed" in names


def _has_feed(metadata: Metadata) -> bool:
    return TableProperties.parse(metadata.configuration).enable_change_data_feed


def _ensure_one_schema(table_log: TableLog, snapshot: Snapshot, commits: Sequence[Commit], *, is_chosen: bool) -> None:
    """Check that all files of the range are readable with one schema and partitioning."""
    for version in _versions_of_schemas(snapshot, commits, is_chosen=is_chosen):
        try:
            state = table_log.snapshot(version)
        except VersionNotFoundError:
            if version < commits[0].version:
                # The log before the range was cleaned up. Reading the rows detects the remaining differences.
                continue
            raise
        # For rows that the first commit removes, the feed has only the columns that this commit kept.
        is_before = version < commits[0].version
        problems = schema_differences(state, snapshot, allow_dropped=is_chosen or is_before)
        if state.configuration.physical_partitions != snapshot.configuration.physical_partitions:
            problems.append("the partition columns changed")
        if problems:
            raise UnsupportedFeatureError(
                f"The changes of version {version} do not fit the schema of version {snapshot.version}",
                cause="; ".join(problems),
                remedy="Read the range in parts, before and after the schema changed, or pass schema_version for the "
                "columns of another version",
                features=[],
                version=version,
            )


def _versions_of_schemas(snapshot: Snapshot, commits: Sequence[Commit], *, is_chosen: bool) -> list[int]:
    """Return the versions whose schemas the files of the range may have."""
    first, *others = commits
    changed = [commit.version for commit in others if commit.metadata is not None]
    if changed or is_chosen:
        changed.insert(0, first.version)
    if first.metadata is not None and first.version and _removes_rows(first):
        # This commit removes only rows of earlier commits.
        changed.insert(0, first.version - 1)
    return [version for version in changed if version != snapshot.version]


def _removes_rows(commit: Commit) -> bool:
    """Whether the commit removes files, and does not only rearrange their rows."""
    flags = FileTable(commit.removes).data_change
    return bool(pc.any(pc.or_kleene(flags, pc.is_null(flags))).as_py())


# The latest state of each key that changed in a range of versions


_LAST = "_delta_orch_last"
_IS_THERE = In(Column(("_change_type",)), tuple(Literal(change, STRING) for change in ("insert", "update_postimage")))
"""The change types of rows that are in the table after the commit."""


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """The last change of each key, as a source for a merge that brings another table up to date.

    An existing key has its rows with `_change_type` `insert` or `update_postimage`: one row if keys are unique. A
    deleted key has one row with `_change_type` `delete`, its key columns, and nulls. If an update changed a key, the
    old key counts as deleted.

    Attributes:
        schema: The columns of the change feed.
        keys: The key columns, as the table spells them.
    """

    schema: StructType
    keys: tuple[str, ...]
    _rows: Callable[[Engine], Relation]

    def to_relation(self, engine: Engine) -> Any:
        """The rows as a relation of any engine. Raises as `ChangeFeed.to_relation`."""
        rows, name = self._rows(engine), free_name(_LAST, self.schema.names)
        # The newest change of a key counts. If a version removes and adds rows of a key, the added rows count.
        parts = (
            ("version", Column(("_commit_version",))),
            ("is_there", _IS_THERE),
            ("timestamp", Column(("_commit_timestamp",))),
        )
        last = engine.aggregate(rows, as_they_are(self.keys), [Measure(name, "max", MakeStruct(parts))])
        same_key = [Comparison("<=>", Column(("a", key)), Column(("b", key))) for key in self.keys]
        same_version = Comparison("=", Column(("a", "_commit_version")), Column(("b", name, "version")))
        columns = [ComputedColumn(column, Column(("a", column))) for column in self.schema.names]
        there = engine.join(
            JoinSide("a", engine.filter(rows, _IS_THERE)),
            JoinSide("b", last),
            conjunction(*same_key, same_version),
            "semi",
            columns,
        )
        gone = engine.project(
            engine.filter(last, Not(Column((name, "is_there")))),
            [
                *as_they_are(self.keys),
                ComputedColumn("_change_type", Literal("delete", STRING)),
                ComputedColumn("_commit_version", Column((name, "version"))),
                ComputedColumn("_commit_timestamp", Column((name, "timestamp"))),
            ],
        )
        return engine.union([engine.conform(there, self.schema), engine.conform(gone, self.schema)])

    def to_arrow(self) -> pa.Table:
        """All rows in memory, columns of `schema`."""
        engine = LocalEngine()
        return engine.to_arrow(self.to_relation(engine))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        engine = LocalEngine()
        return engine.to_reader(self.to_relation(engine))

    def to_spark(self, spark: object) -> object:
        """The rows as a lazy Spark DataFrame."""
        return self.to_relation(spark_engine(spark))


def latest_changes(
    schema: StructType, table: StructType, keys: Sequence[str], rows: Callable[[Engine], Relation]
) -> LatestChanges:
    """Return the latest state of each key. See `ChangeFeed.latest`."""
    if not isinstance(keys, str) and not keys:
        raise InvalidRequestError("latest needs at least one key", remedy='Pass the key columns, such as keys=["id"]')
    return LatestChanges(schema, resolve_column_names(keys, table, "keys"), rows)
