"""`TableSnapshot`: a version of a table and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError, MetadataChangedError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.table_writes import TableWrites, after_commit

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.scan.scan import Scan


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

    def to_pyarrow_dataset(self) -> ds.FileSystemDataset:
        """The files as a data set of pyarrow, where they hold exactly the rows of this version. All footers are read to
        make sure. Reading it raises pyarrow's errors.

        Raises:
            UnsupportedFeatureError: The table has deletion vectors, mapped columns, widened types, variants, dates of
                the Julian calendar, times in 96 bits, or files whose columns differ in type or case.
            MissingFileError, StorageError: A file cannot be read.
        """
        from delta_orch.scan.arrow_dataset import arrow_dataset

        return arrow_dataset(self)

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
