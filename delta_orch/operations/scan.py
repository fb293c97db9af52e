"""`scan`: the rows of a snapshot, read by whichever engine the caller has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from delta_orch.engines.base import Engine, ScanPlan
from delta_orch.engines.select import local_engine, spark_engine
from delta_orch.expressions.nodes import Expression
from delta_orch.features.column_mapping import column_mapping_mode
from delta_orch.log.snapshot import Snapshot
from delta_orch.operations.request import resolve_column_names, resolve_predicate

if TYPE_CHECKING:
    import pyarrow as pa

# What an engine needs to open a file; statistics are only for planning.
SCAN_COLUMNS = ("path", "dv_id", "partition_values", "size", "modification_time", "deletion_vector")


class Scan:
    """Rows of one snapshot, chosen and not yet read. Nothing runs until one of the `to_…` methods is called.

    Raises (all methods):
        InvalidExpressionError, ColumnNotFoundError: `where` or `columns` does not fit the table.
        UnsupportedExpressionError: The local engine does not evaluate `where`; use `to_spark`.
        MissingFileError: A file the log names is not there (when rows are pulled).
    """

    def __init__(
        self, snapshot: Snapshot, columns: Sequence[str] | None = None, where: str | Expression | None = None
    ) -> None:
        self._snapshot = snapshot
        schema = snapshot.schema
        self.columns = None if columns is None else resolve_column_names(columns, schema, "columns")
        self.where = None if where is None else resolve_predicate(where, schema)

    def plan(self) -> ScanPlan:
        """The files that may hold wanted rows, and what an engine must do with them. Pure log work."""
        return plan_scan(self._snapshot, self.columns, self.where)

    def to_arrow(self) -> pa.Table:
        """All rows in memory; columns in Arrow's types of the table's schema, timestamps in UTC at microseconds."""
        engine = local_engine()
        return engine.to_arrow(engine.scan(self.plan()))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream in bounded memory."""
        engine = local_engine()
        return engine.to_reader(engine.scan(self.plan()))

    def to_spark(self, spark: Any) -> Any:
        """A lazy DataFrame of `spark`, on Spark's own Parquet reader. What you run on it is Spark's: so are its errors,
        except through the engine (`to_relation`)."""
        return spark_engine(spark).scan(self.plan())

    def to_relation(self, engine: Engine) -> Any:
        """The rows as a relation of any engine."""
        return engine.scan(self.plan())


def plan_scan(snapshot: Snapshot, columns: tuple[str, ...] | None, where: Expression | None) -> ScanPlan:
    """Leave out the files that partition values and statistics prove to hold no wanted row."""
    return scan_of_files(snapshot, snapshot.files(SCAN_COLUMNS, where), columns, where)


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
        column_mapping=column_mapping_mode(snapshot.protocol, snapshot.metadata),
    )
