"""Errors while a data file is read, as errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from delta_orch.errors import DeltaError, MissingFileError, SchemaMismatchError, StorageError, TableError
from delta_orch.storage.base import storage_error


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Errors of Arrow and the file system become those of `read_error`."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError, SchemaMismatchError, MemoryError) as e:
        if isinstance(e, DeltaError) and not isinstance(e, SchemaMismatchError):
            raise
        raise read_error(e, path) from e


def read_error(error: Exception, path: str) -> DeltaError:
    """The error to raise for what went wrong while a data file was read."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            f"The data file {path} does not exist",
            cause="The log names it, but vacuum or something else has deleted it",
            remedy="Read a newer version, or restore the file",
            path=path,
        )
    if isinstance(error, StorageError):
        return error
    if isinstance(error, MemoryError):
        return TableError(
            f"The data file {path} takes more memory than there is",
            cause=str(error) or None,
            remedy="Read fewer columns or rows, or give the process more memory",
            path=path,
        )
    if isinstance(error, SchemaMismatchError):
        return TableError(f"The data file {path} does not fit the table's schema", cause=error.problem, path=path)
    if isinstance(error, OSError) and error.errno is not None:
        return storage_error(error, "read", path)
    return TableError(
        f"The data file {path} is not readable as Parquet",
        cause=str(error),
        remedy="Restore the file from a backup, or remove it from the table",
        path=path,
    )
