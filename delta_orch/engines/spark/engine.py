"""The engine on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_orch.engines.base import ComputedColumn, JoinKind, JoinSide, Measure, Relation, ScanPlan, WriteSpec
from delta_orch.engines.spark.arrow_filter import arrow_filtered
from delta_orch.engines.spark.collect import collect_arrow, stream_arrow
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.file_names import scans_by_name
from delta_orch.engines.spark.host import SparkHost, host_for, is_connect, session_of
from delta_orch.engines.spark.live_rows import live_rows
from delta_orch.engines.spark.rewrite import rewrite_files
from delta_orch.engines.spark.scan_files import output_column_sql, prepare_scan, table_columns
from delta_orch.engines.spark.session_zone import ensure_zone_does_not_matter
from delta_orch.engines.spark.settings import ANALYSIS_SETTINGS
from delta_orch.engines.spark.sql_text import escape_braces
from delta_orch.engines.spark.values import is_arrow_like, is_spark_frame, value_to_frame
from delta_orch.engines.spark.write import write_rows
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    from delta_orch.engines.base import Engine


class SparkEngine:
    """Runs verbs on a Spark session, classic or Connect, without a jar.

    A relation is a DataFrame of that session. The session's settings are the user's: classic sessions never see
    another value, Connect sessions have theirs back when a call returns.

    Args:
        session: A pyspark `SparkSession`.
    """

    name = "spark"

    def __init__(self, session: Any) -> None:
        self.host: SparkHost = host_for(session_of(session))

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether its workers see this machine's directories: in local mode, and no session elsewhere."""
        session = self.host.session
        return not is_connect(session) and str(session.conf.get("spark.master", "")).startswith("local")

    def accepts(self, data: Any) -> bool:
        """Spark DataFrames, and what Arrow can take over: Arrow tables and readers, pandas, Polars."""
        return is_spark_frame(data) or is_arrow_like(data)

    def relation(self, data: Any) -> Relation:
        """A user's value as a DataFrame of this engine's session.

        Raises:
            SchemaMismatchError: A column's type has no counterpart in Delta.
            InvalidRequestError: A value of another kind, or a streaming DataFrame.
        """
        if not is_spark_frame(data):
            # createDataFrame makes its session the active one, so it has to be the user's own.
            return value_to_frame(self.host.session, data)
        if data.isStreaming:
            raise InvalidRequestError(
                "A streaming DataFrame cannot be written by a batch verb",
                remedy="Write inside foreachBatch, with a txn made of the query's id and the batch id",
            )
        return data

    def schema(self, relation: Relation) -> StructType:
        """The relation's schema.

        Raises UnsupportedFeatureError for a Spark type that Delta does not have, e.g. an interval.
        """
        with spark_errors("analyse the data"):
            return parse_schema(relation.schema.json())

    def scan(self, plan: ScanPlan) -> Relation:
        """The rows of a plan, lazily; see `Engine.scan`. `_metadata` works on the result.

        Raises:
            UnsupportedStoreError: The table lives where Spark cannot reach it.
            MissingFileError: A file is not there (when rows are pulled, on Connect at once).
            UnsupportedExpressionError: `where` would mean something else in the time zone of a Connect session, or the
                Arrow filter cannot be sent to workers.
            ProtocolViolationError: Row tracking is asked for, and the log lacks what it takes (when rows are pulled).
        """
        names = plan.schema.names if plan.columns is None else plan.columns
        fields = [plan.schema.find(name) for name in names]
        missing = [name for name, f in zip(names, fields, strict=True) if f is None]
        if missing:
            raise ColumnNotFoundError(
                f"The table has no column {missing[0]}",
                remedy=f"Its columns are {', '.join(plan.schema.names)}",
                columns=missing,
            )
        with spark_errors(f"read {plan.store.uri}", is_analysis=True):
            parts = [
                self._live_rows(part, names).selectExpr(*table_columns(part, names))
                for part, names in scans_by_name(plan)
            ]
            rows = self.union(parts)
            if plan.where is not None:
                ensure_zone_does_not_matter(self.host, plan.where, plan.schema)
                rows = self.host.pinned(rows, ANALYSIS_SETTINGS).where(to_spark_sql(plan.where))
                rows = self.host.unpinned(rows)
            if plan.arrow_filter is not None:
                rows = arrow_filtered(rows, plan.arrow_filter, plan.schema)
            columns = [quote_identifier(f.name) for f in fields if f is not None]
            if plan.output is not None:
                columns = [output_column_sql(column) for column in plan.output]
            return self.host.analysed(rows.selectExpr(*columns))

    def _live_rows(self, plan: ScanPlan, names: StructType) -> Relation:
        """The rows under the names files have, positioned under row tracking. Only files with a deletion vector pay
        for it."""
        tracked = plan.row_tracking is not None
        vectors = plan.files.column("deletion_vector") if "deletion_vector" in plan.files.column_names else None
        if vectors is None or vectors.null_count == len(vectors):
            return self.host.scan_files(prepare_scan(plan, names), positioned=tracked)
        marked = replace(plan, files=plan.files.filter(vectors.is_valid()))
        whole = replace(plan, files=plan.files.filter(vectors.is_null()))
        positioned = self.host.scan_files(prepare_scan(marked, names, numbered=True), positioned=True)
        rows = live_rows(self.host.session, positioned, plan.store, marked.files, keep_position=tracked)
        if not whole.files.num_rows:
            return rows
        return rows.unionByName(self.host.scan_files(prepare_scan(whole, names), positioned=tracked))

    def union(self, relations: Sequence[Relation]) -> Relation:
        """All rows of relations of one schema, matched by column name."""
        if not relations:
            raise InvalidRequestError("A union needs at least one relation")
        pending = list(relations)
        # Pairwise, so that the plan stays flat enough for the analyser.
        while len(pending) > 1:
            pairs = [pending[i : i + 2] for i in range(0, len(pending), 2)]
            pending = [pair[0].unionByName(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
        return pending[0]

    def filter(self, relation: Relation, where: Expression) -> Relation:
        """The rows for which `where` is true; see `Engine.filter`."""
        return self.sql(f"SELECT * FROM rows WHERE {to_spark_sql(where)}", {"rows": relation})

    def project(self, relation: Relation, columns: Sequence[ComputedColumn]) -> Relation:
        """Exactly these columns; see `Engine.project`."""
        return self.sql(f"SELECT {_select_list(columns)} FROM rows", {"rows": relation})

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> Relation:
        """The pairs of rows for which `on` is true; see `Engine.join`."""
        condition = to_spark_sql(on)
        names = [quote_identifier(side.alias) for side in (left, right)]
        text = f"SELECT {_select_list(columns)} FROM {names[0]} {kind.upper()} JOIN {names[1]} ON {condition}"
        return self.sql(text, {left.alias: left.relation, right.alias: right.relation})

    def aggregate(self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> Relation:
        """One row for each group; see `Engine.aggregate`."""
        measured = (
            f"{m.function}({'*' if m.value is None else to_spark_sql(m.value)}) AS {quote_identifier(m.name)}"
            for m in measures
        )
        listed = ", ".join([*([_select_list(keys)] if keys else []), *measured])
        grouped = f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}" if keys else ""
        return self.sql(f"SELECT {listed} FROM rows{grouped}", {"rows": relation})

    def sql(self, query: str, relations: Mapping[str, Relation]) -> Relation:
        """Run one Spark SQL query over named relations; views of the session stay as they are.

        Raises InvalidExpressionError, ColumnNotFoundError: The query does not fit the relations.
        """
        frames = {f"relation_{i}": relation for i, relation in enumerate(relations.values())}
        # Common table expressions shadow whatever view the session has under the same name.
        tables = [
            f"{escape_braces(quote_identifier(name))} AS (SELECT * FROM {{{key}}})"
            for name, key in zip(relations, frames, strict=True)
        ]
        text = f"WITH {', '.join(tables)} (\n{escape_braces(query)}\n)" if tables else query
        with spark_errors("run a query", is_analysis=True):
            pinned = {key: self.host.pinned(relation, ANALYSIS_SETTINGS) for key, relation in frames.items()}
            return self.host.analysed(self.host.unpinned(self.host.pinned_session().sql(text, **pinned)))

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """Write all rows as new data files; see `Engine.write`.

        Raises:
            ConstraintViolationError: A row breaks a check or NOT NULL.
            SchemaMismatchError: The rows do not have the table's columns.
            StorageError: E.g. a full disk. Files written so far are orphans that no commit names.
            MissingFileError: The rows come from a table one of whose files is gone.
        """
        return write_rows(self.host, relation, spec)

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Rewrite files without evaluating an expression; see `Engine.rewrite`."""
        return rewrite_files(self.host, plans, spec)

    def to_arrow(self, relation: Relation, limit: int | None = None) -> pa.Table:
        """Collect all rows, or any `limit` of them. Timestamps in UTC at microseconds.

        Raises MissingFileError: A file the log names is not there.
        """
        return collect_arrow(self.host, relation if limit is None else relation.limit(limit))

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        """The rows as a stream; classic Spark holds one partition at a time. Errors as `to_arrow`, while reading."""
        return stream_arrow(self.host, relation)


def _select_list(columns: Sequence[ComputedColumn]) -> str:
    return ", ".join(f"{to_spark_sql(column.value)} AS {quote_identifier(column.name)}" for column in columns)


def spark_engine_for(value: Any) -> Engine:
    """The engine on the session of a DataFrame, or on a session; what it needs of the JVM is made once a session."""
    return SparkEngine(session_of(value))
