"""The metadata of a variant: the dictionary of its field names (Variant binary encoding, "Metadata encoding").

header (version, sorted flag, offset size) | number of names | offsets, one more than names | names in UTF-8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from struct import unpack_from

from delta_orch.errors import InvalidVariantError

VERSION = 1
_VERSION_MASK = 0x0F
_SORTED_FLAG = 0x10
EMPTY_METADATA = bytes([VERSION | _SORTED_FLAG, 0, 0])

_UNPACK = {2: "H", 4: "I"}


def invalid_variant(problem: str, cause: str | None = None) -> InvalidVariantError:
    """The error of this package, with the remedy it always has."""
    return InvalidVariantError(
        f"A variant cannot be read: {problem}",
        cause=cause,
        remedy="Rewrite the data file that holds it, or restore the table to a version before it",
    )


def read_uints(data: bytes, start: int, count: int, width: int) -> Sequence[int]:
    """`count` little-endian unsigned integers of `width` bytes each. The caller has checked that they are there."""
    if width == 1:
        return data[start : start + count]
    if width == 3:
        end = start + 3 * count
        return tuple(int.from_bytes(data[at : at + 3], "little") for at in range(start, end, 3))
    return unpack_from(f"<{count}{_UNPACK[width]}", data, start)


def width_of(largest: int) -> int:
    """The fewest bytes that hold an unsigned integer."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


class MetadataReader:
    """Names by id, read when asked for.

    Raises:
        InvalidVariantError: Another version than 1, or offsets or names beyond the end.
    """

    __slots__ = ("_data", "_names", "_strings_start", "_width", "size")

    def __init__(self, metadata: bytes) -> None:
        if len(metadata) < 3:
            raise invalid_variant("its metadata is cut short", f"{len(metadata)} bytes")
        if metadata[0] & _VERSION_MASK != VERSION:
            raise invalid_variant("its metadata has an unknown version", f"Version {metadata[0] & _VERSION_MASK}")
        self._data = metadata
        self._width = (metadata[0] >> 6) + 1
        self.size = int.from_bytes(metadata[1 : 1 + self._width], "little")
        self._strings_start = 1 + self._width * (self.size + 2)
        self._names: tuple[str, ...] | None = None
        if self._strings_start > len(metadata):
            raise invalid_variant("its metadata is cut short", f"{self.size} names in {len(metadata)} bytes")

    def name_bytes(self, field_id: int) -> bytes:
        """One name, in UTF-8. Looks at nothing else."""
        if field_id >= self.size:
            raise invalid_variant("a field has no name", f"Id {field_id} of {self.size} names")
        start, end = read_uints(self._data, 1 + self._width * (1 + field_id), 2, self._width)
        return self._slice(start, end)

    def names(self) -> tuple[str, ...]:
        """All names, by id; read once."""
        if self._names is None:
            offsets = read_uints(self._data, 1 + self._width, self.size + 1, self._width)
            try:
                self._names = tuple(self._slice(start, end).decode() for start, end in pairwise(offsets))
            except UnicodeDecodeError as e:
                raise invalid_variant("a field's name is not UTF-8", str(e)) from None
        return self._names

    def _slice(self, start: int, end: int) -> bytes:
        if start > end or self._strings_start + end > len(self._data):
            raise invalid_variant("its metadata is damaged", f"A name from {start} to {end}")
        return self._data[self._strings_start + start : self._strings_start + end]


def serialize_metadata(names: Iterable[bytes]) -> bytes:
    """The dictionary of names that are in ascending order of their UTF-8 bytes and differ, in as few bytes as it takes.

    A name's id is its position.
    """
    listed = list(names)
    offsets = list(accumulate((len(name) for name in listed), initial=0))
    width = width_of(max(offsets[-1], len(listed)))
    header = VERSION | _SORTED_FLAG | (width - 1) << 6
    numbers = b"".join(number.to_bytes(width, "little") for number in (len(listed), *offsets))
    return bytes([header]) + numbers + b"".join(listed)
