"""Deletion vectors: descriptors, their encodings and their bytes (PROTOCOL, "Deletion Vectors", "Deletion Vector
Format", "Deletion Vector File Storage Format").

Pure: where the bytes come from is `log.read.deletion_vectors`' business.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b85decode, b85encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from delta_orch.errors import CorruptDeletionVectorError
from delta_orch.protocol.actions import DeletionVectorDescriptor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pyroaring import BitMap64

FILE_FORMAT_VERSION = 1
FIRST_OFFSET = 1
"""Where the first vector of a file begins."""
MAGIC = 1681511377
_MOST_MARKED = 1 << 28
_HEADER_BYTES = 4
_CHECKSUM_BYTES = 4
_UUID_CHARS = 20

# Z85 (ZeroMQ RFC 32), the base85 the protocol means: as Python's, with another alphabet.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_NO_Z85 = bytes(set(range(256)).difference(_Z85))


def z85_encode(data: bytes) -> str:
    """Encode bytes, whose number must be a multiple of four, as text of 5/4 the length."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not a multiple of four")
    return b85encode(data).translate(bytes.maketrans(_B85, _Z85)).decode()


def z85_decode(text: str) -> bytes:
    """Undo `z85_encode`. Raises ValueError where the text is no such encoding."""
    if len(text) % 5 or not text.isascii():
        raise ValueError(f"{len(text)} characters are not a multiple of five, or not all of them ASCII")
    # Characters outside Z85 map to a value outside the alphabet.
    return b85decode(text.encode().translate(bytes.maketrans(_NO_Z85 + _Z85, b" " * len(_NO_Z85) + _B85)))


def relative_path(descriptor: DeletionVectorDescriptor) -> str:
    """Where a vector of storage type `u` lies, relative to the table's root, not URI-encoded.

    The last twenty characters are the base85 form of a UUID, what stands before them is a directory prefix.

    Raises:
        CorruptDeletionVectorError: They are not an encoded UUID.
    """
    text = descriptor.path_or_inline_dv
    prefix, encoded = text[:-_UUID_CHARS], text[-_UUID_CHARS:]
    try:
        name = f"deletion_vector_{UUID(bytes=z85_decode(encoded))}.bin"
    except ValueError as e:
        raise _corrupt("its path is not an encoded UUID", descriptor, str(e)) from None
    if prefix in (".", "..") or any(c in prefix for c in "/\\\0"):
        raise _corrupt("its directory prefix leaves the table", descriptor)
    return f"{prefix}/{name}" if prefix else name


def inline_bitmap_bytes(descriptor: DeletionVectorDescriptor) -> bytes:
    """The bitmap of a vector of storage type `i`. Padding after `sizeInBytes` is cut off."""
    try:
        data = z85_decode(descriptor.path_or_inline_dv)
    except ValueError as e:
        raise _corrupt("its inline data is not base85", descriptor, str(e)) from None
    if not 0 <= len(data) - descriptor.size_in_bytes < 4:
        raise _corrupt("its inline data does not have the size the log says", descriptor)
    return data[: descriptor.size_in_bytes]


def stored_length_bytes(descriptor: DeletionVectorDescriptor) -> int:
    """How many bytes to read at `offset` of its file: size, bitmap and checksum."""
    return _HEADER_BYTES + descriptor.size_in_bytes + _CHECKSUM_BYTES


def ensure_known_file_version(first: bytes, descriptor: DeletionVectorDescriptor) -> None:
    """Refuse a file of another format than the one that is described. `first` is its first byte.

    Raises:
        CorruptDeletionVectorError: The file is empty, or of another version.
    """
    if first != bytes([FILE_FORMAT_VERSION]):
        raise _corrupt("its file has an unknown format", descriptor, f"version {first[0]}" if first else "it is empty")


def stored_bitmap_bytes(stored: bytes, descriptor: DeletionVectorDescriptor) -> bytes:
    """The bitmap of a vector kept in a file, verified: size and checksum match before a byte of it is used.

    Args:
        stored: The `stored_length_bytes` bytes at the descriptor's offset.
        descriptor: As the log has it.

    Raises:
        CorruptDeletionVectorError: Too few bytes, another size, or another checksum.
    """
    if descriptor.size_in_bytes < 0 or len(stored) < stored_length_bytes(descriptor):
        raise _corrupt("its file ends in the middle of it", descriptor)
    (size,) = struct.unpack_from(">i", stored)
    if size != descriptor.size_in_bytes:
        raise _corrupt("its file has another size for it than the log", descriptor, f"{size} bytes")
    data = stored[_HEADER_BYTES : _HEADER_BYTES + size]
    (checksum,) = struct.unpack_from(">I", stored, _HEADER_BYTES + size)
    if zlib.crc32(data) != checksum:
        raise _corrupt("its checksum does not match", descriptor)
    return data


def parse_bitmap(data: bytes, descriptor: DeletionVectorDescriptor) -> DeletionVector:
    """The row indexes of a serialised bitmap, magic number first.

    Raises:
        CorruptDeletionVectorError: The magic number is wrong, the bitmap is invalid, or its cardinality does not match
            the log.
    """
    from pyroaring import BitMap64

    if len(data) < 12:
        raise _corrupt("its bitmap is cut short", descriptor)
    (magic,) = struct.unpack_from("<i", data)
    if magic != MAGIC:
        raise _corrupt("its bitmap has an unknown format", descriptor, f"magic number {magic}")
    try:
        bitmap = BitMap64.deserialize(data[4:])
    except ValueError as e:
        raise _corrupt("its bitmap cannot be parsed", descriptor, str(e)) from None
    if len(bitmap) != descriptor.cardinality:
        raise _corrupt("it holds another number of rows than the log says", descriptor, f"{len(bitmap)} rows")
    if bitmap and bitmap.max() >= 1 << 63:
        raise _corrupt("it holds row indexes beyond 2**63", descriptor)
    return DeletionVector(bitmap)


def marks_inside(marks: BitMap64, num_records: int) -> BitMap64:
    """The marks of rows that a file of `num_records` rows has. A vector may hold others, which delete nothing."""
    from pyroaring import BitMap64

    return marks & BitMap64(range(num_records)) if marks and marks.max() >= num_records else marks


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The indexes of the rows of one data file that are no longer in the table."""

    bitmap: BitMap64

    @property
    def cardinality(self) -> int:
        return len(self.bitmap)

    def row_indexes(self, num_records: int) -> npt.NDArray[np.uint64]:
        """The deleted rows' indexes, ascending, for a file of `num_records` rows.

        An index beyond the file's end deletes nothing: a vector may mark all rows but a few of a file whose length its
        writer did not know. That also bounds the memory: a few bytes of bitmap can stand for billions of rows.

        Raises:
            CorruptDeletionVectorError: It marks more rows than are read.
        """
        import numpy as np

        inside = marks_inside(self.bitmap, num_records)
        if len(inside) > _MOST_MARKED:
            raise CorruptDeletionVectorError(
                f"A deletion vector marks {len(inside)} rows of one file",
                cause=f"A few bytes can stand for more rows than fit into memory; {_MOST_MARKED} are read",
                remedy="Find the commit that wrote it",
            )
        return np.frombuffer(inside.to_array(), dtype=np.uint64)

    def inline_descriptor(self) -> DeletionVectorDescriptor:
        """A descriptor of storage type `i` that holds the vector itself."""
        return SerializedVector(self.serialize(), self.cardinality).inline_descriptor()

    def serialize(self) -> bytes:
        """The bitmap's bytes, magic number first: what inline descriptors encode and files store."""
        return struct.pack("<i", MAGIC) + bytes(self.bitmap.serialize())


class SerializedVector(NamedTuple):
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
        """Its size in a file, including the length and the checksum."""
        return len(self.data) + _HEADER_BYTES + _CHECKSUM_BYTES

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
    (`relative_path`)."""
    path = prefix + z85_encode(file_id.bytes)
    return DeletionVectorDescriptor("u", path, len(vector.data), vector.cardinality, offset)


def _corrupt(what: str, descriptor: DeletionVectorDescriptor, detail: str | None = None) -> CorruptDeletionVectorError:
    return CorruptDeletionVectorError(
        f"A deletion vector cannot be used: {what}",
        cause=detail,
        remedy="Restore its file, or restore the table to a version before this one",
        deletion_vector=descriptor.unique_id if descriptor.storage_type != "i" else "inline",
        size_in_bytes=descriptor.size_in_bytes,
        cardinality=descriptor.cardinality,
    )
