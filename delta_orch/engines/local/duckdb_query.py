"""Running queries and predicates in DuckDB, streams in and streams out.

Every query has a connection of its own, in memory, in UTC, without access to extensions or to Python's variables.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch.engines.base import ScanPlan
from delta_orch.engines.conform import conform_batch
from delta_orch.engines.local.duckdb_files import NativeScan
from delta_orch.engines.local.duckdb_input import native_input, register_native
from delta_orch.engines.local.duckdb_package import import_duckdb
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.scan import scan_relation
from delta_orch.engines.local.sql_predicate import predicate_sql
from delta_orch.engines.local.sql_query import (
    QueryInput,
    TranslatedQuery,
    qualified,
    translate_query,
)
from delta_orch.errors import DeltaError, InvalidExpressionError, StorageError, TableError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import expression_of_tree, has_only, parse_spark_statement
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_arrow import to_arrow_expression
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.types import BINARY, STRING, PrimitiveType, StructField, StructType

_LOG = logging.getLogger(__name__)
BATCH_ROWS = 131_072
_INPUT = "input_0"


def query_relation(query: str, relations: Mapping[str, LocalRelation]) -> LocalRelation:
    """One Spark SQL query over named relations; it runs when its rows are asked for.

    Raises: as `sql_query.translate_query`. While it runs, InvalidExpressionError for what Spark refuses then, too:
    overflow, division by zero.
    """
    translated = translate_query(query, {name: relation.schema for name, relation in relations.items()})
    return LocalRelation(translated.schema, lambda: _run(translated, relations))


def run_query(query: str, relations: Mapping[str, LocalRelation]) -> LocalRelation:
    """As `query_relation`, without DuckDB where the query only filters one relation by what Arrow can evaluate."""
    return plain_filter(query, relations) or query_relation(query, relations)


def plain_filter(query: str, relations: Mapping[str, LocalRelation]) -> LocalRelation | None:
    """`SELECT * FROM relation WHERE condition` on Arrow; None for any other query."""
    tree = parse_spark_statement(query)
    source, where = tree.args.get("from_") or tree.args.get("from"), tree.args.get("where")
    if type(tree).__name__ != "Select" or not has_only(tree, "expressions", "from", "from_", "where"):
        return None
    if [type(item).__name__ for item in tree.expressions] != ["Star"] or not has_only(tree.expressions[0]):
        return None
    if source is None or where is None or type(source.this).__name__ != "Table":
        return None
    table = source.this
    relation = {name.lower(): value for name, value in relations.items()}.get(table.name.lower())
    condition = expression_of_tree(where.this)
    if relation is None or condition is None or not has_only(table, "this"):
        return None
    names = {column.path[0].lower() for column in columns_of(condition) if len(column.path) > 1}
    if table.name.lower() in names:
        return None  # a column qualified by its relation
    resolved = resolve_expression(condition, relation.schema)
    if is_opaque(resolved):
        return None
    keep, schema = to_arrow_expression(resolved, relation.schema), relation.schema

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in relation.to_reader():
            yield from pa.Table.from_batches([batch]).filter(keep).to_batches()

    return LocalRelation(schema, batches)


def filter_relation(relation: LocalRelation, where: Expression, schema: StructType) -> LocalRelation:
    """The rows for which a resolved predicate is true, with the columns of `schema`.

    Raises UnsupportedExpressionError where the predicate's text is not proven to mean the same in DuckDB.
    """
    columns = ", ".join(qualified(_INPUT, name) for name in schema.names)
    source = quote_duckdb_identifier(_INPUT)
    sql = f"SELECT {columns} FROM {source} WHERE {predicate_sql(where, relation.schema, _INPUT)}"
    used = {*schema.names, *(column.path[0] for column in columns_of(where))}
    translated = TranslatedQuery(sql, schema, {_INPUT: QueryInput("rows", used)})
    return LocalRelation(schema, lambda: _run(translated, {"rows": relation}))


def violation_finder(condition: Expression, schema: StructType) -> Callable[[pa.RecordBatch], pa.Table]:
    """A function that returns rows of a batch for which a resolved condition is false or null.

    Raises UnsupportedExpressionError as `filter_relation`.
    """
    source = quote_duckdb_identifier(_INPUT)
    sql = f"SELECT * FROM {source} WHERE NOT coalesce({predicate_sql(condition, schema, _INPUT)}, FALSE) LIMIT 1"
    connection = connect()

    def find(batch: pa.RecordBatch) -> pa.Table:
        with _own_errors():
            connection.register(_INPUT, pa.Table.from_batches([batch]))
            return connection.sql(sql).to_arrow_table()

    return find


def connect() -> Any:
    """A DuckDB connection set up to answer as Spark does in UTC. Raises MissingDependencyError."""
    connection = import_duckdb().connect(
        ":memory:",
        config={
            "temp_directory": str(Path(tempfile.gettempdir()) / "delta-orch-duckdb"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class _Input:
    """A relation's rows on their way into DuckDB, which turns an error of ours into text: it is kept here."""

    def __init__(self, relation: LocalRelation) -> None:
        self.error: DeltaError | None = None
        self.reader = pa.RecordBatchReader.from_batches(schema_to_arrow(relation.schema), self._batches(relation))

    def _batches(self, relation: LocalRelation) -> Iterator[pa.RecordBatch]:
        try:
            yield from relation.to_reader()
        except DeltaError as e:
            self.error = e
            raise


def _run(query: TranslatedQuery, relations: Mapping[str, LocalRelation]) -> Iterator[pa.RecordBatch]:
    inputs = {label: narrowed(relations[used.relation], used.columns) for label, used in query.inputs.items()}
    native = {label: scan for label, relation in inputs.items() if (scan := native_input(relation)) is not None}
    has_begun = False
    try:
        for batch in _batches(query, inputs, native):
            yield batch
            has_begun = True
    except (InvalidExpressionError, StorageError) as e:
        if not native:
            raise
        # Perhaps the files and not the query: Arrow's reader tells one from the other, or knows the file's format.
        _LOG.info("Once more with Arrow reading the files: %s", e.cause)
        if not has_begun:
            yield from _batches(query, inputs, {})
            return
        for _ in _batches(query, inputs, {}):
            pass  # only to learn what is wrong
        raise TableError("A data file is not readable for DuckDB", cause=e.cause) from e


def _batches(
    query: TranslatedQuery, inputs: Mapping[str, LocalRelation], native: Mapping[str, NativeScan]
) -> Iterator[pa.RecordBatch]:
    connection = connect()
    streams: list[_Input] = []
    target = schema_to_arrow(query.schema)
    try:
        with _own_errors(streams):
            for label, relation in inputs.items():
                if label in native and relation.plan is not None:
                    rows = register_native(connection, native[label], relation.plan)
                    connection.execute(f"CREATE TEMP VIEW {quote_duckdb_identifier(label)} AS {rows}")
                    continue
                streams.append(_Input(relation))
                connection.register(label, streams[-1].reader)
            reader = connection.sql(query.sql).to_arrow_reader(BATCH_ROWS)
        while True:
            with _own_errors(streams):
                batch = next(reader, None)
            if batch is None:
                return
            yield conform_batch(batch, target, lossless=True)
    finally:
        connection.close()


def narrowed(relation: LocalRelation, columns: Collection[str]) -> LocalRelation:
    """The same rows with no more columns than a query uses, where leaving them out saves reading them."""
    plan = relation.plan
    if plan is None or len(columns) == len(relation.schema):
        return relation
    kept = [field for field in relation.schema if field.name in columns]
    # DuckDB counts rows by a column: the narrowest will do.
    kept = kept or [min(relation.schema, key=lambda field: _reading_cost(field, plan))]
    names = [field.name for field in kept]
    if plan.output is not None:
        output = tuple(column for column in plan.output if column.name in names)
        tops = tuple(dict.fromkeys(column.path[0] for column in output))
        return scan_relation(replace(plan, output=output, columns=tops))
    return scan_relation(replace(plan, columns=tuple(names)))


def _reading_cost(field: StructField, plan: ScanPlan) -> int:
    if field.name in plan.partition_columns:
        return 0
    narrow = isinstance(field.data_type, PrimitiveType) and field.data_type not in (STRING, BINARY)
    return 1 if narrow else 2


class _own_errors:
    """Turns DuckDB's errors into ours, and an error of ours that went through DuckDB back into itself."""

    def __init__(self, inputs: list[_Input] | None = None) -> None:
        self._inputs = [] if inputs is None else inputs

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        import duckdb

        for source in self._inputs:
            if error is not None and source.error is not None:
                raise source.error from None
        if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException):
            raise StorageError(
                "DuckDB could not finish the query", cause=str(error), remedy="Free disk space or memory"
            ) from error
        if isinstance(error, duckdb.Error | OSError | pa.ArrowException) and not isinstance(error, DeltaError):
            raise InvalidExpressionError("The query failed while it ran", cause=str(error).split("\n")[0]) from error
