"""Dry runs: everything a write does, but into a directory that is gone when it returns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.engines.base import ComputedColumn, Engine, JoinKind, JoinSide, Measure, Relation, WriteSpec
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.select import local_engine
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.protocol.types import StructType
from delta_orch.storage.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.row_sets import RowKey, RowSet
    from delta_orch.engines.space_curve import Curve


class RehearsalEngine:
    """An engine whose writes leave no file: rows are cast, checked, encoded and measured in a temporary directory of
    this machine, and what the log would say of the files is all that stays.

    Rows of an engine that runs elsewhere come here for it, as a stream; the files are then those the local engine
    would write, which may be fewer or more.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name

    def accepts(self, data: object) -> bool:
        return self._engine.accepts(data)

    def relation(self, data: object) -> Relation:
        return self._engine.relation(data)

    def schema(self, relation: Relation) -> StructType:
        return self._engine.schema(relation)

    def scan(self, plan: ScanPlan) -> Relation:
        return self._engine.scan(plan)

    def filter(self, relation: Relation, where: Expression) -> Relation:
        return self._engine.filter(relation, where)

    def project(self, relation: Relation, columns: Sequence[ComputedColumn]) -> Relation:
        return self._engine.project(relation, columns)

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> Relation:
        return self._engine.join(left, right, on, kind, columns)

    def aggregate(self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> Relation:
        return self._engine.aggregate(relation, keys, measures)

    def conform(self, relation: Relation, schema: StructType) -> Relation:
        return self._engine.conform(relation, schema)

    def union(self, relations: Sequence[Relation]) -> Relation:
        return self._engine.union(relations)

    def statement(self) -> AbstractContextManager[None]:
        return self._engine.statement()

    def evaluated(self, relation: Relation) -> AbstractContextManager[Relation]:
        return self._engine.evaluated(relation)

    def row_sets(self, relation: Relation, kind: str, file_number: str, row_position: str) -> dict[RowKey, RowSet]:
        return self._engine.row_sets(relation, kind, file_number, row_position)

    def along_curve(
        self, relation: Relation, columns: Sequence[Column], curve: Curve, *, num_rows: int | None, num_files: int
    ) -> Relation:
        return self._engine.along_curve(relation, columns, curve, num_rows=num_rows, num_files=num_files)

    def sql(self, query: str, relations: Mapping[str, Relation], *, named: bool = True) -> Relation:
        return self._engine.sql(query, relations, named=named)

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """See `Engine.write`; the files named do not exist any more."""
        if _runs_here(self._engine):
            return _in_scratch(spec, lambda scratch: self._engine.write(relation, scratch))
        local = local_engine()
        rows = local.relation(self._engine.to_reader(relation))
        return _in_scratch(spec, lambda scratch: local.write(rows, scratch))

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """See `Engine.rewrite`; the files named do not exist any more."""
        engine = self._engine if _runs_here(self._engine) else local_engine()
        return _in_scratch(spec, lambda scratch: engine.rewrite(plans, scratch))

    def to_arrow(self, relation: Relation, limit: int | None = None) -> pa.Table:
        return self._engine.to_arrow(relation, limit)

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        return self._engine.to_reader(relation)


def _runs_here(engine: Engine) -> bool:
    """Whether what the engine writes into a directory of this machine can be found there afterwards."""
    return engine.name == "local" or bool(getattr(engine, "runs_on_this_machine", False))


def _in_scratch(spec: WriteSpec, write: Callable[[WriteSpec], pa.Table]) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="delta-orch-dry-run-") as directory:
        return write(replace(spec, store=open_store(directory)))
