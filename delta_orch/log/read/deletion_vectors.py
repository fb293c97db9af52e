"""Reads the deletion vectors of a scan, inline or from files (PROTOCOL, "Deletion Vectors")."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.errors import (
    CorruptDeletionVectorError,
    DeltaError,
    FileMissingInStoreError,
    MissingFileError,
    StorageError,
)
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.deletion_vector import (
    FIRST_OFFSET,
    DeletionVector,
    ensure_known_file_version,
    inline_bitmap_bytes,
    parse_bitmap,
    relative_path,
    stored_bitmap_bytes,
    stored_length_bytes,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

_LARGEST_BYTES = 1 << 30
_NEAR_BYTES = 64 * 1024


def deletion_vector_descriptors(files: pa.Table) -> list[DeletionVectorDescriptor | None]:
    """The descriptors of a table of files (`file_columns.ADD_SCHEMA`), None for a file without one."""
    if "deletion_vector" not in files.column_names:
        return [None] * files.num_rows
    column = FileTable(files).deletion_vector
    if column.null_count == len(column):
        return [None] * files.num_rows
    return [None if row is None else _descriptor(row) for row in column.to_pylist()]


def read_deletion_vectors(
    store: LogStore, descriptors: Sequence[DeletionVectorDescriptor | None]
) -> list[DeletionVector | None]:
    """Read and verify the vectors of a scan, several at a time; None stays None.

    Raises:
        MissingFileError: The file of a vector is not there.
        CorruptDeletionVectorError: Its size, checksum or content is not what the log says; no row was returned.
        StorageError: It cannot be read for another reason.
    """
    present = (d for d in descriptors if d is not None)
    vectors = map_ahead(lambda d: read_deletion_vector(store, d), present, FAR_THREADS)
    return [None if d is None else next(vectors) for d in descriptors]


def read_deletion_vector(store: LogStore, descriptor: DeletionVectorDescriptor) -> DeletionVector:
    """Read and verify one vector. Raises as `read_deletion_vectors`."""
    if not 0 <= descriptor.size_in_bytes <= _LARGEST_BYTES:
        raise CorruptDeletionVectorError(
            "A deletion vector has an impossible size",
            cause=f"{descriptor.size_in_bytes} bytes",
            remedy="Restore the table to a version before this one",
        )
    if descriptor.storage_type == "i":
        return parse_bitmap(inline_bitmap_bytes(descriptor), descriptor)
    stored = _read_stored(store, descriptor)
    return parse_bitmap(stored_bitmap_bytes(stored, descriptor), descriptor)


def _read_stored(store: LogStore, descriptor: DeletionVectorDescriptor) -> bytes:
    # The first vector follows the version byte: that is the one meant where none is.
    offset = FIRST_OFFSET if descriptor.offset is None else descriptor.offset
    path = ""
    try:
        if descriptor.storage_type == "u":
            path = relative_path(descriptor)
            source = store.open_input(path)
        elif descriptor.storage_type == "p":
            path = store.resolve(descriptor.path_or_inline_dv)
            store.ensure_regular([path])
            source = store.data_filesystem()[0].open_input_file(path)
        else:
            raise CorruptDeletionVectorError(
                f"A deletion vector has the unknown storage type {descriptor.storage_type!r}",
                remedy="Use a newer release of delta_orch",
            )
        with source:
            length = stored_length_bytes(descriptor)
            if not 0 < offset <= source.size() - length:
                return b""
            if offset <= _NEAR_BYTES:
                # With the version byte, in one request.
                start = bytes(source.read(offset + length))
                ensure_known_file_version(start[:1], descriptor)
                return start[offset:]
            ensure_known_file_version(bytes(source.read(1)), descriptor)
            source.seek(offset)
            return bytes(source.read(length))
    except (FileNotFoundError, FileMissingInStoreError) as e:
        raise MissingFileError(
            f"The deletion vector file {path} is not there",
            cause="The log names it, but vacuum or something else has deleted it",
            remedy="Restore the file, or read a newer version",
            path=path,
        ) from e
    except (OSError, ValueError) as e:
        if isinstance(e, DeltaError):
            raise
        raise StorageError(
            f"The deletion vector file {path} cannot be read",
            cause=str(e),
            remedy="Look for what keeps the file from being read, or restore the table to a version before this one",
            path=path,
        ) from e


def _descriptor(row: dict[str, object]) -> DeletionVectorDescriptor:
    size, cardinality, offset = row["size_in_bytes"], row["cardinality"], row["offset"]
    if not isinstance(size, int) or not isinstance(cardinality, int):
        raise CorruptDeletionVectorError("A deletion vector lacks its size or its cardinality")
    return DeletionVectorDescriptor(
        str(row["storage_type"]),
        str(row["path_or_inline_dv"]),
        size,
        cardinality,
        offset if isinstance(offset, int) else None,
    )
