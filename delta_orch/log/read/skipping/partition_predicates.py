"""Predicates over partition values: one value a file, so the result is exact. Semantics are Spark SQL's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.expressions.nodes import Literal
from delta_orch.log.files.arrow_building import bool_array
from delta_orch.log.files.literal_scalar import literal_array, literal_scalar
from delta_orch.protocol.types import DataType

_COMPARE: Mapping[str, Callable[[pa.Array, pa.Array | pa.Scalar], pa.BooleanArray]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_COMPARE_PYTHON: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<=>": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NO = bool_array([False])[0]
_NULL = pa.nulls(1, pa.bool_())[0]


def compare_with_literal(op: str, values: pa.Array, literal: Literal, data_type: DataType) -> pa.BooleanArray:
    """`values op literal`, null where the value is null (false for `<=>`). The literal is not null.

    Raises as `literal_array`.
    """
    if pa.types.is_floating(values.type):
        constants = [literal.value] * len(values)
        return _compare_floats(op, values.to_pylist(), constants)
    result = _COMPARE[op](values, literal_scalar(literal.value, data_type))
    return pc.coalesce(result, _NO) if op == "<=>" else result


def compare_columns(op: str, left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """`left op right`, null where one of them is null; for `<=>` two nulls are equal."""
    if pa.types.is_floating(left.type):
        return _compare_floats(op, left.to_pylist(), right.to_pylist())
    result = _COMPARE[op](left, right)
    if op != "<=>":
        return result
    return pc.or_(pc.coalesce(result, _NO), pc.and_(left.is_null(), right.is_null()))


def is_in_literals(values: pa.Array, literals: Sequence[Literal], data_type: DataType) -> pa.BooleanArray:
    """`values IN (…)`: null where the value is null, or where it is none of them and one of them is null.

    Raises as `literal_array`.
    """
    present = [literal.value for literal in literals if literal.value is not None]
    if pa.types.is_floating(values.type):
        wanted = {_ordered(v) for v in present}
        found = bool_array([None if v is None else _ordered(v) in wanted for v in values.to_pylist()])
    else:
        listed = pc.is_in(values, value_set=literal_array(present, data_type))
        found = pc.if_else(values.is_valid(), listed, _NULL)
    if len(present) == len(literals):
        return found
    return pc.if_else(pc.coalesce(found, _NO), found, _NULL)


def _compare_floats(op: str, left: Sequence[float | None], right: Sequence[float | None]) -> pa.BooleanArray:
    # One by one: Arrow holds comparisons with NaN for false, Spark has NaN equal to itself and above every number.
    compare = _COMPARE_PYTHON[op]
    if op == "<=>":
        return bool_array([_ordered(a) == _ordered(b) for a, b in zip(left, right, strict=True)])
    return bool_array(
        [
            None if a is None or b is None else compare(_ordered(a), _ordered(b))
            for a, b in zip(left, right, strict=True)
        ]
    )


def _ordered(value: float | None) -> tuple[bool, bool, float]:
    """A key that orders and compares as Spark does."""
    if value is None:
        return True, False, 0.0
    return (False, True, 0.0) if math.isnan(value) else (False, False, value + 0.0)
