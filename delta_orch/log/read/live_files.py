"""The files of a snapshot: those of its checkpoint that count, and those of the commits after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import ColumnNotFoundError
from delta_orch.log.files.file_columns import ADD_SCHEMA, REMOVE_SCHEMA, FileTable
from delta_orch.log.read.checkpoint_files import CheckpointFileActions
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.checkpoint_stream import iter_live
from delta_orch.log.read.replay import Tail

if TYPE_CHECKING:
    from delta_orch.log.read.skipping.pruning import Pruning


class LiveFiles:
    """The live files and the tombstones of one version. What is decoded of the checkpoint is kept and shared.

    Args:
        older: The files of an older version on the same checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint | None, tail: Tail, older: LiveFiles | None) -> None:
        self._checkpoint = checkpoint
        self._tail = tail
        self._older = older

    @property
    def num_adds(self) -> int:
        """Number of live files."""
        adds = self._checkpoint_adds
        return int(self._tail.adds.num_rows) + (0 if adds is None else adds.num_rows)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of the live files."""
        return int(pc.sum(FileTable(self.adds(["size"])).size).as_py() or 0)

    def adds(self, columns: Sequence[str] | None = None, pruning: Pruning | None = None) -> pa.Table:
        """The live files. See `Snapshot.files`."""
        base, tail = self._checkpoint_adds, self._tail.adds
        if pruning is not None:
            base, tail = base and pruning.of_checkpoint(base), pruning.of_table(tail)
        return _table(base, tail, ADD_SCHEMA, columns)

    def tombstones(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The removed files. See `Snapshot.tombstones`."""
        return _table(self._checkpoint_removes, self._tail.tombstones, REMOVE_SCHEMA, columns)

    def iter_adds(self) -> Iterator[pa.Table]:
        """As `adds`, in pieces; nothing of a piece is kept."""
        if self._checkpoint is not None:
            yield from iter_live(self._checkpoint, "add", ADD_SCHEMA.names, self._tail.touched)
        yield self._tail.adds

    def iter_tombstones(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """As `tombstones`, in pieces; nothing of a piece is kept."""
        if self._checkpoint is not None:
            yield from iter_live(self._checkpoint, "remove", columns, self._tail.touched)
        yield self._tail.tombstones.select(list(columns))

    @cached_property
    def _checkpoint_adds(self) -> CheckpointFileActions | None:
        return self._of_checkpoint("add", "_checkpoint_adds")

    @cached_property
    def _checkpoint_removes(self) -> CheckpointFileActions | None:
        return self._of_checkpoint("remove", "_checkpoint_removes")

    def _of_checkpoint(self, action: str, name: str) -> CheckpointFileActions | None:
        if self._checkpoint is None:
            return None
        known: CheckpointFileActions | None = None if self._older is None else self._older.__dict__.get(name)
        if known is not None:
            return known.without(self._tail.touched)
        return CheckpointFileActions(self._checkpoint, action, self._tail.touched)


def _table(
    base: CheckpointFileActions | None, tail: pa.Table, schema: pa.Schema, columns: Sequence[str] | None
) -> pa.Table:
    names = list(schema.names if columns is None else columns)
    if unknown := sorted(set(names) - set(schema.names)):
        raise ColumnNotFoundError(
            f"The log has no file column {unknown[0]!r}", remedy=f"Choose from {', '.join(schema.names)}"
        )
    decoded = {} if base is None else base.columns(names)
    chunks = {name: [*(decoded[name].chunks if base is not None else ()), *tail[name].chunks] for name in names}
    arrays = [pa.chunked_array(chunks[name], schema.field(name).type) for name in names]
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))
