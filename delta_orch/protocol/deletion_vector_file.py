"""Files of deletion vectors, as bytes (PROTOCOL, "Deletion Vector File Storage Format"). Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.deletion_vector import FILE_FORMAT_VERSION, DeletionVector, z85_encode

_PER_VECTOR_BYTES = 8


@dataclass(frozen=True, slots=True)
class SerializedVector:
    """A vector as the bytes that a file or an inline descriptor holds."""

    data: bytes
    cardinality: int

    @classmethod
    def of(cls, vector: DeletionVector) -> SerializedVector:
        """The smallest form: runs of rows are kept as runs."""
        vector.bitmap.run_optimize()
        return cls(vector.serialize(), vector.cardinality)

    @property
    def stored_bytes(self) -> int:
        """What it takes in a file, size and checksum included."""
        return len(self.data) + _PER_VECTOR_BYTES

    def inline_descriptor(self) -> DeletionVectorDescriptor:
        """A descriptor of storage type `i`, padded as base85 needs it; `sizeInBytes` tells where the data ends."""
        text = z85_encode(self.data + b"\0" * (-len(self.data) % 4))
        return DeletionVectorDescriptor("i", text, len(self.data), self.cardinality)


def serialize_vector_file(vectors: Sequence[SerializedVector]) -> tuple[bytes, list[int]]:
    """The content of a file, and for each vector its offset: that of its size, which its data and checksum follow."""
    parts, offsets, position = [struct.pack(">B", FILE_FORMAT_VERSION)], [], 1
    for vector in vectors:
        offsets.append(position)
        parts += [struct.pack(">i", len(vector.data)), vector.data, struct.pack(">I", zlib.crc32(vector.data))]
        position += vector.stored_bytes
    return b"".join(parts), offsets


def stored_descriptor(
    vector: SerializedVector, file_id: UUID, offset: int, prefix: str = ""
) -> DeletionVectorDescriptor:
    """A descriptor of storage type `u`: the file is `prefix`/deletion_vector_<file_id>.bin below the table's root
    (`deletion_vector.relative_path`)."""
    path = prefix + z85_encode(file_id.bytes)
    return DeletionVectorDescriptor("u", path, len(vector.data), vector.cardinality, offset)
