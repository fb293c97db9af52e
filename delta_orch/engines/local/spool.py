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

MEMORY_BYTES = 64 * 1024 * 1024
"""Rows up to this size stay in memory."""
_STORED_BYTES = 8 * 1024 * 1024
"""Of a batch in the file: who reads it may hold several copies."""


@contextmanager
def spooled(relation: LocalRelation, *, repeats: bool = False) -> Iterator[LocalRelation]:
    """See `Engine.evaluated`. The file is in the directory for temporary files (`TMPDIR`), compressed."""
    schema = schema_to_arrow(relation.schema)
    held: list[pa.RecordBatch] = []
    size = 0
    with ExitStack() as stack:
        path: Path | None = None
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        for batch in relation.batches(relation.schema.names):
            if writer is None and size + batch.nbytes <= MEMORY_BYTES:
                held.append(batch)
                size += batch.nbytes
                continue
            if repeats:
                held.clear()
                yield relation
                return
            if writer is None:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delta-orch-rows-"))) / "rows.arrow"
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                with spilling():
                    writer = stack.enter_context(pa.ipc.new_stream(str(path), schema, options=options))
            # A file has one schema.
            for plain in LocalRelation(relation.schema, partial(iter, [batch])).batches():
                for rows in cut_by_bytes(plain, most=_STORED_BYTES):
                    with spilling():
                        writer.write_batch(rows)
        if writer is not None:
            with spilling():
                writer.close()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from held
            if path is not None:
                with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
                    yield from reader

        yield LocalRelation(relation.schema, batches)


@contextmanager
def spilling() -> Iterator[None]:
    """What goes wrong while rows are put aside becomes StorageError."""
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
