"""Comparing rows as multisets: their order is free, their values are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, cast

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ensure_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    """Check that two tables hold the same rows, each as often.

    Columns match by name. Timestamps compare as instants at microseconds, floats exactly (NaN equals NaN, -0.0 equals
    0.0), decimals by value, maps without order, structs by field name.

    Raises:
        AssertionError: They differ; the message shows some of the rows only one of them has.
    """
    if sorted(actual.column_names) != sorted(expected.column_names):
        raise AssertionError(f"columns {actual.column_names} instead of {expected.column_names}")
    actual = actual.select(expected.column_names)
    # Arrow calls no rows equal that differ: what it calls equal needs no look at each value, which takes seconds of a
    # million rows. What it does not (NaN, other types, another order) may still be the same rows.
    if all(a.equals(b) for a, b in zip(actual.columns, expected.columns, strict=True)) and actual.num_columns:
        return
    found = Counter(comparable_rows(actual))
    wanted = Counter(comparable_rows(expected))
    surplus, missing = found - wanted, wanted - found
    if surplus or missing:
        raise AssertionError(
            f"{surplus.total()} rows too many, such as {list(islice(surplus, 3))}; "
            f"{missing.total()} missing, such as {list(islice(missing, 3))}; columns {expected.column_names}"
        )


def comparable_rows(table: pa.Table) -> Iterator[tuple[Hashable, ...]]:
    """Each row as a hashable value that equals another's exactly if the rows are equal."""
    columns = [_comparable_values(_at_microseconds(column)) for column in table.columns]
    if not columns:
        return iter([()] * table.num_rows)
    return zip(*columns, strict=True)


def _comparable_values(column: pa.ChunkedArray) -> list[Hashable]:
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _at_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _converter(data_type: pa.DataType) -> Callable[[Any], Hashable] | None:
    """What makes a value that is not null comparable, chosen once for a column; None where each already is."""
    if pa.types.is_floating(data_type):
        return _comparable_float
    if pa.types.is_timestamp(data_type):
        return _comparable_instant
    if pa.types.is_map(data_type):
        key, item = _of_nullable(data_type.key_type), _of_nullable(data_type.item_type)
        return lambda value: frozenset((key(k), item(v)) for k, v in value)
    if pa.types.is_struct(data_type):
        fields = [(f.name, _of_nullable(f.type)) for f in sorted(data_type.fields, key=lambda field: field.name)]
        return lambda value: tuple((name, convert(value[name])) for name, convert in fields)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        element = _of_nullable(data_type.value_type)
        return lambda value: tuple(element(item) for item in value)
    if pa.types.is_dictionary(data_type):
        return _converter(data_type.value_type)
    return None


def _of_nullable(data_type: pa.DataType) -> Callable[[Any], Hashable]:
    convert = _converter(data_type)
    if convert is None:
        return _itself
    return lambda value: None if value is None else convert(value)


def _itself(value: Any) -> Hashable:
    return cast(Hashable, value)


def _comparable_float(value: Any) -> Hashable:
    return "NaN" if value != value else float(value) + 0.0


def _comparable_instant(value: Any) -> Hashable:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int((aware - _EPOCH) // timedelta(microseconds=1))
