"""What Spark calls: `DeltaOrchSource` on the driver, its reader's `read` on executors.

Planning runs once per DataFrame, in a Python process next to the driver, and pins the version. An executor gets a
pickled `ScanTask` with all it needs to read its files. Rows travel as Arrow. Spark does not prune the columns of a
Python source, so the option `columns`, or a schema, selects them.

`pushFilters` is not implemented on purpose: Spark 4.1 to 4.3 keep the filters of one query for the next query over the
same DataFrame, which then lacks rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.conform import conform_batch
from delta_orch.engines.spark.frames import spark_schema
from delta_orch.engines.spark.sql_text import plain_schema, same_values, schema_as_sent
from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import StructType
from delta_orch.scan.tasks import ScanTask, split_scan
from delta_orch.spark_source.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkStructType

    from delta_orch.change_feed.change_feed import ChangeFeed
    from delta_orch.scan.scan import Scan


class DeltaOrchSource(DataSource):  # type: ignore[misc]
    """Delta tables, read by the local engine on Spark's executors: every feature it reads, in every kind of session.

        spark.read.format("delta_orch").option("versionAsOf", 3).load("/data/flights")

    `DeltaTable(…).snapshot().scan().to_spark(spark)` is several times faster, as Spark reads the files itself. This
    format is for SQL (`CREATE TEMPORARY VIEW … USING delta_orch OPTIONS (path '…')`) and for code that knows only the
    name of a format. Options: `spark_source.options`.

    A DataFrame of a classic session stays at the version that was loaded. Spark Connect loads the table again for each
    query; the option `versionAsOf` keeps the version.
    """

    @classmethod
    def name(cls) -> str:
        return "delta_orch"

    def schema(self) -> SparkStructType:
        """pyspark's `StructType`; all columns are nullable. Spark calls it once per `load`. It pins the version."""
        return spark_schema(plain_schema(self._source().schema))

    def reader(self, schema: SparkStructType) -> DataSourceReader:
        """The reader of the columns that `schema` names: those of the table, or what the user asked for."""
        return _Reader(self._source(), parse_schema(schema.json()))

    def _source(self) -> _Source:
        # Spark pickles this object after `schema`: the version is part of it from then on.
        known: _Source | None = self.__dict__.get("_pinned")
        if known is None:
            known = self.__dict__["_pinned"] = _Source(parse_options(self.options))
        return known


class _Source:
    """The rows or changes that options name, at the version they had first."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._version: int | None = None
        self._range: tuple[int, int] | None = None
        self.schema: StructType = (self._scan(None) if options.changes is None else self._feed()).schema

    def tasks(self, columns: tuple[str, ...]) -> list[ScanTask]:
        """The work, cut into pieces; `columns` are some of `schema`."""
        max_bytes = self._options.max_partition_bytes
        if self._options.changes is None:
            return self._scan(columns).tasks(max_bytes)
        return [task for plan in self._feed().plans() for task in split_scan(plan, max_bytes)]

    def _scan(self, columns: tuple[str, ...] | None) -> Scan:
        options = self._options
        table = DeltaTable(options.path, options.storage_options)
        if self._version is None:
            snapshot = table.snapshot(options.version, options.timestamp)
            self._version = snapshot.version
        else:
            snapshot = table.snapshot(self._version)
        # Columns the user named may be fields of structs, which go by other names in the schema.
        wanted = columns if options.columns is None else options.columns
        return snapshot.scan(wanted, options.where, row_tracking=options.row_tracking)

    def _feed(self) -> ChangeFeed:
        table = DeltaTable(self._options.path, self._options.storage_options)
        assert self._options.changes is not None
        if self._range is None:
            feed = table.changes(**self._options.changes)
            self._range = (feed.starting_version, feed.ending_version)
            return feed
        start, end = self._range
        return table.changes(starting_version=start, ending_version=end, allow_out_of_range=start > end)


class _Partition(InputPartition):  # type: ignore[misc]
    """A task. Its text is short: Spark logs it, and a task may hold credentials."""

    def __repr__(self) -> str:
        return f"<{self.value.num_files} files>"


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, source: _Source, schema: StructType) -> None:
        _ensure_columns(schema, source.schema)
        self._source: _Source | None = source
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        # Executors need no more than a task each.
        return {**self.__dict__, "_source": None}

    def partitions(self) -> list[InputPartition]:
        assert self._source is not None
        return [_Partition(task) for task in self._source.tasks(self._schema.names)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without a partition Spark still makes one, of no value.
        if partition.value is None:
            return
        target = schema_as_sent(self._schema)
        for batch in partition.value.to_reader():
            yield conform_batch(batch, target, lossless=True)


def _ensure_columns(asked: StructType, known: StructType) -> None:
    for field in asked:
        found = known.find(field.name)
        if found is None or not same_values(found.data_type, field.data_type):
            raise SchemaMismatchError(
                f"The table has no column {field.name} of type {field.data_type}",
                cause=None if found is None else f"It is of type {found.data_type}",
                remedy="Leave the schema out, or name columns of the table with their types",
                column=field.name,
            )
