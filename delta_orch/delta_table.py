"""`DeltaTable` and `TableSnapshot`: all that users call on a table and on one version of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack, cast

from delta_orch.arguments import checked
from delta_orch.catalog.open import open_table_store
from delta_orch.errors import InvalidRequestError, MetadataChangedError, TableNotFoundError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import Timestamp, ensure_version, parse_timestamp_ms
from delta_orch.redaction import redacted

if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from delta_orch.arrival.file_source import FileSource
    from delta_orch.change_feed.change_feed import ChangeFeed
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.read.history import HistoryEntry
    from delta_orch.log.upkeep.log_cleanup import CleanupResult
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult, Committed
    from delta_orch.protocol.actions import Txn
    from delta_orch.scan.scan import Scan
    from delta_orch.staged_write import StagedWrite
    from delta_orch.storage.base import LogStore
    from delta_orch.verbs.alter.builder import Alteration
    from delta_orch.verbs.change_events import Envelope
    from delta_orch.verbs.fsck import FsckReport
    from delta_orch.verbs.ingest import IngestResult
    from delta_orch.verbs.log_files import ChecksumResult, LogCompactionResult
    from delta_orch.verbs.merge.clauses import Merge
    from delta_orch.verbs.units import UndoResult
    from delta_orch.verbs.vacuum import VacuumResult
    from delta_orch.writing.target import WriteOptions

__all__ = ["DeltaTable", "TableSnapshot"]

_AUTO_COMPACT = "delta.autooptimize.autocompact"


def _after_commit(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """The observer of a table's log: its upkeep, then auto compaction where the table has it. Raises nothing."""
    # Loaded with the first commit of a process.
    from delta_orch.log.upkeep.post_commit import do_upkeep

    do_upkeep(log, read, commit)
    if _AUTO_COMPACT in map(str.lower, commit.table.metadata.configuration):
        from delta_orch.verbs.compaction import compact_after

        compact_after(log, read, commit)


class _RowWrites:
    """The methods of `DeltaTable` that write rows, which a `TableSnapshot` has as well."""

    @abstractmethod
    def _target(self, options: CommitOptions) -> tuple[TableLog, Snapshot]:
        """Where to commit, and the version that the change starts from."""

    def _target_or_none(self, options: CommitOptions) -> tuple[TableLog, Snapshot | None]:
        """As `_target`, for what may create the table."""
        return self._target(options)

    def append(
        self,
        data: object,
        *,
        schema_mode: str | None = None,
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Add rows in one commit. The first append creates the table from the given `TableDefinition`.

        Args:
            data: Spark DataFrame, Arrow table, reader or list of batches, pandas or Polars DataFrame, list
                of dicts, or dict of columns. Floats of pandas that stand for integers with nulls are integers.
                Its columns match the table's by name. A table that it creates has NOT NULL where an Arrow schema says
                so, at any depth. Columns of Spark's frames may be null, as with Delta on Spark.
            schema_mode: `merge` adds columns the table does not have, in the same commit, and widens types where
                `delta.enableTypeWidening` is on; by default the data must have the table's columns.
            engine: `auto` (Spark for Spark's values, else local), `local`, `spark`, or an engine.
            options: `TableDefinition` and `CommitOptions`. If a `txn` is recorded already, the data is not read.

        Returns: `skipped` where nothing was committed: a `txn` is recorded already, or without one there are no rows.

        Raises:
            SchemaMismatchError, ConstraintViolationError, InvalidRequestError: The data or the request does not fit.
        """
        from delta_orch.verbs.append import append

        return append(*self._target_or_none(options), data, schema_mode, engine, options)

    def overwrite(
        self,
        data: object,
        *,
        replace_where: str | Expression | None = None,
        partition_overwrite_mode: str = "static",
        schema_mode: str | None = None,
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Replace rows by other rows in one commit.

        By default, all rows are replaced. `replace_where` replaces exactly the rows for which the predicate is true.
        Every new row must satisfy it. `partition_overwrite_mode="dynamic"` replaces the rows of the partitions that the
        data has rows for. No file is deleted, so the data may come from this table.

        Args:
            schema_mode: `merge` as for `append`; `overwrite` takes the data's columns and what `TableDefinition` says:
                only where all rows are replaced.

        Raises:
            As `append`, and:
            ConstraintViolationError: A row lies outside `replace_where`.
            InvalidExpressionError, ColumnNotFoundError: `replace_where` does not fit the table.
        """
        from delta_orch.verbs.overwrite import overwrite

        target = self._target_or_none(options)
        return overwrite(*target, data, replace_where, partition_overwrite_mode, schema_mode, engine, options)

    def delete(
        self,
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Delete the rows for which `where` is true in one commit. Without `where`, delete all rows. See
        `verbs.delete.delete`.

        Args:
            where: A predicate in Spark SQL, or an `Expression`.

        Returns: `skipped` where no row matches, and no `txn` is to be recorded. `operation_metrics` counts rows, files
            and deletion vectors.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit the table.
            UnsupportedExpressionError: The engine does not evaluate `where`.
        """
        from delta_orch.verbs.delete import delete

        return delete(*self._target(options), where, engine, options)

    def update(
        self,
        set: Mapping[str, object],
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Change columns of the rows for which `where` is true in one commit. Without `where`, change all rows. See
        `verbs.update.update`.

            table.update({"price": "price * 1.1", "by.name": literal("Ann")}, where="day = '2013-01-01'")

        Args:
            set: For each column, or field of a struct, its value: text in Spark SQL over the row as it was, an
                `Expression`, or a constant: a number, None, bytes, a date, a list, a dict for a struct or a map.
                Text as a constant is `delta_orch.literal(…)`.

        Returns: As `delete`.

        Raises:
            As `delete`, and:
            InvalidRequestError, SchemaMismatchError: A column is assigned twice or not assignable, or cannot hold the
                value.
            ConstraintViolationError: A new row breaks a rule of the table.
        """
        from delta_orch.verbs.update import update

        return update(*self._target(options), set, where, engine, options)

    def merge(
        self,
        source: object,
        on: str | Expression,
        *,
        source_alias: str = "source",
        target_alias: str = "target",
        engine: EngineChoice = "auto",
        schema_mode: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Merge:
        """Update, delete and insert rows by the rows of a source: add clauses, then `execute()`. See `Merge`.

            (table.merge(updates, "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute())

        Args:
            source: What `append` takes, a DuckDB relation, a `DeltaTable`, a snapshot, a scan, or changes
                (`table.changes(…).latest(keys)`). It is evaluated once.
            on: When a row of the table and one of the source belong together; null is no match.
            source_alias, target_alias: What conditions and values call the two.
            schema_mode: `merge` adds the columns and fields that clauses take from the source and the table does not
                have, and widens types where `delta.enableTypeWidening` is on.
        """
        from delta_orch.verbs.merge.clauses import Merge
        from delta_orch.verbs.merge.run import MergeRequest, explain_merge, merge

        request = MergeRequest(source, on, source_alias, target_alias, engine, schema_mode)
        return Merge(
            lambda clauses: merge(*self._target(options), request, clauses, options),
            lambda clauses: explain_merge(*self._target(options), request, clauses),
        )

    def upsert(
        self,
        source: object,
        keys: Sequence[str],
        *,
        engine: EngineChoice = "auto",
        schema_mode: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Update the rows that the source has a row with the same keys for, and insert its other rows. Null keys are
        equal to each other. A `merge` with all columns.

        Args:
            keys: Columns that both sides have.

        Raises:
            ColumnNotFoundError, InvalidRequestError: A key is missing on a side, or there is none.
            ConstraintViolationError: Two source rows have the same keys. Nothing was committed.
            Otherwise as `Merge.execute`.
        """
        from delta_orch.verbs.merge.upsert import upsert

        return upsert(*self._target(options), source, keys, engine, schema_mode, options)

    def apply_changes(
        self,
        rows: object,
        *,
        keys: Sequence[str],
        sequence_by: str | Sequence[str],
        scd: Literal[1, 2] = 1,
        delete_when: str | Expression | None = None,
        except_columns: Sequence[str] = (),
        full_snapshot: bool = False,
        envelope: Envelope | None = None,
        tombstone_retention: timedelta | str = "interval 30 days",
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Apply change events, in whatever order, batches and repetitions they come, in one commit. The first call
        creates the table.

            table.apply_changes(rows, keys=["id"], sequence_by="updated_at", delete_when="op = 'D'",
                                except_columns=["op"])

        `scd=1` keeps the newest row of each key. A deleted key leaves a row without values in which `_deleted_at` says
        when, so that older rows which come later stay away: `WHERE _deleted_at IS NULL` has the rows that are there.
        `scd=2` keeps a version for each event: `valid_from` is its sequence, `valid_to` that of the next event or null,
        `is_current` marks the last one. A deletion ends the version before it, and is a row of its own without values:
        `is_deleted`, valid for no time. Late events are put where they belong.

        Args:
            rows: What `append` takes, or what `DeltaTable.changes` gives. It has the columns of the table.
            keys: The columns that identify what changes.
            sequence_by: The column that orders the events of a key, or several, of which the next decides where the
                first ones are equal. The table keeps them. Integers, decimals, texts, dates or timestamps.
            scd: 1: the newest row of each key. 2: all versions.
            delete_when: A predicate over the rows: true where a row deletes its key.
            except_columns: Columns of the rows that the table does not get.
            full_snapshot: The rows are everything at their one sequence; what is missing is deleted. With `scd=2` a row
                that is as it was adds no version. A snapshot that is older than a row of the table is refused.
            envelope: `change_feed` for rows of `DeltaTable.changes`, `debezium` for structs `before` and `after` with
                `op`; docs/late-rows.md has both.
            tombstone_retention: How long `scd=1` remembers deleted keys.
            options: `TableDefinition` and `CommitOptions`.

        Returns: `skipped` where the table has all events, or newer ones.

        Raises:
            ConstraintViolationError: A key or a sequence is null, or two events of one key and sequence differ. An
                event is compared with those that the table keeps. Nothing was committed.
            LateChangeError: The table does not have the key of an event that is older than a dropped tombstone; or a
                snapshot is older than a row of the table. Nothing was committed.
            SchemaMismatchError, ColumnNotFoundError: The rows do not fit, or have columns of a type that does not
                compare (map, variant). Nothing was written.
            InvalidRequestError: The arguments do not go together.
            ConflictError: Another commit changed rows of these keys. Run it again.
        """
        from delta_orch.verbs.apply_changes import apply_changes
        from delta_orch.verbs.change_events import Changes

        changes = Changes(
            sequence_by, delete_when, except_columns, scd, full_snapshot, envelope, tombstone_retention, keys
        )
        return apply_changes(*self._target_or_none(options), rows, changes, engine, options)


@checked
class DeltaTable(_RowWrites):
    """A Delta table at a location, whether or not it exists yet.

    Making one touches nothing. All errors are kinds of `DeltaError`; after an error the table is as before, unless the
    method says otherwise: of a write that failed there may be data files that no commit names; vacuum removes them.

    Methods that commit make one commit, of which everybody sees all or nothing, in the order of versions (PROTOCOL,
    "Delta Table Specification"). They return a `CommitResult` and take

    - `txn`: idempotency keys, see `TxnId`: the commit happens at most once;
    - `user_metadata`, `commit_info`, `operation_metrics`: further words and numbers for the commit's `commitInfo`;
    - `isolation_level`: `WriteSerializable`, `Serializable` or `SnapshotIsolation`, instead of the table's
      `delta.isolationLevel` (docs/transactions.md);
    - `read_version`: the version whose rows the change was worked out from; what others have changed since in the rows
      it concerns is a conflict. The writing methods of a `TableSnapshot` say so by themselves;
    - `stage`: write everything but the commit, for an audit before anybody sees it (`staged`);
    - `dry_run`: check and prepare everything, commit nothing and leave no file; `CommitResult.preview` has the actions.

    They raise, beside the errors that each method lists:

    - ConflictError: another commit changed what this one relies on;
    - AppendOnlyError: the change removes rows, and the table keeps its rows (`delta.appendOnly`);
    - UnsupportedFeatureError: this release must not write to the table;
    - StorageError: for example a full disk.

    Args:
        table_uri: A path or a URI.
        storage_options: Options of the store, for example credentials. They never appear in errors or logs.
        external_paths: Where data files outside the table's directory may lie, paths or URIs. A log may name such files
            (a shallow clone does). None reads them from the table's own store: the file system, the bucket, the
            container. Given, only what lies below one of them is read; `[]` reads none.

    Raises:
        UnsupportedStoreError: There is no store for the URI's scheme.
    """

    @checked
    def __init__(
        self,
        table_uri: str | PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        *,
        external_paths: Sequence[str | PathLike[str]] | None = None,
    ) -> None:
        self.store: LogStore = open_table_store(table_uri, storage_options)
        if external_paths is not None:
            from delta_orch.storage.external_paths import parse_roots

            self.store.external_paths = parse_roots(external_paths)
        self.log = TableLog(self.store, TableSnapshot, _after_commit)
        self._storage_options = storage_options
        self._newest: TableSnapshot | None = None

    @classmethod
    def convert(
        cls,
        table_uri: str | PathLike[str],
        partition_schema: object = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        progress: Callable[[int, int], None] | bool = False,
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Make the Parquet files below a directory a table, in place, with the statistics of their footers. See
        `verbs.convert.convert`.

        Args:
            partition_schema: The columns that directories `name=value` stand for, in their order: `{"day": "date"}`, or
                a schema as `create` takes it.
            progress: A function that is told how many footers are read and how many there are, or True for a bar of
                tqdm or rich. The footers are read twice: for the schema, then for the statistics.
            options: `TableDefinition` but for `partition_by`, and `CommitOptions`.

        Returns: `skipped` where a table with these partition columns is there already.

        Raises:
            InvalidRequestError: There are no Parquet files, a visible file is none, the directories do not fit
                `partition_schema`, or another table lies among the files.
            SchemaMismatchError: Files have types that cannot become one, or that no table has; the files are named.
            TableExistsError: A table with other partition columns is there.
            ConcurrentAppendError: Another writer made the directory a table meanwhile.
            MissingDependencyError: A bar is asked for, and neither tqdm nor rich is installed.
            StorageError: A file cannot be read. Of all of these: the directory is as before.
        """
        from delta_orch.verbs.convert import convert, progress_of

        table = cls(table_uri, storage_options)
        return convert(*table._target_or_none(options), partition_schema, progress_of(progress), options)

    @property
    def uri(self) -> str:
        """The location in its canonical spelling, or the name in the catalog."""
        return self.store.address

    def quarantine(self, table_uri: str | PathLike[str] | None = None) -> DeltaTable:
        """The table to which steps with rules (`Expect`) move rows that break one. Touches nothing: it need not exist.
        Its columns are `verbs.expect.QUARANTINE_SCHEMA`.

        Args:
            table_uri: Where it is, in the same store; by default beside this table: `<table>_quarantine`.
        """
        from delta_orch.verbs.expect import SUFFIX

        return DeltaTable(f"{self.uri}{SUFFIX}" if table_uri is None else table_uri, self._storage_options)

    def _quarantine_log(self, uri: str | None) -> TableLog:
        return self.quarantine(uri).log

    def __repr__(self) -> str:
        # A debugger shows it while it is being made.
        return f"DeltaTable({redacted(self.uri)!r})" if hasattr(self, "store") else "<DeltaTable, not yet open>"

    def __getstate__(self) -> dict[str, object]:
        # What was read is left behind: another process reads for itself.
        return {**self.__dict__, "_newest": None}

    # Reading

    def exists(self) -> bool:
        """Whether there is a Delta table at the location: a commit, or a checkpoint, whole or not.

        Raises:
            StorageError: The store cannot be asked.
        """
        return self.log.exists()

    def version(self) -> int:
        """The newest version. An object that has read no snapshot yet lists the log and reads no commit. So this also
        works for a table that this release cannot read. Raises TableNotFoundError."""
        return self.log.latest_version() if self._newest is None else self.snapshot().version

    def snapshot(self, version: int | None = None, timestamp: Timestamp | None = None) -> TableSnapshot:
        """An immutable version of the table: the newest, one by its number, or the newest not after a point in time.

        For the newest one, this object reads only the commits since the last snapshot it returned.

        Raises:
            TableNotFoundError: No table at the location.
            VersionNotFoundError: The version was never written, or its log is cleaned up.
            TimestampOutOfRangeError: Before the first version, or after the newest.
            CorruptLogError: The log breaks the protocol.
            UnsupportedFeatureError, UnsupportedVersionError: This release might misread the table.
            InvalidRequestError: Both a version and a timestamp, or a value that is neither.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequestError("Both a version and a timestamp are given", remedy="Give one of them")
        if version is not None:
            ensure_version(version)
            return cast(TableSnapshot, self.log.snapshot(version=version))
        if timestamp is not None:
            return cast(TableSnapshot, self.log.snapshot(timestamp_ms=parse_timestamp_ms(timestamp)))
        self._newest = cast(TableSnapshot, self.log.newest(self._newest))
        return self._newest

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The commits the log still holds, newest first, at most `limit`. Times are in milliseconds since the epoch
        (PROTOCOL, "Commit Provenance Information").

        Raises:
            InvalidRequestError: `limit` is not an integer of at least 0.
            TableNotFoundError: No table at the location.
            CorruptLogError: The `commitInfo` of a commit is not JSON.
        """
        return self.log.history(limit)

    def txns(self) -> Mapping[str, int]:
        """The last recorded version of each application id; those that `delta.setTransactionRetentionDuration` has
        expired are left out (PROTOCOL, "Transaction Identifiers"). Raises as `snapshot`."""
        return self.snapshot().txns

    def last_txn(self, app_id: str) -> Txn | None:
        """The last recorded `txn` of one application id, None where there is none. Reads the newest commits first and
        stops at the first that has it, where `txns` needs the whole state.

        `delta.setTransactionRetentionDuration` is not applied: `Txn.last_updated` tells when it was written.

        Raises:
            TableNotFoundError: No table at the location.
            CorruptLogError: A file that had to be read is damaged or missing.
        """
        return self.log.last_txn(app_id)

    def changes(
        self,
        *,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: Timestamp | None = None,
        ending_timestamp: Timestamp | None = None,
        allow_out_of_range: bool = False,
        require_change_data_feed: bool | None = None,
        schema_version: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | Expression | pc.Expression | None = None,
    ) -> ChangeFeed:
        """What a range of versions changed, both bounds included.

        Works without the change data feed as well, see `change_feed.change_feed.read_changes`.

        Args:
            starting_version, starting_timestamp: The first version by number, or the first one committed at a time or
                later; one of them.
            ending_version, ending_timestamp: The last version by number, or the last one committed at a time or
                earlier; without either the newest.
            allow_out_of_range: A range that reaches beyond the newest version ends there, and one that starts beyond
                it is empty, instead of an error.
            require_change_data_feed: Refuse a range in which the feed was off. The error names the first such version.
                By default, this holds for tables that have a feed or show that they had one. Other tables are read from
                their data files. False reads every range from the files that exist.
            schema_version: Give the rows the columns of this version instead of those at the end of the range.
            columns, where: As of `TableSnapshot.scan`, over the columns of the feed, `_change_type`, `_commit_version`
                and `_commit_timestamp` included. Files and columns that are not asked for are not read.

        Raises:
            VersionNotFoundError, TimestampOutOfRangeError, InvalidRequestError: The log does not hold the range.
            UnsupportedFeatureError: The schema changed incompatibly in the range.
        """
        from delta_orch.change_feed.change_feed import read_changes
        from delta_orch.change_feed.changed_files import ChangeRange

        change_range = ChangeRange(
            starting_version,
            ending_version,
            None if starting_timestamp is None else parse_timestamp_ms(starting_timestamp),
            None if ending_timestamp is None else parse_timestamp_ms(ending_timestamp),
            allow_out_of_range,
        )
        return read_changes(
            self.log,
            self.snapshot(),
            change_range,
            require_change_data_feed=require_change_data_feed,
            schema_version=schema_version,
            columns=columns,
            where=where,
        )

    # Writing

    def create(self, schema: object, **options: Unpack[WriteOptions]) -> CommitResult:
        """Create the table without rows. A table with the same schema and partitioning is left as it is.

        Args:
            schema: Arrow schema, Spark `StructType`, delta_orch `StructType`, columns (`column`, `identity_column`),
                text as in Spark SQL (`id bigint NOT NULL, day date`), or the log's JSON.
            options: The definition of the table (`TableDefinition`) and `CommitOptions`.

        Returns: `skipped` if the table exists already.

        Raises:
            TableExistsError: A table with another schema or partitioning exists.
            SchemaMismatchError, InvalidPropertyError, UnsupportedFeatureError: The definition is invalid.
            InvalidRequestError: `schema` is none, or an Arrow schema whose metadata defines columns.
        """
        from delta_orch.verbs.create import create

        return create(*self._target_or_none(options), schema, options)

    def create_or_replace(
        self,
        schema: object = None,
        *,
        data: object = None,
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Create the table, or replace the one that is there, in one commit. See `verbs.create.create_or_replace`.

        All rows leave; those of `data` come. Schema, partitioning, clustering, properties, name and description are the
        given ones only. Older versions stay readable.

        Args:
            schema, options: As of `create`.
            data, engine: As of `append`: rows, whose columns become the table's. It takes the place of `schema`.

        Returns: `skipped` if a `txn` is recorded.

        Raises:
            InvalidRequestError: Both `schema` and `data` are given, or neither. Nothing was written.
            SchemaMismatchError, InvalidPropertyError, UnsupportedFeatureError: The definition is invalid.
            InvalidRequestError: The table is compatible with Iceberg, and its partitioning would change.
        """
        from delta_orch.verbs.create import create_or_replace, create_or_replace_as

        if (schema is None) == (data is None):
            raise InvalidRequestError("create_or_replace takes either schema or data", remedy="Pass one of them")
        if data is not None:
            return create_or_replace_as(*self._target_or_none(options), data, engine, options)
        return create_or_replace(*self._target_or_none(options), schema, options)

    def ingest(
        self,
        source: FileSource,
        *,
        engine: EngineChoice = "auto",
        max_commits: int | None = None,
        expect: Mapping[str, object] | None = None,
        **options: Unpack[WriteOptions],
    ) -> IngestResult:
        """Load the files of a source that this table has not loaded yet, each once. The first one creates the table.

            table.ingest(FileSource("s3://landing/orders", pattern="**/*.json", format="json"))

        Which files are loaded is recorded in the commit of their rows. So a crash, a retry or a second loader loads no
        file twice and leaves none out. A restore takes the record back with the rows. Rows that are deleted later stay
        deleted.

        Args:
            engine: As of `append`.
            max_commits: The most commits. None loads all files that one listing has.
            expect: Rules for the rows: `Expect` by name. The engine checks the rows of each commit once, while it
                writes them. Rows for the quarantine go to `quarantine()`.
            options: `TableDefinition` of a table that is created, and `user_metadata`, `commit_info`,
                `isolation_level` and `operation_metrics` of each commit.

        Raises:
            FilesChangedError: A file that was loaded is another one now, and `on_changed` is `error`.
            InvalidRequestError: The table forgets what it has loaded (`delta.setTransactionRetentionDuration`), lies
                below the source, or was restored to a version that its log does not have any more.
            MissingFileError: The record of loaded files was deleted.
            ConflictError: Others were faster many times. Running it again is safe.
            ExpectationFailedError: A row breaks a rule with the action `fail`. None of the files of its commit is
                loaded.
            DeltaError: As `append`, and what reading a file raises. Commits that were made before the error stay, and
                the next run goes on behind them.
        """
        from delta_orch.verbs.ingest import ingest

        about = (source, engine, max_commits, expect, self._quarantine_log, options)
        return ingest(self.log, lambda: self._target_or_none({})[1], *about)

    # The table as a whole

    def restore(
        self,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        ignore_missing_files: bool = False,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Restore the rows, schema, partitioning and properties of an older version. The restored state is the next
        version, so no commit is removed. The protocol is never lowered. See `verbs.restore.restore`.

        Args:
            version, timestamp: The version by its number, or the newest one not after a point in time. Exactly one.
            ignore_missing_files: Commit even where files of the older version are gone. Reading their rows then raises
                MissingFileError. `repair` removes these files from the table.

        Raises:
            VersionNotFoundError, TimestampOutOfRangeError: There is no such version in the log.
            InvalidRequestError: Both or neither are given, or the version is the newest one.
            MissingFileError: Files of the older version are gone. Nothing was committed.
        """
        from delta_orch.verbs.restore import restore

        if (version is None) == (timestamp is None):
            raise InvalidRequestError(
                "Restoring needs a version or a timestamp, and only one of them",
                remedy="Give version=… or timestamp=…",
            )
        return restore(*self._target(options), version, timestamp, ignore_missing_files, options)

    def units(self) -> pa.Table:
        """List the units of work that pipeline steps have recorded, in the order of their names.

        Returns: Columns of `verbs.units.UNITS_SCHEMA`: `unit`, `order` (of the attempt that wrote it), `run`, `version`
            and `timestamp` of its newest commit, `rows` it wrote, and `inputs`, the versions of tables that it read.
            Columns after `order` are null where the log no longer holds the commit.

        Raises:
            TableNotFoundError: No table at the location.
        """
        from delta_orch.verbs.units import list_units

        return list_units(*self._target({}))

    def undo(self, *, unit: str | None = None, run: str | None = None, **options: Unpack[CommitOptions]) -> UndoResult:
        """Remove exactly the rows that a unit wrote, or all units that a run wrote last, also from the quarantine. The
        unit is then as if it had never been done: the next attempt at it writes. Rows that the unit replaced do not
        come back.

        Args:
            unit: A name of `units()`.
            run: The id of a run.
            options: `dry_run=True` removes nothing and counts.

        Raises:
            InvalidRequestError: There is no such unit or run; or both or neither are given.
            RedoNotPossibleError: Its rows cannot be told from others: a compaction without `unit_column` moved them, it
                merged or updated rows, or later units have read on. Nothing was changed.
        """
        from delta_orch.verbs.units import undo

        log, snapshot = self._target(options)
        return undo(log, snapshot, self._quarantine_log, unit=unit, run=run, options=options)

    def clone(
        self,
        target_uri: str | PathLike[str],
        shallow: bool = True,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Create a table at another location from a version of this table, by default the newest. See
        `verbs.clone.clone`.

        Args:
            target_uri: Location of the clone. A shallow clone must be in the same store as this table.
            shallow: Name the files of this table by absolute paths. False copies them.
            version, timestamp: As of `snapshot`.
            replace: A table at the target becomes the clone. By default that is refused.
            properties: Table properties of the clone. They override those that it takes over.
            storage_options: Options of the target's store.

        Returns: The commit of the target.

        Raises:
            TableExistsError: A table is at the target, and `replace` is not given; or one lies around the target or
                below it.
            InvalidRequestError, InvalidPropertyError: The target is this table, or a property cannot be set.
            UnsupportedStoreError: The target cannot reach the files of this table.
            MissingFileError, CorruptDataError: A file is gone, or is not the file that the log names. The target is as
                before. It may hold copies that no commit names; vacuum removes them.
            ConflictError: Another writer created or changed the target in the meantime.
        """
        from delta_orch.catalog.open import open_table_store
        from delta_orch.verbs.clone import clone

        source = self.snapshot(version, timestamp)
        is_newest = version is None and timestamp is None
        target = TableLog(open_table_store(target_uri, storage_options), type(source), self.log.observer)
        return clone(
            source,
            target,
            is_newest=is_newest,
            shallow=shallow,
            replace_target=replace,
            properties=properties,
            options=options,
        )

    def add_files(
        self,
        paths: Sequence[str | PathLike[str]],
        *,
        partition_values: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        replace_where: str | Expression | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Commit Parquet files that another program wrote, as they are, with the statistics of their footers. See
        `verbs.add_files.add_files`.

        Args:
            paths: Files in the table's directory, relative to it, absolute, or as URIs; or elsewhere in the table's
                store, where `external_paths` allows. Vacuum deletes no file outside the directory.
            partition_values: The values of the partition columns, of all files or of each; None takes them from
                directories `name=value` in the paths.
            replace_where: The files replace exactly the rows for which this is true, and have no others. Files that
                also hold other rows are rewritten, as by `overwrite`.

        Raises:
            InvalidRequestError: A file is named twice, is or was in the table, is no Parquet file or has no place for
                data; or the partition values do not fit.
            SchemaMismatchError: A file does not have the table's columns, by name and type.
            ConstraintViolationError: A row breaks NOT NULL or a rule of the table, or lies outside of `replace_where`.
            MissingFileError, UnsupportedStoreError: A file is not there, or the table may not read it.
            UnsupportedFeatureError: The table's files are more than their columns: column mapping by id, Iceberg.
        """
        from delta_orch.verbs.add_files import add_files

        return add_files(*self._target(options), paths, partition_values, replace_where, options)

    def generate(self, mode: str = "symlink_format_manifest") -> tuple[str, ...]:
        """Write manifests that let engines without Delta read the newest version's files: one a partition, below
        `_symlink_format_manifest`, with an absolute path a line. Manifests of partitions without files are deleted.

        Later commits leave them as they are, unless `delta.compatibility.symlinkFormatManifest.enabled` is true.

        Args:
            mode: `symlink_format_manifest`, the only one there is.

        Returns: The paths of the manifests.

        Raises:
            InvalidRequestError: There is no such mode.
            UnsupportedFeatureError: A file has a deletion vector, or columns are mapped. Nothing was written.
            StorageError: Some are not written. Run it again.
        """
        from delta_orch.log.upkeep.manifest_writer import write_manifests

        if mode != "symlink_format_manifest":
            raise InvalidRequestError(f"There is no mode {mode!r}", remedy='Use "symlink_format_manifest"')
        return write_manifests(self.snapshot())

    # Maintenance

    def staged(self, reference: str) -> StagedWrite[TableSnapshot]:
        """A write that was staged with `stage=True`, by its reference (`CommitResult.staged`). See `StagedWrite`.

        Raises:
            StagedWriteGoneError: It was discarded, or vacuum has removed it.
            InvalidRequestError: `reference` cannot be one.
        """
        from delta_orch.staged_write import StagedWrite

        return StagedWrite(self.log, reference)

    def staged_writes(self) -> list[StagedWrite[TableSnapshot]]:
        """The staged writes that are there, oldest first: also those that are published and that vacuum has not
        removed yet. The table need not exist."""
        from delta_orch.staged_write import staged_writes

        return staged_writes(self.log)

    def alter(self) -> Alteration:
        """Change properties, features, constraints, columns or clustering: collect changes, then `commit()` them as
        one version.

            table.alter().set_properties({"delta.appendOnly": "true"}).add_column("note", "string").commit()
        """
        from delta_orch.verbs.alter.builder import Alteration

        return Alteration(self.log, self.snapshot)

    def domain_metadata(self) -> Mapping[str, str]:
        """The table's metadata domains, name → configuration, those of table features (`delta.…`) included (PROTOCOL,
        "Domain Metadata"). Raises as `snapshot`."""
        return self.snapshot().domain_metadata

    def set_domain_metadata(self, domain: str, configuration: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Set a metadata domain of your own; `delta.…` is the protocol's. See `verbs.domain_metadata`.

        Raises:
            InvalidRequestError: The name is not yours to use, or the table has no metadata domains.
            ConcurrentDomainMetadataError: Another commit changed the same domain.
        """
        from delta_orch.verbs.domain_metadata import set_domain_metadata

        return set_domain_metadata(*self._target(options), domain, configuration, options)

    def remove_domain_metadata(self, domain: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove a metadata domain of your own; `skipped` if there is no domain of that name. Raises as
        `set_domain_metadata`."""
        from delta_orch.verbs.domain_metadata import remove_domain_metadata

        return remove_domain_metadata(*self._target(options), domain, options)

    def optimize(
        self,
        where: str | Expression | None = None,
        target_file_size_bytes: int | None = None,
        *,
        zorder_by: Sequence[str] | None = None,
        full: bool = False,
        max_deleted_rows_ratio: float = 0.05,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Merge small files within each partition and remove deleted rows. What readers see does not change.

        `zorder_by` puts rows with similar values in these columns into the same files, so that filters over them skip
        more files. A table with clustering columns is clustered by them instead. Only files that are not clustered yet
        are rewritten.

        Args:
            where: A predicate over partition columns.
            target_file_size_bytes: Files below it are merged up to it; by default `delta.targetFileSize` or 128 MiB.
            zorder_by: Columns, or fields of structs (`a.b`), that files have statistics of. All files of the partitions
                are rewritten, each time.
            full: Cluster every file of a clustered table again, also those that are clustered already.
            max_deleted_rows_ratio: A file of any size is rewritten if deletion vectors mark more than this share.

        Returns: `skipped` where there was nothing to merge.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
            InvalidRequestError: `zorder_by` names a partition column, or one without statistics; or the table is
                clustered; or it is not, and `full` is given.
        """
        from delta_orch.verbs.optimize import optimize

        return optimize(
            *self._target(options),
            where,
            target_file_size_bytes,
            max_deleted_rows_ratio,
            engine,
            options,
            zorder_by,
            full,
        )

    def purge(
        self,
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Rewrite the files that hold deleted rows or dropped columns. What readers see does not change. Together with
        `vacuum` this erases deleted data. The reference calls it REORG … APPLY (PURGE). See `verbs.purge.purge`.

        Args:
            where: A predicate over partition columns.

        Returns: `skipped` if no file holds deleted rows or dropped columns.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
        """
        from delta_orch.verbs.purge import purge

        return purge(*self._target(options), where, engine, options)

    def vacuum(
        self,
        retention_hours: float | None = None,
        dry_run: bool = False,
        *,
        enforce_retention: bool = True,
        full: bool = True,
        keep_versions: Sequence[int] = (),
        user_metadata: str | None = None,
        commit_info: Mapping[str, object] | None = None,
    ) -> VacuumResult:
        """Delete files that no version within the retention needs. See `verbs.vacuum.vacuum`.

        Args:
            full: False lists nothing: only files that tombstones name are looked up and deleted.
            keep_versions: Versions of any age that can still be read afterwards.

        Raises:
            VersionNotFoundError: A version to keep cannot be read. Nothing was deleted.
            InvalidRequestError: The retention is shorter than the table's, and `enforce_retention` is not False.
            StorageError: A file could not be deleted. Run it again.
        """
        from delta_orch.verbs.vacuum import vacuum

        return vacuum(
            self.log,
            self.snapshot(),
            retention_hours=retention_hours,
            dry_run=dry_run,
            enforce_retention=enforce_retention,
            full=full,
            keep_versions=keep_versions,
            user_metadata=user_metadata,
            commit_info=commit_info,
        )

    def fsck(self, version: int | None = None, check_files: bool = False, deep: bool = False) -> FsckReport:
        """Check the log, a version's state (by default the newest) and its version checksum; with `check_files` look up
        every data file and verify every deletion vector; with `deep` read every page and hold the rows against the
        statistics, too. See `verbs.fsck.fsck`.

        Raises:
            TableNotFoundError, VersionNotFoundError: There is nothing to check.
            UnsupportedFeatureError, UnsupportedVersionError: This release might misread the version.
            InvalidRequestError: `version` is not a version number.
        """
        from delta_orch.verbs.fsck import fsck

        if version is not None:
            ensure_version(version)
        return fsck(self.log, version, check_files=check_files, deep=deep)

    def repair(self, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove data files that are gone from the table, so that the others can be read again. Their rows are lost.
        Run it with `dry_run=True` first: `preview.removes` names the files. See `verbs.fsck.repair`.

        Returns: `skipped` where no file is gone.

        Raises:
            StorageError: The store cannot say of every file whether it is there. Nothing was committed.
        """
        from delta_orch.verbs.fsck import repair

        return repair(*self._target(options), options)

    def wait_for_upkeep(self, timeout_s: float | None = None) -> bool:
        """Wait for the background work of this process on the table: the checkpoint of a large table, and the log
        cleanup that follows it (docs/log.md). The interpreter waits for this before it exits. A process that ends by
        `os._exit` or is frozen between calls should call this method.

        Args:
            timeout_s: Longest time to wait in seconds. None waits without a limit.

        Returns: Whether no work is left. Failures are logged.
        """
        from delta_orch.log.upkeep.background import wait_for_upkeep

        return wait_for_upkeep(self.log.store.uri, timeout_s)

    def checkpoint(
        self, policy: Literal["classic", "v2"] | None = None, v2_format: Literal["json", "parquet"] = "json"
    ) -> int:
        """Write a checkpoint of the newest version, and return which one that is. Rows do not change.

        Commits write one automatically every `delta.checkpointInterval` versions. See `verbs.checkpoint.checkpoint`.

        Raises:
            InvalidRequestError: `v2` for a table without the feature v2Checkpoint.
        """
        from delta_orch.verbs.log_files import checkpoint

        return checkpoint(self.log, self.snapshot(), policy=policy, v2_format=v2_format)

    def compact_log(self, start_version: int | None = None, end_version: int | None = None) -> LogCompactionResult:
        """Reconcile a run of commits into one file beside them, by default those since the last checkpoint. See
        `verbs.compact_log.compact_log`.

        Raises:
            InvalidRequestError: There is no such range.
            VersionNotFoundError: A commit was cleaned up.
        """
        from delta_orch.verbs.log_files import compact_log

        return compact_log(self.log, self.snapshot(), start_version, end_version)

    def write_checksum(self, version: int | None = None) -> ChecksumResult:
        """Write the checksum of a version (by default the newest) unless it has one, which is verified instead. See
        `verbs.checksum.write_checksum`.

        Raises:
            ChecksumMismatchError: It disagrees with the state.
        """
        from delta_orch.verbs.log_files import write_checksum

        if version is not None:
            ensure_version(version)
        return write_checksum(self.log.snapshot(version))

    def cleanup_log(self, dry_run: bool = False) -> CleanupResult:
        """Remove the part of the log that is older than `delta.logRetentionDuration`. The versions in it cannot be read
        afterwards. Commits do this automatically after checkpoints. See `log.upkeep.log_cleanup.clean_up_log`.

        Raises:
            StorageError: A file could not be removed. Run it again.
        """
        from delta_orch.log.upkeep.log_cleanup import clean_up_log

        return clean_up_log(self.log, self.log.snapshot(), dry_run=dry_run)

    def _target(self, options: CommitOptions) -> tuple[TableLog, TableSnapshot]:
        version = options.get("read_version")
        return self.log, self.snapshot() if version is None else self.snapshot(version)

    def _target_or_none(self, options: CommitOptions) -> tuple[TableLog, TableSnapshot | None]:
        try:
            return self._target(options)
        except TableNotFoundError:
            if options.get("read_version") is not None:
                raise
            return self.log, None


@checked
class TableSnapshot(_RowWrites, Snapshot):
    """One version of a table, with its rows.

    It never changes, whatever is committed afterwards; its rows can be read until vacuum deletes files that newer
    versions do not need (then `MissingFileError`).

    Its writing methods are those of `DeltaTable` with `read_version=` this version:

        snapshot = table.snapshot()
        snapshot.overwrite(corrected(snapshot.scan().to_arrow()))

    Each write starts from this version, even if the table has newer versions. If another commit has added or removed
    rows that the write concerns since then, the write raises a `ConflictError`. A blind append counts as such a commit,
    and an append concerns every row. The write then commits nothing. Read the new version and compute the rows again.
    The isolation level is `Serializable` unless `isolation_level` sets another one.

    Raises (the writing methods): As the method of `DeltaTable`, and:
        ConflictError: Another commit changed rows that the write concerns. Nothing was committed.
        InvalidRequestError: `read_version` names another version.
    """

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | Expression | pc.Expression | None = None,
        *,
        row_tracking: bool = False,
    ) -> Scan:
        """Choose rows to read: nothing is read yet.

        Args:
            columns: Columns, in this order, or fields inside structs (``a.b``, ``a.`c.d` ``), of which no more than
                that is read and which are called by their last name, as with Spark's `select`; None for all columns,
                none at all for rows without columns.
            where: A predicate in Spark SQL, as an `Expression`, or as an expression of pyarrow; rows for which it is
                true are kept. An expression of pyarrow has pyarrow's meaning; where that has no counterpart in Spark
                SQL it leaves out no file, and Spark asks Python workers which rows to keep.
            row_tracking: Add the columns `row_id` and `row_commit_version` (both long, PROTOCOL, "Row Tracking");
                `where` may use them, too.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: They do not fit the table.
            InvalidRequestError: `row_tracking` without `delta.enableRowTracking`, or the table has a column of one of
                these names.
        """
        from delta_orch.scan.scan import Scan

        return Scan(self, columns, where, row_tracking=row_tracking)

    def list_files(self, where: str | Expression | None = None, *, absolute: bool = False) -> pa.Table:
        """The live files, one row each, with the names and types of the table's columns (PROTOCOL, "Add File").

        Args:
            where: Leave out files without a row for which this is true, as far as partition values and statistics tell.
            absolute: Paths as `store.data_filesystem()` opens them, on disks absolute ones. By default they are
                relative to the table's directory, but for files outside it. No path is URL-encoded.

        Returns: `path` string, `size` int64 in bytes, `modification_time` timestamp[ms, UTC], `partition` a struct of
            the partition columns, `num_records` int64 with the `num_deleted` rows that deletion vectors mark,
            `tight_bounds` bool; `min`, `max`, `null_count`: structs of the columns that statistics are collected for.
            They are as recorded: null where they are not, long text may be cut, timestamps end at a millisecond.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit.
            CorruptLogError: The log is damaged.
            UnsupportedStoreError: A file lies in another store, and `absolute` is asked for.
        """
        from delta_orch.scan.file_listing import list_files

        predicate = None
        if where is not None:
            from delta_orch.expressions.resolve import resolve_predicate

            predicate = resolve_predicate(where, self.schema)
        return list_files(self, predicate, absolute=absolute)

    def partitions(self) -> pa.Table:
        """The distinct partitions that hold files: a column for each partition column, of its type. No columns and no
        rows for a table that is not partitioned. Raises CorruptLogError."""
        from delta_orch.scan.file_listing import list_partitions

        return list_partitions(self)

    def to_pyarrow_dataset(self, where: str | Expression | pc.Expression | None = None) -> ds.FileSystemDataset:
        """The files as a data set of pyarrow, where they hold exactly the rows of this version. All footers are read to
        make sure. Reading it raises pyarrow's errors.

        A filter of the data set opens only files that may hold its rows, by partition values and statistics. Of floats,
        of decimals of more than 15 digits and of fields of structs, statistics serve `where` only.

        Args:
            where: Only rows for which this is true, as in `scan`. The footers of files without such rows are not read.
                The data set's fragments are whole files.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit.
            UnsupportedExpressionError: Arrow has no counterpart of `where`.
            UnsupportedFeatureError: The table has deletion vectors, mapped columns, widened types, variants, dates of
                the Julian calendar, times in 96 bits, or files whose columns differ in type or case.
            MissingFileError, StorageError: A file cannot be read.
        """
        from delta_orch.scan.arrow_dataset import arrow_dataset

        return arrow_dataset(self, where)

    def _target(self, options: CommitOptions) -> tuple[TableLog, Snapshot]:
        """
        Raises:
            InvalidRequestError: Another version is asked for.
            MetadataChangedError: The version is no longer in the log, or another table is there now.
        """
        read_version = options.get("read_version", self.version)
        if not isinstance(read_version, Integral) or read_version != self.version:
            raise InvalidRequestError(
                f"This is version {self.version}, and read_version is {read_version!r:.60}",
                remedy="Leave read_version out: a snapshot is the version that was read",
            )
        last = self.segment.version_file
        if self.store.head(last.path) != last:
            raise MetadataChangedError(
                f"Version {self.version} can no longer be written to",
                cause="Its commit is not there: it is only staged, the log was cleaned up, or another table is there",
                remedy="Read the table again",
                version=self.version,
            )
        options["read_version"] = self.version
        return TableLog(self.store, type(self), _after_commit), self
