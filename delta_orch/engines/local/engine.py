"""The engine in process: Arrow for rows, DuckDB for queries, no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import OutputColumn, ScanPlan, ensure_distinct
from delta_orch.errors import InvalidRequestError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.tree import columns_of, conjunction, conjuncts, is_opaque
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.base import (
        ComputedColumn,
        Divided,
        Division,
        JoinKind,
        JoinSide,
        Measure,
        Relation,
        WindowColumn,
        WriteSpec,
    )
    from delta_orch.engines.footer_statistics import ColumnPath
    from delta_orch.engines.local.file_writer import WrittenFile
    from delta_orch.engines.row_sets import RowKey, RowSet
    from delta_orch.engines.space_curve import Curve


class LocalEngine:
    """`engines.base.Engine` on Arrow and DuckDB.

    For steps that fit one machine, and for tests. Rows stream in bounded memory; DuckDB is only started for a request
    that Arrow cannot answer. Expressions outside what is proven to mean the same as in Spark raise
    UnsupportedExpressionError. A user's query is DuckDB's own SQL.
    """

    name = "local"

    def accepts(self, data: object) -> bool:
        from delta_orch.engines.local.sources import accepts_value

        return accepts_value(data)

    def relation(self, data: object) -> LocalRelation:
        """See `sources.relation_of` for the accepted sources."""
        from delta_orch.engines.local.sources import relation_of

        return relation_of(data)

    def schema(self, relation: Relation) -> StructType:
        return LocalRelation.of(relation).schema

    def scan(self, plan: ScanPlan) -> LocalRelation:
        needs_duckdb = plan.where is not None and is_opaque(plan.where)
        if plan.output is None and not needs_duckdb:
            return LocalRelation(plan.read_schema, partial(_batches_of, plan), plan)
        from delta_orch.engines.local.scan import output_relation, scan_relation

        if not needs_duckdb:
            return scan_relation(plan)
        from delta_orch.engines.local.duckdb_requests import filtered

        opaque = [part for part in conjuncts(plan.where) if is_opaque(part)]
        plain = [part for part in conjuncts(plan.where) if not is_opaque(part)]
        schema, condition = plan.read_schema, conjunction(*opaque)
        used = {*schema.names, *(column.path[0] for column in columns_of(condition))}
        columns = tuple(name for name in plan.schema.names if name in used)
        inner = replace(plan, columns=columns, where=conjunction(*plain) if plain else None, output=None)
        rows = filtered(scan_relation(inner), condition, schema)
        return rows if plan.output is None else output_relation(rows, plan.output)

    def filter(self, relation: Relation, where: Expression) -> LocalRelation:
        if is_opaque(where):
            from delta_orch.engines.local.duckdb_requests import filtered

            return filtered(LocalRelation.of(relation), where, relation.schema)
        relation = LocalRelation.of(relation)
        plan = relation.plan
        if plan is not None and plan.output is None:
            return self.scan(replace(plan, where=conjunction(plan.where, where)))
        from delta_orch.expressions.to_arrow import arrow_predicate

        keep = arrow_predicate(where, relation.schema)
        used = {column.path[0] for column in columns_of(where)}
        passed_on = [name for name in relation.schema.names if name not in used]
        batches = partial(relation.batches, passed_on)
        return LocalRelation(relation.schema, lambda: (pc.filter(batch, keep(batch)) for batch in batches()))

    def project(self, relation: Relation, columns: Sequence[ComputedColumn]) -> LocalRelation:
        from delta_orch.engines.local.scan import output_relation

        relation = LocalRelation.of(relation)
        if all(isinstance(column.value, Column) for column in columns):
            return output_relation(relation, _output(columns, relation.schema))
        if relation.plan is None or relation.plan.made_columns:
            # DuckDB would not read the files itself: only what is computed goes through it.
            from delta_orch.engines.local.projection import projected_batches

            return projected_batches(relation, columns)
        from delta_orch.engines.local.duckdb_requests import projected

        return projected(relation, columns)

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> LocalRelation:
        from delta_orch.engines.local.duckdb_requests import joined

        return joined(left, right, on, kind, columns)

    def conform(self, relation: Relation, schema: StructType) -> LocalRelation:
        relation = LocalRelation.of(relation)
        return relation if relation.schema == schema else LocalRelation(schema, lambda: iter(relation.to_reader()))

    def union(self, relations: Sequence[Relation]) -> LocalRelation:
        if not relations:
            raise InvalidRequestError("A union needs at least one relation")
        parts = tuple(map(LocalRelation.of, relations))
        if len(parts) == 1:
            return parts[0]
        return LocalRelation(
            parts[0].schema,
            lambda: chain.from_iterable(part.batches(part.schema.names) for part in parts),
            parts=parts,
        )

    def aggregate(
        self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]
    ) -> LocalRelation:
        from delta_orch.engines.local.duckdb_requests import aggregated

        return aggregated(LocalRelation.of(relation), keys, measures)

    def window(
        self,
        relation: Relation,
        keys: Sequence[Column],
        order_by: Sequence[Column],
        columns: Sequence[WindowColumn],
    ) -> LocalRelation:
        from delta_orch.engines.local.duckdb_requests import windowed

        return windowed(LocalRelation.of(relation), keys, order_by, columns)

    def statement(self) -> AbstractContextManager[None]:
        from delta_orch.engines.local.duckdb_query import databases_kept

        return databases_kept()

    def evaluated(self, relation: Relation, *, repeats: bool = False) -> AbstractContextManager[LocalRelation]:
        from delta_orch.engines.local.spool import spooled

        return spooled(LocalRelation.of(relation), repeats=repeats)

    def divided(self, relation: Relation, division: Division) -> AbstractContextManager[Divided]:
        from delta_orch.engines.local.divided import divided

        return divided(LocalRelation.of(relation), division)

    def row_sets(self, relation: Relation, kind: str, file_number: str, row_position: str) -> dict[RowKey, RowSet]:
        from delta_orch.engines.base import as_they_are
        from delta_orch.engines.row_sets import gather_row_sets

        rows = self.project(relation, as_they_are((kind, file_number, row_position)))
        return gather_row_sets(rows.to_reader(), kind, file_number, row_position)

    def along_curve(
        self, relation: Relation, columns: Sequence[Column], curve: Curve, *, num_rows: int | None, num_files: int
    ) -> LocalRelation:
        from delta_orch.engines.local.curve_order import along_curve

        return along_curve(LocalRelation.of(relation), [column.path for column in columns], curve, num_rows, num_files)

    def select(self, query: str, relations: Mapping[str, Relation]) -> pa.Table:
        from delta_orch.engines.local.user_query import open_query

        return open_query(query, _own(relations)).read_all().replace_schema_metadata()

    def sql(self, query: str, relations: Mapping[str, Relation], *, named: bool = True) -> LocalRelation:
        from delta_orch.engines.local.user_query import queried

        return queried(query, _own(relations), named=named)

    def quoted(self, name: str) -> str:
        from delta_orch.expressions.to_sql import quote_duckdb_identifier

        return quote_duckdb_identifier(name)

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
        from delta_orch.engines.local.file_writer import add_table
        from delta_orch.engines.local.write import may_be_shared, write_relation, write_shared

        size = spec.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
        relation = LocalRelation.of(relation)
        # Rows of another part would only wait beside those that the threads share.
        is_shared = bool(relation.parts) and any(may_be_shared(part, spec) for part in relation.parts)
        parts = relation.parts if is_shared else (relation,)
        files: list[WrittenFile] = []
        for part in parts:
            if part.plan is not None and may_be_shared(part, spec):
                files += write_shared(part.plan, spec, file_size_bytes=size)
            else:
                files += write_relation(part, spec, file_size_bytes=size, threads=1 if spec.keeps_order else None)
        return add_table(files, spec.partition_names)

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Each plan becomes one file a partition; larger ones are split only at `spec.target_file_size_bytes`."""
        from delta_orch.engines.local.file_writer import LateNanError, add_table
        from delta_orch.engines.local.write import write_relation
        from delta_orch.storage.prefetch import FAR_THREADS, FAR_WAIT_BYTES, map_ahead

        def rewrite_one(plan: ScanPlan) -> list[WrittenFile]:
            size = spec.target_file_size_bytes
            with_nan: tuple[ColumnPath, ...] = ()
            while True:
                try:
                    # Compaction would not come to an end if a file were split again each time.
                    return write_relation(self.scan(plan), spec, file_size_bytes=size, threads=1, with_nan=with_nan)
                except LateNanError as e:
                    # Twice at most: the second time, no float gets bounds.
                    with_nan = e.floats if with_nan else e.leaves

        is_small = all(FileTable(plan.files).size_bytes < FAR_WAIT_BYTES for plan in plans)
        is_waiting = is_small and not spec.store.is_near
        threads = FAR_THREADS if is_waiting else None
        files = chain.from_iterable(map_ahead(rewrite_one, plans, threads))
        return add_table(list(files), spec.partition_names)

    def to_arrow(self, relation: Relation, limit: int | None = None) -> pa.Table:
        reader = self.to_reader(relation)
        if limit is None:
            return reader.read_all()
        import pyarrow as pa

        batches, num_rows = [], 0
        while num_rows < limit and (batch := next(reader, None)) is not None:
            batches.append(batch)
            num_rows += batch.num_rows
        return pa.Table.from_batches(batches, reader.schema).slice(0, limit)

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        return LocalRelation.of(relation).to_reader()


def _own(relations: Mapping[str, Relation]) -> dict[str, LocalRelation]:
    return {name: LocalRelation.of(relation) for name, relation in relations.items()}


def _batches_of(plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    from delta_orch.engines.local.scan import read_batches

    return read_batches(plan)


def _output(columns: Sequence[ComputedColumn], schema: StructType) -> list[OutputColumn]:
    ensure_distinct([column.name for column in columns])
    fields = [(c.name, *find_column(c.value.path, schema)) for c in columns if isinstance(c.value, Column)]
    for name, _, data_type in fields:
        if data_type is None:
            raise UnsupportedExpressionError(
                f"The column {name} comes from inside an array or a map", remedy="Project the whole column"
            )
    return [OutputColumn(name, path) for name, path, _ in fields]
