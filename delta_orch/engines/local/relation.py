"""The local engine's relation: rows that can be streamed, not rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.base import Relation


@dataclass(frozen=True, slots=True)
class LocalRelation:
    """Rows of one schema, produced again at each request.

    Attributes:
        schema: In Delta's types.
        open_batches: Starts a pass over the rows; batches may have any Arrow types that `schema` was derived from.
            A relation over a stream allows one pass and raises InvalidRequestError at the second.
        plan: The scan the rows come from, where nothing was done to them since: a query may then read the files itself.
        parts: The relations whose rows these are, one after the other, where it is a union.
    """

    schema: StructType
    open_batches: Callable[[], Iterator[pa.RecordBatch]]
    plan: ScanPlan | None = None
    parts: tuple[LocalRelation, ...] = ()

    @classmethod
    def of(cls, relation: Relation) -> LocalRelation:
        """A relation of this engine. Raises InvalidRequestError for one of another engine."""
        if isinstance(relation, cls):
            return relation
        raise InvalidRequestError(
            f"The local engine does not take the relation {type(relation).__name__}",
            remedy="Make it with engine.relation(…) of the same engine",
        )

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows in the Arrow types of `schema`, as a stream of batches that are cut by bytes (`batch_bytes`)."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema_to_arrow(self.schema), self.batches())

    def batches(self, kept: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """The batches of `to_reader`. Texts of the columns `kept` stay in a dictionary where they come in one."""
        from delta_orch.engines.batch_bytes import BATCH_BYTES, cut_by_bytes, keeping_dictionaries, text_dictionaries

        plain = schema_to_arrow(self.schema)
        for batch in self.open_batches():
            if batch.schema.equals(plain) and batch.nbytes <= BATCH_BYTES:
                yield batch
                continue
            dictionaries = text_dictionaries(batch, kept) if kept else ()
            target = keeping_dictionaries(plain, batch.schema, dictionaries) if dictionaries else plain
            for rows in cut_by_bytes(batch, dictionaries):
                if rows.schema.equals(target):
                    yield rows
                    continue
                from delta_orch.engines.conform import conform_batch

                yield conform_batch(rows, target, lossless=True)
