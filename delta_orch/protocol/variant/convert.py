"""Encoded values to Arrow columns of one type and back (Variant Shredding, "Primitive Types").

Conversions between types:

| target            | from                                                         |
|-------------------|--------------------------------------------------------------|
| boolean           | boolean                                                      |
| integers          | integers; floats and decimals that are whole numbers          |
| float, double     | integers, floats, decimals; rounded to the nearest            |
| decimal           | integers, decimals, floats whose value it holds               |
| string            | strings; all else as canonical JSON text, without quotes      |
| binary, date, time, timestamp with and without zone, UUID | the same; microseconds ↔ nanoseconds |

Nothing is cut off or wraps around. A variant null becomes a null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.arrow_building import bits_of, booleans_from_numpy, longs_from_numpy, valid_mask
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    Mask,
    column_from_arrow,
    fixed_values,
    gather,
    offsets_of,
    present_bytes,
    with_validity,
)
from delta_orch.protocol.variant.dictionaries import Located
from delta_orch.protocol.variant.layouts import KINDS, value_sizes
from delta_orch.protocol.variant.values import (
    ARROW_TYPES,
    BOOLEANS,
    DECIMAL_BYTES,
    DECIMAL_DIGITS,
    INTEGERS,
    MAX_DECIMAL_SCALE,
    MAX_SHORT_STRING_BYTES,
    MICROS_OF_A_DAY,
    SIZE_BYTES,
    BasicType,
    Kind,
    invalid_variant,
)

OnMismatch = Literal["raise", "null"]

_NUMBERS = {*INTEGERS, *DECIMAL_DIGITS, Kind.FLOAT, Kind.DOUBLE}
_EXACT_DOUBLE_INTEGERS = 1 << 53
_EXACT_POWERS_OF_TEN = 22
_TEN_TO_38_HIGH, _TEN_TO_38_LOW = divmod(10**38, 1 << 64)


def is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def is_binary(t: pa.DataType) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t))


def sources_of(target: pa.DataType) -> set[Kind]:
    """The primitive types that can become `target` by themselves, without becoming text first.

    Raises:
        InvalidRequestError: Variants cannot be read as that type.
    """
    types = pa.types
    if types.is_boolean(target):
        return set(BOOLEANS)
    if types.is_integer(target) or types.is_float32(target) or types.is_float64(target) or types.is_decimal(target):
        return _NUMBERS
    if types.is_timestamp(target):
        name = "TIMESTAMP" if target.tz else "TIMESTAMP_NTZ"
        return {Kind[name], Kind[name + "_NANOS"]}
    if is_text(target):
        return {Kind.STRING, *INTEGERS, *BOOLEANS}
    if types.is_fixed_size_binary(target) and target.byte_width == 16:
        return {Kind.UUID}
    if is_binary(target):
        return {Kind.BINARY}
    if types.is_date32(target):
        return {Kind.DATE}
    if types.is_time64(target):
        return {Kind.TIME}
    raise InvalidRequestError(
        f"Variants cannot be read as {target}",
        remedy="Name a primitive type, or none to get variants, and read their parts by longer paths",
    )


def convert_array(array: pa.Array, target: pa.DataType, on_mismatch: OnMismatch) -> pa.Array:
    """Values of one of the types `sources_of(target)` as `target`.

    Raises:
        SchemaMismatchError: A value does not fit and `on_mismatch` is `raise`.
        InvalidVariantError: A string is not UTF-8.
    """
    if array.type.equals(target):
        return array
    if pa.types.is_floating(target):
        return _to_floating(array, target)
    try:
        return _cast(array, target)
    except pa.ArrowInvalid as e:
        if is_text(target):
            raise invalid_variant("a string is not UTF-8", str(e)) from None
        if on_mismatch == "raise":
            raise mismatch(f"a value of type {array.type}", target, str(e).partition("\n")[0]) from None
    if len(array) == 1:
        return pa.nulls(1, target)
    # Few values do not fit, or the type would be another: halves find them.
    middle = len(array) // 2
    halves = (array.slice(0, middle), array.slice(middle))
    return pa.concat_arrays([convert_array(half, target, on_mismatch) for half in halves])


def utf8_strings(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Bytes as text. Raises InvalidVariantError where they are not UTF-8."""
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid as e:
        raise invalid_variant("a string is not UTF-8", str(e)) from None


def mismatch(found: str, target: pa.DataType, cause: str | None = None) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Variants hold {found} that cannot be read as {target}",
        cause=cause,
        remedy="Ask for another type, or for nulls in place of such values",
    )


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(target):
        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(19, 0))
        elif pa.types.is_floating(array.type):
            return _floating_to_decimal(array, target)
        return array.cast(target)
    if pa.types.is_decimal(array.type) and pa.types.is_integer(target) and array.type.scale:
        whole = array.cast(pa.decimal128(38, 0))
        return whole.cast(target)
    return array.cast(target)


def _floating_to_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    rounded = array.cast(target)
    if pc.any(pc.not_equal(_to_floating(rounded, array.type), array)).as_py():
        raise pa.ArrowInvalid("A float has more digits than the decimal type")
    return rounded


def _to_floating(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(array.type):
        return array.cast(target, safe=False)
    if not pa.types.is_decimal128(array.type):
        array = array.cast(pa.decimal128(38, array.type.scale))
    # Arrow's own cast is off by one in the last bit now and then; a quotient of two exact doubles is not.
    halves = fixed_values(array, 16).view(np.int64)
    unscaled = halves[:, 0]
    exact = (abs(unscaled) < _EXACT_DOUBLE_INTEGERS) & (halves[:, 1] == unscaled >> 63)
    exact &= array.type.scale <= _EXACT_POWERS_OF_TEN
    if not (exact | ~valid_mask(array)).all():
        return array.cast(pa.string()).cast(pa.float64()).cast(target, safe=False)
    doubles = pa.Array.from_buffers(pa.float64(), len(array), [None, pa.py_buffer(unscaled / 10.0**array.type.scale)])
    return with_validity(doubles, valid_mask(array)).cast(target, safe=False)


# Encoded values


def convert_located(
    located: Located, target: pa.DataType, on_mismatch: OnMismatch, to_text: Callable[[Located], pa.Array]
) -> Iterator[tuple[Ints, pa.Array]]:
    """Encoded values as `target`, type by type: row numbers, and an array with a value for each.

    Args:
        located: The values.
        target: A type that `sources_of` knows.
        on_mismatch: What to do with values that are not of such a type.
        to_text: The canonical text of values, called if `target` is a string type and the values are not strings.

    Rows that come in no pair are null: variant nulls, and what has no such type where `on_mismatch` is `null`.

    Raises:
        SchemaMismatchError: A value does not fit and `on_mismatch` is `raise`.
        InvalidVariantError: A value is damaged.
    """
    sources = sources_of(target)
    sizes = value_sizes(located.data, located.starts, located.ends)
    kinds = KINDS[located.data[located.starts]]
    for kind in map(Kind, present_bytes(kinds)):
        chosen = np.flatnonzero(kinds == kind)
        if kind is Kind.NULL:
            continue
        if kind in sources:
            for positions, array in arrow_values(kind, located.data, located.starts[chosen], sizes[chosen]):
                yield located.rows[chosen][positions], convert_array(array, target, on_mismatch)
        elif is_text(target):
            yield located.rows[chosen], convert_array(to_text(located.some(chosen)), target, on_mismatch)
        else:
            refuse(kind, target, on_mismatch)


def refuse(kind: Kind, target: pa.DataType, on_mismatch: OnMismatch) -> None:
    """Raise that some values have a type outside `sources_of(target)`, unless they become null."""
    if on_mismatch == "raise":
        kind_text = f"type {kind.type_name}" if kind < Kind.OBJECT else "type objects or arrays"
        raise mismatch(f"values of {kind_text}", target)


def arrow_values(kind: Kind, data: Bytes, starts: Ints, sizes: Ints) -> Iterator[tuple[Ints | slice, pa.Array]]:
    """Encoded values of one type as Arrow arrays, with the positions that each has values of.

    Args:
        kind: A primitive type that is not null.
        data: The bytes they lie in.
        starts, sizes: The first byte and the size of each.

    Returns:
        One array, strings as large_binary; decimals come as one array for each scale.

    Raises:
        InvalidVariantError: A decimal or a time of day is out of range.
    """
    every, content = slice(None), starts + 1
    if kind in BOOLEANS:
        yield every, booleans_from_numpy(np.full(len(starts), kind is Kind.TRUE))
    elif kind in DECIMAL_DIGITS:
        for scale in present_bytes(data[content]):
            same = np.flatnonzero(data[content] == scale)
            yield same, _decimal_array(kind, scale, data, content[same] + 1)
    elif kind in (Kind.STRING, Kind.BINARY):
        leads = np.where(data[starts] & 3 == BasicType.SHORT_STRING, 1, 5)
        yield every, gather(data, starts + leads, sizes - leads).to_arrow()
    else:
        numbers = _fixed_width(data, content, SIZE_BYTES[kind] - 1)
        if kind is Kind.TIME:
            _ensure_inside_a_day(numbers)
        yield every, pa.Array.from_buffers(ARROW_TYPES[kind], len(starts), [None, pa.py_buffer(numbers)])


def _ensure_inside_a_day(values: Bytes) -> None:
    micros = values.view(np.int64)
    if ((micros < 0) | (micros >= MICROS_OF_A_DAY)).any():
        raise invalid_variant("a time of day is out of range")


def _fixed_width(data: Bytes, starts: Ints, width: int) -> Bytes:
    content: Bytes = data[starts[:, None] + np.arange(width)]
    return content


def _decimal_array(kind: Kind, scale: int, data: Bytes, starts: Ints) -> pa.Array:
    width = DECIMAL_BYTES[kind]
    if scale > MAX_DECIMAL_SCALE:
        raise invalid_variant("a decimal is out of range", f"Scale {scale}")
    halves = np.empty((len(starts), 2), np.int64)
    if width == 16:
        halves[:] = _fixed_width(data, starts, 16).view(np.int64)
    else:
        halves[:, 0] = _fixed_width(data, starts, width).view(f"<i{width}")[:, 0]
        halves[:, 1] = halves[:, 0] >> 63
    _ensure_decimals(kind, halves)
    precision = max(DECIMAL_DIGITS[kind], scale)
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(starts), [None, pa.py_buffer(halves)])


def assemble(pieces: list[tuple[Ints, pa.Array]], length: int, target: pa.DataType) -> pa.Array:
    """Put pieces of a column into place: for each the row numbers and the values. Other rows are null."""
    if len(pieces) == 1 and len(pieces[0][0]) == length:
        return pieces[0][1]
    positions = np.zeros(length, np.int64)
    there = np.zeros(length, np.bool_)
    before = 0
    for rows, _ in pieces:
        positions[rows] = np.arange(before, before + len(rows))
        there[rows] = True
        before += len(rows)
    if not before:
        return pa.nulls(length, target)
    return pc.take(pa.concat_arrays([array for _, array in pieces]), with_validity(longs_from_numpy(positions), there))


# Typed columns as encoded values


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


def encode_primitives(kind: Kind, array: pa.Array, present: Mask) -> list[ByteColumn]:
    """A typed column as variant values.

    Args:
        kind: The type they are to have; booleans are `TRUE`.
        array: The values.
        present: Rows that have one, a subset of the valid ones.

    Returns:
        One or two columns that, joined, are the values.

    Raises:
        InvalidVariantError: A decimal is out of its type's range, or a time of day is.
    """
    array = plain_storage(array)
    if kind is Kind.STRING or kind is Kind.BINARY:
        return _sized(kind, column_from_arrow(array, present), present)
    if kind is Kind.TRUE:
        return [_booleans(array, present)]
    if kind in DECIMAL_BYTES:
        return [_decimals(kind, array, present)]
    values = _of_present(fixed_values(array, SIZE_BYTES[kind] - 1), present)
    if kind is Kind.TIME:
        _ensure_inside_a_day(values)
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
    values = np.where(bits[present], Kind.TRUE << 2, Kind.FALSE << 2).astype(np.uint8)
    return ByteColumn(offsets_of(present.astype(np.int64)), values)


def _decimals(kind: Kind, array: pa.Array, present: Mask) -> ByteColumn:
    own_width = array.type.bit_width // 8
    values = _of_present(fixed_values(array, own_width), present)
    if own_width == 16:
        _ensure_decimals(kind, np.ascontiguousarray(values).view(np.int64))
        values = values[:, : DECIMAL_BYTES[kind]]
    else:
        signed: Ints = np.ascontiguousarray(values).view(f"<i{own_width}").astype(np.int64)
        _ensure_decimals(kind, np.column_stack([signed, signed >> 63]))
    return _fixed(bytes([kind << 2, array.type.scale]), values, present)


def _ensure_decimals(kind: Kind, halves: Ints) -> None:
    """Check that 128-bit numbers, low half first, have no more digits than their type."""
    low, high = halves[:, 0], halves[:, 1]
    if kind is Kind.DECIMAL16:
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
        raise invalid_variant("a decimal is out of range", f"It does not fit into a {kind.type_name}")


def _sized(kind: Kind, content: ByteColumn, present: Mask) -> list[ByteColumn]:
    sizes = content.sizes
    short = present & (sizes <= MAX_SHORT_STRING_BYTES) if kind is Kind.STRING else np.zeros_like(present)
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
