"""`DeltaTable` and `TableSnapshot`: every method that users call on a table, or on one version of it."""

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
    """Do the upkeep of a log after a commit, then auto compaction if the table asks for it. Raises nothing."""
    # These modules are loaded with the first commit of a process.
    from delta_orch.log.upkeep.post_commit import do_upkeep

    do_upkeep(log, read, commit)
    if _AUTO_COMPACT in map(str.lower, commit.table.metadata.configuration):
        from delta_orch.verbs.compaction import compact_after

        compact_after(log, read, commit)


class _RowWrites:
    """The methods that write rows. `DeltaTable` and `TableSnapshot` both have them."""

    @abstractmethod
    def _target(self, options: CommitOptions) -> tuple[TableLog, Snapshot]:
        """Return the log to commit to, and the version that the change starts from."""

    def _target_or_none(self, options: CommitOptions) -> tuple[TableLog, Snapshot | None]:
        """Like `_target`, for methods that may create the table. The version is None if there is no table."""
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
                of dicts, or dict of columns. Columns match the table's columns by name. A pandas column of floats that
                stands for integers with nulls becomes integers. A new table takes NOT NULL from an Arrow schema, at any
                depth. Columns of a Spark DataFrame may be null, as in Delta on Spark.
            schema_mode: `merge` adds new columns in the same commit. It also widens types if
                `delta.enableTypeWidening` is on. By default, the data must have the columns of the table.
            engine: `auto` (Spark for Spark's values, else local), `local`, `spark`, or an engine.
            options: `TableDefinition` and `CommitOptions`. If a `txn` is recorded already, the data is not read.

        Returns: `skipped` if nothing was committed, because the `txn` is recorded, or because there are neither rows
            nor a `txn`.

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
            schema_mode: `merge` as for `append`. `overwrite` gives the table the columns of the data and the given
                `TableDefinition`. It is only possible if all rows are replaced.

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

        Returns: `skipped` if no row matches and there is no `txn` to record. `operation_metrics` counts rows, files and
            deletion vectors.

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
            set: The value of each column, or of a field of a struct. A text is Spark SQL over the old row. An
                `Expression` is possible, and so is a constant: a number, None, bytes, a date, a list, or a dict for a
                struct or a map. A constant text is `delta_orch.literal(…)`.

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
        """Update, delete and insert rows according to a source. Add clauses, then call `execute()`. See `Merge`.

            (table.merge(updates, "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute())

        Args:
            source: A value that `append` accepts, a DuckDB relation, a `DeltaTable`, a snapshot, a scan, or changes
                (`table.changes(…).latest(keys)`). It is evaluated once.
            on: The condition that matches a row of the table with a row of the source. Null is no match.
            source_alias, target_alias: The names of source and table in conditions and values.
            schema_mode: `merge` adds the columns and fields that clauses read from the source and the table lacks. It
                also widens types if `delta.enableTypeWidening` is on.
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
        """Update the rows whose keys are in the source, and insert the other rows of the source. This is a `merge` with
        all columns. Two null keys are equal.

        Args:
            keys: Columns that both sides have.

        Raises:
            ColumnNotFoundError, InvalidRequestError: A side lacks a key, or no key is named.
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
        """Apply change events in one commit. Their order, batches and repetitions do not matter. The first call creates
        the table.

            table.apply_changes(rows, keys=["id"], sequence_by="updated_at", delete_when="op = 'D'",
                                except_columns=["op"])

        `scd=1` keeps the newest row of each key. A deleted key leaves a row without values, and `_deleted_at` holds the
        sequence of the deletion, so that late older events do not bring the key back. Query the live rows by
        `WHERE _deleted_at IS NULL`.

        `scd=2` keeps a version for each event. `valid_from` is its sequence, `valid_to` is the sequence of the next
        event or null, and `is_current` marks the last version. A deletion ends the previous version and adds a row
        without values, which `is_deleted` marks. A late event is inserted between older and newer ones.

        Args:
            rows: A value that `append` accepts, or the result of `DeltaTable.changes`, with the columns of the table.
            keys: The columns that identify a row over time.
            sequence_by: The column, or columns, that order the events of a key: integers, decimals, texts, dates or
                timestamps. A later column decides if earlier ones are equal. The table keeps these columns.
            scd: 1 keeps the newest row of each key, 2 keeps all versions.
            delete_when: A predicate over the rows. It is true for a row that deletes its key.
            except_columns: Columns of the rows that the table does not get.
            full_snapshot: The rows are complete at one sequence, so that a missing key is deleted. With `scd=2`, an
                unchanged row adds no version. A snapshot that is older than a row of the table is refused.
            envelope: `change_feed` for rows of `DeltaTable.changes`, `debezium` for structs `before` and `after` with
                `op`. See docs/late-rows.md.
            tombstone_retention: How long `scd=1` remembers deleted keys.
            options: `TableDefinition` and `CommitOptions`.

        Returns: `skipped` if the table has all events, or newer ones.

        Raises:
            ConstraintViolationError: A key or a sequence is null, or two events of one key and sequence differ. An
                event is also compared with the events that the table keeps. Nothing was committed.
            LateChangeError: An event is older than a dropped tombstone, and the table lacks its key. Or a snapshot is
                older than a row of the table. Nothing was committed.
            SchemaMismatchError, ColumnNotFoundError: The rows do not fit, or a column has a type without comparison
                (map, variant). Nothing was written.
            InvalidRequestError: Two arguments contradict each other.
            ConflictError: Another commit changed rows of these keys. Call the method again.
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

    The constructor reads and writes nothing. All errors are kinds of `DeltaError`. After an error the table is
    unchanged, unless the method says otherwise. A failed write may leave data files that no commit names. Vacuum
    removes them.

    A method that commits makes one commit, which other clients see as a whole or not at all (PROTOCOL, "Delta Table
    Specification"). It returns a `CommitResult` and accepts these options:

    - `txn`: idempotency keys, see `TxnId`. The commit happens at most once.
    - `user_metadata`, `commit_info`, `operation_metrics`: texts and numbers for the `commitInfo` of the commit.
    - `isolation_level`: `WriteSerializable`, `Serializable` or `SnapshotIsolation`, instead of the table's
      `delta.isolationLevel` (docs/transactions.md).
    - `read_version`: the version from whose rows the change was computed. If another commit has changed rows that the
      write concerns since then, the write conflicts. The methods of a `TableSnapshot` set this option.
    - `stage`: write everything except the commit, for an audit before readers see it (`staged`).
    - `dry_run`: check and prepare everything, commit nothing and leave no file. `CommitResult.preview` has the actions.

    It raises the errors that it lists, and these:

    - ConflictError: Another commit changed rows or metadata that this one relies on.
    - AppendOnlyError: The change removes rows from an append-only table (`delta.appendOnly`).
    - UnsupportedFeatureError: This release must not write to the table.
    - StorageError: The store fails, for example because the disk is full.

    Args:
        table_uri: A path, a URI, or a name in a catalog (`uc://catalog.schema.table`).
        storage_options: Options of the store, for example credentials. They never appear in errors or logs.
        external_paths: Paths or URIs outside the table's directory from which data files may be read. A log may name
            such files, as the log of a shallow clone does. By default, files are read from the whole store of the
            table: the file system, the bucket or the container. `[]` allows no file outside the directory.

    Raises:
        UnsupportedStoreError: No store supports the scheme of the URI.
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
        """Turn the Parquet files below a directory into a table, in place. See `verbs.convert.convert`.

        Args:
            partition_schema: The columns of the directories `name=value`, in their order: `{"day": "date"}`, or a
                schema as for `create`.
            progress: A function of the number of footers that are read and the number of all footers, or True for a
                progress bar of tqdm or rich. Footers are read twice: for the schema, then for the statistics.
            options: `TableDefinition` except `partition_by`, and `CommitOptions`.

        Returns: `skipped` if a table with these partition columns exists.

        Raises (the directory is unchanged):
            InvalidRequestError: There are no Parquet files, a visible file is not Parquet, the directories do not fit
                `partition_schema`, or another table lies among the files.
            SchemaMismatchError: The types of the named files do not fit together, or no table can have them.
            TableExistsError: A table with other partition columns exists.
            ConcurrentAppendError: Another writer made the directory a table at the same time.
            MissingDependencyError: `progress=True` needs tqdm or rich.
            StorageError: A file cannot be read.
        """
        from delta_orch.verbs.convert import convert, progress_of

        table = cls(table_uri, storage_options)
        return convert(*table._target_or_none(options), partition_schema, progress_of(progress), options)

    @property
    def uri(self) -> str:
        """The location in canonical spelling, or the name in the catalog."""
        return self.store.address

    def quarantine(self, table_uri: str | PathLike[str] | None = None) -> DeltaTable:
        """Return the quarantine: the table for rows that break a rule (`Expect`) of a step. It need not exist. Its
        columns are `verbs.expect.QUARANTINE_SCHEMA`.

        Args:
            table_uri: The location of the quarantine, in the same store. By default `<table>_quarantine`.
        """
        from delta_orch.verbs.expect import SUFFIX

        return DeltaTable(f"{self.uri}{SUFFIX}" if table_uri is None else table_uri, self._storage_options)

    def _quarantine_log(self, uri: str | None) -> TableLog:
        return self.quarantine(uri).log

    def __repr__(self) -> str:
        # A debugger may show the object before the constructor has ended.
        return f"DeltaTable({redacted(self.uri)!r})" if hasattr(self, "store") else "<DeltaTable, not yet open>"

    def __getstate__(self) -> dict[str, object]:
        # The snapshot that was read is not pickled. Another process reads the log itself.
        return {**self.__dict__, "_newest": None}

    # Reading

    def exists(self) -> bool:
        """Whether the location has a Delta table: a commit, or at least a part of a checkpoint.

        Raises:
            StorageError: The store does not answer.
        """
        return self.log.exists()

    def version(self) -> int:
        """The newest version. An object that has read no snapshot yet lists the log and reads no commit. So this also
        works for a table that this release cannot read. Raises TableNotFoundError."""
        return self.log.latest_version() if self._newest is None else self.snapshot().version

    def snapshot(self, version: int | None = None, timestamp: Timestamp | None = None) -> TableSnapshot:
        """Return an immutable version of the table: the newest one, one by its number, or the newest one that is not
        later than a point in time.

        For the newest version, this object reads only the commits since the last snapshot that it returned.

        Raises:
            TableNotFoundError: The location has no table.
            VersionNotFoundError: The version was never written, or its log was cleaned up.
            TimestampOutOfRangeError: The timestamp is before the first version, or after the newest one.
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
        """List the commits in the log, newest first, at most `limit`. Times are in milliseconds since the epoch
        (PROTOCOL, "Commit Provenance Information").

        Raises:
            InvalidRequestError: `limit` is not an integer of at least 0.
            TableNotFoundError: The location has no table.
            CorruptLogError: The `commitInfo` of a commit is not JSON.
        """
        return self.log.history(limit)

    def txns(self) -> Mapping[str, int]:
        """Return the last recorded version of each application id, without those that have expired
        (`delta.setTransactionRetentionDuration`; PROTOCOL, "Transaction Identifiers"). Raises as `snapshot`."""
        return self.snapshot().txns

    def last_txn(self, app_id: str) -> Txn | None:
        """Return the last recorded `txn` of one application id, or None. This reads the newest commits first and stops
        at the first with the id, while `txns` reads the whole state.

        A `txn` is returned even if it has expired (`delta.setTransactionRetentionDuration`). See `Txn.last_updated`.

        Raises:
            TableNotFoundError: The location has no table.
            CorruptLogError: A file of the log is damaged or missing.
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
        """Read the changes of a range of versions, both bounds included.

        The table needs no change data feed. See `change_feed.change_feed.read_changes`.

        Args:
            starting_version, starting_timestamp: The number of the first version, or a time: the range begins with the
                first commit at this time or later. Set one of them.
            ending_version, ending_timestamp: The number of the last version, or a time: the range ends with the last
                commit at this time or earlier. By default it ends with the newest version.
            allow_out_of_range: A range beyond the newest version ends there, or is empty. By default it is an error.
            require_change_data_feed: Refuse a range in which the feed was off. The error names the first such version.
                By default, this applies to tables that have a feed or show that they had one. Other tables are read
                from their data files. False reads every range from the files that exist.
            schema_version: The version that defines the columns of the rows. By default the end of the range.
            columns, where: As for `TableSnapshot.scan`, over the columns of the feed, including `_change_type`,
                `_commit_version` and `_commit_timestamp`. Other files and columns are not read.

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
            InvalidRequestError: `schema` is not a schema, or an Arrow schema whose metadata defines columns.
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
        """Create the table, or replace the existing one, in one commit. See `verbs.create.create_or_replace`.

        The rows of `data` replace all rows. Schema, partitioning, clustering, properties, name and description of the
        old table are dropped. Older versions stay readable.

        Args:
            schema, options: As for `create`.
            data, engine: As for `append`. The columns of the rows become the table's, instead of `schema`.

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

        The commit of the rows also records their files. So a crash, a retry or a second loader loads no file twice and
        leaves none out. A restore takes the record back with the rows. Rows that are deleted later stay deleted.

        Args:
            engine: As for `append`.
            max_commits: The most commits. By default, all files of one listing are loaded.
            expect: Rules for the rows: `Expect` by name. The engine checks the rows of each commit once, while it
                writes them. Rows for the quarantine go to `quarantine()`.
            options: `TableDefinition` of a table that is created, and `user_metadata`, `commit_info`,
                `isolation_level` and `operation_metrics` of each commit.

        Raises:
            FilesChangedError: The content of a loaded file has changed, and `on_changed` is `error`.
            InvalidRequestError: The table forgets what it has loaded (`delta.setTransactionRetentionDuration`), lies
                below the source, or was restored to a version that its log does not have any more.
            MissingFileError: The record of loaded files was deleted.
            ConflictError: Other writers committed first, many times. Call the method again.
            ExpectationFailedError: A row breaks a rule with the action `fail`. No file of its commit is loaded.
            DeltaError: As `append`, and the errors of reading a file. Commits before the error stay, and the next call
                goes on after them.
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
            ignore_missing_files: Commit even if files of the older version are gone. Reading their rows then raises
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
            Columns after `order` are null if the log no longer has the commit.

        Raises:
            TableNotFoundError: The location has no table.
        """
        from delta_orch.verbs.units import list_units

        return list_units(*self._target({}))

    def undo(self, *, unit: str | None = None, run: str | None = None, **options: Unpack[CommitOptions]) -> UndoResult:
        """Remove exactly the rows that a unit wrote, from the table and from its quarantine. With `run`, this applies
        to all units that the run wrote last. The next attempt at such a unit writes again. Rows that the unit replaced
        do not come back.

        Args:
            unit: A name of `units()`.
            run: The id of a run.
            options: `dry_run=True` counts rows and removes none.

        Raises:
            InvalidRequestError: There is no such unit or run, or both or neither are given.
            RedoNotPossibleError: The unit merged or updated rows, a compaction without `unit_column` mixed its rows
                with others, or later units have read further versions. Nothing was changed.
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
        """Create a table at another location from a version of this table. See `verbs.clone.clone`.

        Args:
            target_uri: The location of the clone. A shallow clone must be in the same store as this table.
            shallow: Refer to the files of this table by absolute paths. False copies them.
            version, timestamp: As for `snapshot`. By default the newest version.
            replace: Replace a table at the target by the clone. By default that is an error.
            properties: Table properties of the clone. They override the properties of this table.
            storage_options: Options of the target's store.

        Returns: The commit of the target.

        Raises:
            TableExistsError: The target has a table, and `replace` is not set. Or a table lies above or below the
                target.
            InvalidRequestError, InvalidPropertyError: The target is this table, or a property cannot be set.
            UnsupportedStoreError: The target cannot reach the files of this table.
            MissingFileError, CorruptDataError: A file is gone, or differs from the file of the log. The target is
                unchanged. It may hold copies that no commit names. Vacuum removes them.
            ConflictError: Another writer created or changed the target at the same time.
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
        """Commit Parquet files that another program wrote, as they are. See `verbs.add_files.add_files`.

        Args:
            paths: Files in the table's directory: relative paths, absolute paths, or URIs. Files elsewhere in the
                table's store need `external_paths`. Vacuum deletes no file outside the directory.
            partition_values: The values of the partition columns, for all files or for each. By default they come from
                directories `name=value` in the paths.
            replace_where: Replace exactly the rows for which this predicate is true. All rows of the files must satisfy
                it. Older files that also hold other rows are rewritten, as by `overwrite`.

        Raises:
            InvalidRequestError: A file is named twice, is or was in the table, is not Parquet, or has a name that is
                reserved. Or the partition values do not fit.
            SchemaMismatchError: The columns of a file differ from the table's by name or type.
            ConstraintViolationError: A row breaks NOT NULL or a rule of the table, or lies outside `replace_where`.
            MissingFileError, UnsupportedStoreError: A file does not exist, or the table may not read it.
            UnsupportedFeatureError: Column mapping by id or Iceberg needs more in the files than their columns.
        """
        from delta_orch.verbs.add_files import add_files

        return add_files(*self._target(options), paths, partition_values, replace_where, options)

    def generate(self, mode: str = "symlink_format_manifest") -> tuple[str, ...]:
        """Write manifests, so that engines without Delta can read the files of the newest version. Each partition has
        one below `_symlink_format_manifest`, with one absolute path per line. Manifests of empty partitions are
        deleted.

        Later commits do not update them, unless `delta.compatibility.symlinkFormatManifest.enabled` is true.

        Args:
            mode: `symlink_format_manifest`, the only mode.

        Returns: The paths of the manifests.

        Raises:
            InvalidRequestError: There is no such mode.
            UnsupportedFeatureError: A file has a deletion vector, or columns are mapped. Nothing was written.
            StorageError: Some manifests were not written. Call the method again.
        """
        from delta_orch.log.upkeep.manifest_writer import write_manifests

        if mode != "symlink_format_manifest":
            raise InvalidRequestError(f"There is no mode {mode!r}", remedy='Use "symlink_format_manifest"')
        return write_manifests(self.snapshot())

    # Maintenance

    def staged(self, reference: str) -> StagedWrite[TableSnapshot]:
        """Return the `StagedWrite` of a write with `stage=True`, by its reference (`CommitResult.staged`).

        Raises:
            StagedWriteGoneError: The write was discarded, or vacuum has removed it.
            InvalidRequestError: `reference` is not a valid reference.
        """
        from delta_orch.staged_write import StagedWrite

        return StagedWrite(self.log, reference)

    def staged_writes(self) -> list[StagedWrite[TableSnapshot]]:
        """List the staged writes, oldest first. Published ones are listed until vacuum removes them. The table need not
        exist."""
        from delta_orch.staged_write import staged_writes

        return staged_writes(self.log)

    def alter(self) -> Alteration:
        """Change properties, features, constraints, columns or clustering. Collect changes, then `commit()` them as one
        version.

            table.alter().set_properties({"delta.appendOnly": "true"}).add_column("note", "string").commit()
        """
        from delta_orch.verbs.alter.builder import Alteration

        return Alteration(self.log, self.snapshot)

    def domain_metadata(self) -> Mapping[str, str]:
        """Return the metadata domains, name → configuration (PROTOCOL, "Domain Metadata"). Raises as `snapshot`."""
        return self.snapshot().domain_metadata

    def set_domain_metadata(self, domain: str, configuration: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Set a metadata domain of your own. Names that begin with `delta.` are reserved. See `verbs.domain_metadata`.

        Raises:
            InvalidRequestError: The name is reserved, or the table has no metadata domains.
            ConcurrentDomainMetadataError: Another commit changed the same domain.
        """
        from delta_orch.verbs.domain_metadata import set_domain_metadata

        return set_domain_metadata(*self._target(options), domain, configuration, options)

    def remove_domain_metadata(self, domain: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove a metadata domain of your own. Returns `skipped` if there is no such domain. Raises as
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
            target_file_size_bytes: Smaller files are merged up to this size. By default `delta.targetFileSize` or
                128 MiB.
            zorder_by: Columns, or fields of structs (`a.b`), with statistics. Each call rewrites all files of the
                partitions.
            full: Cluster every file of a clustered table again, also those that are clustered already.
            max_deleted_rows_ratio: A file of any size is rewritten if deletion vectors mark more than this share.

        Returns: `skipped` if there is nothing to merge.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or uses other columns.
            InvalidRequestError: `zorder_by` names a partition column or a column without statistics, or the table is
                clustered. Or `full` is set, and the table is not clustered.
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
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or uses other columns.
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
            full: False does not list the directory. It deletes only files that tombstones name.
            keep_versions: Versions of any age that stay readable.

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
        """Check the log, the state of a version (by default the newest) and its checksum. `check_files` also looks up
        every data file and verifies every deletion vector. `deep` also reads every page and compares the rows with the
        statistics. See `verbs.fsck.fsck`.

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
        """Remove missing data files from the table, so that the other files can be read again. The rows of missing
        files are lost. First call it with `dry_run=True`: `preview.removes` names the files. See `verbs.fsck.repair`.

        Returns: `skipped` if no file is missing.

        Raises:
            StorageError: The store does not tell of every file whether it exists. Nothing was committed.
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
        """Write a checkpoint of the newest version, and return its number. Rows do not change.

        Commits write one automatically every `delta.checkpointInterval` versions. See `verbs.log_files.checkpoint`.

        Raises:
            InvalidRequestError: `v2` for a table without the feature v2Checkpoint.
        """
        from delta_orch.verbs.log_files import checkpoint

        return checkpoint(self.log, self.snapshot(), policy=policy, v2_format=v2_format)

    def compact_log(self, start_version: int | None = None, end_version: int | None = None) -> LogCompactionResult:
        """Reconcile a range of commits into one file beside them, by default the commits since the last checkpoint. See
        `verbs.log_files.compact_log`.

        Raises:
            InvalidRequestError: There is no such range.
            VersionNotFoundError: A commit was cleaned up.
        """
        from delta_orch.verbs.log_files import compact_log

        return compact_log(self.log, self.snapshot(), start_version, end_version)

    def write_checksum(self, version: int | None = None) -> ChecksumResult:
        """Write the checksum of a version (by default the newest). An existing one is verified instead. See
        `verbs.log_files.write_checksum`.

        Raises:
            ChecksumMismatchError: The checksum disagrees with the state.
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

    A snapshot never changes. Its rows can be read until vacuum deletes files that newer versions do not need. Then
    reading raises `MissingFileError`.

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
        """Choose rows to read. This reads nothing yet.

        Args:
            columns: Columns, in this order, or fields inside structs (``a.b``, ``a.`c.d` ``). Only these fields are
                read, and their names are the last parts, as with Spark's `select`. None reads all columns, `[]` none.
            where: A predicate in Spark SQL, an `Expression`, or an expression of pyarrow. Rows for which it is true are
                kept. An expression of pyarrow has pyarrow's meaning. If Spark SQL has no counterpart, it leaves out no
                file, and Spark evaluates it in Python workers.
            row_tracking: Add the columns `row_id` and `row_commit_version` (both long, PROTOCOL, "Row Tracking").
                `where` may use them.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: They do not fit the table.
            InvalidRequestError: `row_tracking` without `delta.enableRowTracking`, or the table has a column of one of
                these names.
        """
        from delta_orch.scan.scan import Scan

        return Scan(self, columns, where, row_tracking=row_tracking)

    def list_files(self, where: str | Expression | None = None, *, absolute: bool = False) -> pa.Table:
        """List the live files, one row each, with the names and types of the table's columns (PROTOCOL, "Add File").

        Args:
            where: Leave out files that hold no such row according to partition values and statistics.
            absolute: Return paths that `store.data_filesystem()` opens. By default paths are relative to the table's
                directory, except those of files outside it. No path is URL-encoded.

        Returns: `path` string, `size` int64 in bytes, `modification_time` timestamp[ms, UTC], `partition` a struct of
            the partition columns, `num_records` int64 with the `num_deleted` rows that deletion vectors mark,
            `tight_bounds` bool; `min`, `max`, `null_count`: structs of the columns that have statistics. They are as
            recorded: a missing one is null, long texts may be cut, timestamps end at a millisecond.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit.
            CorruptLogError: The log is damaged.
            UnsupportedStoreError: A file lies in another store, and `absolute` is set.
        """
        from delta_orch.scan.file_listing import list_files

        predicate = None
        if where is not None:
            from delta_orch.expressions.resolve import resolve_predicate

            predicate = resolve_predicate(where, self.schema)
        return list_files(self, predicate, absolute=absolute)

    def partitions(self) -> pa.Table:
        """List the partitions with files: a column for each partition column, none for an unpartitioned table. Raises
        CorruptLogError."""
        from delta_orch.scan.file_listing import list_partitions

        return list_partitions(self)

    def to_pyarrow_dataset(self, where: str | Expression | pc.Expression | None = None) -> ds.FileSystemDataset:
        """Return the files as a pyarrow data set, if they hold exactly the rows of this version. This reads all footers
        to check that. Reading the data set raises pyarrow's errors.

        A filter of the data set opens only files that may hold its rows, by partition values and statistics. Statistics
        of floats, of decimals with more than 15 digits and of fields of structs are used for `where` only.

        Args:
            where: A predicate as in `scan`. Footers of files without such rows are not read. The fragments of the data
                set are whole files.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit the table.
            UnsupportedExpressionError: Arrow has no counterpart of `where`.
            UnsupportedFeatureError: The table has deletion vectors, mapped columns, widened types, variants, dates of
                the Julian calendar, times in 96 bits, or files whose columns differ in type or case.
            MissingFileError, StorageError: A file cannot be read.
        """
        from delta_orch.scan.arrow_dataset import arrow_dataset

        return arrow_dataset(self, where)

    def _target(self, options: CommitOptions) -> tuple[TableLog, Snapshot]:
        """Return the log and this version, to which `read_version` is set.

        Raises:
            InvalidRequestError: `read_version` is another version.
            MetadataChangedError: The version is no longer in the log, or the location has another table.
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
