"""Deletion vectors: written into files, or into the log itself where they are small, and put on the files they mark
(PROTOCOL, "Deletion Vectors")."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts, with_wide_bounds
from delta_orch.log.read.deletion_vectors import deletion_vector_array
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import all_booleans, string_array
from delta_orch.protocol.deletion_vector import (
    DeletionVector,
    SerializedVector,
    relative_path,
    serialize_vector_file,
    stored_descriptor,
)
from delta_orch.storage.base import LogStore

INLINE_BYTES = 64
"""A vector of at most that size (some dozen rows) stands in the log itself: reading it costs no request."""

FILE_BYTES = 2 * 1024 * 1024
"""Vectors share files up to this size. Vacuum keeps a file while a single vector in it is needed."""

_LETTERS = string.ascii_letters + string.digits


class VectorFile(NamedTuple):
    """A file of deletion vectors, not written yet; `path` is relative to the table's root."""

    path: str
    content: bytes


def write_deletion_vectors(
    store: LogStore,
    vectors: Sequence[DeletionVector],
    *,
    inline_bytes: int = INLINE_BYTES,
    file_bytes: int = FILE_BYTES,
    random_prefix_length: int | None = None,
) -> list[DeletionVectorDescriptor]:
    """Make vectors durable, before a commit names them.

    Arguments are those of `pack_deletion_vectors`.

    Returns: A descriptor for each vector, in order.

    Raises:
        InvalidRequestError: A vector marks no row.
        StorageError: A file could not be written. Others may be left as orphans that no commit names.
    """
    descriptors, files = pack_deletion_vectors(
        vectors, inline_bytes=inline_bytes, file_bytes=file_bytes, random_prefix_length=random_prefix_length
    )
    for file in files:
        store.put_if_absent(file.path, file.content)
    return descriptors


def pack_deletion_vectors(
    vectors: Sequence[DeletionVector],
    *,
    inline_bytes: int = INLINE_BYTES,
    file_bytes: int = FILE_BYTES,
    random_prefix_length: int | None = None,
) -> tuple[list[DeletionVectorDescriptor], list[VectorFile]]:
    """Lay out vectors: small ones in their descriptors, the others in files that they share. Nothing is written.

    Args:
        vectors: At least one row each. Their bitmaps are compressed in place.
        inline_bytes: Vectors up to this size are kept in their descriptors; 0 writes all of them into files.
        file_bytes: Start another file where one would grow beyond this.
        random_prefix_length: Put files into directories of random names that long (`delta.randomizeFilePrefixes`).

    Returns: A descriptor for each vector, in order, and the files that must be written before a commit names them.

    Raises:
        InvalidRequestError: A vector marks no row.
    """
    serialized = [SerializedVector.of(vector) for vector in vectors]
    if any(vector.cardinality == 0 for vector in serialized):
        raise InvalidRequestError(
            "A deletion vector marks no row", remedy="Add the file without a deletion vector instead"
        )
    found = [vector.inline_descriptor() if len(vector.data) <= inline_bytes else None for vector in serialized]
    large = [index for index, descriptor in enumerate(found) if descriptor is None]
    files = []
    for members in _shared_files([serialized[index].stored_bytes for index in large], file_bytes):
        indexes = [large[member] for member in members]
        descriptors, file = _pack_file([serialized[index] for index in indexes], random_prefix_length)
        files.append(file)
        for index, descriptor in zip(indexes, descriptors, strict=True):
            found[index] = descriptor
    return [descriptor for descriptor in found if descriptor is not None], files


def _shared_files(sizes: Sequence[int], file_bytes: int) -> Iterator[range]:
    """Neighbours that share a file."""
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > file_bytes:
            yield range(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def _pack_file(
    vectors: Sequence[SerializedVector], random_prefix_length: int | None
) -> tuple[list[DeletionVectorDescriptor], VectorFile]:
    data, offsets = serialize_vector_file(vectors)
    file_id = uuid4()
    prefix = "".join(secrets.choice(_LETTERS) for _ in range(random_prefix_length or 0))
    descriptors = [
        stored_descriptor(vector, file_id, offset, prefix) for vector, offset in zip(vectors, offsets, strict=True)
    ]
    return descriptors, VectorFile(relative_path(descriptors[0]), data)


def with_deletion_vectors(files: pa.Table, vectors: Sequence[DeletionVectorDescriptor]) -> pa.Table:
    """The files with other deletion vectors (PROTOCOL, "Deletion Vectors", "Per-file Statistics").

    Args:
        files: All columns of `file_columns.ADD_SCHEMA`.
        vectors: One a file.

    Raises:
        InvalidRequestError: A column is missing, or a file does not say how many records it has.
    """
    missing = [name for name in ADD_SCHEMA.names if name not in files.column_names]
    if missing or len(vectors) != files.num_rows:
        raise InvalidRequestError(
            "A file keeps everything but its deletion vector: all its columns are needed, and one vector a file",
            columns=missing,
        )
    if record_counts(files).null_count:
        raise InvalidRequestError(
            "A file that is to get a deletion vector does not say how many records it has",
            cause="Its statistics lack numRecords",
            remedy="Rewrite the file instead",
        )
    columns = {
        "dv_id": string_array([vector.unique_id for vector in vectors]),
        "deletion_vector": deletion_vector_array(vectors),
        "stats": string_array([with_wide_bounds(stats) for stats in FileTable(files).stats.to_pylist()]),
        "data_change": all_booleans(True, files.num_rows),
    }
    arrays = [columns.get(name, files.column(name)) for name in ADD_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)
