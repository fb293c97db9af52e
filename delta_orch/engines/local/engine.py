"""The engine in process: Arrow for rows, DuckDB for queries, no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from delta_orch.engines.base import ScanPlan, WriteSpec
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


class LocalEngine:
    """`engines.base.Engine` on Arrow and DuckDB.

    For steps that fit one machine, and for tests. Rows stream in bounded memory; DuckDB is only started for a query
    that Arrow cannot answer. Queries outside what is proven to mean the same as in Spark raise
    UnsupportedExpressionError.
    """

    name = "local"

    def accepts(self, data: Any) -> bool:
        from delta_orch.engines.local.sources import accepts_value

        return accepts_value(data)

    def relation(self, data: Any) -> LocalRelation:
        """See `sources.relation_of` for what is taken and how."""
        from delta_orch.engines.local.sources import relation_of

        return relation_of(data)

    def schema(self, relation: LocalRelation) -> StructType:
        return relation.schema

    def scan(self, plan: ScanPlan) -> LocalRelation:
        from delta_orch.engines.local.scan import scan_relation

        return scan_relation(plan)

    def union(self, relations: Sequence[LocalRelation]) -> LocalRelation:
        if not relations:
            raise InvalidRequestError("A union needs at least one relation")
        if len(relations) == 1:
            return relations[0]
        return LocalRelation(
            relations[0].schema, lambda: chain.from_iterable(relation.to_reader() for relation in relations)
        )

    def sql(self, query: str, relations: Mapping[str, LocalRelation]) -> LocalRelation:
        from delta_orch.engines.local.duckdb_query import run_query

        return run_query(query, relations)

    def write(self, relation: LocalRelation, spec: WriteSpec) -> pa.Table:
        from delta_orch.engines.local.file_writer import add_table
        from delta_orch.engines.local.prefetch import thread_count
        from delta_orch.engines.local.write import DEFAULT_FILE_SIZE_BYTES, write_relation

        size = spec.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
        files = write_relation(relation, spec, file_size_bytes=size, threads=thread_count())
        return add_table(files, spec.partition_names)

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Each plan becomes one file a partition; larger ones are split only at `spec.target_file_size_bytes`."""
        from delta_orch.engines.local.file_writer import add_table
        from delta_orch.engines.local.prefetch import map_ahead
        from delta_orch.engines.local.write import write_relation

        def rewrite_one(plan: ScanPlan) -> Any:
            return write_relation(self.scan(plan), spec, file_size_bytes=spec.target_file_size_bytes, threads=1)

        files = chain.from_iterable(written for _, written in map_ahead(rewrite_one, plans))
        return add_table(list(files), spec.partition_names)

    def to_arrow(self, relation: LocalRelation) -> pa.Table:
        return relation.to_reader().read_all()

    def to_reader(self, relation: LocalRelation) -> pa.RecordBatchReader:
        return relation.to_reader()
