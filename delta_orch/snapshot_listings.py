"""What a version is made of, for who reads its files by other means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.log.read.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from delta_orch.expressions.nodes import Expression


class SnapshotListings(Snapshot):
    """The methods of a `TableSnapshot` that list files and partitions."""

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
