"""A walk through a structure in Thrift's compact protocol, whose bytes may be damaged.

It builds nothing and trusts nothing. What does not fit into the bytes ends it with an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, MAP, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
_MOST_DEPTH = 60
_MOST_BITS = 64
_TOO_SHORT = "A footer ends in the middle"


class ThriftWalk:
    """A place in a structure. Every method raises pyarrow.ArrowInvalid where the bytes do not hold what they promise.

    Attributes:
        data: All the bytes.
        at: The place.
        kind: The type of the field's value that comes next, as the protocol numbers them.
    """

    __slots__ = ("_depth", "at", "data", "kind")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._depth = 0
        self.at = 0
        self.kind = STRUCT

    def fields(self, number: int = 0) -> Iterator[int]:
        """The number of each field of the structure here. Its value must be taken or skipped before the next.

        Args:
            number: The number of the field before, if the walk is inside the structure.
        """
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise pa.ArrowInvalid("A footer has too many structures inside each other")
        try:
            while header := self._byte():
                number = number + (header >> 4) if header > 15 else self.integer()
                self.kind = header & 15
                yield number
        finally:
            self._depth -= 1

    def skip(self) -> None:
        """Pass over the value of the field."""
        self._skip(self.kind)

    def list_size(self) -> int:
        """Begin a list; its elements follow. Whatever type it says they have, a reader that knows better ignores it."""
        return self._list_header()[0]

    def integer(self) -> int:
        """A signed number of any width."""
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def binary_length(self) -> int:
        """Pass over a string of bytes; its length."""
        length = self._unsigned()
        self.at += length
        if self.at > len(self.data):
            raise pa.ArrowInvalid("A footer has a string longer than itself")
        return length

    def _skip(self, kind: int) -> None:
        if kind in INTEGERS:
            self._unsigned()
        elif kind == BINARY:
            self.binary_length()
        elif kind in BOOLEANS:
            return
        elif kind == BYTE:
            self._byte()
        elif kind == DOUBLE:
            self.at += 8
        elif kind in LISTS:
            count, element = self._list_header()
            for _ in range(count):
                self._skip_element(element)
        elif kind == MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 15)
        elif kind == STRUCT:
            for _ in self.fields():
                self.skip()
        else:
            raise pa.ArrowInvalid(f"A footer has a value of the unknown type {kind}")

    def _skip_element(self, kind: int) -> None:
        if kind in BOOLEANS:
            self._byte()
        else:
            self._skip(kind)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        size = header >> 4
        size = self._unsigned() if size == 15 else size
        # Every element takes a byte at least.
        if size > len(self.data) - self.at:
            raise pa.ArrowInvalid(f"A footer has a list of {size} elements, which it is too short for")
        return size, header & 15

    def _unsigned(self) -> int:
        data, at, number, shift = self.data, self.at, 0, 0
        try:
            while (byte := data[at]) > 127:
                number |= (byte & 127) << shift
                at += 1
                shift += 7
                if shift >= _MOST_BITS:
                    raise pa.ArrowInvalid("A footer has a number of more than 64 bits")
        except IndexError:
            raise pa.ArrowInvalid(_TOO_SHORT) from None
        self.at = at + 1
        return number | byte << shift

    def _byte(self) -> int:
        try:
            byte = self.data[self.at]
        except IndexError:
            raise pa.ArrowInvalid(_TOO_SHORT) from None
        self.at += 1
        return byte
