"""The engine on Spark DataFrames, classic or Connect, without a jar."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.base import (
    ComputedColumn,
    Divided,
    Division,
    JoinKind,
    JoinSide,
    Measure,
    WindowColumn,
    WriteSpec,
    join_schema,
)
from delta_orch.engines.conform import conform_batch
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.engines.scan_plan import ScanPlan, ensure_distinct
from delta_orch.engines.spark.classic import BridgeUnavailable, ClassicHost, bridge_of
from delta_orch.engines.spark.divided import divided
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.frames import (
    is_connect,
    is_spark_frame,
    schema_of_rows,
    session_of,
    union_by_name,
    value_to_frame,
)
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, STREAM_SETTINGS, SparkHost
from delta_orch.engines.spark.in_tasks import with_variants
from delta_orch.engines.spark.portable import PortableHost
from delta_orch.engines.spark.requests import along_curve, evaluated, gather_bitmaps, row_set_query
from delta_orch.engines.spark.scan import ensure_zone_does_not_matter, scan_rows
from delta_orch.engines.spark.sql_text import bounded_sql, conformed_sql, escape_braces, joined_sql, schema_as_sent
from delta_orch.engines.spark.write import rewrite_files, write_rows
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Expression, Opaque
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.arrow_building import ensure_sound, schema_to_arrow
from delta_orch.protocol.schema_edit import type_at
from delta_orch.protocol.types import StructType, holds_variant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_orch.engines.space_curve import Curve
    from delta_orch.engines.spark.replanned import FollowedScan, LargeScan


logger = logging.getLogger(__name__)

_HOST_ATTRIBUTE = "_delta_orch_host"
_lock = threading.Lock()


class SparkEngine:
    """Runs verbs on a Spark session, classic or Connect, without a jar.

    A relation is a DataFrame of that session. The user's settings do not change. A classic session never has other
    values. A Connect session has its old values again when a call returns.

    Its objects in the JVM are created once for each session.

    Args:
        session: A pyspark `SparkSession`, or a DataFrame of it.

    Raises:
        InvalidRequestError: The value is not a Spark session.
    """

    name = "spark"

    def __init__(self, session: object) -> None:
        self.host: SparkHost = host_for(session_of(session))

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether the workers see this machine's directories. True in local mode, unless the session is remote."""
        session = self.host.session
        return not is_connect(session) and str(session.conf.get("spark.master", "")).startswith("local")

    def accepts(self, data: object) -> bool:
        """Whether the value is a Spark DataFrame, or a source of the local engine: Arrow tables and readers, pandas,
        Polars, …"""
        return is_spark_frame(data) or LocalEngine().accepts(data)

    def relation(self, data: object) -> DataFrame:
        """Return a user's value as a DataFrame of this engine's session.

        Raises:
            SchemaMismatchError: A column's type has no counterpart in Delta.
            InvalidRequestError: The value is of another kind, or a streaming DataFrame.
        """
        if not is_spark_frame(data):
            # createDataFrame activates its session, so it must be the user's own session.
            return value_to_frame(self.host.session, data)
        frame: DataFrame = data
        with spark_errors("read the rows", is_query=True):
            if frame.isStreaming:
                raise InvalidRequestError(
                    "A streaming DataFrame cannot be written by a batch verb",
                    remedy="Write inside foreachBatch, with txn=(query_id, batch_id)",
                )
            # A verb may read its rows twice.
            return self.host.settled(frame)

    def schema(self, relation: DataFrame) -> StructType:
        """Return the relation's schema.

        Raises SchemaMismatchError for a Spark type that rows do not have, e.g. an interval, or two columns of one name.
        """
        with spark_errors("analyse the data"):
            schema = relation.schema
        return schema_of_rows(schema)

    def scan(self, plan: ScanPlan) -> DataFrame:
        """Return the rows of a plan, lazily. See `Engine.scan`. `_metadata` works on the result.

        Raises:
            UnsupportedStoreError: Spark cannot reach the location of the table.
            MissingFileError: A file does not exist. Raised when rows are pulled, on Connect at once.
            UnsupportedExpressionError: `where` depends on the time zone of a Connect session, or the Arrow filter
                cannot be sent to workers.
            ProtocolViolationError: Row tracking columns are requested, but the log lacks their values. Raised when rows
                are read.
        """
        return scan_rows(self.host, plan)

    def follow(self, followed: FollowedScan) -> DataFrame:
        """Return the rows of the newest version at each query, lazily. The columns of the scan do not change.

        Raises as `scan`. UnsupportedError: The session is a Spark Connect session.
        """
        return self.host.follow(followed, scan_rows)

    def large_scan(self, large: LargeScan) -> DataFrame:
        """Return the rows of a scan of very many files, lazily. A classic session lists only the files that a query
        needs.

        Raises as `scan`.
        """
        return self.host.large_scan(large, scan_rows)

    def conform(self, relation: DataFrame, schema: StructType) -> DataFrame:
        """Return the rows with exactly these columns and types. See `Engine.conform`."""
        if holds_variant(schema):
            relation = with_variants(relation, schema)
        have = self.schema(relation)
        items = [
            f"{conformed_sql(have, field.name, field.data_type)} AS {quote_identifier(field.name)}" for field in schema
        ]
        with self._analysing():
            return self._analysed(self._pinned(relation).selectExpr(*items))

    def union(self, relations: Sequence[DataFrame]) -> DataFrame:
        """Return all rows of relations of one schema, matched by column name."""
        if not relations:
            raise InvalidRequestError("A union needs at least one relation")
        return union_by_name(relations)

    def filter(self, relation: DataFrame, where: Expression) -> DataFrame:
        """Return the rows for which `where` is true. See `Engine.filter`."""
        ensure_zone_does_not_matter(self.host, [where], lambda: self.schema(relation))
        with self._analysing():
            return self._analysed(self._pinned(relation).where(bounded_sql(where)))

    def project(self, relation: DataFrame, columns: Sequence[ComputedColumn]) -> DataFrame:
        """Return exactly these columns. See `Engine.project`."""
        items = _select_list(columns)
        ensure_zone_does_not_matter(self.host, [column.value for column in columns], lambda: self.schema(relation))
        with self._analysing():
            return self._analysed(self._pinned(relation).selectExpr(*items))

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> DataFrame:
        """Return the pairs of rows for which `on` is true. See `Engine.join` and `join.py`."""
        items = ", ".join(_select_list(columns))
        sides = {side.alias: side.relation for side in (left, right)}
        ensure_zone_does_not_matter(
            self.host,
            [on, *(column.value for column in columns)],
            lambda: join_schema({alias: self.schema(relation) for alias, relation in sides.items()}),
        )
        return self.sql(f"SELECT {items} FROM {joined_sql(left, right, on, kind)}", sides)

    def aggregate(self, relation: DataFrame, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> DataFrame:
        """Return one row for each group. See `Engine.aggregate`."""
        computed = [*keys, *(ComputedColumn(m.name, _measured(m)) for m in measures)]
        items = ", ".join(_select_list(computed))
        ensure_zone_does_not_matter(self.host, [column.value for column in computed], lambda: self.schema(relation))
        grouped = f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}" if keys else ""
        return self.sql(f"SELECT {items} FROM rows{grouped}", {"rows": relation})

    def window(
        self,
        relation: DataFrame,
        keys: Sequence[Column],
        order_by: Sequence[Column],
        columns: Sequence[WindowColumn],
    ) -> DataFrame:
        """Return all columns, and columns computed from the rows of the same group. See `Engine.window`."""
        groups = f"PARTITION BY {', '.join(map(bounded_sql, keys))} " if keys else ""
        order = ", ".join(f"{bounded_sql(column)} ASC NULLS FIRST" for column in order_by)
        values = ["" if column.value is None else bounded_sql(column.value) for column in columns]
        items = [
            f"{column.function}({value}) OVER ({groups}ORDER BY {order}) AS {quote_identifier(column.name)}"
            for column, value in zip(columns, values, strict=True)
        ]
        ensure_distinct([*self.schema(relation).names, *(column.name for column in columns)])
        with self._analysing():
            return self._analysed(self._pinned(relation).selectExpr("*", *items))

    def statement(self) -> AbstractContextManager[None]:
        return nullcontext()

    def evaluated(self, relation: DataFrame, *, repeats: bool = False) -> AbstractContextManager[DataFrame]:
        """Evaluate the rows once. The executors keep them. See `Engine.evaluated`."""
        return evaluated(self.host, relation)

    def divided(self, relation: DataFrame, division: Division) -> AbstractContextManager[Divided]:
        """Split rows in two, evaluated once. See `Engine.divided`."""
        return divided(self, relation, division)

    def row_sets(self, relation: DataFrame, kind: str, file_number: str, row_position: str) -> dict[RowKey, RowSet]:
        """Return the addressed rows of files. See `Engine.row_sets`."""
        query = row_set_query(kind, file_number, row_position)
        return gather_bitmaps(self.to_reader(self.sql(query, {"rows": relation})))

    def along_curve(
        self, relation: DataFrame, columns: Sequence[Column], curve: Curve, *, num_rows: int | None, num_files: int
    ) -> DataFrame:
        """Order all rows along a curve through some columns. See `Engine.along_curve`."""
        schema = self.schema(relation)
        typed = [(column.path, type_at(schema, column.path)) for column in columns]
        return self._analysed(along_curve(self._pinned(relation), typed, curve, num_rows, num_files))

    def select(self, query: str, relations: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of a query as a DataFrame. See `Engine.select`."""
        return self.sql(query, relations)

    def quoted(self, name: str) -> str:
        return quote_identifier(name)

    def sql(self, query: str, relations: Mapping[str, DataFrame], *, named: bool = True) -> DataFrame:
        """Run one Spark SQL query over named relations. Views of the session do not change.

        Raises InvalidExpressionError, ColumnNotFoundError: The query does not fit the relations.
        """
        frames = {f"relation_{i}": relation for i, relation in enumerate(relations.values())}
        # Common table expressions hide views of the session with the same name.
        tables = [
            f"{escape_braces(quote_identifier(name))} AS (SELECT * FROM {{{key}}})"
            for name, key in zip(relations, frames, strict=True)
        ]
        text = f"WITH {', '.join(tables)} (\n{escape_braces(query)}\n)" if tables else query
        with self._analysing():
            pinned = {key: self._pinned(relation) for key, relation in frames.items()}
            frame = self._analysed(self.host.pinned_session().sql(text, **pinned))
            return frame if named else frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))

    @contextmanager
    def _analysing(self) -> Iterator[None]:
        with spark_errors("run a query", is_analysis=True), self.host.settings(ANALYSIS_SETTINGS):
            yield

    def _pinned(self, relation: DataFrame) -> DataFrame:
        return self.host.pinned(relation, ANALYSIS_SETTINGS)

    def _analysed(self, pinned: DataFrame) -> DataFrame:
        return self.host.analysed(self.host.unpinned(pinned))

    def write(self, relation: DataFrame, spec: WriteSpec) -> pa.Table:
        """Write all rows as new data files. See `Engine.write`.

        Raises:
            ConstraintViolationError: A row breaks a check or NOT NULL.
            SchemaMismatchError: The rows do not have the table's columns.
            StorageError: For example, the disk is full. Files that were written by then belong to no commit.
            MissingFileError: The rows come from a table that lost a file.
        """
        return write_rows(self.host, relation, spec)

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Rewrite files without evaluating an expression. See `Engine.rewrite`."""
        return rewrite_files(self.host, plans, spec)

    def to_arrow(self, relation: DataFrame, limit: int | None = None) -> pa.Table:
        """Collect all rows, or any `limit` of them. Timestamps are in UTC, in microseconds.

        Raises:
            MissingFileError: A file of the log does not exist.
            SchemaMismatchError: A string is not UTF-8.
        """
        with spark_errors("read the rows", is_query=True), self.host.settings(ANALYSIS_SETTINGS):
            if limit is not None:
                relation = relation.limit(limit)
            schema = self.schema(relation)
            if holds_variant(schema) or not len(schema):
                # pyspark's own `toArrow` fails on variants under a null, and loses rows without columns.
                return self.to_reader(relation).read_all()
            # The session's time zone is only a label of Arrow's columns. The cast sets the label to UTC.
            rows = relation.toArrow().cast(schema_to_arrow(schema))
        ensure_sound(rows)
        return rows

    def to_reader(self, relation: DataFrame) -> pa.RecordBatchReader:
        """Return the rows as a stream. Classic Spark holds one partition at a time. Reading raises the errors of
        `to_arrow`."""
        schema = self.schema(relation)
        if not len(schema):
            # A batch without columns loses its number of rows in Spark.
            counted = self.to_reader(relation.selectExpr("true AS row"))
            return pa.RecordBatchReader.from_batches(pa.schema([]), (batch.select([]) for batch in counted))
        with spark_errors("read the rows", is_query=True):
            pinned = self.host.pinned(relation, STREAM_SETTINGS)
        sent, target = schema_as_sent(schema), schema_to_arrow(schema)
        settings = {**ANALYSIS_SETTINGS, **STREAM_SETTINGS}

        def batches() -> Iterator[pa.RecordBatch]:
            with spark_errors("read the rows", is_query=True), self.host.settings(settings):
                for batch in self.host.arrow_batches(pinned, sent):
                    ensure_sound(batch)
                    yield batch.cast(target) if sent.equals(target) else conform_batch(batch, target, lossless=True)

        return pa.RecordBatchReader.from_batches(target, batches())


def _select_list(columns: Sequence[ComputedColumn]) -> list[str]:
    """Raise InvalidRequestError if there is no column, or if two columns have the same name."""
    if not columns:
        raise InvalidRequestError("A request needs at least one column")
    ensure_distinct([column.name for column in columns])
    return [f"{bounded_sql(column.value)} AS {quote_identifier(column.name)}" for column in columns]


def _measured(measure: Measure) -> Expression:
    if measure.value is None and measure.function != "count":
        raise InvalidRequestError(f"{measure.function} of {measure.name} needs a value")
    value = measure.value
    text = "*" if value is None else bounded_sql(value)
    return Opaque(f"{measure.function}({text})", () if value is None else columns_of(value))


def host_for(session: SparkSession) -> SparkHost:
    """Return the host of a session. It is classic if the JVM bridge works, and portable otherwise.

    The host is stored on the session and lives as long as the session.
    """
    with _lock:
        host: SparkHost | None = getattr(session, _HOST_ATTRIBUTE, None)
        if host is None:
            host = _new_host(session)
            setattr(session, _HOST_ATTRIBUTE, host)
        return host


def _new_host(session: SparkSession) -> SparkHost:
    if is_connect(session):
        return PortableHost(session)
    try:
        return ClassicHost(session, bridge_of(session))
    except BridgeUnavailable as e:
        logger.warning(
            "The native scan and write are not available in this Spark session (%s). The portable ones are used", e
        )
        return PortableHost(session)
