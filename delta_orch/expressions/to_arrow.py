"""Predicates over Arrow rows, with Spark's meaning.

Arrow compares floats as IEEE does; Spark holds NaN equal to itself and above every number. Arrow's `is_in` answers
false for null where SQL answers null. Both are made good here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple, TypeAlias

import pyarrow as pa

import delta_orch.arrow_compute as pc
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
from delta_orch.expressions.spark_literals import natural_type, round_to_float
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import plain_values
from delta_orch.protocol.arrow_building import literal_array, literal_scalar
from delta_orch.protocol.types import BOOLEAN, DOUBLE, FLOAT, DataType, StructType

Rows: TypeAlias = "pa.Table | pa.RecordBatch"
_Values: TypeAlias = "pa.Array | pa.ChunkedArray | pa.Scalar"
_Evaluate: TypeAlias = "Callable[[Rows], _Values]"

_COMPARE: dict[str, Callable[[_Values, _Values], _Values]] = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def arrow_predicate(expression: Expression, schema: StructType) -> Callable[[Rows], pa.BooleanArray | pa.ChunkedArray]:
    """A resolved predicate as a function of rows whose columns have the types of `schema`: one answer a row, null where
    Spark's answer is null.

    Plain compute functions, as `Table.filter` of an expression loads `pyarrow.dataset`, and that imports pandas where
    it is installed: twice the time of everything else that a cold process does.

    Raises:
        UnsupportedExpressionError: The predicate holds text (`Opaque`), which only an engine evaluates.
        InvalidExpressionError: The predicate was not resolved.
    """
    answer = _Translator(schema).predicate(expression)

    def answers(rows: Rows) -> pa.BooleanArray | pa.ChunkedArray:
        mask = answer(rows)
        return pa.repeat(mask, rows.num_rows) if isinstance(mask, pa.Scalar) else mask

    return answers


def arrow_expression(expression: Expression, schema: StructType) -> pc.Expression:
    """As `arrow_predicate`, as an expression of Arrow for data sets of this schema. Raises as it does."""
    import pyarrow.compute

    answer = _Translator(schema).predicate(expression)(_Fields(schema))
    return pyarrow.compute.scalar(answer) if isinstance(answer, pa.Scalar) else answer


class _Fields(NamedTuple):
    """Stands for the rows of a data set."""

    schema: StructType

    def column(self, name: str) -> pc.Expression:
        """Floats with a detour: Arrow takes bounds of a column in Parquet for those of all its values, and would pass
        over NaN, which they leave out."""
        import pyarrow.compute

        column = pyarrow.compute.field(name)
        if find_column((name,), self.schema)[1] not in (FLOAT, DOUBLE):
            return column
        return pc.struct_field(pc.make_struct(column, field_names=[name]), [0])


_FALSE, _NULL = literal_array([False, None], BOOLEAN)


class _Translator:
    """Values are translated once, however many batches they are evaluated over."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def predicate(self, node: Expression) -> _Evaluate:
        match node:
            case Literal(value, data_type):
                return _constant(value, BOOLEAN if data_type is None else data_type)
            case And(children):
                return _fold(pc.and_kleene, [self.predicate(child) for child in children], True)
            case Or(children):
                return _fold(pc.or_kleene, [self.predicate(child) for child in children], False)
            case Not(child):
                return _call(pc.invert, self.predicate(child))
            case IsNull(child):
                return _call(pc.is_null, self._operand(child))
            case StartsWith(child, prefix):
                return _call(partial(pc.starts_with, pattern=prefix), self._operand(child))
            case Comparison(op, left, right):
                return self._comparison(op, left, right)
            case In(child, values):
                return self._in(child, values)
            case Column():
                return self._operand(node)
            case Opaque() | Coerced():
                text = to_spark_sql(node)
                raise UnsupportedExpressionError(
                    f"Arrow cannot evaluate {text!r}", remedy="Read the rows with scan(where=…)", expression=text
                )
        raise InvalidExpressionError(f"{type(node).__name__} is not an expression", type=type(node).__name__)

    def _operand(self, node: Expression) -> _Evaluate:
        if isinstance(node, Column):
            first, *below = node.path
            if below:
                return lambda rows: pc.struct_field(rows.column(first), below)
            return lambda rows: rows.column(first)
        if isinstance(node, Literal) and node.value is not None:
            return _constant(node.value, node.data_type or natural_type(node.value))
        return self.predicate(node)

    def _type_of(self, node: Expression) -> DataType | None:
        if isinstance(node, Column):
            return find_column(node.path, self._schema)[1]
        return node.data_type if isinstance(node, Literal) else BOOLEAN

    def _comparison(self, op: str, left: Expression, right: Expression) -> _Evaluate:
        a, b = self._operand(left), self._operand(right)
        if op != "<=>":
            return _call(self._comparer(op, left, right), a, b)
        if isinstance(right, Literal) and right.value is None:
            return _call(pc.is_null, a)
        return _call(partial(_null_safe, self._comparer("=", left, right)), a, b)

    def _comparer(self, op: str, left: Expression, right: Expression) -> Callable[[_Values, _Values], _Values]:
        if op not in _COMPARE:
            raise InvalidExpressionError(f"{op!r} is not a comparison", operator=op)
        if self._type_of(left) not in (FLOAT, DOUBLE):
            return _COMPARE[op]
        if isinstance(right, Literal):
            return partial(_compare_nan if math.isnan(right.value) else _compare_number, op)
        return partial(_compare_floats, op)

    def _in(self, child: Expression, values: Sequence[Literal]) -> _Evaluate:
        present = [value for value in plain_values(values) if value is not None]
        kind = self._type_of(child)
        is_float = kind in (FLOAT, DOUBLE)
        if not is_float and present:
            first = next(literal for literal in values if literal.value is not None)
            kind = first.data_type or natural_type(first.value)
        numbers = _as_bits_differ(present, kind) if is_float else present
        listed = literal_array(numbers, kind) if numbers and kind is not None else None
        has_nan = is_float and any(map(math.isnan, present))
        otherwise = _NULL if len(present) < len(values) else _FALSE

        def is_in(column: _Values) -> _Values:
            is_listed = _FALSE if listed is None else pc.is_in(column, value_set=listed)
            if has_nan:
                is_listed = pc.or_kleene(is_listed, pc.is_nan(column))
            return pc.if_else(pc.is_null(column), _NULL, pc.or_kleene(is_listed, otherwise))

        return _call(is_in, self._operand(child))


def _call(function: Callable[..., _Values], *operands: _Evaluate) -> _Evaluate:
    return lambda rows: function(*(operand(rows) for operand in operands))


def _constant(value: Constant, data_type: DataType) -> _Evaluate:
    scalar = literal_scalar(value, data_type)
    return lambda _: scalar


def _null_safe(equals: Callable[[_Values, _Values], _Values], a: _Values, b: _Values) -> _Values:
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.coalesce(equals(a, b), _FALSE), both_null)


def _as_bits_differ(values: Sequence[float], kind: DataType | None) -> list[float]:
    """Numbers for `is_in`, which compares bits where Spark holds zeros equal whatever their sign. Without those that no
    value of the type equals."""
    exact = {float(value) for value in values if kind == DOUBLE or round_to_float(value) == value}
    return [*exact, *(-value for value in exact if value == 0)]


def _fold(operator: Callable[[_Values, _Values], _Values], parts: Sequence[_Evaluate], empty: bool) -> _Evaluate:
    if not parts:
        return _constant(empty, BOOLEAN)
    return lambda rows: reduce(operator, (part(rows) for part in parts))


def _compare_number(op: str, column: _Values, number: _Values) -> _Values:
    plain = _COMPARE[op](column, number)
    return pc.or_kleene(plain, pc.is_nan(column)) if op in (">", ">=") else plain


def _compare_nan(op: str, column: _Values, _nan: _Values) -> _Values:
    """`column op NaN`, null where the column is."""
    is_nan = pc.is_nan(column)
    never = pc.and_kleene(is_nan, pc.invert(is_nan))
    match op:
        case "=" | ">=":
            return is_nan
        case "!=" | "<":
            return pc.invert(is_nan)
        case ">":
            return never
    return pc.invert(never)


def _compare_floats(op: str, a: _Values, b: _Values) -> _Values:
    plain, a_nan, b_nan = _COMPARE[op](a, b), pc.is_nan(a), pc.is_nan(b)
    match op:
        case "=":
            return pc.or_kleene(plain, pc.and_kleene(a_nan, b_nan))
        case "!=":
            return pc.and_kleene(plain, pc.invert(pc.and_kleene(a_nan, b_nan)))
        case ">":
            return pc.or_kleene(plain, pc.and_kleene(a_nan, pc.invert(b_nan)))
        case ">=":
            return pc.or_kleene(plain, a_nan)
        case "<":
            return pc.or_kleene(plain, pc.and_kleene(b_nan, pc.invert(a_nan)))
    return pc.or_kleene(plain, b_nan)
