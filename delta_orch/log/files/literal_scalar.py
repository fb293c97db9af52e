"""Python values as Arrow values of a Delta type, without `pa.array` and `pa.scalar` (see `arrow_building`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate

import pyarrow as pa

from delta_orch.expressions.nodes import Constant
from delta_orch.log.files.arrow_building import bool_array, int64_array, string_array
from delta_orch.protocol.arrow_types import type_to_arrow
from delta_orch.protocol.types import BINARY, BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, DataType, DecimalType

_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def literal_array(values: Sequence[Constant], data_type: DataType) -> pa.Array:
    """Values, none of them None, in the Arrow type of `data_type`.

    Raises:
        TypeError, ValueError, AttributeError, OverflowError, pa.ArrowInvalid: A value is none of that type.
    """
    arrow_type = type_to_arrow(data_type)
    if data_type == STRING:
        return string_array(values)
    if data_type == BOOLEAN:
        return bool_array(values)
    if data_type == BINARY:
        return _binary_array([bytes(v) for v in values])
    if data_type == DATE:
        return int64_array([(v - _EPOCH_DAY).days for v in values]).cast(pa.int32()).cast(arrow_type)
    if data_type == TIMESTAMP:
        return int64_array([_micros(v.astimezone(UTC).replace(tzinfo=None)) for v in values]).cast(arrow_type)
    if data_type == TIMESTAMP_NTZ:
        return int64_array([_micros(v) for v in values]).cast(arrow_type)
    if isinstance(data_type, DecimalType):
        return string_array([f"{v:f}" for v in values]).cast(arrow_type)
    if pa.types.is_floating(arrow_type):
        return float64_array(values).cast(arrow_type)
    return int64_array(values).cast(arrow_type)


def literal_scalar(value: Constant, data_type: DataType) -> pa.Scalar:
    """One value, not None. Raises as `literal_array`."""
    return literal_array([value], data_type)[0]


def float64_array(values: Sequence[float]) -> pa.DoubleArray:
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(array("d", values))])


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    offsets = pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(b"".join(values))])
