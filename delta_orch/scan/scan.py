"""`scan`: the rows of a snapshot, read by whichever engine the caller has.

`where` comes as Spark SQL, as an `Expression` or as an expression of pyarrow.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import OutputColumn, RowTracking, ScanPlan, output_columns_schema
from delta_orch.engines.select import spark_engine
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, FileTable, live_row_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import int64_range
from delta_orch.protocol.types import DataType, StructType
from delta_orch.table.column_mapping import physical_path

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pyarrow.compute import Expression as ArrowExpression

    from delta_orch.engines.base import Engine
    from delta_orch.scan.explain import ScanExplanation
    from delta_orch.scan.projection import Projection
    from delta_orch.table.configuration import TableConfiguration

# The columns that an engine needs to open a file. Statistics are only for planning.
SCAN_COLUMNS = ("path", "dv_id", "partition_values", "size", "modification_time", "deletion_vector")
DEFAULT_TASK_BYTES = 128 * 1024 * 1024
ROW_TRACKING_COLUMNS = ("base_row_id", "default_row_commit_version")
_REMEMBERED = 4
"""A query calls this once for each of its parts, and users repeat queries."""


@checked
class Scan:
    """A selection of rows of one snapshot. No row is read until one of the `to_…` methods is called.

    Attributes:
        columns: The names of the columns to return, in order. None returns all columns. A field of a struct is named by
            the last part of its path.
        where: The resolved part of the predicate that the planner understands. None without a predicate.

    Raises (all methods):
        InvalidExpressionError, ColumnNotFoundError, InvalidRequestError: `where`, `columns` or `row_tracking` does not
            fit the table.
        UnsupportedExpressionError: The local engine cannot evaluate `where`. Use `to_spark`.
        MissingFileError: A file that the log names is gone. Raised when rows are pulled.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str] | None = None,
        where: str | Expression | ArrowExpression | None = None,
        *,
        row_tracking: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._asked = (columns, where, row_tracking)
        self._row_tracking: RowTracking | None = None
        self._schema = snapshot.schema
        if row_tracking:
            from delta_orch.scan.projection import resolve_row_tracking, with_row_tracking_columns

            self._row_tracking = resolve_row_tracking(snapshot)
            self._schema = with_row_tracking_columns(snapshot.schema, self._row_tracking)
        self._predicate = resolve_scan_predicate(where, self._schema)
        self.where = self._predicate.where
        self._projection = None if columns is None else self._project(columns)
        self.columns = None if self._projection is None else self._projection.names

    def _project(self, columns: Sequence[str]) -> Projection:
        from delta_orch.scan.projection import Projection, resolve_projection

        projection = resolve_projection(columns, self._schema)
        extra = () if self._row_tracking is None else self._row_tracking.names
        missing = (OutputColumn(name, (name,)) for name in extra if name not in projection.names)
        return Projection((*projection.output, *missing))

    @property
    def schema(self) -> StructType:
        """The columns of the rows, in order."""
        if self._projection is None:
            return self._schema
        return output_columns_schema(self._projection.output, self._schema)

    def plan(self) -> ScanPlan:
        """The files that may hold matching rows, and what an engine must do with them. Only the log is read."""
        return self._plan_of(partial(self._snapshot.files, where=self._predicate.where))

    def _plan_of(self, files: Callable[[Sequence[str]], pa.Table]) -> ScanPlan:
        """A scan of some files. `files` returns their columns on request."""
        names = SCAN_COLUMNS if self._row_tracking is None else SCAN_COLUMNS + ROW_TRACKING_COLUMNS
        columns = None if self._projection is None else self._projection.columns
        plan = replace(
            scan_of_files(self._snapshot, files(names), columns, self.where),
            schema=self._schema,
            row_tracking=self._row_tracking,
            arrow_filter=self._predicate.arrow_filter,
            prune=SnapshotPruning.of(self._snapshot),
        )
        if self._projection is None or not self._projection.is_nested:
            return plan
        return replace(plan, schema=self._pruned_schema(self._projection), output=self._projection.output)

    def _pruned_schema(self, projection: Projection) -> StructType:
        from delta_orch.scan.projection import pruned_schema

        if self._predicate.arrow_filter is not None:
            # It may look at any column, by name or by position.
            return self._schema
        where = self._predicate.where
        used = () if where is None else (column.path for column in columns_of(where))
        return pruned_schema(self._schema, [*(column.path for column in projection.output), *used])

    def explain(self, *, row_groups: bool = False) -> ScanExplanation:
        """How many files and bytes each part of the predicate leaves out, by partition values and statistics.

        Only the log is read. Print the result, or use its `to_dict()`.

        Args:
            row_groups: Also read the footers of the files that are left, and count their row groups.

        Raises:
            MissingFileError, TableError, StorageError: With `row_groups`, a file cannot be read.
        """
        from delta_orch.scan.explain import explain_scan

        explanation = explain_scan(self._snapshot, self._predicate.where, self._predicate.arrow_filter)
        if not row_groups:
            return explanation
        from delta_orch.engines.local.scan import count_row_groups

        return replace(explanation, row_groups=count_row_groups(replace(self.plan(), output=None)))

    def tasks(self, max_bytes: int = DEFAULT_TASK_BYTES) -> list[ScanTask]:
        """The scan in independent pieces. A task can be pickled and read wherever the table's store can be reached.

        Together the tasks have exactly the rows of the scan, in its order. A scan of no files has no tasks.

        Args:
            max_bytes: The largest total size of a task's files in storage. A larger file is a task of its own.
        """

        return split_scan(self.plan(), max_bytes)

    def to_arrow(self) -> pa.Table:
        """All rows in memory. Columns have the order and the types of `schema`: `timestamp` is timestamp[us, UTC],
        `timestamp_ntz` is timestamp[us], `decimal` is decimal128. A variant is struct<metadata: binary, value: binary>;
        `delta_orch.variant` reads it. docs/reading.md lists all types."""
        engine = LocalEngine()
        return engine.to_arrow(engine.scan(self.plan()))

    def count(self) -> int:
        """The number of rows. Statistics answer for files without `where`, and where `where` names partition columns
        alone; of other files rows are read, without columns.

        Raises ProtocolViolationError: The log names a file twice.
        """
        from delta_orch.scan.file_listing import count_rows

        return count_rows(self._snapshot, self.plan())

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream in bounded memory, in the types of `to_arrow`. An error of a file is raised when its
        rows are pulled."""
        engine = LocalEngine()
        return engine.to_reader(engine.scan(self.plan()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as `to_reader` gives them, for whatever takes an Arrow stream: `polars.DataFrame(scan)`,
        `pyarrow.table(scan)`, `duckdb.sql("FROM scan")`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a DataFrame of pandas. Integers and booleans beside nulls have pandas' own types (`Int64`), which
        keep them as they are; a null among floats is NaN. Decimals, structs, lists and maps are Python objects.

        Raises MissingDependencyError: pandas is not installed.
        """
        from delta_orch.scan.frames import pandas_frame

        return pandas_frame(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """All rows as a DataFrame of Polars, in the types it gives those of `to_arrow`.

        Raises MissingDependencyError: Polars is not installed.
        """
        from delta_orch.scan.frames import polars_frame

        return polars_frame(self.to_arrow())

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """A lazy DuckDB relation, to aggregate or join rows without holding them in memory.

        DuckDB reads the data files itself, at its own speed. Deletion vectors, column mapping and widened types are
        applied. Variants, row tracking and files in an object store stream to DuckDB through Arrow instead. Name the
        `columns` that you need in that case.

            flights = table.snapshot().scan(where="day >= '2013-06-01'").to_duckdb()
            flights.aggregate("carrier, avg(delay)")

        The relation stays at this snapshot. Errors of queries on it are DuckDB's own.

        Args:
            connection: The connection of the relation, by default `duckdb.default_connection()`. There `duckdb.sql` can
                name the variable that holds the relation. The connection keeps the deletion vectors until it is closed.

        Raises:
            MissingDependencyError: DuckDB is not installed.
        """
        from delta_orch.engines.local.duckdb_input import duckdb_relation

        return duckdb_relation(LocalEngine().scan(self.plan()), connection)

    def to_spark(self, spark: object, *, follow: bool = False) -> Any:
        """A lazy DataFrame of `spark` that stays at this version. Spark's own Parquet reader reads the files.

        Errors of queries on it are Spark's own; `spark_source.errors.explained` names them. In a classic session your
        own filters leave out files by statistics, as `where` does. Over Spark Connect only `where` does
        (docs/spark.md).

        Args:
            follow: The DataFrame, and views of it, read the newest version of the table instead. Each query looks for
                it when Spark optimizes it, and all parts of a query read one version. A DataFrame that you make from
                it looks once, for its first action. The columns stay; a query fails once one is dropped, renamed or
                of another type. A classic session is needed.

        Raises:
            UnsupportedError: `follow` over Spark Connect.
        """
        engine = spark_engine(spark)
        from delta_orch.engines.spark.engine import SparkEngine
        from delta_orch.engines.spark.replanned import FollowedScan, LargeScan, is_large

        if not follow and is_large(self._snapshot) and not (self._projection and self._projection.is_nested):
            prunings = lru_cache(_REMEMBERED)(partial(SnapshotPruning, self._snapshot))
            large = LargeScan(self._snapshot, self.where, self._plan_of, prunings)
            return SparkEngine(spark).large_scan(large)
        if not follow:
            return engine.scan(self.plan())

        columns, where, row_tracking = self._asked

        def make(snapshot: Snapshot, names: list[str]) -> Scan:
            return Scan(snapshot, names if columns is None else columns, where, row_tracking=row_tracking)

        return SparkEngine(spark).follow(FollowedScan(self._snapshot, self, make))

    def to_relation(self, engine: Engine) -> Any:
        """The rows as a relation of any engine."""
        return engine.scan(self.plan())


def scan_of_files(
    snapshot: Snapshot,
    files: pa.Table,
    columns: tuple[str, ...] | None = None,
    where: Expression | None = None,
    table: TableConfiguration | None = None,
) -> ScanPlan:
    """The scan of some of a snapshot's files; `table` is what their rows are read as, None for the snapshot's."""
    table = snapshot.configuration if table is None else table
    return ScanPlan(
        store=snapshot.store,
        schema=table.schema,
        partition_columns=table.partition_columns,
        files=files,
        columns=columns,
        where=where,
        column_mapping=table.column_mapping,
        each_once=True,
    )


class ScanPredicate(NamedTuple):
    """Two predicates. A row matches if both are true.

    Attributes:
        where: Resolved. The planner leaves out files by it, and every engine leaves out rows by it.
        arrow_filter: The part of an Arrow expression without a counterpart in `where`. It filters rows in Python.
    """

    where: Expression | None = None
    arrow_filter: ArrowExpression | None = None


def resolve_scan_predicate(where: object, schema: StructType) -> ScanPredicate:
    """The user's predicate, resolved against the table's columns.

    A pyarrow expression keeps pyarrow's meaning: NaN equals nothing, and `isin` is false for null. The parts with a
    counterpart in Spark SQL prune files and run on every engine. The other parts filter rows in Arrow.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: It cannot be parsed, or does not fit the schema.
    """
    if where is None:
        return ScanPredicate()
    if not is_arrow_expression(where):
        return ScanPredicate(resolve_predicate(where, schema))
    from delta_orch.expressions.from_arrow import translate_arrow_expression

    translated = translate_arrow_expression(where, schema)
    return ScanPredicate(translated.where, None if translated.is_complete else where)


def is_arrow_expression(value: object) -> bool:
    """Whether this is a pyarrow expression. Imports nothing: before pyarrow is loaded nothing can be one."""
    module = sys.modules.get("pyarrow.compute")
    return module is not None and isinstance(value, module.Expression)


class SnapshotPruning:
    """`ScanPlan.prune` of a snapshot's scans. In another process it is None: the log is not sent along.

    Args:
        among: Look only at the files that this leaves: the scan has no others.
    """

    def __init__(self, snapshot: Snapshot, among: Expression | None = None) -> None:
        self._snapshot = snapshot
        self._among = among
        self._lock = threading.Lock()
        self._answers: dict[object, pa.Table | None] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotPruning:
        """That of the snapshot, made once: engines keep what belongs to a version by it."""
        made: SnapshotPruning = snapshot.__dict__.setdefault("_pruning", cls(snapshot))
        return made

    def __call__(self, where: Expression | None) -> pa.Table:
        """See `FilePruning`. Raises as `Snapshot.files`."""
        if where is None:
            return self._kept(None, self._with_row_counts)
        return self._kept(where, lambda: self._files(["path"], where))

    def extremes(self, column: Column, data_type: DataType) -> pa.Table | None:
        """See `FilePruning`. Raises as `Snapshot.files`."""
        return self._kept((column, data_type), lambda: self._extremes(column, data_type))

    def _files(self, columns: list[str], where: Expression | None = None) -> pa.Table:
        if self._among is not None:
            where = self._among if where is None else conjunction(self._among, where)
        return self._snapshot.files(columns, where)

    def _with_row_counts(self) -> pa.Table:
        files = self._files(["path", *ROW_COUNT_COLUMNS])
        return files.select(["path"]).append_column("num_rows", live_row_counts(files))

    def _extremes(self, column: Column, data_type: DataType) -> pa.Table | None:
        from delta_orch.log.read.skipping.file_statistics import EXACT_COLUMNS, EXACT_TYPES, exact_extremes

        if data_type not in EXACT_TYPES:
            return None
        files = self._files(["path", *EXACT_COLUMNS])
        extremes = exact_extremes(files, physical_path(self._snapshot.schema, column.path), data_type)
        return extremes.append_column("path", FileTable(files).path)

    def _kept(self, key: object, find: Callable[[], pa.Table | None]) -> pa.Table | None:
        with self._lock:
            answer = self._answers.pop(key) if key in self._answers else find()
            self._answers[key] = answer
            while len(self._answers) > _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            return answer

    def __reduce__(self) -> tuple[object, ...]:
        return (_nothing, ())


def _nothing() -> None:
    return None


# Scans in pieces, for readers in several processes or machines.


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Some files of a scan, with everything needed to read them without the log.

    Can be pickled. Credentials of the store travel along where they were given as `storage_options`. A table in
    `memory:` is only there in its own process.
    """

    plan: ScanPlan

    @property
    def num_files(self) -> int:
        return int(self.plan.files.num_rows)

    @property
    def size_bytes(self) -> int:
        """The size of the files in storage."""
        return sum(_sizes(self.plan.files))

    def to_arrow(self) -> pa.Table:
        """The task's rows in memory; as `Scan.to_arrow`, and raises as it does."""
        engine = LocalEngine()
        return engine.to_arrow(engine.scan(self.plan))

    def to_reader(self) -> pa.RecordBatchReader:
        """The task's rows as a stream in bounded memory."""
        engine = LocalEngine()
        return engine.to_reader(engine.scan(self.plan))

    def to_relation(self, engine: Engine) -> Any:
        """The task's rows as a relation of any engine."""
        return engine.scan(self.plan)


def split_scan(plan: ScanPlan, max_bytes: int) -> list[ScanTask]:
    """The plan in pieces, its files in their order. See `Scan.tasks`.

    Raises:
        InvalidRequestError: `max_bytes` is not an integer of at least 1.
    """
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
        raise InvalidRequestError(f"max_bytes must be an integer of at least 1, not {max_bytes!r}")
    return [ScanTask(replace(plan, files=_part(plan.files, *part))) for part in _parts(_sizes(plan.files), max_bytes)]


def _parts(sizes: list[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(sizes))
    start, before = 0, 0
    while start < len(ends):
        stop = max(bisect_right(ends, before + max_bytes, start), start + 1)
        yield start, stop
        start, before = stop, ends[stop - 1]


def _part(files: pa.Table, start: int, stop: int) -> pa.Table:
    # `take` copies: a slice would be pickled with all it was cut from.
    return pc.take(files, int64_range(start, stop))


def _sizes(files: pa.Table) -> list[int]:
    return [size or 0 for size in FileTable(files).size.to_pylist()]
