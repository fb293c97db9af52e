"""Comparing rows as multisets: their order is free, their values are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
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
    found = Counter(comparable_rows(actual.select(expected.column_names)))
    wanted = Counter(comparable_rows(expected))
    surplus, missing = found - wanted, wanted - found
    if surplus or missing:
        raise AssertionError(
            f"{surplus.total()} rows too many, such as {list(islice(surplus, 3))}; "
            f"{missing.total()} missing, such as {list(islice(missing, 3))}; columns {expected.column_names}"
        )


def comparable_rows(table: pa.Table) -> Iterator[tuple[Hashable, ...]]:
    """Each row as a hashable value that equals another's exactly if the rows are equal."""
    columns = [
        [_comparable(value, column.type) for value in _at_microseconds(column).to_pylist()] for column in table.columns
    ]
    if not columns:
        return iter([()] * table.num_rows)
    return zip(*columns, strict=True)


def _at_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _comparable(value: Any, data_type: pa.DataType) -> Hashable:
    if value is None:
        return None
    if pa.types.is_floating(data_type):
        return "NaN" if value != value else float(value) + 0.0
    if pa.types.is_timestamp(data_type):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int((aware - _EPOCH) // timedelta(microseconds=1))
    if pa.types.is_map(data_type):
        return frozenset((_comparable(k, data_type.key_type), _comparable(v, data_type.item_type)) for k, v in value)
    if pa.types.is_struct(data_type):
        fields = [(f.name, _comparable(value[f.name], f.type)) for f in data_type.fields]
        return tuple(sorted(fields, key=lambda field: field[0]))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return tuple(_comparable(item, data_type.value_type) for item in value)
    if pa.types.is_dictionary(data_type):
        return _comparable(value, data_type.value_type)
    return cast(Hashable, value)
