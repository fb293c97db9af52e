"""The data source that Spark calls on the driver: `DeltaOrchSource`. Its objects for executors are in `on_workers.py`.

Planning of a batch read runs once per DataFrame, in a Python process next to the driver, and pins the version. An
executor gets a pickled `ScanTask` with all it needs to read its files. Rows travel as Arrow. Spark does not prune the
columns of a Python source, so the option `columns`, or a schema, selects them.

`pushFilters` is not implemented on purpose: Spark 4.1 to 4.3 keep the filters of one query for the next query over the
same DataFrame, which then lacks rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, SupportsIndex

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.spark.frames import schema_of_rows, spark_schema
from delta_orch.engines.spark.sql_text import plain_schema, same_values
from delta_orch.errors import InvalidRequestError, SchemaMismatchError, UnsupportedError
from delta_orch.log.read.time_travel import split_version
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, StructType
from delta_orch.scan.scan import ScanTask, split_scan
from delta_orch.spark_source.on_workers import RowReader, RowStreamReader, SourceOnWorkers, TaskPartition
from delta_orch.spark_source.options import (
    ReadOptions,
    is_of_stream,
    parse_options,
    parse_stream_options,
    parse_write_options,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkStructType

    from delta_orch.change_feed.change_feed import ChangeFeed
    from delta_orch.scan.scan import Scan


class DeltaOrchSource(DataSource):  # type: ignore[misc]
    """Delta tables, read and written by the local engine on Spark's executors, in every kind of session.

        spark.read.format("delta_orch").option("versionAsOf", 3).load("/data/flights")
        df.write.format("delta_orch").mode("append").save("/data/flights")
        spark.readStream.format("delta_orch").load("/data/flights")

    `DeltaTable(…).append(df)` and `scan().to_spark(spark)` are faster, as Spark reads and writes the files itself. This
    format is for SQL (`CREATE TEMPORARY VIEW … USING delta_orch OPTIONS (path '…')`), for streams, and for code that
    knows only the name of a format. Options: `spark_source.options`.

    A DataFrame of a classic session stays at the version that was loaded. Spark Connect loads the table again for each
    query; the option `versionAsOf` keeps the version.
    """

    _has_planned = False

    @classmethod
    def name(cls) -> str:
        return "delta_orch"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...] | str:
        """Pickle the source for another planner, or after planning for workers, which may lack this package."""
        return (SourceOnWorkers, (dict[str, str](),)) if self._has_planned else super().__reduce_ex__(protocol)

    def schema(self) -> SparkStructType:
        """Return pyspark's `StructType`, with nullable columns. Spark calls it once per `load`. It pins the version."""
        # Spark compares a `char` column with constants as in its own tables.
        return spark_schema(plain_schema(self._source().schema, CHAR_VARCHAR_TYPE))

    def reader(self, schema: SparkStructType) -> DataSourceReader:
        """Return the reader of the columns in `schema`, which are those of the table or those that the user named."""
        source, columns = self._source(), parse_schema(schema.json())
        # Streams and batches have different options, which are parsed separately.
        parse_options(self.options)
        _ensure_columns(columns, source.schema)
        self._has_planned = True
        return RowReader(
            serialize_schema(columns), lambda: [TaskPartition(task) for task in source.tasks(columns.names)]
        )

    def streamReader(self, schema: SparkStructType) -> DataSourceStreamReader:
        """Return the reader of a stream, from the version whose columns `schema` returned."""
        from delta_orch.spark_source.stream import Offset, StreamPlanner

        if not hasattr(RowStreamReader, "reportLatestOffset"):
            raise UnsupportedError(
                'readStream of the format "delta_orch" needs Spark 4.2 or later',
                cause="Earlier releases do not tell a Python source where a batch starts",
                remedy="Use a newer Spark, or poll DeltaTable.changes in a batch job",
            )
        pinned = self.__dict__.get("_pinned")
        planner = StreamPlanner(parse_stream_options(self.options), None if pinned is None else pinned.version)
        columns = parse_schema(schema.json())
        _ensure_columns(columns, planner.schema)
        self._has_planned = True
        return RowStreamReader(serialize_schema(columns), planner, Offset.from_json)

    def writer(self, schema: SparkStructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write. It is planned now, so that an invalid write is refused before a task
        starts."""
        from delta_orch.spark_source.writer import row_writer

        return row_writer(parse_write_options(self.options), schema_of_rows(schema), overwrite)

    def streamWriter(self, schema: SparkStructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream's batches. Its commits have `txn(query id, batch id)`, so each batch is written
        once."""
        from pyspark.sql import datasource

        from delta_orch.spark_source.writer import batch_writer

        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise UnsupportedError(
                'writeStream of the format "delta_orch" needs Spark 4.1 or later',
                cause="Earlier releases pass no Arrow batches to a Python sink",
                remedy="Use foreachBatch with write_batches",
            )
        return batch_writer(parse_write_options(self.options, is_stream=True), schema_of_rows(schema), overwrite)

    def _source(self) -> _Source | _Shape:
        # Spark pickles this object after `schema`, so it includes the version.
        pinned: _Source | _Shape | None = self.__dict__.get("_pinned")
        if pinned is None:
            pinned = _Shape(self.options) if is_of_stream(self.options) else _Source(parse_options(self.options))
            self.__dict__["_pinned"] = pinned
        return pinned


class _Shape:
    """Return the version whose columns a stream has."""

    def __init__(self, options: Mapping[str, str]) -> None:
        from delta_orch.spark_source.stream import StreamPlanner

        planner = StreamPlanner(parse_stream_options(options))
        self.version, self.schema = planner.version, planner.schema

    def tasks(self, columns: tuple[str, ...]) -> list[ScanTask]:
        raise AssertionError("a stream has batches")


class _Source:
    """Return the rows or changes that the options select, at the pinned version."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = _at_version(options)
        self._version: int | None = None
        self._range: tuple[int, int] | None = None
        self.schema: StructType = (self._scan(None) if options.changes is None else self._feed()).schema

    @property
    def version(self) -> int:
        """Return the newest version to read."""
        if self._range is not None:
            return max(self._range) if self._range[0] <= self._range[1] else self._range[1]
        assert self._version is not None
        return self._version

    def tasks(self, columns: tuple[str, ...]) -> list[ScanTask]:
        """Return the tasks of the read. `columns` are some columns of `schema`."""
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
        # Columns that the user named may be fields of structs, which have other names in the schema.
        names = columns if options.columns is None else options.columns
        return snapshot.scan(names, options.where, row_tracking=options.row_tracking)

    def _feed(self) -> ChangeFeed:
        table = DeltaTable(self._options.path, self._options.storage_options)
        assert self._options.changes is not None
        if self._range is None:
            feed = table.changes(**self._options.changes)
            self._range = (feed.starting_version, feed.ending_version)
            return feed
        start, end = self._range
        return table.changes(starting_version=start, ending_version=end, allow_out_of_range=start > end)


def _at_version(options: ReadOptions) -> ReadOptions:
    """Return the version at the end of the path, `path@v1`, unless a table exists at that path."""
    split = split_version(options.path) if options.changes is None else None
    if split is None or DeltaTable(options.path, options.storage_options).exists():
        return options
    if options.version is not None or options.timestamp is not None:
        raise InvalidRequestError(
            "The path and an option set two versions", remedy="Leave out @… in the path, or the option"
        )
    path, version, timestamp = split
    return replace(options, path=path, version=version, timestamp=timestamp)


def _ensure_columns(asked: StructType, known: StructType) -> None:
    for field in asked:
        counterpart = known.find(field.name)
        if counterpart is None or not same_values(counterpart.data_type, field.data_type):
            raise SchemaMismatchError(
                f"The table has no column {field.name} of type {field.data_type}",
                cause=None if counterpart is None else f"It is of type {counterpart.data_type}",
                remedy="Leave the schema out, or pass columns of the table with their types",
                column=field.name,
            )
