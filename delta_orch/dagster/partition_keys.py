"""Dagster's partition keys and the values of a column that holds them: one mapping, used in both directions.

The IO manager goes from a key to rows, a sensor from the rows that changed back to keys. Both ask
`pipeline.partitions`, so a sensor requests exactly the partitions that a write of those rows belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal as OneOf
from zoneinfo import ZoneInfo

import dagster as dg

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.partitions import Partition, covers, ensure_distinct, key_text, parse_key, parse_text
from delta_orch.protocol.types import DataType, StructField

KnownKeys = Callable[[dg.PartitionsDefinition[str]], Sequence[str]]

_SAMPLE = 100
"""So many windows at the beginning of a definition show what a format drops."""
_AHEAD = timedelta(days=400)
"""How far into the future a definition without an end is looked at: past the next change of clocks."""
_AROUND = timedelta(hours=2)
_STEP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The keys whose rows hold a value.

    Attributes:
        keys: The keys; none unless `where` is `inside`.
        where: `inside` the definition; `later`: the key in `keys` will be there once its window has ended; `outside`:
            before the start, after the end, in a window that is excluded, a key that is not listed, or null.
    """

    keys: tuple[str, ...]
    where: OneOf["inside", "later", "outside"]


OUTSIDE = FoundKeys((), "outside")


def no_keys(definition: dg.PartitionsDefinition[str]) -> Sequence[str]:
    """No key is known but those that are asked for."""
    return ()


def partition_of(partitions_def: dg.PartitionsDefinition[str], key: str) -> Partition:
    """What a key of one dimension stands for."""
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        window = partitions_def.time_window_for_partition_key(key)
        return Partition(key, window.start, window.end)
    return Partition(key)


_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = ((0, 59, ()), (0, 23, ()), (1, 31, ()), (1, 12, _MONTHS), (0, 6, _DAYS))


def plain_schedule(cron: str) -> str:
    """A cron schedule in one of its spellings: numbers in order. A field that says more stays as it is."""
    fields = _NAMED.get(cron.lower(), cron.lower()).split()
    return " ".join(_plain_field(field, *about) for field, about in zip(fields, _FIELDS, strict=True))


def _plain_field(field: str, low: int, high: int, names: Sequence[str]) -> str:
    numbers = {name: str(number) for number, name in enumerate(names, low)}
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.replace("*", f"{low}-{high}").partition("-")
        last = last or (str(high) if step else first)
        try:
            values = range(int(numbers.get(first, first)), int(numbers.get(last, last)) + 1, int(step or 1))
        except ValueError:
            return field
        if not values:
            return field
        # Sunday is 7, too.
        found |= {value % 7 if names is _DAYS else value for value in values}
    # With both a day of the month and one of the week it matters whether a field is a star.
    is_all = len(found) > high - low and ("*" in field or high in (59, 23, 12))
    return "*" if is_all else ",".join(map(str, sorted(found)))


# From keys to values


def ensure_one_to_one(
    partitions_def: dg.PartitionsDefinition[str], field: StructField, text_format: str | None, known_keys: KnownKeys
) -> None:
    """Check that no two keys of a definition mean the same rows of a column.

    Raises:
        InvalidRequestError: Two do, or a format drops what tells keys apart.
    """
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        _ensure_windows_distinct(partitions_def, field.name, field.data_type, text_format)
    elif str(field.data_type) in ("timestamp", "timestamp_ntz"):
        # Of all types only these have several spellings of one value.
        ensure_distinct(field.name, field.data_type, [Partition(key) for key in known_keys(partitions_def)])


@lru_cache(maxsize=256)
def _ensure_windows_distinct(
    partitions_def: dg.TimeWindowPartitionsDefinition, column: str, data_type: DataType, text_format: str | None
) -> None:
    partitions = [partition_of(partitions_def, key) for key in _telling_keys(partitions_def)]
    ensure_distinct(column, data_type, partitions, text_format=text_format)


def _telling_keys(partitions_def: dg.TimeWindowPartitionsDefinition) -> list[str]:
    """The keys of a definition that could collide: the first ones, and those around changes of clocks."""
    first = partitions_def.get_first_partition_window()
    if first is None:
        return []
    length = first.end.astimezone(UTC) - first.start.astimezone(UTC)
    start, end = first.start, partitions_def.end or datetime.now(UTC) + _AHEAD
    keys = _keys_between(partitions_def, start, min(end, start + _SAMPLE * length))
    if length < timedelta(hours=20):
        for moment in _clocks_turned_back(start, end, partitions_def.timezone):
            keys += _keys_between(partitions_def, max(start, moment - _AROUND), min(end, moment + _AROUND))
    return list(dict.fromkeys(keys))


def _keys_between(partitions_def: dg.TimeWindowPartitionsDefinition, start: datetime, end: datetime) -> list[str]:
    return list(partitions_def.get_partition_keys_in_time_window(dg.TimeWindow(start, end)))


def _clocks_turned_back(start: datetime, end: datetime, zone: str) -> Iterator[datetime]:
    """The moments at which wall time repeats."""
    clock, day = ZoneInfo(zone), start.astimezone(UTC)
    while day < end:
        following = day + timedelta(days=1)
        if _offset(following, clock) < _offset(day, clock):
            moment = day
            while _offset(moment + timedelta(minutes=30), clock) == _offset(day, clock):
                moment += timedelta(minutes=30)
            yield moment + timedelta(minutes=30)
        day = following


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


# From values to keys


def keys_of_value(
    partitions_def: dg.PartitionsDefinition[str],
    column: str,
    data_type: DataType,
    value: object,
    *,
    text_format: str | None = None,
    known_keys: KnownKeys = no_keys,
) -> FoundKeys:
    """The keys of one dimension whose rows hold a value of the column.

    Raises:
        InvalidRequestError: The value cannot be mapped: it is no key, or definition and type do not go together.
    """
    if value is None:
        return OUTSIDE
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        try:
            return _window_keys(partitions_def, column, data_type, value, text_format)
        except InvalidRequestError:
            if not partitions_def.exclusions:
                raise
            # It lies outside, if it lies in a window that the definition leaves out.
            _window_keys(_without_exclusions(partitions_def), column, data_type, value, text_format)
            return OUTSIDE
    text = key_text(value)
    if parse_key(text, data_type) is None:
        raise _unmapped(column, data_type, value, f"A {data_type} is not a partition key")
    # A timestamp has several spellings; the key may have another one.
    spelled = [key for key in known_keys(partitions_def) if parse_key(key, data_type) == value]
    if isinstance(partitions_def, dg.DynamicPartitionsDefinition):
        return FoundKeys(tuple(spelled or [text]), "inside")
    found = spelled or ([text] if partitions_def.has_partition_key(text) else [])
    return FoundKeys(tuple(found), "inside") if found else OUTSIDE


def _window_keys(
    partitions_def: dg.TimeWindowPartitionsDefinition,
    column: str,
    data_type: DataType,
    value: object,
    text_format: str | None,
) -> FoundKeys:
    found: dict[str, Partition] = {}
    refusal: InvalidRequestError | None = None
    for moment in _moments(partitions_def, column, data_type, value, text_format):
        key = partitions_def.get_partition_key_for_timestamp(moment.timestamp())
        partition = partition_of(partitions_def, key)
        try:
            if covers(column, data_type, partition, value, text_format=text_format):
                found[key] = partition
        except InvalidRequestError as error:
            refusal = error
    if not found:
        raise refusal or _unmapped(column, data_type, value, "No partition begins there")
    inside = tuple(key for key in found if partitions_def.has_partition_key(key))
    if inside:
        return FoundKeys(inside, "inside")
    key, partition = next(iter(found.items()))
    return FoundKeys((key,), "later") if _will_be(partitions_def, partition) else OUTSIDE


@lru_cache(maxsize=64)
def _without_exclusions(partitions_def: dg.TimeWindowPartitionsDefinition) -> dg.TimeWindowPartitionsDefinition:
    return dg.TimeWindowPartitionsDefinition(
        partitions_def.start,
        partitions_def.fmt,
        end=partitions_def.end,
        timezone=partitions_def.timezone,
        end_offset=partitions_def.end_offset,
        cron_schedule=partitions_def.cron_schedule,
    )


def _will_be(partitions_def: dg.TimeWindowPartitionsDefinition, partition: Partition) -> bool:
    """Whether a window that is no partition yet becomes one."""
    assert partition.start is not None
    assert partition.end is not None
    last = partitions_def.get_last_partition_window()
    is_new = partition.start >= partitions_def.start and (last is None or partition.start > last.start)
    return is_new and (partitions_def.end is None or partition.end <= partitions_def.end)


def _moments(
    partitions_def: dg.TimeWindowPartitionsDefinition,
    column: str,
    data_type: DataType,
    value: object,
    text_format: str | None,
) -> list[datetime]:
    """The instants that a value may stand for: two for a wall time that a change of clocks repeats."""
    zone = ZoneInfo(partitions_def.timezone)
    if isinstance(value, datetime):
        return _instants(value, zone)
    if isinstance(value, date):
        return _instants(datetime.combine(value, time()), zone)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _unmapped(column, data_type, value, "The type holds no point in time")
    text = str(value)
    if text_format is not None:
        parsed = parse_text(text, text_format)
        if parsed is None:
            raise _unmapped(column, data_type, value, f"It is not written in the format {text_format!r}")
        return _instants(parsed, zone)
    spellings = [text]
    if isinstance(value, int) and len(text) == 8:
        # Daily keys are often kept as the number 20130105.
        spellings.append(f"{text[:4]}-{text[4:6]}-{text[6:]}")
    for spelling in spellings:
        try:
            return [partitions_def.start_time_for_partition_key(spelling)]
        except ValueError:
            continue
    raise _unmapped(column, data_type, value, f"It is not a key in the format {partitions_def.fmt!r}")


def _instants(moment: datetime, zone: ZoneInfo) -> list[datetime]:
    if moment.tzinfo is not None:
        return [moment]
    first, second = (moment.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first <= second:
        return list(dict.fromkeys((first, second)))
    # A wall time that a change of clocks leaves out. It lies in a window that spans the change, between the two.
    steps = int((first - second) / _STEP)
    return [second + number * _STEP for number in range(steps + 1)]


def _unmapped(column: str, data_type: DataType, value: object, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The value {value!r} of column {column} ({data_type}) maps to no partition key",
        cause=cause,
        remedy="Give the partitions and the partition_format that the column holds; a sensor also takes a "
        "partition_key_of, which maps a value to a key, or to None where it is to be passed over",
        column=column,
    )
