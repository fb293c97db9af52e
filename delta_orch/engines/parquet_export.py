"""Rows to one plain Parquet file outside any table."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import DeltaError, StorageError
from delta_orch.storage.base import storage_error

ProgressCallback = Callable[[int], None]
"""Called with the number of rows written by each step."""


def export_parquet(reader: pa.RecordBatchReader, path: Path, on_rows: ProgressCallback | None = None) -> int:
    """Write a stream to `path`, which appears complete or not at all; a file that is there is replaced.

    Returns: The number of rows.

    Raises:
        StorageError: The file cannot be written, for example because the disk is full. `path` is as before.
    """
    if not path.parent.is_dir():
        raise StorageError(
            f"Cannot write {path}",
            cause=f"There is no directory {path.parent}",
            remedy="Create it first",
            path=str(path),
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    num_rows = 0
    try:
        with temporary.open("xb") as sink, pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                num_rows += batch.num_rows
                if on_rows is not None:
                    on_rows(batch.num_rows)
        temporary.replace(path)
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", str(path)) from e
    finally:
        temporary.unlink(missing_ok=True)
    return num_rows
