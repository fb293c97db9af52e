"""Predicates over partition values: one value a file, so the result is exact. Semantics are Spark SQL's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.expressions.nodes import Literal
from delta_orch.log.files.arrow_building import bool_array
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.literal_scalar import literal_array, literal_scalar
from delta_orch.log.files.partition_columns import one_chunk, partition_strings
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import DataType, StructType
from delta_orch.table.column_mapping import physical_path

_Key = tuple[bool, bool, float]

_COMPARE: Mapping[str, Callable[[pa.Array, pa.Array | pa.Scalar], pa.BooleanArray]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_COMPARE_PYTHON: Mapping[str, Callable[[_Key, _Key], bool]] = {
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


class PartitionValues:
    """The partition values of some files in their Arrow types, each column decoded once, when it is asked for.

    Args:
        missing: Which files name no partition values at all (a `remove` may lack them); None where all files do.
        decode: A partition column by its logical name, one value a file.
        columns: What is decoded already.
    """

    def __init__(
        self,
        num_files: int,
        missing: pa.BooleanArray | None,
        decode: Callable[[str], pa.Array],
        columns: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self.num_files = num_files
        self.missing = missing
        self._decode = decode
        self._columns = dict(columns or {})

    @classmethod
    def of_maps(cls, maps: pa.Array, schema: StructType, names: Sequence[str] | None = None) -> PartitionValues:
        """Of a column `partition_values`. With `names`, these columns are decoded at once, and no others can be."""
        missing = maps.is_null() if maps.null_count else None
        if names is None:
            return cls(len(maps), missing, lambda name: partition_column(maps, name, schema))
        columns = {name: partition_column(maps, name, schema) for name in names}
        return cls(len(maps), missing, columns.__getitem__, columns)

    @classmethod
    def of_files(cls, files: pa.Table, schema: StructType) -> PartitionValues:
        """Of files with a column `partition_values`."""
        return cls.of_maps(one_chunk(FileTable(files).partition_values), schema)

    def column(self, name: str) -> pa.Array:
        """One partition column. Raises as `partition_column`."""
        if name not in self._columns:
            self._columns[name] = self._decode(name)
        return self._columns[name]

    def filter(self, keep: pa.BooleanArray | pa.ChunkedArray | None) -> PartitionValues:
        """Those of the files that a mask marks; all of them without one."""
        if keep is None:
            return self
        keep = one_chunk(keep)
        missing = None if self.missing is None else self.missing.filter(keep)
        return PartitionValues(keep.true_count, missing, lambda name: self.column(name).filter(keep))


def partition_column(maps: pa.Array, name: str, schema: StructType) -> pa.Array:
    """The values of a partition column (logical name), in its Arrow type, one a file.

    Args:
        maps: A column `partition_values`.

    Raises:
        ProtocolViolationError: The log holds a value that is none of the column's type.
    """
    (physical,) = physical_path(schema, [name])
    texts = one_chunk(partition_strings(maps, [physical])[physical])
    field = schema.find(name)
    return texts if field is None else one_chunk(partition_column_to_arrow(texts, field.data_type))


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


def _ordered(value: float | None) -> _Key:
    """A key that orders and compares as Spark does."""
    if value is None:
        return True, False, 0.0
    return (False, True, 0.0) if math.isnan(value) else (False, False, value + 0.0)
