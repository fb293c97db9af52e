"""Relations as something DuckDB reads from: data files where it can read them itself, a stream otherwise."""

from __future__ import annotations

import logging
from typing import Any

from delta_orch.engines.base import ScanPlan
from delta_orch.engines.local.duckdb_files import NativeScan, native_scan
from delta_orch.engines.local.duckdb_package import import_duckdb
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.scan import output_schema
from delta_orch.engines.local.sql_predicate import predicate_sql
from delta_orch.engines.local.sql_query import qualified
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.types import STRING, StructType

_LOG = logging.getLogger(__name__)
_ROWS = "rows"
_OLDEST = (1, 5)
"""The first release of DuckDB of which it is tested that its reader does what `duckdb_files` takes for granted."""


def native_input(relation: LocalRelation) -> NativeScan | None:
    """The relation as a query over data files, where it is a scan that DuckDB can do. Raises as `native_scan`."""
    return native_scan(relation.plan) if relation.plan is not None and _is_tested() else None


def register_native(connection: Any, scan: NativeScan, plan: ScanPlan) -> str:
    """Make the scan's tables known to a connection. Returns: the query whose rows are the plan's."""
    for name, table in scan.tables.items():
        connection.register(name, table)
    for statement in scan.statements:
        connection.execute(statement)
    names = [column.name for column in plan.output] if plan.output else output_schema(plan).names
    columns = zip(scan.output, names, strict=True)
    selected = ", ".join(f"{qualified(_ROWS, found)} AS {quote_duckdb_identifier(name)}" for found, name in columns)
    where = "" if plan.where is None else f" WHERE {predicate_sql(plan.where, scan.schema, _ROWS)}"
    return f"SELECT {selected} FROM ({scan.sql}) AS {quote_duckdb_identifier(_ROWS)}{where}"


def duckdb_relation(relation: LocalRelation, connection: Any = None) -> Any:
    """The rows as a lazy relation of a DuckDB connection, by default DuckDB's own default one.

    It can be read any number of times. What is wrong with files is found here or while it is read.

    Raises:
        MissingDependencyError: DuckDB is not installed.
    """
    duckdb = import_duckdb()
    connection = duckdb.default_connection() if connection is None else connection
    plan = relation.plan
    if plan is not None and _means_the_same(connection, plan) and (scan := native_input(relation)) is not None:
        try:
            return connection.sql(register_native(connection, scan, plan))
        except duckdb.Error as e:
            _LOG.info("Arrow reads the files for DuckDB, which refuses them: %s", e)
    return connection.from_arrow(_Rows(relation))


class _Rows:
    """Rows for whoever speaks Arrow's C stream interface; read anew each time."""

    def __init__(self, relation: LocalRelation) -> None:
        self._relation = relation

    def __arrow_c_schema__(self) -> Any:
        return schema_to_arrow(self._relation.schema).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._relation.to_reader().__arrow_c_stream__(requested_schema)


def _means_the_same(connection: Any, plan: ScanPlan) -> bool:
    """Whether the plan's predicate does not depend on how somebody else's connection is set up."""
    if plan.where is None or is_opaque(plan.where):
        return plan.where is None
    fields = [plan.schema.find(column.path[0]) for column in columns_of(plan.where)]
    if not any(f is None or f.data_type == STRING or isinstance(f.data_type, StructType) for f in fields):
        return True  # only text is compared by a collation
    ((is_default,),) = connection.sql("SELECT current_setting('default_collation') = ''").fetchall()
    return bool(is_default)


def _is_tested() -> bool:
    return tuple(int(part) for part in import_duckdb().__version__.split(".")[:2] if part.isdigit()) >= _OLDEST
