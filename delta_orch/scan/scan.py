"""`scan`: the rows of a snapshot, read by whichever engine the caller has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.engines.base import Engine, OutputColumn, Relation, RowTracking, ScanPlan, output_columns_schema
from delta_orch.engines.select import local_engine, spark_engine
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import columns_of
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.types import StructType
from delta_orch.scan.predicate import ScanPredicate, SnapshotPruning, resolve_scan_predicate

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from delta_orch.scan.explain import ScanExplanation
    from delta_orch.scan.projection import Projection
    from delta_orch.scan.tasks import ScanTask

# What an engine needs to open a file; statistics are only for planning.
SCAN_COLUMNS = ("path", "dv_id", "partition_values", "size", "modification_time", "deletion_vector")
DEFAULT_TASK_BYTES = 128 * 1024 * 1024
ROW_TRACKING_COLUMNS = ("base_row_id", "default_row_commit_version")


class Scan:
    """Rows of one snapshot, chosen and not yet read. Nothing runs until one of the `to_…` methods is called.

    Attributes:
        columns: The names of the columns to return, in order; None for all. What is a field inside a column goes by its
            last name.
        where: The part of the predicate that the planner understands, resolved; None where there is none.

    Raises (all methods):
        InvalidExpressionError, ColumnNotFoundError, InvalidRequestError: `where`, `columns` or `row_tracking` does not
            fit the table.
        UnsupportedExpressionError: The local engine does not evaluate `where`; use `to_spark`.
        MissingFileError: A file the log names is not there (when rows are pulled).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str] | None = None,
        where: str | Expression | pc.Expression | None = None,
        *,
        row_tracking: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._row_tracking: RowTracking | None = None
        self._schema = snapshot.schema
        if row_tracking:
            from delta_orch.scan.row_tracking import resolve_row_tracking, with_row_tracking_columns

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
        """The columns the rows have, in order."""
        if self._projection is None:
            return self._schema
        return output_columns_schema(self._projection.output, self._schema)

    def plan(self) -> ScanPlan:
        """The files that may hold wanted rows, and what an engine must do with them. Pure log work."""
        columns = None if self._projection is None else self._projection.columns
        plan = _plan(self._snapshot, self._schema, columns, self._predicate, self._row_tracking)
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

    def explain(self) -> ScanExplanation:
        """How many files and bytes partition values and statistics leave out, and which part of the predicate does it.

        Log work only: no data file is opened. `print` it, or take `to_dict()`.
        """
        from delta_orch.scan.explain import explain_scan

        return explain_scan(self._snapshot, self._predicate)

    def tasks(self, max_bytes: int = DEFAULT_TASK_BYTES) -> list[ScanTask]:
        """The scan in pieces that can be pickled and read anywhere the table's store can be reached, each on its own.

        Together the tasks have exactly the scan's rows, and one after the other they have them in its order. A scan of
        no files has no tasks.

        Args:
            max_bytes: A task's files add up to no more than that in storage; a file that is larger is a task alone.
        """
        from delta_orch.scan.tasks import split_scan

        return split_scan(self.plan(), max_bytes)

    def to_arrow(self) -> pa.Table:
        """All rows in memory, columns in the order and the types of `schema`: `timestamp` is timestamp[us, UTC],
        `timestamp_ntz` timestamp[us], `decimal` decimal128, a variant struct<metadata: binary, value: binary>, which
        `delta_orch.variant` reads (docs/reading.md has all types)."""
        engine = local_engine()
        return engine.to_arrow(engine.scan(self.plan()))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream in bounded memory, in the types of `to_arrow`. Errors of a file are raised when its rows
        are pulled."""
        engine = local_engine()
        return engine.to_reader(engine.scan(self.plan()))

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """A lazy relation of DuckDB, to aggregate or join without having the rows in memory.

        DuckDB reads the data files itself, as fast as it reads any, with deletion vectors, column mapping and widened
        types as the log says; what it would not read exactly so (variants, row tracking, files in an object store)
        streams to it through Arrow. Name the `columns` you need in that case.

            flights = table.snapshot().scan(where="day >= '2013-06-01'").to_duckdb()
            flights.aggregate("carrier, avg(delay)")

        The relation is of this snapshot, however often it is read. What you run on it is DuckDB's: so are its errors.

        Args:
            connection: The relation belongs to it, by default to `duckdb.default_connection()`, where `duckdb.sql` can
                name the variable that holds it. It keeps the deletion vectors until it is closed.

        Raises:
            MissingDependencyError: DuckDB is not installed.
        """
        from delta_orch.engines.local.duckdb_input import duckdb_relation

        return duckdb_relation(local_engine().scan(self.plan()), connection)

    def to_spark(self, spark: object) -> Relation:
        """A lazy DataFrame of `spark`, on Spark's own Parquet reader, that stays at this version.

        What you run on it is Spark's: so are its errors, except through the engine (`to_relation`). In a classic
        session your own filters leave out files by statistics like `where` does; over Spark Connect only `where` does
        (docs/spark.md).
        """
        return spark_engine(spark).scan(self.plan())

    def to_relation(self, engine: Engine) -> Relation:
        """The rows as a relation of any engine."""
        return engine.scan(self.plan())


def scan_of_files(
    snapshot: Snapshot, files: pa.Table, columns: tuple[str, ...] | None = None, where: Expression | None = None
) -> ScanPlan:
    """The scan of some of a snapshot's files."""
    return ScanPlan(
        store=snapshot.store,
        schema=snapshot.schema,
        partition_columns=snapshot.partition_columns,
        files=files,
        columns=columns,
        where=where,
        column_mapping=snapshot.configuration.column_mapping,
    )


def _plan(
    snapshot: Snapshot,
    schema: StructType,
    columns: tuple[str, ...] | None,
    predicate: ScanPredicate,
    row_tracking: RowTracking | None,
) -> ScanPlan:
    """Leave out the files that partition values and statistics prove to hold no wanted row."""
    names = SCAN_COLUMNS if row_tracking is None else SCAN_COLUMNS + ROW_TRACKING_COLUMNS
    return ScanPlan(
        store=snapshot.store,
        schema=schema,
        partition_columns=snapshot.partition_columns,
        files=snapshot.files(names, predicate.where),
        columns=columns,
        where=predicate.where,
        column_mapping=snapshot.configuration.column_mapping,
        row_tracking=row_tracking,
        arrow_filter=predicate.arrow_filter,
        prune=SnapshotPruning(snapshot),
    )
