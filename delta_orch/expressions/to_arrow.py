"""Predicates as Arrow compute expressions, with Spark's meaning.

Arrow compares floats as IEEE does; Spark holds NaN equal to itself and above every number. Arrow's `is_in` answers
false for null where SQL answers null. Both are made good here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.nodes import (
    And,
    Coerced,
    Column,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, natural_type, round_to_float
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import OPERATORS
from delta_orch.protocol.arrow_types import string_array, type_to_arrow
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
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
    StructType,
)

_CHAIN = 64
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1)
_FORMATS: dict[DataType, str] = {
    BYTE: "b", SHORT: "h", INTEGER: "i", LONG: "q", FLOAT: "f", DOUBLE: "d", DATE: "i", TIMESTAMP: "q",
    TIMESTAMP_NTZ: "q",
}  # fmt: skip


def to_arrow_expression(expression: Expression, schema: StructType) -> pc.Expression:
    """A resolved predicate for `Table.filter` and Arrow's datasets whose columns have the types of `schema`.

    Rows for which it is null are those for which Spark's answer is null.

    Raises:
        UnsupportedExpressionError: The predicate holds text (`Opaque`), which only an engine evaluates.
        InvalidExpressionError: The predicate was not resolved.
    """
    return _Translator(schema).predicate(expression)


def literal_array(values: Sequence[Constant], data_type: DataType) -> pa.Array:
    """Python values, None included, as an Arrow array of a Delta type.

    Built from buffers: `pa.array` would import pandas where it is installed, which costs a cold process 0.6 s.
    """
    validity = None
    if any(value is None for value in values):
        validity = pa.py_buffer(_bits([value is not None for value in values]))
    if data_type == STRING:
        return string_array(values)
    arrow_type = type_to_arrow(data_type)
    if data_type == BOOLEAN:
        data = _bits(values)
    elif data_type == BINARY:
        present = [b"" if value is None else bytes(value) for value in values]
        ends = [0]
        for item in present:
            ends.append(ends[-1] + len(item))
        buffers = [validity, pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends)), pa.py_buffer(b"".join(present))]
        return pa.Array.from_buffers(arrow_type, len(values), buffers)
    elif isinstance(data_type, DecimalType):
        data = b"".join(_unscaled(value, data_type).to_bytes(16, "little", signed=True) for value in values)
    else:
        numbers = (
            values
            if validity is None and data_type in INTEGRAL_RANGES
            else [0 if value is None else _number(value, data_type) for value in values]
        )
        data = struct.pack(f"<{len(values)}{_FORMATS[data_type]}", *numbers)
    return pa.Array.from_buffers(arrow_type, len(values), [validity, pa.py_buffer(data)])


def _bits(values: Sequence[Constant]) -> bytes:
    """One bit a value, lowest first, set where the value is true."""
    return bytes(
        sum(1 << index for index, value in enumerate(values[start : start + 8]) if value)
        for start in range(0, len(values), 8)
    )


def _number(value: Constant, data_type: DataType) -> Constant:
    if data_type == DATE:
        return (value - _EPOCH_DAY).days
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - _EPOCH) // timedelta(microseconds=1)
    return value


def _unscaled(value: Constant, data_type: DecimalType) -> int:
    if value is None:
        return 0
    sign, digits, exponent = value.as_tuple()
    magnitude = int("".join(map(str, digits)) or "0")
    shift = data_type.scale + exponent
    magnitude = magnitude * int(10**shift) if shift >= 0 else magnitude // int(10**-shift)
    return -magnitude if sign else magnitude


class _Translator:
    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def predicate(self, node: Expression) -> pc.Expression:
        match node:
            case Literal(value, data_type):
                return _scalar(value, BOOLEAN if data_type is None else data_type)
            case And(children):
                return _fold(pc.Expression.__and__, [self.predicate(child) for child in children], True)
            case Or(children):
                return _fold(pc.Expression.__or__, [self.predicate(child) for child in children], False)
            case Not(child):
                return ~self.predicate(child)
            case IsNull(child):
                return self._operand(child).is_null()
            case StartsWith(child, prefix):
                return pc.starts_with(self._operand(child), pattern=prefix)
            case Comparison(op, left, right):
                return self._comparison(op, left, right)
            case In(child, values):
                return self._in(child, values)
            case Column():
                return self._operand(node)
            case Opaque() | Coerced():
                text = to_spark_sql(node)
                raise UnsupportedExpressionError(
                    f"Arrow cannot evaluate {text!r}", remedy="Use an engine: DuckDB or Spark", expression=text
                )
        raise InvalidExpressionError(f"{type(node).__name__} is not an expression", type=type(node).__name__)

    def _operand(self, node: Expression) -> pc.Expression:
        if isinstance(node, Column):
            return pc.field(*node.path)
        if isinstance(node, Literal) and node.value is not None:
            return _scalar(node.value, node.data_type or natural_type(node.value))
        return self.predicate(node)

    def _type_of(self, node: Expression) -> DataType | None:
        if isinstance(node, Column):
            return find_column(node.path, self._schema)[1]
        return node.data_type if isinstance(node, Literal) else BOOLEAN

    def _comparison(self, op: str, left: Expression, right: Expression) -> pc.Expression:
        if op == "<=>":
            return self._null_safe(left, right)
        if self._type_of(left) in (FLOAT, DOUBLE):
            return self._compare_floats(op, left, right)
        return _compare(op, self._operand(left), self._operand(right))

    def _null_safe(self, left: Expression, right: Expression) -> pc.Expression:
        # The left side may be a predicate, with predicates inside: it is made once, or each level would double it.
        if isinstance(right, Literal) and right.value is None:
            return self._operand(left).is_null()
        equal = pc.coalesce(self._comparison("=", left, right), _scalar(False, BOOLEAN))
        if isinstance(right, Literal):
            return equal
        return equal | (self._operand(left).is_null() & self._operand(right).is_null())

    def _compare_floats(self, op: str, left: Expression, right: Expression) -> pc.Expression:
        a, b = self._operand(left), self._operand(right)
        plain = _compare(op, a, b)
        if isinstance(right, Literal):
            if not math.isnan(right.value):
                return plain | pc.is_nan(a) if op in (">", ">=") else plain
            return _against_nan(op, a)
        a_nan, b_nan = pc.is_nan(a), pc.is_nan(b)
        match op:
            case "=":
                return plain | (a_nan & b_nan)
            case "!=":
                return plain & ~(a_nan & b_nan)
            case ">":
                return plain | (a_nan & ~b_nan)
            case ">=":
                return plain | a_nan
            case "<":
                return plain | (b_nan & ~a_nan)
        return plain | b_nan

    def _in(self, child: Expression, values: Sequence[Literal]) -> pc.Expression:
        column = self._operand(child)
        present = [value for value in values if value.value is not None]
        answer = _scalar(False, BOOLEAN)
        kind = self._type_of(child)
        if present and kind in (FLOAT, DOUBLE):
            answer = _is_one_of_floats(column, [float(value.value) for value in present], kind)
        elif present:
            kind = present[0].data_type or natural_type(present[0].value)
            answer = pc.is_in(column, value_set=literal_array([value.value for value in present], kind))
        null = _scalar(None, BOOLEAN)
        if len(present) < len(values):
            answer = answer | null
        return pc.if_else(column.is_null(), null, answer)


def _is_one_of_floats(column: pc.Expression, values: Sequence[float], kind: DataType) -> pc.Expression:
    """As Spark compares, where `is_in` compares bits: zeros are equal whatever their sign, and so are NaNs."""
    exact = {value for value in values if kind == DOUBLE or round_to_float(value) == value}
    listed = [*exact, *([-value for value in exact if value == 0])]
    found = pc.is_in(column, value_set=literal_array(listed, kind))
    return found | pc.is_nan(column) if any(math.isnan(value) for value in values) else found


def _scalar(value: Constant, data_type: DataType) -> pc.Expression:
    return pc.scalar(literal_array([value], data_type)[0])


def _fold(
    operator: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: list[pc.Expression], empty: bool
) -> pc.Expression:
    if not parts:
        return _scalar(empty, BOOLEAN)
    while len(parts) > 1:
        # Arrow makes one deep tree of a chain of one operator, and walks it recursively. Another function ends a chain.
        chains = [reduce(operator, parts[i : i + _CHAIN]) for i in range(0, len(parts), _CHAIN)]
        parts = chains if len(chains) == 1 else [pc.coalesce(c, _scalar(None, BOOLEAN)) for c in chains]
    return parts[0]


def _compare(op: str, left: pc.Expression, right: pc.Expression) -> pc.Expression:
    if op not in OPERATORS:
        raise InvalidExpressionError(f"{op!r} is not a comparison", operator=op)
    compared: pc.Expression = OPERATORS[op](left, right)
    return compared


def _against_nan(op: str, column: pc.Expression) -> pc.Expression:
    """`column op NaN`, null where the column is."""
    never = pc.is_nan(column) & ~pc.is_nan(column)
    match op:
        case "=" | ">=":
            return pc.is_nan(column)
        case "!=" | "<":
            return ~pc.is_nan(column)
        case ">":
            return never
    return ~never
