"""From an orchestrator's partitions to predicates over a table's columns.

A predicate made here decides which rows a run replaces, so it is exact or refused. The functions raise where a key does
not mean exactly one value or one range of the column's type. Nothing falls back to a wider predicate. The writers also
check that every written row satisfies it.

| column | time window | single key |
|---|---|---|
| `timestamp` | `start <= c < end`, instants | an ISO date and time with an offset |
| `timestamp_ntz` | the same in the wall time of the window's zone | an ISO date and time without an offset |
| `date` | the days of the window, which must begin and end at midnight | an ISO date |
| `string` | the key, or the window's start in `text_format` | the key |
| `byte` … `long` | the key if it is a number, `YYYYMMDD` of a daily key, or the start in `text_format` | a number |
| `boolean` | refused | `true`, `false` |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import And, Column, Comparison, Expression, In, IsNull, Literal
from delta_orch.expressions.tree import columns_of, conjunction, disjunction
from delta_orch.protocol.types import DataType, PrimitiveType, StructField, StructType

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_RANGE_TYPES = ("date", "timestamp", "timestamp_ntz")
Moment = date | datetime
Range = tuple[Moment, Moment]
"""Half-open; both ends of one kind: dates, instants or wall times."""
Value = str | int | bool | date

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a step: its key and, for a time partition, its window `[start, end)` as aware datetimes in the
    zone the partitions are defined in."""

    key: str
    start: datetime | None = None
    end: datetime | None = None


def partitions_predicate(
    column: str, data_type: DataType, partitions: Sequence[Partition], *, text_format: str | None = None
) -> Expression:
    """The rows of any of several partitions; neighboring windows become one range.

    Args:
        column: The column's name, as the table spells it.
        data_type: Its type.
        partitions: At least one.
        text_format: For a time window on a string or integer column: the `strftime` format of the column's values,
            where they are not the key itself.

    Raises:
        InvalidRequestError: There is no partition, or a key or window does not mean exactly one value or range of this
            type.
    """
    if not partitions:
        raise InvalidRequestError("No partition is named", remedy="Name at least one partition", column=column)
    target = Column((column,))
    name = data_type.name if isinstance(data_type, PrimitiveType) else ""
    if name in _RANGE_TYPES and all(p.start is not None for p in partitions):
        ranges = merge_ranges([_window_range(column, data_type, p) for p in partitions])
        return disjunction(*(_range_predicate(target, data_type, low, high) for low, high in ranges))
    values = [_single_value(column, data_type, p, text_format) for p in partitions]
    literals = tuple(Literal(value, data_type) for value in dict.fromkeys(values))
    return Comparison("=", target, literals[0]) if len(literals) == 1 else In(target, literals)


def covers(
    column: str, data_type: DataType, partition: Partition, value: object, *, text_format: str | None = None
) -> bool:
    """Whether a value of the column lies in a partition: whether `partitions_predicate` is true for it.

    Raises:
        InvalidRequestError: The partition does not mean exactly one value or range of this type.
    """
    if partition.start is not None and str(data_type) in _RANGE_TYPES:
        low, high = _window_range(column, data_type, partition)
        return low <= value < high  # type: ignore[operator]  # a range has the type of its column
    return _single_value(column, data_type, partition, text_format) == value


def ensure_distinct(
    column: str, data_type: DataType, partitions: Sequence[Partition], *, text_format: str | None = None
) -> None:
    """Check that no two partitions mean the same value, or ranges that overlap: writing one would replace the other.

    A partition without a value in this column is skipped here and refused when it is written. It is refused here if the
    format drops the part that distinguishes it from others.

    Raises:
        InvalidRequestError: Two do. The error names them.
    """
    ranges: list[tuple[Range, Partition]] = []
    values: dict[Value, Partition] = {}
    for partition in partitions:
        try:
            if partition.start is not None and str(data_type) in _RANGE_TYPES:
                ranges.append((_window_range(column, data_type, partition), partition))
                continue
            value = _single_value(column, data_type, partition, text_format)
        except InvalidRequestError:
            if text_format is not None:
                raise
            continue
        other = values.setdefault(value, partition)
        if other.key != partition.key:
            raise _same_rows(column, data_type, other, partition)
    ranges.sort(key=lambda entry: entry[0])
    for (one, first), (other_range, second) in pairwise(ranges):
        if other_range[0] < one[1] and first.key != second.key:
            raise _same_rows(column, data_type, first, second)


def _same_rows(column: str, data_type: DataType, one: Partition, other: Partition) -> InvalidRequestError:
    return InvalidRequestError(
        f"Partitions {one.key!r} and {other.key!r} are the same rows of column {column} ({data_type})",
        cause="Two keys map to the same value, so one of them would replace the rows of the other",
        remedy="Use a timestamp column, UTC partitions, a partition_format with the offset (%z), or leave the format "
        "out to keep the key itself",
        partitions=[one.key, other.key],
        column=column,
    )


def merge_ranges(ranges: Sequence[Range]) -> list[Range]:
    """Half-open ranges sorted, overlapping and touching ones joined; their union stays the same."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _range_predicate(target: Column, data_type: DataType, low: Moment, high: Moment) -> Expression:
    if type(low) is date and low + timedelta(days=1) == high:
        return Comparison("=", target, Literal(low, data_type))
    first, last = Literal(low, data_type), Literal(high, data_type)
    return And((Comparison(">=", target, first), Comparison("<", target, last)))


def _window_range(column: str, data_type: DataType, partition: Partition) -> Range:
    start, end = _window(partition)
    # As instants: datetimes of one zone compare by wall time, which a clock change repeats.
    if start.astimezone(UTC) >= end.astimezone(UTC):
        raise _refusal(column, data_type, partition, "The window is empty")
    kind = str(data_type)
    if kind == "timestamp":
        return start.astimezone(UTC), end.astimezone(UTC)
    if kind == "timestamp_ntz":
        low, high = start.replace(tzinfo=None, fold=0), end.replace(tzinfo=None, fold=0)
        if low >= high:
            # The hour that a clock change repeats has no wall time of its own.
            raise _refusal(
                column,
                data_type,
                partition,
                "Wall time runs backwards in it",
                "Use a timestamp column or UTC partitions",
            )
        return low, high
    first, last = _local_midnight(start), _local_midnight(end)
    if first is None or last is None:
        raise _refusal(
            column, data_type, partition, "The window does not begin and end at midnight", "Use a timestamp column"
        )
    return first, last


def _window(partition: Partition) -> tuple[datetime, datetime]:
    start, end = partition.start, partition.end
    if start is None or end is None or start.utcoffset() is None or end.utcoffset() is None:
        raise InvalidRequestError(
            f"Partition {partition.key!r} has no window of aware datetimes",
            remedy="Give both start and end with a zone",
        )
    return start, end


def _local_midnight(moment: datetime) -> date | None:
    """The day that begins at `moment` in its own zone, or None where none does."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    # Compared as instants: where a clock change skips midnight, the day begins at 01:00.
    return moment.date() if midnight.astimezone(UTC) == moment.astimezone(UTC) else None


def _single_value(column: str, data_type: DataType, partition: Partition, text_format: str | None) -> Value:
    kind = str(data_type)
    if partition.start is not None:
        if kind not in ("string", *_INTEGER_BITS):
            raise _refusal(column, data_type, partition, "The type holds no point in time")
        text = _window_text(column, data_type, partition, text_format)
    else:
        text = partition.key
    value = parse_key(text, data_type)
    if value is None:
        remedy = "Give the column's strftime format" if partition.start is not None else None
        raise _refusal(
            column, data_type, partition, f"{text!r} is not the usual spelling of a value of type {kind}", remedy
        )
    return value


def _window_text(column: str, data_type: DataType, partition: Partition, text_format: str | None) -> str:
    if text_format is None:
        daily = str(data_type) in _INTEGER_BITS and _ISO_DATE.fullmatch(partition.key)
        return partition.key.replace("-", "") if daily else partition.key
    start, _ = _window(partition)
    text = start.strftime(text_format)
    parsed = parse_text(text, text_format)
    # As a wall time, or as an instant where the format has the offset (`%z`). In UTC: datetimes of two zones are never
    # equal in an hour that a change of clocks repeats.
    if parsed is not None and parsed.tzinfo is not None:
        holds = parsed.astimezone(UTC) == start.astimezone(UTC)
    else:
        holds = parsed == start.replace(tzinfo=None, fold=0)
    if not holds:
        # A format that drops the hour would give the 24 partitions of a day one value.
        raise _refusal(column, data_type, partition, f"The format {text_format!r} does not hold the window's start")
    return text


def parse_text(text: str, text_format: str) -> datetime | None:
    """The time in a text of a `strftime` format; None if the text does not fit the format."""
    try:
        return datetime.strptime(text, text_format)
    except ValueError:
        return None


def parse_key(text: str, data_type: DataType) -> Value | None:
    """A key as a value of the column's type, or None where it is not one in its canonical spelling.

    Only canonical spellings count (`7`, not `07`): two keys must never mean one value.
    """
    kind = str(data_type)
    if kind == "string":
        return text
    if kind in _INTEGER_BITS:
        return _parse_integer(text, _INTEGER_BITS[kind])
    if kind == "boolean":
        return {"true": True, "false": False}.get(text)
    try:
        if kind == "date":
            day = date.fromisoformat(text)
            return day if day.isoformat() == text else None
        if kind in ("timestamp", "timestamp_ntz"):
            return _parse_timestamp(text, aware=kind == "timestamp")
    except ValueError:
        return None
    return None


def looks_only_at(predicate: Expression, columns: Sequence[str]) -> bool:
    """Whether a resolved predicate looks at no other column. Over partition columns it is then true or false for whole
    files."""
    return {column.path[0] for column in columns_of(predicate)} <= set(columns)


def key_text(value: object) -> str:
    """A partition column's value as a key: the inverse of `parse_key`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _parse_integer(text: str, bits: int) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    limit = 1 << (bits - 1)
    return value if str(value) == text and -limit <= value < limit else None


def _parse_timestamp(text: str, *, aware: bool) -> datetime | None:
    moment = datetime.fromisoformat(text)
    if (moment.utcoffset() is not None) != aware:
        return None
    return moment.astimezone(UTC) if aware else moment


def _refusal(
    column: str, data_type: DataType, partition: Partition, cause: str, remedy: str | None = None
) -> InvalidRequestError:
    return InvalidRequestError(
        f"Partition {partition.key!r} cannot be matched with column {column} ({data_type})",
        cause=cause,
        remedy=remedy or "Use a key that is a value of the column, or another column",
        partition=partition.key,
        column=column,
    )


def partitions_as_predicate(partitions: pa.Table, schema: StructType) -> Expression:
    """A predicate that is true for exactly the rows in the given partitions: typed columns, nulls included.

    Without a row in `partitions`, no row of the table satisfies it.
    """
    fields = [field for name in partitions.column_names if (field := schema.find(name)) is not None]
    columns = [partitions.column(name).to_pylist() for name in partitions.column_names]
    if len(fields) == 1:
        return one_of(fields[0], columns[0])
    rows = zip(*columns, strict=True)
    return disjunction(*(conjunction(*(map(one_of, fields, zip(row, strict=True)))) for row in rows))


def one_of(field: StructField, values: Sequence[object]) -> Expression:
    """The rows whose column has one of these values; None is null."""
    column = Column((field.name,))
    literals = tuple(Literal(value, field.data_type) for value in values if value is not None)
    tests: list[Expression] = [IsNull(column)] if len(literals) < len(values) else []
    if literals:
        tests.insert(0, Comparison("=", column, literals[0]) if len(literals) == 1 else In(column, literals))
    return disjunction(*tests)
