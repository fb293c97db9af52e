"""The latest state of each key that changed in a range of versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.engines.base import ComputedColumn, Engine, JoinSide, Measure, Relation, as_they_are
from delta_orch.engines.select import local_engine, spark_engine
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import free_name, resolve_column_names
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal, Opaque
from delta_orch.expressions.tree import conjunction
from delta_orch.protocol.types import LONG, STRING, StructType

if TYPE_CHECKING:
    import pyarrow as pa

_RANK = "_delta_orch_rank"
_IS_THERE = "_delta_orch_is_there"
# A version that removes and adds rows of a key leaves what it adds.
_RANK_SQL = "_commit_version * 2 + CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE 0 END"
_THERE_SQL = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE 0 END"


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """The last change of each key, as a source for a merge that brings another table up to date.

    A key that still exists gives its rows with `_change_type` `insert` or `update_postimage`: one row if keys are
    unique. A key that is gone gives one row with `_change_type` `delete`, its key columns, and nulls. A key that an
    update changed to another key is gone, too.

    Attributes:
        schema: The columns of the change feed.
        keys: The key columns, as the table spells them.
    """

    schema: StructType
    keys: tuple[str, ...]
    _rows: Callable[[Engine], Relation]

    def to_relation(self, engine: Engine) -> Relation:
        """The rows as a relation of any engine. Raises as `ChangeFeed.to_relation`."""
        names = self.schema.names
        rank, is_there = free_name(_RANK, names), free_name(_IS_THERE, names)
        mentioned = (Column(("_commit_version",)), Column(("_change_type",)))
        rows = engine.project(
            self._rows(engine),
            [
                *as_they_are(names),
                ComputedColumn(rank, Opaque(_RANK_SQL, mentioned)),
                ComputedColumn(is_there, Opaque(_THERE_SQL, mentioned[1:])),
            ],
        )
        keys = as_they_are(self.keys)
        last = engine.aggregate(rows, keys, [Measure(rank, "max", Column((rank,)))])
        same: list[Expression] = [Comparison("<=>", Column(("a", key)), Column(("b", key))) for key in self.keys]
        is_last = conjunction(*same, Comparison("=", Column(("a", rank)), Column(("b", rank))))
        taken = [ComputedColumn(name, Column(("a", name))) for name in (*names, is_there)]
        found = engine.join(JoinSide("a", rows), JoinSide("b", last), is_last, "semi", taken)
        there, gone = (
            engine.filter(found, Comparison("=", Column((is_there,)), Literal(number, LONG))) for number in (1, 0)
        )
        of_commit = [Measure(name, "max", Column((name,))) for name in ("_commit_version", "_commit_timestamp")]
        once = engine.aggregate(gone, keys, of_commit)
        told = as_they_are((*self.keys, *(m.name for m in of_commit)))
        deleted = engine.project(once, [*told, ComputedColumn("_change_type", Literal("delete", STRING))])
        return engine.union([engine.conform(there, self.schema), engine.conform(deleted, self.schema)])

    def to_arrow(self) -> pa.Table:
        """All rows in memory, columns of `schema`."""
        engine = local_engine()
        return engine.to_arrow(self.to_relation(engine))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        engine = local_engine()
        return engine.to_reader(self.to_relation(engine))

    def to_spark(self, spark: object) -> object:
        """The rows as a lazy Spark DataFrame."""
        return self.to_relation(spark_engine(spark))


def latest_changes(
    schema: StructType, table: StructType, keys: Sequence[str], rows: Callable[[Engine], Relation]
) -> LatestChanges:
    """See `ChangeFeed.latest`."""
    if not isinstance(keys, str) and not keys:
        raise InvalidRequestError("latest needs at least one key", remedy='Name its columns, such as keys=["id"]')
    return LatestChanges(schema, resolve_column_names(keys, table, "keys"), rows)
