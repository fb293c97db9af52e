"""`TableSnapshot`, a version of a table and its rows; and the verbs, of it and of `DeltaTable`, that write rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError, MetadataChangedError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult, Committed
    from delta_orch.scan.scan import Scan
    from delta_orch.verbs.merge.clauses import Merge
    from delta_orch.writing.target import WriteOptions

_AUTO_COMPACT = "delta.autooptimize.autocompact"


def after_commit(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """The observer of a table's log: its upkeep, then auto compaction where the table has it. Raises nothing."""
    # Loaded with the first commit of a process.
    from delta_orch.log.upkeep.post_commit import do_upkeep

    do_upkeep(log, read, commit)
    if any(key.lower() == _AUTO_COMPACT for key in commit.table.metadata.configuration):
        from delta_orch.verbs.compaction import compact_after

        compact_after(log, read, commit)


class TableWrites:
    """The writing methods that a `DeltaTable` and its snapshots share. The rules of `DeltaTable` hold here, too."""

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
            UnsupportedFeatureError: This release must not write to the table.
            ConflictError: Another commit changed what this one relies on.
            StorageError: For example a full disk.
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
            AppendOnlyError: The table keeps its rows.
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
            AppendOnlyError: The table keeps its rows.
            UnsupportedExpressionError: The engine does not evaluate `where`.
            ConflictError: Another commit changed what this one relies on.
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


@checked
class TableSnapshot(TableWrites, Snapshot):
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
        given = options.get("read_version", self.version)
        if given != self.version:
            raise InvalidRequestError(
                f"This is version {self.version}, and read_version is {given!r}",
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
        return TableLog(self.store, type(self), after_commit), self
