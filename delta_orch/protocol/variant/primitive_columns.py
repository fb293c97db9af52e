"""Typed columns of primitive values, encoded as variants column-wise (Variant Shredding, "Primitive Types")."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    Mask,
    bits_of,
    column_from_arrow,
    fixed_values,
    offsets_of,
)
from delta_orch.protocol.variant.encode import MAX_SHORT_STRING_BYTES
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.shredding import TypedPrimitive
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MICROS_OF_A_DAY,
    PRIMITIVE_SIZE_BYTES,
    BasicType,
    PrimitiveType,
)

_DECIMAL_BYTES = {PrimitiveType.DECIMAL4: 4, PrimitiveType.DECIMAL8: 8, PrimitiveType.DECIMAL16: 16}
_TEN_TO_38_HIGH, _TEN_TO_38_LOW = divmod(10**38, 1 << 64)


def plain_storage(array: pa.Array) -> pa.Array:
    """An array without dictionaries, views and extension types around its values."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array


def encode_primitives(typed: TypedPrimitive, array: pa.Array, present: Mask) -> list[ByteColumn]:
    """A typed column as variant values.

    Args:
        typed: What type they are to have.
        array: The values.
        present: Rows that have one, a subset of the valid ones.

    Returns:
        One or two columns that, joined, are the values.

    Raises:
        InvalidVariantError: A decimal is out of its type's range, or a time of day is.
    """
    array = plain_storage(array)
    kind = typed.kind
    if kind is PrimitiveType.STRING or kind is PrimitiveType.BINARY:
        return _sized(kind, column_from_arrow(array, present), present)
    if kind is PrimitiveType.TRUE:
        return [_booleans(array, present)]
    if kind in _DECIMAL_BYTES:
        return [_decimals(kind, typed.type, array, present)]
    width = (PRIMITIVE_SIZE_BYTES[kind] or 0) - 1
    values = _of_present(fixed_values(array, width), present)
    if kind is PrimitiveType.TIME:
        micros = values.view(np.int64)[:, 0]
        if ((micros < 0) | (micros >= MICROS_OF_A_DAY)).any():
            raise invalid_variant("a time of day is out of range")
    return [_fixed(bytes([kind << 2]), values, present)]


def _of_present(values: Bytes, present: Mask) -> Bytes:
    return values if present.all() else values[present]


def _fixed(lead: bytes, values: Bytes, present: Mask) -> ByteColumn:
    """Values of one size, each after the same first bytes; a row of `values` for each present row."""
    encoded = np.empty((len(values), len(lead) + values.shape[1]), np.uint8)
    encoded[:, : len(lead)] = np.frombuffer(lead, np.uint8)
    encoded[:, len(lead) :] = values
    return ByteColumn(offsets_of(present * np.int64(encoded.shape[1])), encoded.reshape(-1))


def _booleans(array: pa.BooleanArray, present: Mask) -> ByteColumn:
    buffer = array.buffers()[1]
    bits = bits_of(buffer, array.offset, len(array)) if buffer is not None else np.zeros(len(array), np.bool_)
    values = np.where(bits[present], PrimitiveType.TRUE << 2, PrimitiveType.FALSE << 2).astype(np.uint8)
    return ByteColumn(offsets_of(present.astype(np.int64)), values)


def _decimals(kind: PrimitiveType, t: pa.DataType, array: pa.Array, present: Mask) -> ByteColumn:
    own_width = t.bit_width // 8
    values = _of_present(fixed_values(array, own_width), present)
    if own_width == 16:
        ensure_decimals(kind, np.ascontiguousarray(values).view(np.int64))
        values = values[:, : _DECIMAL_BYTES[kind]]
    else:
        signed: Ints = np.ascontiguousarray(values).view(f"<i{own_width}").astype(np.int64)
        ensure_decimals(kind, np.column_stack([signed, signed >> 63]))
    return _fixed(bytes([kind << 2, t.scale]), values, present)


def ensure_decimals(kind: PrimitiveType, halves: Ints) -> None:
    """Check that 128-bit numbers, low half first, have no more digits than their type."""
    low, high = halves[:, 0], halves[:, 1]
    if kind is PrimitiveType.DECIMAL16:
        unsigned = low.view(np.uint64)
        above = (high > _TEN_TO_38_HIGH) | ((high == _TEN_TO_38_HIGH) & (unsigned >= _TEN_TO_38_LOW))
        # -10**38 has these halves in two's complement.
        least_high, least_low = -_TEN_TO_38_HIGH - 1, (1 << 64) - _TEN_TO_38_LOW
        below = (high < least_high) | ((high == least_high) & (unsigned <= least_low))
        fits = ~(above | below)
    else:
        limit = 10 ** DECIMAL_DIGITS[kind]
        fits = (high == low >> 63) & (low < limit) & (low > -limit)
    if not fits.all():
        raise invalid_variant("a decimal is out of range", f"It does not fit into a {kind.name.lower()}")


def _sized(kind: PrimitiveType, content: ByteColumn, present: Mask) -> list[ByteColumn]:
    sizes = content.sizes
    short = present & (sizes <= MAX_SHORT_STRING_BYTES) if kind is PrimitiveType.STRING else np.zeros_like(present)
    offsets = offsets_of(np.where(short, 1, np.where(present, 5, 0)))
    leads = np.empty(offsets[-1], np.uint8)
    starts = offsets[:-1]
    leads[starts[short]] = sizes[short] << 2 | BasicType.SHORT_STRING
    long = present & ~short
    if long.any():
        at = starts[long]
        leads[at] = kind << 2
        lengths = sizes[long]
        for byte in range(4):
            leads[at + 1 + byte] = lengths >> 8 * byte & 0xFF
    return [ByteColumn(offsets, leads), content]
