from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_orch.errors import CorruptDeletionVectorError
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.deletion_vector import (
    DeletionVector,
    inline_bitmap_bytes,
    parse_bitmap,
    relative_path,
    stored_bitmap_bytes,
    z85_decode,
    z85_encode,
)


def inline(rows: list[Any] | list[int]) -> DeletionVectorDescriptor:
    return DeletionVector(BitMap64(rows)).inline_descriptor()


def stored(data: bytes, size: int | None = None, checksum: int | None = None) -> bytes:
    return (
        struct.pack(">i", len(data) if size is None else size)
        + data
        + struct.pack(">I", zlib.crc32(data) if checksum is None else checksum)
    )


@given(st.binary().map(lambda b: b[: len(b) // 4 * 4]))
def test_base85_is_invertible(data: bytes) -> None:
    assert z85_decode(z85_encode(data)) == data


def test_base85_is_the_one_of_zeromq() -> None:
    assert z85_encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_row_indexes_survive_the_inline_form(rows: list[Any] | list[int]) -> None:
    descriptor = inline(rows)
    vector = parse_bitmap(inline_bitmap_bytes(descriptor), descriptor)
    assert vector.row_indexes(2**40 + 1).tolist() == sorted(set(rows))


@pytest.mark.parametrize("text", ["abcd", "abcd~", "abcd\u20ac", "#####"])
def test_what_is_no_base85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"multiple of five|bad base85 character|base85 overflow"):
        z85_decode(text)


def test_the_protocols_example_of_a_relative_path() -> None:
    descriptor = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert relative_path(descriptor) == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_an_inline_vector_of_the_reference_implementation() -> None:
    descriptor = DeletionVectorDescriptor("i", "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 44, 6)
    vector = parse_bitmap(inline_bitmap_bytes(descriptor), descriptor)
    assert vector.row_indexes(100).tolist() == [3, 4, 7, 11, 18, 29]


@pytest.mark.parametrize("prefix", ["../", "..", "a/b", "\0"])
def test_a_prefix_cannot_leave_the_table(prefix: str) -> None:
    with pytest.raises(CorruptDeletionVectorError, match="leaves the table"):
        relative_path(DeletionVectorDescriptor("u", prefix + "^-aqEH.-t@S}K{vb[*k^", 40, 6, 4))


def test_size_and_checksum_are_verified_before_the_bitmap_is_used() -> None:
    data = DeletionVector(BitMap64([1, 5])).serialize()
    descriptor = DeletionVectorDescriptor("u", "x" * 20, len(data), 2, 1)
    assert stored_bitmap_bytes(stored(data), descriptor) == data
    for broken in (stored(data)[:-1], stored(data, size=len(data) + 1), stored(data, checksum=7)):
        with pytest.raises(CorruptDeletionVectorError):
            stored_bitmap_bytes(broken, descriptor)


@given(st.binary(max_size=60))
def test_garbage_is_a_corrupt_vector_never_a_foreign_error(data: bytes) -> None:
    descriptor = DeletionVectorDescriptor("i", "", len(data), 10**6)
    with pytest.raises(CorruptDeletionVectorError):
        parse_bitmap(data, descriptor)
    with pytest.raises(CorruptDeletionVectorError):
        parse_bitmap(struct.pack("<i", 1681511377) + data, descriptor)


def test_an_index_beyond_the_files_end_deletes_nothing() -> None:
    descriptor = inline([3, 99, 2**40])
    assert parse_bitmap(inline_bitmap_bytes(descriptor), descriptor).row_indexes(99).tolist() == [3]


def test_another_cardinality_than_the_log_says_is_refused() -> None:
    good = inline([1, 2])
    lying = DeletionVectorDescriptor("i", good.path_or_inline_dv, good.size_in_bytes, 3)
    with pytest.raises(CorruptDeletionVectorError, match="another number of rows"):
        parse_bitmap(inline_bitmap_bytes(lying), lying)
