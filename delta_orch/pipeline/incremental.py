"""Reading a source in steps, exactly once: the changes of a table since the target's own last commit, or new files.

The cursor, "`target` has read `source` up to version n", is a transaction identifier in the *target's* log, committed
together with the rows it accounts for. No second place could disagree: losing the orchestrator's database,
killing a step after its commit, or moving a pipeline to another orchestrator changes nothing.

Which files are loaded is recorded in the target, too, in the commit of their rows (`arrival.loaded_files`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from typing import Literal as OneOf

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_look import (
    FileLook,
    NewFiles,
    columns_from_files,
    quarantined_before,
    recorded_files,
    replaced_rows,
)
from delta_orch.arrival.loaded_files import LoadedFiles, cursor_id
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import (
    InvalidRequestError,
    RedoNotPossibleError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.expressions.tree import disjunction
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.partitions import partitions_as_predicate
from delta_orch.pipeline.tail import changes_data
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.protocol.types import BOOLEAN

if TYPE_CHECKING:
    from delta_orch.arrival.file_source import FileSource
    from delta_orch.arrival.read_files import FileRows
    from delta_orch.change_feed.change_feed import ChangeFeed
    from delta_orch.delta_table import TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.scan.scan import Scan


logger = logging.getLogger(__name__)

FALSE = Literal(False, BOOLEAN)

REFRESH = "Run the step once with full_refresh=True: it starts anew from the source as it stands, and replaces all rows"
"""What puts a step right whose source does not tell any more what has changed."""

Bootstrap = OneOf["snapshot", "changes", "error"]
OnRecreated = OneOf["error", "bootstrap"]


def cdc_app_id(target: str, source_table_id: str) -> str:
    """`cdc:{target}<-{source table id}`: how far `target` has read a source; the version is the source's."""
    if not target or not source_table_id:
        raise InvalidRequestError("A cursor names its target and its source's table id", remedy="Pass both")
    return f"{cdc_prefix(target)}{source_table_id}"


def default_consumer(target_uri: str) -> str:
    """The default name of a table's cursor: the last part of its location."""
    return target_uri.rstrip("/").rsplit("/", 1)[-1]


def cdc_prefix(target: str) -> str:
    """The prefix of the app ids of all cursors of `target`. The source's table id follows."""
    return f"cdc:{target.replace('%', '%25').replace('<-', '%3C-')}<-"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """The changes of a source that one step processes.

    Attributes:
        source: The table read from.
        starting_version: First version of the source in the batch; None where it stands for all versions up to
            `ending_version`: a bootstrap from a snapshot, and what a step replaces all rows by where the source has
            changed its shape, or its log is gone.
        ending_version: Last version in the batch; the source is read as of it. Later commits do not matter.
        is_bootstrap: The target has no cursor for this source yet.
        is_recreated: The target has read another table under this name before: the source was dropped and created
            anew. Rows that came from the old one are still in the target.
        snapshot: The source at `ending_version`.
        feed: What `changes` gives; None where `starting_version` is.
        txn: The cursor. Commit it with the data, in the same commit: `target.append(rows, txn=batch.txn)`. Of two
            workers that process overlapping batches at once one commits; the other's commit is skipped, or ends in
            ConcurrentTransactionError where its batch is longer: then ask for the next batch.
        consumer: The name of the cursor.
        is_appended: What is made of the batch is added to the rows that are there.
        is_whole: It replaces all rows that are there.
        replaces: It replaces partitions; the partition columns of each table that it does so in.
        recomputes: It replaces the touched partitions.
        touched: Of a step that replaces partitions and reads several sources: what is touched in any of them (None: all
            rows). `scan` reads it from each, as a partition has rows of all of them.
        read: What has been read of the batch, and of its copies: `scan`, where it has rows of touched partitions alone.
    """

    source: DeltaTable
    starting_version: int | None
    ending_version: int
    is_bootstrap: bool
    is_recreated: bool
    snapshot: TableSnapshot
    feed: ChangeFeed | None
    txn: TxnId
    consumer: str = ""
    is_appended: bool = False
    is_whole: bool = False
    replaces: tuple[tuple[str, ...], ...] = ()
    recomputes: bool = False
    touched: tuple[Expression | None, ...] = ()
    read: set[str] = field(default_factory=set, repr=False, compare=False)

    def as_input(self) -> dict[str, object]:
        """The batch as an input in the commit of the step (`StepRecord.inputs`)."""
        read: dict[str, object] = {
            "table": self.source.uri,
            "tableId": self.snapshot.metadata.id,
            "consumer": self.consumer,
            "cursor": self.txn.app_id,
            "endingVersion": self.ending_version,
        }
        return read if self.starting_version is None else {**read, "startingVersion": self.starting_version}

    @property
    def changes(self) -> ChangeFeed:
        """The changed rows.

        Raises:
            InvalidRequestError: `starting_version` is None; read `snapshot` (or call `scan()`).
        """
        if self.feed is None:
            raise InvalidRequestError(
                "A batch that is read from a snapshot has no change feed",
                cause=f"It stands for everything up to version {self.ending_version} of the source",
                remedy="Read batch.scan() there; a bootstrap has one with bootstrap='changes'",
            )
        return self.feed

    def partitions(self) -> pa.Table:
        """The partitions of the source that were touched (all of them in a bootstrap from a snapshot).

        Returns: one row a partition, one column a partition column in its Arrow type, no row twice. Of a source that is
            not partitioned: no column and no row.
        """
        if self.feed is not None and self.snapshot.partition_columns:
            return self.feed.partitions()
        return self.snapshot.partitions()

    def partition_predicate(self) -> Expression | None:
        """True for exactly the rows in `partitions()`; None, meaning all rows, where the source is not partitioned."""
        columns = self.snapshot.partition_columns
        return partitions_as_predicate(self.partitions(), self.snapshot.schema) if columns else None

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """All rows of the touched partitions as of `ending_version`: what a step reads that recomputes partitions. All
        rows of the source, where the step replaces all of its own.

        Raises:
            InvalidRequestError: The rows are to be added to those of earlier batches, which would double them; or they
                replace partitions that hold rows of other partitions of the source, which would be lost.
        """
        if self.is_appended and self.feed is not None:
            raise InvalidRequestError(
                "batch.scan() has rows that earlier batches had, too, and appending would double them",
                cause="It reads all rows of the touched partitions, or of a source without partitions all there are",
                remedy=self._remedy_of_both
                or "Append what is made of batch.inserted() or batch.changes, or write by merge, "
                "overwrite_partitions, overwrite_changed or overwrite",
                source=self.source.uri,
            )
        if self.feed is not None:
            self._ensure_whole_partitions()
        touched = [] if self.is_whole else [part for part in self.touched or (self.partition_predicate(),) if part]
        is_part = touched and len(touched) == len(self.touched or touched)
        if is_part:
            self.read.add("scan")
        return self.snapshot.scan(columns=columns, where=disjunction(*touched) if is_part else None)

    def inserted(self, columns: Sequence[str] | None = None) -> Scan | ChangeFeed:
        """The rows that the batch adds to those of earlier batches, once each: what a step reads that appends. In a
        bootstrap from a snapshot all rows of the source, later the inserted ones.

        Returns: The columns of the source as of `ending_version`, or those named; both types have `to_arrow`,
            `to_reader`, `to_spark` and `to_relation`.

        Raises:
            InvalidRequestError: The source has deleted, updated or rewritten rows in the batch, which no added row
                could tell; or the step replaces rows, and would lose those that it is not given here.
        """
        if self.feed is None:
            return self.snapshot.scan(columns=columns)
        if self._is_replacing:
            raise InvalidRequestError(
                "batch.inserted() lacks rows of earlier batches, and replacing rows by it would lose them",
                cause="The step replaces partitions or all rows",
                remedy=self._remedy_of_both or "Read batch.scan(), or write by append",
                source=self.source.uri,
            )
        if self.feed.is_empty:
            return self.snapshot.scan(columns=columns, where=FALSE)
        others = self._changes(["_change_type"], "NOT _change_type <=> 'insert'")
        if any(part.num_rows for part in others.to_reader()):
            raise InvalidRequestError(
                f"Versions {self.starting_version} to {self.ending_version} of the source do more than insert rows",
                cause="Rows were deleted or updated. Without a change data feed, a rewritten file tells all its rows "
                "as deleted and inserted",
                remedy=f"{REFRESH}. Where that happens often, write by merge, overwrite_changed or overwrite; or "
                "select from batch.changes",
                source=self.source.uri,
            )
        return self._changes(columns or [field.name for field in self.snapshot.schema], None)

    @property
    def _is_replacing(self) -> bool:
        return bool(self.replaces) or self.is_whole or self.recomputes

    @property
    def _remedy_of_both(self) -> str | None:
        """The remedy for a function of several tables, if one is appended to and another replaced."""
        if not (self.is_appended and self._is_replacing):
            return None
        return (
            "The step has both: make the rows that are appended of batch.changes, and those that replace others of "
            "batch.snapshot.scan(where=batch.partition_predicate()), or of all of batch.snapshot; or give each table a "
            "step of its own"
        )

    def _changes(self, columns: Sequence[str], where: str | None) -> ChangeFeed:
        return self.source.changes(
            starting_version=self.starting_version,
            ending_version=self.ending_version,
            columns=columns,
            where=where,
            require_change_data_feed=False,
        )

    def _ensure_whole_partitions(self) -> None:
        """A partition that is replaced must not hold rows of partitions of the source that are not read."""
        needed = self.snapshot.partition_columns
        for columns in self.replaces:
            if not {name.lower() for name in needed} <= {name.lower() for name in columns}:
                raise InvalidRequestError(
                    f"batch.scan() has rows of some {', '.join(needed)}; the partitions that they would replace can "
                    "hold rows of others, which would be lost",
                    cause=f"The table is partitioned by {', '.join(columns) or 'nothing'}, the source by "
                    f"{', '.join(needed)}",
                    remedy="Partition the table by the columns of the source (and more, if need be), or write by "
                    "merge, overwrite_changed or overwrite. Where each partition of the source is one of the table "
                    "under another name, read batch.snapshot.scan(where=batch.partition_predicate())",
                    source=self.source.uri,
                )


def ensure_max_versions(max_versions: int | None) -> None:
    """Raises InvalidRequestError: A batch could hold nothing."""
    if max_versions is not None and max_versions < 1:
        raise InvalidRequestError(f"max_versions={max_versions} is below 1", remedy="Pass at least 1, or None")


class IncrementalReader:
    """Hands a step, batch by batch, what is new in `source` for `target`.

    Args:
        source: The table read from. It must exist when `next_batch` is called.
        target: The table the step writes. It need not exist yet.
        consumer: The name of the cursor, for a target that reads more than one source, or one source in two ways;
            the last part of the target's location otherwise.
        base: What somebody has called the cursor, where `consumer` has the name of its source behind that; None where
            nobody has. By default `consumer`.
        bootstrap: What the first batch is: `snapshot`, the source as it stands; `changes`, its history from version 0;
            `error`, nothing: the cursor must be there.
        on_recreated: What to do when the source has another table id than the cursor: `error`, or `bootstrap` again.
        max_versions: At most so many versions that change data in one batch; None for all there are.
    """

    def __init__(
        self,
        source: DeltaTable,
        target: DeltaTable,
        *,
        consumer: str | None = None,
        base: str | None = "",
        bootstrap: Bootstrap = "snapshot",
        on_recreated: OnRecreated = "error",
        max_versions: int | None = None,
    ) -> None:
        if bootstrap not in ("snapshot", "changes", "error"):
            raise InvalidRequestError(f"bootstrap={bootstrap!r} is not 'snapshot', 'changes' or 'error'")
        if on_recreated not in ("error", "bootstrap"):
            raise InvalidRequestError(f"on_recreated={on_recreated!r} is not 'error' or 'bootstrap'")
        ensure_max_versions(max_versions)
        self.source = source
        self.target = target
        self.consumer = consumer or default_consumer(target.uri)
        self.base = consumer if base == "" else base
        self.bootstrap = bootstrap
        self.on_recreated = on_recreated
        self.max_versions = max_versions

    @property
    def cursor_prefix(self) -> str:
        """The prefix of the app ids of the cursors."""
        return cdc_prefix(self.consumer)

    def newest_version(self) -> int:
        """The last version of the source. Raises as `DeltaTable.version`."""
        return self.source.version()

    def next_batch(self, *, appends: bool = False, is_whole: bool = False) -> ChangeBatch | None:
        """The next batch, or None where the target is up to date: then there is nothing to do and nothing to commit.

        Commits of the source that change no data (compaction, table properties) do not make a batch. Calling it again
        without committing gives the same batch, or a longer one.

        Args:
            appends: The step adds the rows of its first batch to those that are there.
            is_whole: It replaces all rows by those of the source as it stands. What changed need not be read then.

        Raises:
            TableNotFoundError: The source does not exist.
            InvalidRequestError: The source was recreated (`on_recreated='error'`), there is no cursor
                (`bootstrap='error'`), or the source is older than the cursor. The step appends, and has read the
                source under another name.
            VersionNotFoundError: Versions the target has not read were removed from the source's log.
            UnsupportedFeatureError: The source has other columns or partitions now than in what is to be read.
        """
        latest = self.source.snapshot()
        app_id = cdc_app_id(self.consumer, latest.metadata.id)
        target = self.target.snapshot() if self.target.exists() else None
        cursor = None if target is None else target.txn_version(app_id)
        if cursor is None or cursor < 0:
            # Below 0: the target was restored to a version from before.
            if target is not None and appends:
                self._ensure_not_read(target, latest)
            is_recreated = target is not None and self._has_other_cursor(target, latest)
            return self._first_batch(latest, app_id, is_recreated, is_whole)
        self._ensure_not_older(latest, cursor)
        return self._batch_since(cursor + 1, latest, app_id, is_bootstrap=False, is_recreated=False, is_whole=is_whole)

    def _ensure_not_older(self, latest: TableSnapshot, cursor: int) -> None:
        if cursor > latest.version:
            raise InvalidRequestError(
                f"The source is at version {latest.version}, but the target has read it up to {cursor}",
                cause="The source was replaced by an older copy of itself",
                remedy="Restore the source, or fill a new table from it",
                source=self.source.uri,
                cursor=cursor,
            )

    def quiet_batch(self) -> ChangeBatch:
        """A batch without changes: the source as it stands, for a step whose other sources have news."""
        latest = self.source.snapshot()
        after = latest.version + 1
        feed = self.source.changes(starting_version=after, require_change_data_feed=False, allow_out_of_range=True)
        txn = TxnId(cdc_app_id(self.consumer, latest.metadata.id), latest.version)
        return ChangeBatch(self.source, after, latest.version, False, False, latest, feed, txn, self.consumer)

    def whole_batch(self) -> ChangeBatch:
        """The source as it stands, for a step that starts anew. Its cursor follows the one that is there."""
        latest = self.source.snapshot()
        app_id = cdc_app_id(self.consumer, latest.metadata.id)
        cursor = self.target.snapshot().txn_version(app_id) if self.target.exists() else None
        self._ensure_not_older(latest, -1 if cursor is None else cursor)
        txn = TxnId(app_id, latest.version, follows=-1 if cursor is None else cursor, ordered=True)
        return ChangeBatch(self.source, None, latest.version, True, True, latest, None, txn, self.consumer)

    def batch_again(self, inputs: Sequence[Mapping[str, object]], *, up_to_cursor: bool) -> ChangeBatch:
        """The batch that a unit has read, once more.

        Args:
            inputs: Of the unit's commits (`ChangeBatch.as_input`), at least one.
            up_to_cursor: And what was read since.

        Raises:
            RedoNotPossibleError: The source was recreated, or does not hold those versions any more.
        """
        latest = self.source.snapshot()
        app_id = cdc_app_id(self.consumer, latest.metadata.id)
        ends = [end for one in inputs if isinstance(end := one.get("endingVersion"), int)]
        starts = [one.get("startingVersion") for one in inputs]
        if any(one.get("tableId") != latest.metadata.id for one in inputs) or not ends:
            raise RedoNotPossibleError(
                f"{self.consumer} cannot read again what it has read from {self.source.uri}",
                cause="The source was dropped and created again since",
                remedy=REFRESH,
                source=self.source.uri,
            )
        cursor = self.target.snapshot().txn_version(app_id)
        end = max(ends) if not up_to_cursor or cursor is None else max(cursor, *ends)
        versions = [start for start in starts if isinstance(start, int)]
        start = min(versions) if len(versions) == len(starts) else None
        try:
            snapshot = latest if end == latest.version else self.source.snapshot(version=end)
            feed = None
            if start is not None:
                feed = self.source.changes(starting_version=start, ending_version=end, require_change_data_feed=False)
        except (VersionNotFoundError, UnsupportedFeatureError) as error:
            raise RedoNotPossibleError(
                f"{self.consumer} cannot read versions {start or 0} to {end} of {self.source.uri} again",
                cause=str(error),
                remedy=REFRESH,
                source=self.source.uri,
            ) from error
        txn = TxnId(app_id, end)
        return ChangeBatch(self.source, start, end, start is None, False, snapshot, feed, txn, self.consumer)

    def _ensure_not_read(self, target: TableSnapshot, latest: TableSnapshot) -> None:
        """A source that gets a name, or another one, among several has a cursor of another name. So it has where nobody
        chose the name, and the target has moved."""
        suffix = f"<-{latest.metadata.id}"
        cursors = {name.removesuffix(suffix): at for name, at in target.txns.named(end=suffix).items()}
        base = "" if self.base is None else cdc_prefix(self.base).removesuffix("<-")
        own = (base, f"{base}:", f"{base}/")
        for cursor, version in sorted(cursors.items()):
            is_own = self.base is None or cursor == own[0] or cursor.startswith(own[1:])
            if version >= 0 and is_own and cursor.startswith("cdc:"):
                raise InvalidRequestError(
                    f"{self.consumer} has no cursor for the source at {self.source.uri}, but "
                    f"{cursor.removeprefix('cdc:')} has read it into {self.target.uri} up to version {version}",
                    cause="The source or the target has another name now than then, and all rows would be added again",
                    remedy="Leave its name as it was; or go on from there: append no rows with "
                    f"txn=('{cdc_app_id(self.consumer, latest.metadata.id)}', {version}). Another step that reads it "
                    "into this table needs a consumer of its own",
                    source=self.source.uri,
                    cursor=version,
                )

    def _has_other_cursor(self, target: TableSnapshot, latest: TableSnapshot) -> bool:
        prefix = cdc_prefix(self.consumer)
        others = sorted(k.removeprefix(prefix) for k, n in target.txns.named((prefix,)).items() if n >= 0)
        if not others:
            return False
        if self.on_recreated == "error":
            raise InvalidRequestError(
                f"The source at {self.source.uri} is not the table that {self.consumer} has read before",
                cause=f"Its table id is {latest.metadata.id}, the cursor is for {', '.join(others)}: the source was "
                "dropped and created again, or this is another source",
                remedy=f"{REFRESH}. A second source of one target needs a consumer name of its own: consumer='…'",
                source=self.source.uri,
                table_id=latest.metadata.id,
                known_table_ids=others,
            )
        logger.warning("%s was recreated; %s starts again from its present state", self.source.uri, self.consumer)
        return True

    def _first_batch(
        self, latest: TableSnapshot, app_id: str, is_recreated: bool, is_whole: bool
    ) -> ChangeBatch | None:
        if self.bootstrap == "error" and not is_recreated:
            raise InvalidRequestError(
                f"{self.consumer} has no cursor for the source at {self.source.uri}",
                cause="Nothing has been read from it yet, and bootstrap='error' asks not to start by itself",
                remedy="Run once with bootstrap='snapshot' or 'changes'",
                source=self.source.uri,
            )
        if self.bootstrap == "changes":
            return self._batch_since(0, latest, app_id, is_bootstrap=True, is_recreated=is_recreated, is_whole=is_whole)
        return ChangeBatch(
            source=self.source,
            starting_version=None,
            ending_version=latest.version,
            is_bootstrap=True,
            is_recreated=is_recreated,
            snapshot=latest,
            feed=None,
            txn=TxnId(app_id, latest.version, follows=-1),
            consumer=self.consumer,
        )

    def _batch_since(
        self, start: int, latest: TableSnapshot, app_id: str, *, is_bootstrap: bool, is_recreated: bool, is_whole: bool
    ) -> ChangeBatch | None:
        if start > latest.version:
            return None
        end, most, feed = latest.version, self.max_versions, None
        if self.source.log.has_version(start):
            if most is not None:
                end = self._last_version_of_batch(start, latest.version, most)
            # An incremental step does not care whether an update is one change, or a delete and an insert.
            try:
                feed = self.source.changes(starting_version=start, ending_version=end, require_change_data_feed=False)
            except UnsupportedFeatureError as error:
                if error.context.get("features"):
                    raise
                if not is_whole:
                    raise self._of_two_shapes(error, latest) from error
        elif not is_whole:
            raise self._history_gone(start, latest.version)
        if feed is not None and feed.is_empty:
            return None
        return ChangeBatch(
            source=self.source,
            starting_version=None if feed is None else start,
            ending_version=end,
            is_bootstrap=is_bootstrap,
            is_recreated=is_recreated,
            snapshot=latest if end == latest.version else self.source.snapshot(version=end),
            feed=feed,
            txn=TxnId(app_id, end, follows=-1 if is_bootstrap else start - 1),
            consumer=self.consumer,
        )

    def _last_version_of_batch(self, start: int, latest: int, most: int) -> int:
        seen = 0
        # In pieces: what is asked for at once is read at once, and most of what lies far behind is for later batches.
        for first in range(start, latest + 1, most):
            for commit in self.source.log.commits(first, min(first + most - 1, latest)):
                seen += changes_data(commit)
                if seen == most:
                    return commit.version
        return latest

    def _of_two_shapes(self, error: UnsupportedFeatureError, latest: TableSnapshot) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            error.problem,
            cause=error.cause,
            remedy="Run the step once with max_versions=1, which reads each version by its own columns. Where that "
            "does not help either, run it once with full_refresh=True",
            features=[],
            source=self.source.uri,
        )

    def _history_gone(self, start: int, latest: int) -> VersionNotFoundError:
        return VersionNotFoundError(
            f"Version {start} of the source at {self.source.uri} is gone, and {self.consumer} has not read it yet",
            cause="The source's log was cleaned up (delta.logRetentionDuration) before this step ran",
            remedy=f"{REFRESH}. Then raise delta.logRetentionDuration, or run the step more often",
            source=self.source.uri,
            version=start,
        )


logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class FileBatch:
    """The files that one commit of a step loads.

    Attributes:
        new_files: Which they are.
        schema: The columns of the table that the step writes; None where there is none.
        engine: Who reads them.
        is_whole: They are all files of the source, and their rows replace all rows of the table.
    """

    new_files: NewFiles
    schema: pa.Schema | None
    engine: EngineChoice
    is_whole: bool = False
    _read: list[FileRows] = field(default_factory=list, repr=False, compare=False)

    is_recreated = False
    read = frozenset[str]()
    starting_version = None

    @property
    def source(self) -> FileSource:
        """The source of the files."""
        return self.new_files.source

    @property
    def files(self) -> pa.Table:
        """The files: `path` below the source, `size` in bytes, `modification_time_ms` and `etag`."""
        return self.new_files.files

    @property
    def ending_version(self) -> int:
        """The version of the record that the commit writes."""
        return self.new_files.version

    @property
    def txn(self) -> TxnId:
        """The transaction that the commit records."""
        return self.new_files.txn

    def rows(self, *, as_table: bool = False) -> object:
        """The rows of the files, read once: a `pa.RecordBatchReader`, or a Spark DataFrame on that engine.

        Args:
            as_table: Fit them to the columns of the table, for a step that writes them as they are. By default they
                have the columns of the files, and `FileSource.schema` says more of them. So have change events (`cdc`).

        Raises:
            DeltaError: A file cannot be read (`on_error='fail'`), or does not fit.
        """
        from delta_orch.arrival.read_files import read_files
        from delta_orch.engines.select import select_engine

        schema = self.schema if as_table else None
        rows = read_files(self.source, self.files, schema, engine=select_engine(None, self.engine))
        self._read[:] = [rows]
        return rows.batches

    def to_arrow(self) -> pa.Table:
        """The rows of the files in memory. Raises as `rows`."""
        rows = self.rows()
        return rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows.toArrow()  # type: ignore[attr-defined]

    @property
    def set_aside(self) -> pa.Table:
        """The files that could not be read, once the rows were: `path` and `error`."""
        return (
            self._read[0].set_aside
            if self._read
            else pa.table({"path": pa.array([], pa.string()), "error": pa.array([], pa.string())})
        )

    @property
    def may_set_aside(self) -> bool:
        """Whether which files are loaded is known after their rows were read."""
        return self.source.on_error == "quarantine"

    def as_input(self) -> dict[str, object]:
        """The batch as an input in the commit of the step (`StepRecord.inputs`)."""
        read: dict[str, object] = {
            "table": self.source.uri,
            "consumer": self.new_files.loaded.cursor,
            "cursor": self.new_files.loaded.cursor,
            "endingVersion": self.ending_version,
        }
        return {**read, "whole": True} if self.is_whole else read

    def replaced_rows(self) -> Expression:
        """The rows that were loaded before of the files that can be read. Raises as `rows`."""
        if self.may_set_aside and isinstance(rows := self.rows(as_table=True), pa.RecordBatchReader):
            for _ in rows:
                pass  # Read once more when the step asks: the old rows of a file that cannot be read stay.
        return replaced_rows(self.new_files, self.set_aside)

    def quarantined_before(self) -> Expression:
        """The rows of a quarantine that came from these files before. Raises as `rows`."""
        return quarantined_before(self.new_files, self.set_aside)

    def write_record(self) -> None:
        """Write the record that the commit names. Raises as `LoadedFiles.write`."""
        for file in self.set_aside.slice(0, _NAMED_AT_MOST).to_pylist():
            logger.warning("%s/%s is set aside: %s", self.source.uri, file["path"], file["error"])
        self.new_files.write_record(self.set_aside)


class FileReader:
    """Hands a step, batch by batch, the files of `source` that `target` has not loaded. The source is listed once.

    Args:
        source: The files.
        target: The table that the step writes. It need not exist yet.
        engine: Who reads the files.
        unit_column: A column of the table that the step fills.
    """

    def __init__(
        self, source: FileSource, target: DeltaTable, engine: EngineChoice = "auto", unit_column: str | None = None
    ) -> None:
        self.source = source
        self.target = target
        self.engine = engine
        self._unit_column = unit_column
        self.consumer = self.cursor_prefix = cursor_id(source)
        self._look = FileLook(source, target.log)

    def newest_version(self) -> int:
        """Batches are read until there is none."""
        return sys.maxsize

    def next_batch(self, *, appends: bool = False, is_whole: bool = False) -> FileBatch | None:
        """The files that the next commit loads; None where none is new.

        Args:
            is_whole: All files of the source, where one is new.

        Raises as `FileLook.next_files`.
        """
        new_files = self._look.next_files(snapshot_or_none(self.target))
        return None if new_files is None else self.whole_batch() if is_whole else self._batch(new_files)

    def whole_batch(self) -> FileBatch:
        """All files of the source, for a step that starts anew. Raises as `next_batch`."""
        before = recorded_files(self.target.log, snapshot_or_none(self.target), self.consumer)
        anew = LoadedFiles(before.store, before.cursor, before.recorded)
        all_files = NewFiles(self.source, self.source.list_files(), False, anew, before.next_version())
        return self._batch(all_files, is_whole=True)

    def batch_again(self, inputs: Sequence[Mapping[str, object]], *, up_to_cursor: bool) -> FileBatch:
        """The files that a unit has loaded, as they are now.

        Args:
            inputs: Of the unit's commits (`FileBatch.as_input`), at least one.
            up_to_cursor: And those that were loaded since.

        Raises:
            RedoNotPossibleError: Some of them are not there any more.
        """
        if any(one.get("whole") for one in inputs):
            return self.whole_batch()
        versions = [end for one in inputs if isinstance(end := one.get("endingVersion"), int)]
        loaded = recorded_files(self.target.log, snapshot_or_none(self.target), self.consumer)
        paths = one_chunk(
            (loaded.of_versions(since=min(versions)) if up_to_cursor else loaded.of_versions(versions))["path"]
        )
        listed = self.source.list_files()
        places = pc.index_in(paths, value_set=one_chunk(listed["path"]))
        if places.null_count:
            gone = pc.filter(paths, pc.is_null(places))[:_NAMED_AT_MOST].to_pylist()
            raise RedoNotPossibleError(
                f"{places.null_count} files of {self.source.uri} that were loaded cannot be read again",
                cause=f"They are not there any more, or were changed just now: {', '.join(gone)}",
                remedy="Bring the files back. To keep the rows as they are, pass on_redo='keep'; or run the step with "
                "full_refresh, which loads the files that there are",
                paths=gone,
            )
        return self._batch(NewFiles(self.source, pc.take(listed, places), False, loaded, loaded.next_version()))

    def _batch(self, new_files: NewFiles, *, is_whole: bool = False) -> FileBatch:
        schema = columns_from_files(snapshot_or_none(self.target), self._unit_column)
        return FileBatch(new_files, schema, self.engine, is_whole)
