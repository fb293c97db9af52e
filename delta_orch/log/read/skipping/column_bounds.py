"""Bounds of a column, file by file, made of the minima and maxima that writers record (PROTOCOL, "Per-file
Statistics").

Statistics are read with doubt: whatever is missing, malformed or known to be rounded by some writer widens the bounds
or leaves them unknown. A file is then read although it need not be, and never skipped although it matters.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from delta_orch.log.files.arrow_building import bool_array, int64_array
from delta_orch.log.files.literal_scalar import float64_array
from delta_orch.protocol.arrow_types import type_to_arrow
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)

_LOGGER = logging.getLogger(__name__)

_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"
_EXACT_TYPES = {
    **dict.fromkeys((LONG, INTEGER, SHORT, BYTE), pa.int64()),
    **dict.fromkeys((FLOAT, DOUBLE), pa.float64()),
    STRING: pa.string(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
}
# Beyond 15 digits a decimal does not survive the doubles that some writers put it through.
_MAX_EXACT_DIGITS = 15
_DOUBLE_ERROR = float64_array([2.0**-50])[0]
_ALMOST_A_MILLISECOND = int64_array([999])[0]
_LAST_MILLISECOND = int64_array([(1 << 63) - 1000])[0]
_ZERO = int64_array([0])[0]
_YES = bool_array([True])[0]


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What the statistics say about one column, one row a file.

    Attributes:
        lower, upper: No value is below, or above; null where nothing is known. NaN is left out of account, and a
            string of 32 or more characters in `upper` may be the prefix of a greater one.
        may_be_null: False where no row is null.
        may_be_value: False where every row is null.
        data_type: The column's type. Integers come as int64, floats and decimals of more than 15 digits as doubles.
    """

    lower: pa.Array
    upper: pa.Array
    may_be_null: pa.BooleanArray
    may_be_value: pa.BooleanArray
    data_type: DataType


def bounds_of(
    data_type: DataType, minimum: pa.Array, maximum: pa.Array, null_count: pa.Array, num_records: pa.Array
) -> ColumnBounds:
    """Bounds from recorded statistics, one row a file, null where something is not recorded.

    Args:
        minimum, maximum: Values in any Arrow type that can be cast to the column's; dates and times may be text.
        null_count, num_records: Integers.
    """
    null_count, num_records = _cast(null_count, pa.int64()), _cast(num_records, pa.int64())
    may_be_null = pc.coalesce(pc.not_equal(null_count, _ZERO), _YES)
    may_be_value = pc.coalesce(pc.not_equal(null_count, num_records), _YES)
    lower, upper = _range(data_type, minimum, maximum)
    return ColumnBounds(lower, upper, may_be_null, may_be_value, data_type)


def joined(parts: list[ColumnBounds]) -> ColumnBounds:
    """The bounds of several batches of files as one; of at least one batch."""

    def column(name: str) -> pa.Array:
        return pa.concat_arrays([getattr(part, name) for part in parts])

    return ColumnBounds(
        column("lower"), column("upper"), column("may_be_null"), column("may_be_value"), parts[0].data_type
    )


def bound_type(data_type: DataType) -> pa.DataType | None:
    """The Arrow type of a column's bounds; None for types that have none."""
    if isinstance(data_type, DecimalType):
        exact = data_type.precision <= _MAX_EXACT_DIGITS
        return pa.decimal128(38, data_type.scale) if exact else pa.float64()
    return _EXACT_TYPES.get(data_type)


def _range(data_type: DataType, minimum: pa.Array, maximum: pa.Array) -> tuple[pa.Array, pa.Array]:
    target = bound_type(data_type)
    if target is None:
        nothing = pa.nulls(len(minimum), type_to_arrow(data_type))
        return nothing, nothing
    lower, upper = (_cast(_readable(values, target), target) for values in (minimum, maximum))
    if data_type == FLOAT:
        # In the fewest digits that tell one float from the next, which as a double are another number.
        return _to_floats(lower), _to_floats(upper)
    if data_type == DOUBLE:
        # Files from before the column was widened may have been told of in that way.
        return pc.min_element_wise(lower, _to_floats(lower)), pc.max_element_wise(upper, _to_floats(upper))
    if isinstance(data_type, DecimalType) and pt.is_floating(target):
        margins = [pc.multiply(pc.abs(values), _DOUBLE_ERROR) for values in (lower, upper)]
        return pc.subtract(lower, margins[0]), pc.add(upper, margins[1])
    # Writers cut timestamps down to milliseconds: the greatest value may lie almost one above the maximum.
    return lower, _up_to_the_millisecond(upper) if pt.is_timestamp(target) else upper


def _to_floats(bounds: pa.DoubleArray) -> pa.DoubleArray:
    """Each bound as the float next to it; one beyond all floats as it is."""
    floats = pc.cast(pc.cast(bounds, pa.float32()), pa.float64())
    return pc.if_else(pc.is_inf(floats), bounds, floats)


def _up_to_the_millisecond(upper: pa.TimestampArray) -> pa.TimestampArray:
    micros = upper.view(pa.int64())
    widened = pc.if_else(pc.less(micros, _LAST_MILLISECOND), pc.add(micros, _ALMOST_A_MILLISECOND), micros)
    return widened.view(upper.type)


def _readable(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Text of timestamps as Arrow reads it; null where nobody can say which instant is meant."""
    if not pt.is_timestamp(target) or not pt.is_string(values.type):
        return values
    nothing = pa.nulls(1, pa.string())[0]
    if target.tz is not None:
        return pc.if_else(pc.match_substring_regex(values, _ZONE), values, nothing)
    bare = pc.replace_substring_regex(values, "Z$", "")
    return pc.if_else(pc.match_substring_regex(bare, _ZONE), nothing, bare)


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        return values
    try:
        return values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        _LOGGER.debug("Statistics that are no %s prune nothing: %s", target, e)
        return pa.nulls(len(values), target)
