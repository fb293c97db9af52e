"""Relations as something DuckDB reads from: data files where it can read them itself, a stream otherwise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.duckdb_files import NativeScan, native_scan
from delta_orch.engines.local.duckdb_session import ensure_duckdb, reads_as_tested
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.to_sql import print_duckdb, quote_duckdb_identifier
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.arrow_building import children_of, int64_range, schema_to_arrow
from delta_orch.protocol.types import STRING, StructType

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection
    from duckdb import DuckDBPyRelation as Relation

_LOG = logging.getLogger(__name__)
_ROWS = "scanned"


def predicate_sql(where: Expression, schema: StructType, label: str) -> str:
    """A resolved predicate over a relation that a query calls `label`, in parentheses.

    Raises UnsupportedExpressionError where it is not proven to mean the same in DuckDB as in Spark.
    """
    if is_opaque(where):
        from delta_orch.engines.local.sql_operators import Scalars
        from delta_orch.engines.local.sql_types import Source

        return Scalars(Source(label, schema)).predicate(where)
    return f"({print_duckdb(where, lambda column: '.'.join(map(quote_duckdb_identifier, (label, *column.path))))})"


def native_input(relation: LocalRelation) -> NativeScan | None:
    """The relation as a query over data files, where it is a scan that DuckDB can do. Raises as `native_scan`."""
    return native_scan(relation.plan) if relation.plan is not None and reads_as_tested() else None


def register_native(connection: Connection, scan: NativeScan, plan: ScanPlan) -> str:
    """Make the scan's tables known to a connection. Returns: the query whose rows are the plan's."""
    for name, table in scan.tables.items():
        connection.register(name, table)
    for statement in scan.statements:
        connection.execute(statement)
    names = [column.name for column in plan.output] if plan.output else plan.read_schema.names
    columns = zip(scan.output, names, strict=True)
    selected = ", ".join(
        f"{_ROWS}.{quote_duckdb_identifier(column_name)} AS {quote_duckdb_identifier(name)}"
        for column_name, name in columns
    )
    where = "" if plan.where is None else f" WHERE {predicate_sql(plan.where, scan.schema, _ROWS)}"
    return f"SELECT {selected} FROM ({scan.sql}) AS {_ROWS}{where}"


def duckdb_relation(relation: LocalRelation, connection: Connection | None = None) -> Relation:
    """The rows as a lazy relation of a DuckDB connection, by default DuckDB's own default one.

    It can be read any number of times. Faults of files are found here or while they are read.

    Raises:
        MissingDependencyError: DuckDB is not installed.
    """
    ensure_duckdb()
    import duckdb

    connection = duckdb.default_connection() if connection is None else connection
    plan = relation.plan
    if plan is not None and _means_the_same(connection, plan) and (scan := native_input(relation)) is not None:
        try:
            return connection.sql(register_native(connection, scan, plan))
        except duckdb.Error as e:
            _LOG.info("Arrow reads the files for DuckDB, which refuses them: %s", e)
    return connection.from_arrow(_Rows(relation))


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as DuckDB reads it, which refuses structs of structs that are slices of longer ones."""
    return pc.take(batch, int64_range(0, batch.num_rows)) if any(map(_is_refused, batch.columns)) else batch


def _is_refused(array: pa.Array) -> bool:
    children = children_of(array)
    is_cut = array.offset > 0 and pa.types.is_struct(array.type)
    return (is_cut and any(pa.types.is_struct(child.type) for child in children)) or any(map(_is_refused, children))


class _Rows:
    """Rows behind Arrow's C stream interface, read anew each time."""

    def __init__(self, relation: LocalRelation) -> None:
        self._relation = relation

    def __arrow_c_schema__(self) -> object:
        return schema_to_arrow(self._relation.schema).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = self._relation.to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, map(readable, reader)).__arrow_c_stream__(
            requested_schema
        )


def _means_the_same(connection: Connection, plan: ScanPlan) -> bool:
    """Whether the plan's predicate does not depend on how somebody else's connection is set up."""
    if plan.where is None or is_opaque(plan.where):
        return plan.where is None
    fields = [plan.schema.find(column.path[0]) for column in columns_of(plan.where)]
    if not any(f is None or f.data_type == STRING or isinstance(f.data_type, StructType) for f in fields):
        return True  # only text is compared by a collation
    ((is_default,),) = connection.sql("SELECT current_setting('default_collation') = ''").fetchall()
    return bool(is_default)
