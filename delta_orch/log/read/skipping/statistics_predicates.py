"""Predicates over columns of which only bounds are known: what they may be for some row of a file."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.expressions.nodes import Constant, Literal
from delta_orch.log.files.arrow_building import all_booleans, bool_array, string_array
from delta_orch.log.files.literal_scalar import literal_scalar
from delta_orch.log.read.skipping.column_bounds import ColumnBounds
from delta_orch.log.read.skipping.outcomes import Outcomes
from delta_orch.protocol.types import STRING

_MAX_SINGLE_VALUES = 100
_MIN_PREFIX_CHARACTERS = 32
"""Writers cut strings to a prefix of at least this many characters; not all of them round the maximum up."""
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_YES = bool_array([True])[0]


def compare_bounds(op: str, bounds: ColumnBounds, literal: Literal) -> Outcomes:
    """`column op literal`; the literal is not null."""
    if op == "<=>":
        equal = compare_bounds("=", bounds, literal)
        return Outcomes(equal.true, pc.or_(equal.false, bounds.may_be_null), all_booleans(False, len(equal.true)))
    true = pc.and_(bounds.may_be_value, _may_hold(op, bounds, literal))
    false = pc.and_(bounds.may_be_value, _may_hold(_NEGATED[op], bounds, literal))
    return Outcomes(true, false, bounds.may_be_null)


def in_bounds(bounds: ColumnBounds, literals: Sequence[Literal]) -> Outcomes:
    """`column IN (…)`."""
    present = [literal for literal in literals if literal.value is not None]
    true = pc.and_(bounds.may_be_value, _may_be_one_of(bounds, present))
    if len(present) < len(literals):
        nulls = pc.or_(bounds.may_be_null, bounds.may_be_value)
        return Outcomes(true, all_booleans(False, len(true)), nulls)
    return Outcomes(true, bounds.may_be_value, bounds.may_be_null)


def prefix_in_bounds(bounds: ColumnBounds, prefix: str) -> Outcomes:
    """`column LIKE 'prefix%'`."""
    if bounds.data_type != STRING:
        return Outcomes.unknown(len(bounds.lower))
    text = string_array([prefix])[0]
    not_above = pc.or_kleene(pc.less_equal(bounds.lower, text), pc.starts_with(bounds.lower, prefix))
    not_below = pc.or_kleene(pc.greater_equal(bounds.upper, text), _is_cut_prefix_of(bounds.upper, prefix))
    true = _unless_known(pc.and_kleene(not_above, not_below))
    return Outcomes(pc.and_(bounds.may_be_value, true), bounds.may_be_value, bounds.may_be_null)


def _may_be_one_of(bounds: ColumnBounds, literals: Sequence[Literal]) -> pa.BooleanArray:
    if len(literals) <= _MAX_SINGLE_VALUES:
        single = [_may_hold("=", bounds, literal) for literal in literals]
        result = all_booleans(False, len(bounds.lower))
        for may_hold in single:
            result = pc.or_(result, may_hold)
        return result
    if any(isinstance(literal.value, float) and math.isnan(literal.value) for literal in literals):
        return all_booleans(True, len(bounds.lower))
    lowest = min(literals, key=lambda literal: literal.value)
    highest = max(literals, key=lambda literal: literal.value)
    return pc.and_(_may_hold(">=", bounds, lowest), _may_hold("<=", bounds, highest))


def _may_hold(op: str, bounds: ColumnBounds, literal: Literal) -> pa.BooleanArray:
    """Whether some value within the bounds may satisfy the comparison."""
    value = literal.value
    if isinstance(value, float) and math.isnan(value):
        # No bound tells whether there are NaNs.
        return all_booleans(True, len(bounds.lower))
    scalar = _scalar(bounds, literal)
    match op:
        case "=":
            above_lower = pc.less_equal(bounds.lower, scalar)
            return _unless_known(pc.and_kleene(above_lower, _reaches(">=", bounds, scalar, value)))
        case "!=":
            only_that = pc.and_kleene(pc.equal(bounds.lower, scalar), pc.equal(bounds.upper, scalar))
            return _unless_known(pc.or_kleene(pc.invert(only_that), _may_exceed(bounds, value)))
        case "<":
            return _unless_known(pc.less(bounds.lower, scalar))
        case "<=":
            return _unless_known(pc.less_equal(bounds.lower, scalar))
    return _unless_known(pc.or_kleene(_reaches(op, bounds, scalar, value), _may_exceed(bounds, value)))


def _reaches(op: str, bounds: ColumnBounds, scalar: pa.Scalar, value: Constant) -> pa.BooleanArray:
    compare = pc.greater if op == ">" else pc.greater_equal
    reached = compare(bounds.upper, scalar)
    return pc.or_kleene(reached, _is_cut_prefix_of(bounds.upper, value)) if isinstance(value, str) else reached


def _may_exceed(bounds: ColumnBounds, value: Constant) -> pa.BooleanArray:
    """Whether rows above the upper bound may exist that compare with the value as no value within the bounds does."""
    if pa.types.is_floating(bounds.upper.type):
        # Spark counts NaN as the greatest value; most other writers leave it out of the maximum.
        return all_booleans(True, len(bounds.upper))
    if isinstance(value, str):
        return _is_cut_prefix_of(bounds.upper, value)
    return all_booleans(False, len(bounds.upper))


def _is_cut_prefix_of(upper: pa.StringArray, value: str) -> pa.BooleanArray:
    """Whether the maximum may be a cut string that goes on like the value: only then may rows reach or exceed it."""
    prefixes = [value[:length] for length in range(_MIN_PREFIX_CHARACTERS, len(value) + 1)]
    return pc.is_in(upper, value_set=string_array(prefixes))


def _scalar(bounds: ColumnBounds, literal: Literal) -> pa.Scalar:
    scalar = literal_scalar(literal.value, literal.data_type or bounds.data_type)
    return scalar if scalar.type == bounds.lower.type else scalar.cast(bounds.lower.type)


def _unless_known(holds: pa.BooleanArray) -> pa.BooleanArray:
    """Null, where a bound is missing, counts as possible."""
    return pc.coalesce(holds, _YES)
