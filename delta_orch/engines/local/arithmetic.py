"""Sums, differences and products that Arrow computes as Spark does: `n + 1` starts no DuckDB in a new process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import column_indexes, value_at
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.fit_comparison import literal_type
from delta_orch.expressions.nodes import Cast, Column, Expression, Opaque, Operation
from delta_orch.expressions.parse import syntax_of
from delta_orch.expressions.resolve import find_column
from delta_orch.protocol.arrow_building import literal_scalar
from delta_orch.protocol.arrow_types import type_to_arrow
from delta_orch.protocol.types import BYTE, DOUBLE, INTEGER, LONG, SHORT, DataType, StructType

_KINDS = (BYTE, SHORT, INTEGER, LONG, DOUBLE)
"""Two operands are computed in the later one. Floats and decimals have rules of their own."""
_FUNCTIONS = {"+": ("add_checked", "add"), "-": ("subtract_checked", "subtract"), "*": ("multiply_checked", "multiply")}
_MOST_OPERATIONS = 16


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A value of `data_type` for each row of a batch."""

    data_type: DataType
    _values: Callable[[pa.RecordBatch], pa.Array | pa.Scalar]

    @staticmethod
    def of(value: Expression, schema: StructType) -> Arithmetic | None:
        """None where a value is something else, or all rows have the same."""
        if isinstance(value, Opaque) and value.columns:
            node = syntax_of(value)
            is_known = isinstance(node, Operation) and node.depth <= _MOST_OPERATIONS
            return _operand(node, schema) if is_known else None
        if isinstance(value, Cast) and value.data_type in _KINDS:
            found = Arithmetic.of(value.value, schema)
            return None if found is None else found._widened(value.data_type)
        return None

    def values(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """The values of the column `name`. Raises InvalidExpressionError: an integer overflows."""
        try:
            return self._values(batch)
        except pa.ArrowInvalid as e:
            raise InvalidExpressionError(
                f"The expression of column {name} failed for a row",
                cause=f"The result is beyond the range of its integer type ({e})",
            ) from e

    def _widened(self, target: DataType) -> Arithmetic | None:
        if self.data_type == target:
            return self
        if _KINDS.index(self.data_type) > _KINDS.index(target):
            return None
        kind = type_to_arrow(target)
        # A double takes the nearest value of a long, as in Spark.
        return Arithmetic(target, lambda batch: pc.cast(self._values(batch), kind, safe=False))


def _operand(node: Expression, schema: StructType) -> Arithmetic | None:
    if (literal := constant_of(node)) is not None:
        if literal.value is None or (kind := literal_type(literal)) not in _KINDS:
            return None
        scalar = literal_scalar(literal.value, kind)
        return Arithmetic(kind, lambda _: scalar)
    match node:
        case Column(path):
            found, data_type = find_column(path, schema)
            if data_type not in _KINDS:
                return None
            indexes = column_indexes(found, schema)
            return Arithmetic(data_type, lambda batch: value_at(batch, indexes))
        case Operation("+" | "-" | "*" as sign, (first, second)):
            left, right = _operand(first, schema), _operand(second, schema)
            if left is None or right is None:
                return None
            kind = max(left.data_type, right.data_type, key=_KINDS.index)
            left, right = left._widened(kind), right._widened(kind)
            assert left is not None
            assert right is not None
            return Arithmetic(kind, _applied(getattr(pc, _FUNCTIONS[sign][kind == DOUBLE]), left, right))
    return None


def _applied(function: Callable[..., pa.Array], left: Arithmetic, right: Arithmetic) -> Callable[..., pa.Array]:
    return lambda batch: function(left._values(batch), right._values(batch))
