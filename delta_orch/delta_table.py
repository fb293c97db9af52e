"""`DeltaTable`, where a store, the log, the engines and the verbs meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Unpack, cast

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError, TableNotFoundError
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import ensure_version, parse_timestamp_ms
from delta_orch.redaction import redacted
from delta_orch.storage.open import open_store
from delta_orch.table_snapshot import TableSnapshot, after_commit
from delta_orch.table_verbs import TableVerbs

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from delta_orch.change_feed.change_feed import ChangeFeed
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.read.history import HistoryEntry
    from delta_orch.log.read.time_travel import Timestamp
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.protocol.actions import Txn
    from delta_orch.storage.base import LogStore
    from delta_orch.writing.target import WriteOptions

__all__ = ["DeltaTable", "TableSnapshot"]


@checked
class DeltaTable(TableVerbs):
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
        self.store: LogStore = open_store(table_uri, storage_options)
        if external_paths is not None:
            from delta_orch.storage.external_paths import parse_roots

            self.store.external_paths = parse_roots(external_paths)
        self.log = TableLog(self.store, TableSnapshot, after_commit)
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
        """The location in its canonical spelling."""
        return self.store.uri

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

        asked = ChangeRange(
            starting_version,
            ending_version,
            None if starting_timestamp is None else parse_timestamp_ms(starting_timestamp),
            None if ending_timestamp is None else parse_timestamp_ms(ending_timestamp),
            allow_out_of_range,
        )
        return read_changes(
            self.log,
            self.snapshot(),
            asked,
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
            AppendOnlyError: The table keeps its rows.
            InvalidRequestError: The table is compatible with Iceberg, and its partitioning would change.
            ConflictError: Another writer changed the table in the meantime. Nothing was committed.
        """
        from delta_orch.verbs.create import create_or_replace, create_or_replace_as

        if (schema is None) == (data is None):
            raise InvalidRequestError("create_or_replace takes either schema or data", remedy="Pass one of them")
        if data is not None:
            return create_or_replace_as(*self._target_or_none(options), data, engine, options)
        return create_or_replace(*self._target_or_none(options), schema, options)

    def _target(self, options: CommitOptions) -> tuple[TableLog, TableSnapshot]:
        return self.log, self.snapshot(options.get("read_version"))

    def _target_or_none(self, options: CommitOptions) -> tuple[TableLog, TableSnapshot | None]:
        try:
            return self._target(options)
        except TableNotFoundError:
            if options.get("read_version") is not None:
                raise
            return self.log, None
