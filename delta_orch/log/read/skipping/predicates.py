"""The possible results of a predicate in each file: a subset of true, false and null.

All rows of a file have one partition value, so predicates over partition columns are decided exactly, as Spark SQL
does. Of other columns only bounds are known: then a result is possible where some value within the bounds has it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.expressions.nodes import Constant, Literal
from delta_orch.expressions.tree import plain_values
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.file_statistics import ColumnBounds
from delta_orch.protocol.arrow_building import (
    all_booleans,
    bool_array,
    literal_array,
    literal_scalar,
    one_chunk,
    string_array,
)
from delta_orch.protocol.types import STRING, DataType, StructType
from delta_orch.table.column_mapping import physical_path


class Outcomes(NamedTuple):
    """For each file which results are possible for some of its rows; each a BooleanArray without nulls.

    Never too small: a result that occurs is always marked. Where exactly one is marked, all rows have it.
    """

    true: pa.BooleanArray
    false: pa.BooleanArray
    null: pa.BooleanArray

    @classmethod
    def unknown(cls, num_files: int) -> Outcomes:
        every = all_booleans(True, num_files)
        return cls(every, every, every)

    @classmethod
    def of_constant(cls, value: bool | None, num_files: int) -> Outcomes:
        yes, no = all_booleans(True, num_files), all_booleans(False, num_files)
        return cls(yes if value is True else no, yes if value is False else no, yes if value is None else no)

    @classmethod
    def of_exact(cls, values: pa.BooleanArray) -> Outcomes:
        """From the one result that all rows of a file have."""
        return cls(_known(values), _known(pc.invert(values)), pc.is_null(values))

    def or_unknown(self, is_unknown: pa.BooleanArray) -> Outcomes:
        """The same, but every result is possible for files that the mask marks."""
        return Outcomes(pc.or_(self.true, is_unknown), pc.or_(self.false, is_unknown), pc.or_(self.null, is_unknown))

    def inverted(self) -> Outcomes:
        """NOT."""
        return Outcomes(self.false, self.true, self.null)

    def is_null(self) -> Outcomes:
        """IS NULL of the predicate itself."""
        return Outcomes(self.null, pc.or_(self.true, self.false), all_booleans(False, len(self.null)))

    def compared(self, results: dict[bool | None, bool | None]) -> Outcomes:
        """The predicate's result mapped: `results` gives for true, false and null what becomes of it."""
        nothing = all_booleans(False, len(self.true))
        marks: dict[bool | None, pa.BooleanArray] = {True: nothing, False: nothing, None: nothing}
        for before, possible in ((True, self.true), (False, self.false), (None, self.null)):
            after = results[before]
            marks[after] = pc.or_(marks[after], possible)
        return Outcomes(marks[True], marks[False], marks[None])

    def all_true(self) -> pa.BooleanArray:
        return pc.and_not(self.true, pc.or_(self.false, self.null))


def all_of(outcomes: Sequence[Outcomes]) -> Outcomes:
    """AND; of at least one."""
    return reduce(_and, outcomes)


def any_of(outcomes: Sequence[Outcomes]) -> Outcomes:
    """OR; of at least one."""
    return reduce(_and, [o.inverted() for o in outcomes]).inverted()


def _and(a: Outcomes, b: Outcomes) -> Outcomes:
    not_false_a, not_false_b = pc.or_(a.true, a.null), pc.or_(b.true, b.null)
    return Outcomes(
        true=pc.and_(a.true, b.true),
        false=pc.or_(a.false, b.false),
        null=pc.or_(pc.and_(a.null, not_false_b), pc.and_(b.null, not_false_a)),
    )


def _known(values: pa.BooleanArray) -> pa.BooleanArray:
    return pc.coalesce(values, False)


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
_NULL = pa.nulls(1, pa.bool_())[0]


class PartitionValues:
    """The partition values of some files in their Arrow types. Each column is decoded once, on first use.

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
        missing = pc.is_null(maps) if maps.null_count else None
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
        """The values of files that a mask marks, or of all files without a mask."""
        if keep is None:
            return self
        keep = one_chunk(keep)
        missing = None if self.missing is None else pc.filter(self.missing, keep)
        return PartitionValues(keep.true_count, missing, lambda name: pc.filter(self.column(name), keep))


def partition_column(maps: pa.Array, name: str, schema: StructType) -> pa.Array:
    """The values of a partition column (logical name), in its Arrow type, one a file.

    Args:
        maps: A column `partition_values`.

    Raises:
        ProtocolViolationError: The log holds a value that does not have the column's type.
    """
    from delta_orch.log.files.partition_columns import partition_strings
    from delta_orch.protocol.partition_values import partition_column_to_arrow

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
    return pc.coalesce(result, False) if op == "<=>" else result


def compare_columns(op: str, left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """`left op right`, null where one of them is null; for `<=>` two nulls are equal."""
    if pa.types.is_floating(left.type):
        return _compare_floats(op, left.to_pylist(), right.to_pylist())
    result = _COMPARE[op](left, right)
    if op != "<=>":
        return result
    return pc.or_(pc.coalesce(result, False), pc.and_(pc.is_null(left), pc.is_null(right)))


def is_in_literals(values: pa.Array, literals: Sequence[Literal], data_type: DataType) -> pa.BooleanArray:
    """`values IN (…)`: null where the value is null, or where it is not among them and one of them is null.

    Raises as `literal_array`.
    """
    present = [value for value in plain_values(literals) if value is not None]
    if pa.types.is_floating(values.type):
        ordered_literals = {_ordered(v) for v in present}
        is_listed = bool_array([None if v is None else _ordered(v) in ordered_literals for v in values.to_pylist()])
    else:
        listed = pc.is_in(values, value_set=literal_array(present, data_type))
        is_listed = pc.if_else(pc.is_valid(values), listed, _NULL)
    if len(present) == len(literals):
        return is_listed
    return pc.if_else(pc.coalesce(is_listed, False), is_listed, _NULL)


def _compare_floats(op: str, left: Sequence[float | None], right: Sequence[float | None]) -> pa.BooleanArray:
    # NaN is handled value by value: in Spark it equals itself and is above every number; Arrow's comparisons with it
    # are false.
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


_MAX_SINGLE_VALUES = 100
MIN_PREFIX_CHARACTERS = 32
"""Writers cut strings to a prefix of at least this many characters; not all of them round the maximum up."""
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


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
    has_null = any(value is None for value in plain_values(literals))
    present = [literal for literal in literals if literal.value is not None] if has_null else literals
    true = pc.and_(bounds.may_be_value, _may_be_one_of(bounds, present))
    if len(present) < len(literals):
        nulls = pc.or_(bounds.may_be_null, bounds.may_be_value)
        return Outcomes(true, all_booleans(False, len(true)), nulls)
    return Outcomes(true, bounds.may_be_value, bounds.may_be_null)


def prefix_in_bounds(bounds: ColumnBounds, prefix: str) -> Outcomes:
    """`column LIKE 'prefix%'`."""
    if bounds.data_type != STRING:
        return Outcomes.unknown(len(bounds.lower))
    not_above = pc.or_kleene(pc.less_equal(bounds.lower, prefix), pc.starts_with(bounds.lower, prefix))
    not_below = pc.or_kleene(pc.greater_equal(bounds.upper, prefix), _is_cut_prefix_of(bounds.upper, prefix))
    true = _unless_known(pc.and_kleene(not_above, not_below))
    return Outcomes(pc.and_(bounds.may_be_value, true), bounds.may_be_value, bounds.may_be_null)


def _may_be_one_of(bounds: ColumnBounds, literals: Sequence[Literal]) -> pa.BooleanArray:
    if len(literals) <= _MAX_SINGLE_VALUES:
        single = [_may_hold("=", bounds, literal) for literal in literals]
        result = all_booleans(False, len(bounds.lower))
        for may_hold in single:
            result = pc.or_(result, may_hold)
        return result
    values = plain_values(literals)
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return all_booleans(True, len(bounds.lower))
    lowest, highest = literals[values.index(min(values))], literals[values.index(max(values))]
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
    longest = pc.max(pc.utf8_length(upper)).as_py() or 0
    prefixes = [value[:length] for length in range(MIN_PREFIX_CHARACTERS, min(len(value), longest) + 1)]
    return pc.is_in(upper, value_set=string_array(prefixes))


def _scalar(bounds: ColumnBounds, literal: Literal) -> pa.Scalar:
    scalar = literal_scalar(literal.value, literal.data_type or bounds.data_type)
    return scalar if scalar.type == bounds.lower.type else pc.cast(scalar, bounds.lower.type)


def _unless_known(holds: pa.BooleanArray) -> pa.BooleanArray:
    """Null, where a bound is missing, counts as possible."""
    return pc.coalesce(holds, True)
