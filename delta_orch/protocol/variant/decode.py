"""Values from bytes to Python, many at once: down level by level to the scalars, and up again with the containers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa

from delta_orch.protocol.variant.byte_columns import Bytes, Ints, offsets_of, present_bytes
from delta_orch.protocol.variant.convert import arrow_values, utf8_strings
from delta_orch.protocol.variant.dictionaries import Located, Names, concatenated
from delta_orch.protocol.variant.layouts import KINDS, value_sizes
from delta_orch.protocol.variant.values import (
    EPOCH_ORDINAL,
    MAX_DAYS,
    MAX_DEPTH,
    MICROS_OF_A_DAY,
    MIN_DAYS,
    BasicType,
    Kind,
    VariantDate,
    VariantTimestamp,
    VariantValue,
    invalid_variant,
)

_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23
_EPOCH = datetime(1970, 1, 1)
_MIN_MICROS, _MAX_MICROS = MIN_DAYS * MICROS_OF_A_DAY, (MAX_DAYS + 1) * MICROS_OF_A_DAY - 1


def blocks_of(values: Located) -> Iterator[Located]:
    """Some of the values after the other, few enough to keep intermediate columns small."""
    sizes = values.ends - values.starts
    first, length = 0, len(values.rows)
    while first < length:
        last = first + max(1, int(np.searchsorted(np.cumsum(sizes[first : first + _BLOCK_ROWS]), _BLOCK_BYTES)))
        yield values.some(slice(first, last))
        first = last


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The values of one depth.

    Attributes:
        values: Where they lie, up to their last bytes.
        kinds: The `Kind` of each, as a number.
        owners: Values with children, objects first: the order in which their children make up the next level.
        bounds: For each owner its first child, and one more.
        codes: The names of the objects' fields, as positions in the vocabulary. Each object's are in order.
    """

    values: Located
    kinds: Bytes
    owners: Ints
    bounds: Ints
    codes: Ints

    def scalars(self) -> Iterator[tuple[Kind, Ints, pa.Array]]:
        """The values that are neither containers nor null, by type: their positions, and an array as `arrow_values`
        gives it."""
        data, starts = self.values.data, self.values.starts
        for kind in map(Kind, present_bytes(self.kinds)):
            if kind is Kind.NULL or kind >= Kind.OBJECT:
                continue
            chosen = np.flatnonzero(self.kinds == kind)
            sizes = self.values.ends[chosen] - starts[chosen]
            for positions, array in arrow_values(kind, data, starts[chosen], sizes):
                yield kind, chosen[positions], array


def levels_of(values: Located, names: Names) -> Iterator[Level]:
    """The values, then their children, then the children of these.

    Raises:
        InvalidVariantError: A value is damaged, or nested deeper than `MAX_DEPTH` levels.
    """
    for _ in range(MAX_DEPTH + 1):
        level, values = _opened(values, names)
        yield level
        if not len(values.rows):
            return
    raise invalid_variant(f"it is nested deeper than {MAX_DEPTH} levels")


def _opened(values: Located, names: Names) -> tuple[Level, Located]:
    """A level, and the values of the next one."""
    sizes = value_sizes(values.data, values.starts, values.ends)
    values = Located(values.rows, values.data, values.starts, values.starts + sizes)
    kinds = KINDS[values.data[values.starts]]
    objects, arrays = np.flatnonzero(kinds == Kind.OBJECT), np.flatnonzero(kinds == Kind.ARRAY)
    codes = np.zeros(0, np.int64)
    counts, below = [codes], [values.some(slice(0))]
    if len(objects):
        children, fields, codes = values.some(objects).fields(names)
        counts.append(np.bincount(children.rows, minlength=len(objects)))
        below.append(fields)
    if len(arrays):
        children, elements = values.some(arrays).children(BasicType.ARRAY)
        counts.append(np.bincount(children.rows, minlength=len(arrays)))
        below.append(elements)
    level = Level(values, kinds, np.concatenate([objects, arrays]), offsets_of(np.concatenate(counts)), codes)
    return level, concatenated(below)


def python_values(values: Located, names: Names) -> list[VariantValue]:
    """Each value as Python objects; module `values` lists the classes.

    Raises:
        InvalidVariantError: As `levels_of`; also where a string or a name is not UTF-8, or a number out of its type's
            range.
    """
    return [value for block in blocks_of(values) for value in _python_values(block, names)]


def _python_values(values: Located, names: Names) -> list[VariantValue]:
    below: list[VariantValue] = []
    for level in reversed(list(levels_of(values, names))):
        decoded: list[VariantValue] = [None] * len(level.kinds)
        for kind, positions, array in level.scalars():
            for position, value in zip(positions.tolist(), _scalars(kind, array), strict=True):
                decoded[position] = value
        bounds = level.bounds.tolist()
        field_names: list[str] = []
        if len(level.codes):
            used, places = np.unique(level.codes, return_inverse=True)
            vocabulary = names.dictionaries.names_at(used)
            field_names = [vocabulary[place] for place in places.reshape(-1).tolist()]
        num_objects = int(np.count_nonzero(level.kinds == Kind.OBJECT))
        for number, owner in enumerate(level.owners.tolist()):
            part = slice(bounds[number], bounds[number + 1])
            is_object = number < num_objects
            decoded[owner] = dict(zip(field_names[part], below[part], strict=True)) if is_object else below[part]
        below = decoded
    return below


def _scalars(kind: Kind, array: pa.Array) -> list[VariantValue]:
    match kind:
        case Kind.STRING:
            return list(utf8_strings(array).to_pylist())
        case Kind.UUID:
            return [UUID(bytes=value) for value in array.to_pylist()]
        case Kind.DATE:
            return list(map(_date, array.view(pa.int32()).to_pylist()))
        case Kind.TIMESTAMP | Kind.TIMESTAMP_NTZ:
            epoch = _EPOCH.replace(tzinfo=UTC if kind is Kind.TIMESTAMP else None)
            return list(map(partial(_moment, epoch), array.view(pa.int64()).to_pylist()))
        case Kind.TIMESTAMP_NANOS | Kind.TIMESTAMP_NTZ_NANOS:
            utc = kind is Kind.TIMESTAMP_NANOS
            return [VariantTimestamp(count, "ns", utc) for count in array.view(pa.int64()).to_pylist()]
    return list(array.to_pylist())


def _date(days: int) -> date | VariantDate:
    return date.fromordinal(EPOCH_ORDINAL + days) if MIN_DAYS <= days <= MAX_DAYS else VariantDate(days)


def _moment(epoch: datetime, micros: int) -> datetime | VariantTimestamp:
    if _MIN_MICROS <= micros <= _MAX_MICROS:
        return epoch + timedelta(microseconds=micros)
    return VariantTimestamp(micros, "us", epoch.tzinfo is not None)
