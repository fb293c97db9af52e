"""Encoded values to Arrow columns of one type, by what can be converted into what.

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
import pyarrow.compute as pc

from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.variant.byte_columns import (
    Bytes,
    Ints,
    boolean_array,
    fixed_values,
    gather,
    int64_array,
    present_bytes,
    valid_mask,
    with_validity,
)
from delta_orch.protocol.variant.layouts import value_sizes
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.navigate import Located
from delta_orch.protocol.variant.primitive_columns import ensure_decimals
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MICROS_OF_A_DAY,
    BasicType,
    PrimitiveType,
)

OnMismatch = Literal["raise", "null"]

_INTEGERS = (PrimitiveType.INT8, PrimitiveType.INT16, PrimitiveType.INT32, PrimitiveType.INT64)
_DECIMALS = (PrimitiveType.DECIMAL4, PrimitiveType.DECIMAL8, PrimitiveType.DECIMAL16)
_BOOLEANS = (PrimitiveType.TRUE, PrimitiveType.FALSE)
_NUMBERS = {*_INTEGERS, *_DECIMALS, PrimitiveType.FLOAT, PrimitiveType.DOUBLE}
PLAIN_ARROW = {
    PrimitiveType.INT8: pa.int8(),
    PrimitiveType.INT16: pa.int16(),
    PrimitiveType.INT32: pa.int32(),
    PrimitiveType.INT64: pa.int64(),
    PrimitiveType.DOUBLE: pa.float64(),
    PrimitiveType.FLOAT: pa.float32(),
    PrimitiveType.DATE: pa.date32(),
    PrimitiveType.TIMESTAMP: pa.timestamp("us", "UTC"),
    PrimitiveType.TIMESTAMP_NTZ: pa.timestamp("us"),
    PrimitiveType.TIME: pa.time64("us"),
    PrimitiveType.TIMESTAMP_NANOS: pa.timestamp("ns", "UTC"),
    PrimitiveType.TIMESTAMP_NTZ_NANOS: pa.timestamp("ns"),
    PrimitiveType.UUID: pa.binary(16),
}
_EXACT_DOUBLE_INTEGERS = 1 << 53
_EXACT_POWERS_OF_TEN = 22


def is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def sources_of(target: pa.DataType) -> set[PrimitiveType]:
    """The primitive types that can become `target` by themselves, without becoming text first.

    Raises:
        InvalidRequestError: Variants cannot be read as that type.
    """
    types = pa.types
    if types.is_boolean(target):
        return set(_BOOLEANS)
    if types.is_integer(target) or types.is_float32(target) or types.is_float64(target) or types.is_decimal(target):
        return _NUMBERS
    if types.is_timestamp(target):
        name = "TIMESTAMP" if target.tz else "TIMESTAMP_NTZ"
        return {PrimitiveType[name], PrimitiveType[name + "_NANOS"]}
    if is_text(target):
        return {PrimitiveType.STRING, *_INTEGERS, *_BOOLEANS}
    if types.is_fixed_size_binary(target) and target.byte_width == 16:
        return {PrimitiveType.UUID}
    if types.is_binary(target) or types.is_large_binary(target) or types.is_binary_view(target):
        return {PrimitiveType.BINARY}
    if types.is_date32(target):
        return {PrimitiveType.DATE}
    if types.is_time64(target):
        return {PrimitiveType.TIME}
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
    first_bytes = located.data[located.starts]
    for first_byte in present_bytes(first_bytes[(first_bytes & 3) != BasicType.SHORT_STRING]):
        kind = PrimitiveType(first_byte >> 2) if not first_byte & 3 else None
        if kind is PrimitiveType.NULL or kind is PrimitiveType.STRING or kind in sources & {PrimitiveType.BINARY}:
            continue
        chosen = np.flatnonzero(first_bytes == first_byte)
        if is_text(target) and kind not in sources:
            rest = Located(located.rows[chosen], located.data, located.starts[chosen], located.ends[chosen])
            yield rest.rows, convert_array(to_text(rest), target, on_mismatch)
        elif kind is None or kind not in sources:
            refuse(kind.name.lower() if kind is not None else "objects or arrays", target, on_mismatch)
        else:
            yield from _of_kind(kind, located, chosen, target, on_mismatch)
    for kind, chosen, skipped in _sized(first_bytes):
        if not len(chosen) or (kind is PrimitiveType.BINARY and kind not in sources):
            continue
        if kind not in sources:
            refuse(kind.name.lower(), target, on_mismatch)
            continue
        content = gather(located.data, located.starts[chosen] + skipped, sizes[chosen] - skipped).to_arrow()
        yield located.rows[chosen], convert_array(content, target, on_mismatch)


def _sized(first_bytes: Bytes) -> Iterator[tuple[PrimitiveType, Ints, int]]:
    yield PrimitiveType.STRING, np.flatnonzero((first_bytes & 3) == BasicType.SHORT_STRING), 1
    for kind in (PrimitiveType.STRING, PrimitiveType.BINARY):
        yield kind, np.flatnonzero(first_bytes == kind << 2), 5


def refuse(found: str, target: pa.DataType, on_mismatch: OnMismatch) -> None:
    if on_mismatch == "raise":
        raise mismatch(f"values of type {found}", target)


def _of_kind(
    kind: PrimitiveType, located: Located, chosen: Ints, target: pa.DataType, on_mismatch: OnMismatch
) -> Iterator[tuple[Ints, pa.Array]]:
    rows, content = located.rows[chosen], located.starts[chosen] + 1
    if kind in _BOOLEANS:
        booleans = boolean_array(np.full(len(chosen), kind is PrimitiveType.TRUE))
        yield rows, convert_array(booleans, target, on_mismatch)
    elif kind in _DECIMALS:
        scales = located.data[content]
        for scale in present_bytes(scales):
            same = np.flatnonzero(scales == scale)
            decimals = decimal_array(kind, scale, located.data, content[same] + 1)
            yield rows[same], convert_array(decimals, target, on_mismatch)
    else:
        t = PLAIN_ARROW[kind]
        numbers = fixed_width(located.data, content, t.bit_width // 8)
        if kind is PrimitiveType.TIME:
            ensure_inside_a_day(numbers.view(np.int64)[:, 0])
        array = pa.Array.from_buffers(t, len(chosen), [None, pa.py_buffer(numbers)])
        yield rows, convert_array(array, target, on_mismatch)


def ensure_inside_a_day(micros: Ints) -> None:
    if ((micros < 0) | (micros >= MICROS_OF_A_DAY)).any():
        raise invalid_variant("a time of day is out of range")


def fixed_width(data: Bytes, starts: Ints, width: int) -> Bytes:
    """The `width` bytes that stand at each of `starts`, a row each."""
    content: Bytes = data[starts[:, None] + np.arange(width)]
    return content


def decimal_array(kind: PrimitiveType, scale: int, data: Bytes, starts: Ints) -> pa.Array:
    """Decimals of one type and scale, given where the number of each stands, as `decimal128`.

    Raises:
        InvalidVariantError: The scale, or a number, is out of range.
    """
    width = {9: 4, 18: 8, 38: 16}[DECIMAL_DIGITS[kind]]
    if scale > 38:
        raise invalid_variant("a decimal is out of range", f"Scale {scale}")
    halves = np.empty((len(starts), 2), np.int64)
    if width == 16:
        halves[:] = fixed_width(data, starts, 16).view(np.int64)
    else:
        halves[:, 0] = fixed_width(data, starts, width).view(f"<i{width}")[:, 0]
        halves[:, 1] = halves[:, 0] >> 63
    ensure_decimals(kind, halves)
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
    return pc.take(pa.concat_arrays([array for _, array in pieces]), with_validity(int64_array(positions), there))
