"""Running queries in DuckDB, streams in and streams out. Every query has a database of its own while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from delta_orch.engines.batch_bytes import cut_by_bytes, keeping_dictionaries, of_types
from delta_orch.engines.conform import conform_batch
from delta_orch.engines.local.duckdb_files import NativeScan
from delta_orch.engines.local.duckdb_input import native_input, readable, register_native
from delta_orch.engines.local.duckdb_session import EXPRESSION_REMEDY, QUERY_REMEDY, confine, connect, duckdb_errors
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.scan import scan_relation
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import DeltaError, InvalidExpressionError, StorageError, TableError
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import BINARY, STRING, DataType, DecimalType, PrimitiveType, StructField, StructType

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_LOG = logging.getLogger(__name__)
_idle: ContextVar[list[Connection] | None] = ContextVar("databases without a query", default=None)
BATCH_ROWS = 131_072
_WIDE_ROWS = 2_048
"""In a batch of a result that has text or nested columns: only DuckDB knows how long they are."""
TYPES = b"DuckDB's types"
"""Metadata of a user's result: the types of its columns, one a line."""
BATCH = "batch"
"""The table name in the query of `on_batches`."""


@dataclass(frozen=True, slots=True)
class QueryInput:
    """One mention of a relation in a query, with the top-level columns it uses there. A stream serves one mention, and
    is kept in a table of DuckDB's where that one may be read again and again."""

    relation: LocalRelation
    columns: set[str] = field(default_factory=set)
    is_read_often: bool = False


class DuckDBQuery(NamedTuple):
    """A query for DuckDB.

    Attributes:
        schema: What it returns; None of a user's query, whose batches have DuckDB's types.
        inputs: Where relations are read, by DuckDB's name of the place.
        keeps_sides: It is a join whose right side DuckDB is to hold. The size of a stream is unknown, so either side
            may be chosen.
    """

    sql: str
    schema: StructType | None
    inputs: Mapping[str, QueryInput]
    keeps_sides: bool = False


def query_relation(query: DuckDBQuery) -> LocalRelation:
    """The rows of a query. It runs at each request.

    While it runs it raises InvalidExpressionError for what Spark refuses then, too: overflow, division by zero.
    """
    assert query.schema is not None
    return LocalRelation(query.schema, lambda: run_query(query))


def on_batches(sql: str, problem: str = "The query failed while it ran") -> Callable[[pa.RecordBatch], pa.Table]:
    """A query to run over one batch after the other, called `BATCH` in it. `problem` is what its errors say."""
    connection = connect()

    def run(batch: pa.RecordBatch) -> pa.Table:
        with duckdb_errors(problem):
            connection.register(BATCH, pa.Table.from_batches([readable(batch)]))
            return connection.sql(sql).to_arrow_table()

    return run


def rows_together(types: Iterable[DataType]) -> int:
    """How many rows of these types DuckDB may hand over at once, before anybody knows how long they are."""
    is_narrow = all(isinstance(t, PrimitiveType | DecimalType) and t not in (STRING, BINARY) for t in types)
    return BATCH_ROWS if is_narrow else _WIDE_ROWS


class _Input:
    """A relation's rows on their way into DuckDB, which turns an error of ours into text: it is kept here."""

    def __init__(self, relation: LocalRelation) -> None:
        self.error: DeltaError | KeyboardInterrupt | None = None
        names = relation.schema.names
        batches = relation.batches(names)
        # A stream has one schema: texts are in dictionaries where they are in those of the first batch.
        first = list(islice(batches, 1))
        schema = schema_to_arrow(relation.schema)
        schema = keeping_dictionaries(schema, first[0].schema) if first else schema
        self.reader = pa.RecordBatchReader.from_batches(schema, self._batches(chain(first, batches), schema))

    def _batches(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield from map(readable, of_types(batch, schema))
        except (DeltaError, KeyboardInterrupt) as e:
            self.error = e
            raise


def run_query(query: DuckDBQuery, connection: Connection | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a query. The first batch of a user's has none, and tells the columns.

    Args:
        connection: To run it on, which is closed then; None for one of its own.
    """
    inputs = {label: narrowed(used.relation, used.columns) for label, used in query.inputs.items()}
    native = {label: scan for label, relation in inputs.items() if (scan := native_input(relation)) is not None}
    has_begun = False
    try:
        for batch in _batches(query, inputs, native, connection):
            yield batch
            has_begun |= batch.num_rows > 0
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
    query: DuckDBQuery,
    inputs: Mapping[str, LocalRelation],
    native: Mapping[str, NativeScan],
    connection: Connection | None = None,
) -> Iterator[pa.RecordBatch]:
    streams: list[_Input] = []
    with _connected(query) if connection is None else closing(connection) as connection:
        with _errors_of(streams, query):
            if query.keeps_sides:
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
            if query.schema is None:
                confine(connection, [inputs[label].plan for label in native])
            for label, relation in inputs.items():
                if label in native and relation.plan is not None:
                    rows = register_native(connection, native[label], relation.plan)
                    connection.execute(f"CREATE TEMP VIEW {quote_duckdb_identifier(label)} AS {rows}")
                    continue
                streams.append(_Input(relation))
                if query.inputs[label].is_read_often:
                    connection.register("stream", streams[-1].reader)
                    kept = quote_duckdb_identifier(label)
                    connection.execute(f"CREATE OR REPLACE TEMP TABLE {kept} AS SELECT * FROM stream")
                    connection.unregister("stream")
                    continue
                connection.register(label, streams[-1].reader)
            relation_of_query = connection.sql(query.sql)
            kinds_of_columns = () if query.schema is None else (field.data_type for field in query.schema)
            together = _WIDE_ROWS if query.schema is None else rows_together(kinds_of_columns)
            reader = relation_of_query.to_arrow_reader(together)
        if query.schema is None:
            kinds = "\n".join(map(str, relation_of_query.types))
            yield pa.RecordBatch.from_pylist([], reader.schema.with_metadata({TYPES: kinds}))
        target = reader.schema if query.schema is None else schema_to_arrow(query.schema)
        while True:
            with _errors_of(streams, query):
                batch = next(reader, None)
            if batch is None:
                return
            for rows in cut_by_bytes(batch):
                yield rows if query.schema is None else conform_batch(rows, target, lossless=True)


@contextmanager
def databases_kept() -> Iterator[None]:
    """Inside it, a query takes the database of one that has ended: to make one costs more than most queries. Where
    the block ends they are gone; threads of a database that stays would not survive a fork."""
    idle: list[Connection] = []
    outer = _idle.set(idle)
    try:
        yield
    finally:
        _idle.reset(outer)
        for database in idle:
            database.close()


@contextmanager
def _connected(query: DuckDBQuery) -> Iterator[Connection]:
    """A connection to a database that no other query uses at the same time, and after an error none ever does. After a
    user's query none does, either."""
    idle = _idle.get() if query.schema is not None else None
    database = idle.pop() if idle else connect()
    if idle is None:
        try:
            yield database
        finally:
            database.close()
        return
    try:
        # Relations that a query registers end with its connection.
        with database.cursor() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        database.execute("RESET disabled_optimizers")
    except BaseException:
        database.close()
        raise
    idle.append(database)


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


@contextmanager
def _errors_of(inputs: list[_Input], query: DuckDBQuery) -> Iterator[None]:
    """As `duckdb_errors`. An error of this package that passed through DuckDB is restored."""
    with duckdb_errors(remedy=EXPRESSION_REMEDY if query.schema is not None else QUERY_REMEDY):
        try:
            yield
        except Exception:
            for source in inputs:
                if source.error is not None:
                    raise source.error from None
            raise
