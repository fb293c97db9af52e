"""Rows that are evaluated once and read several times: in memory as long as they are few, in a file after that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from delta_orch.engines.batch_bytes import cut_by_bytes
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.errors import DeltaError, StorageError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import StructType

MEMORY_BYTES = 64 * 1024 * 1024
"""Rows up to this size stay in memory."""
_STORED_BYTES = 8 * 1024 * 1024
"""Of a batch in the file: who reads it may hold several copies."""


class Spool:
    """Rows that wait: in memory, and from a certain size in a file, which goes with the context. The file is in the
    directory for temporary files (`TMPDIR`), compressed.

    Args:
        schema: In Delta's types.
    """

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._path: Path | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        self._stack.close()

    def has_room(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch would stay in memory."""
        return self._writer is None and self._size + batch.nbytes <= MEMORY_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the rows of a batch. Raises StorageError: They do not fit on disk."""
        if self.has_room(batch):
            self._held.append(batch)
            self._size += batch.nbytes
            return
        if self._writer is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="delta-orch-rows-"))
            self._path = Path(directory) / "rows.arrow"
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with spilling():
                made = pa.ipc.new_stream(str(self._path), schema_to_arrow(self.schema), options=options)
                self._writer = self._stack.enter_context(made)
        # A file has one schema.
        for plain in LocalRelation(self.schema, partial(iter, [batch])).batches():
            for rows in cut_by_bytes(plain, most=_STORED_BYTES):
                with spilling():
                    self._writer.write_batch(rows)

    def relation(self) -> LocalRelation:
        """All rows. No more can be added. Raises StorageError: They do not fit on disk."""
        if self._writer is not None:
            with spilling():
                self._writer.close()
        return LocalRelation(self.schema, self._batches)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._held
        if self._path is not None:
            with pa.OSFile(str(self._path), "rb") as source, pa.ipc.open_stream(source) as reader:
                yield from reader


@contextmanager
def spooled(relation: LocalRelation, *, repeats: bool = False) -> Iterator[LocalRelation]:
    """See `Engine.evaluated`."""
    with Spool(relation.schema) as spool:
        for batch in relation.batches(relation.schema.names):
            if repeats and not spool.has_room(batch):
                break
            spool.add(batch)
        else:
            yield spool.relation()
            return
    yield relation


@contextmanager
def spilling() -> Iterator[None]:
    """Errors while rows are spilled become StorageError."""
    try:
        yield
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise StorageError(
            "Rows that do not fit into memory cannot be spilled to disk",
            cause=str(e),
            remedy="Free space in the directory for temporary files, or set TMPDIR to one with more",
        ) from e
