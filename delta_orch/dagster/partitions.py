"""Dagster's partition keys and the rows of tables that they stand for: one mapping, used in both directions.

The IO manager goes from a key to rows, a sensor from the rows that changed back to keys. Both ask
`pipeline.partitions`, so a sensor requests exactly the partitions that a write of those rows belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal as OneOf
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa

from delta_orch.dagster.run import is_in_run
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import conjunction, disjunction
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.pipeline.partitions import (
    Partition,
    covers,
    ensure_distinct,
    key_text,
    parse_key,
    parse_text,
    partitions_predicate,
)
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.table_properties import WINDOWS
from delta_orch.protocol.types import STRING, DataType, StructField, StructType

KnownKeys = Callable[[dg.PartitionsDefinition[str]], Sequence[str]]

_SAMPLE = 100
"""So many windows at the beginning of a definition show what a format drops."""
_AHEAD = timedelta(days=400)
"""How far into the future a definition without an end is checked: past the next change of clocks."""
_AROUND = timedelta(hours=2)
_STEP = timedelta(minutes=5)
_OF = "@"
"""Between the column and the asset in the name of the property of an appending asset."""


@dataclass(frozen=True, slots=True)
class MatchingKeys:
    """The keys whose rows hold a value.

    Attributes:
        keys: The keys; none unless `where` is `inside`.
        where: `inside` the definition; `later`: the key in `keys` will be there once its window has ended; `outside`:
            before the start, after the end, in a window that is excluded, a key that is not listed, or null.
    """

    keys: tuple[str, ...]
    where: OneOf["inside", "later", "outside"]


OUTSIDE = MatchingKeys((), "outside")


def no_keys(definition: dg.PartitionsDefinition[str]) -> Sequence[str]:
    """No key is known but those that are asked for."""
    return ()


def partition_of(partitions_def: dg.PartitionsDefinition[str], key: str) -> Partition:
    """The partition of a key of one dimension."""
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        window = partitions_def.time_window_for_partition_key(key)
        return Partition(key, window.start, window.end)
    return Partition(key)


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
) -> MatchingKeys:
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
        return MatchingKeys(tuple(spelled or [text]), "inside")
    keys = spelled or ([text] if partitions_def.has_partition_key(text) else [])
    return MatchingKeys(tuple(keys), "inside") if keys else OUTSIDE


def _window_keys(
    partitions_def: dg.TimeWindowPartitionsDefinition,
    column: str,
    data_type: DataType,
    value: object,
    text_format: str | None,
) -> MatchingKeys:
    partitions: dict[str, Partition] = {}
    refusal: InvalidRequestError | None = None
    for moment in _moments(partitions_def, column, data_type, value, text_format):
        key = partitions_def.get_partition_key_for_timestamp(moment.timestamp())
        partition = partition_of(partitions_def, key)
        try:
            if covers(column, data_type, partition, value, text_format=text_format):
                partitions[key] = partition
        except InvalidRequestError as error:
            refusal = error
    if not partitions:
        raise refusal or _unmapped(column, data_type, value, "No partition begins there")
    inside = tuple(key for key in partitions if partitions_def.has_partition_key(key))
    if inside:
        return MatchingKeys(inside, "inside")
    key, partition = next(iter(partitions.items()))
    return MatchingKeys((key,), "later") if _will_be(partitions_def, partition) else OUTSIDE


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


ByDimension = str | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of an asset's partitions and the column that holds it."""

    column: str
    text_format: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """Some partitions of an asset: for each key its partition in every dimension, in the dimensions' order."""

    dimensions: tuple[Dimension, ...]
    partitions: Mapping[str, tuple[Partition, ...]]
    definitions: tuple[dg.PartitionsDefinition[str], ...] = ()
    known_keys: Callable[[dg.PartitionsDefinition[str]], Sequence[str]] = no_keys

    def ensure_one_to_one(self, schema: StructType) -> None:
        """Check that all keys of the definition, and not only those selected, mean different rows.

        Raises:
            InvalidRequestError: Two mean the same. Nothing may be written then.
        """
        for definition, dimension, field in zip(self.definitions, self.dimensions, self._fields(schema), strict=False):
            ensure_one_to_one(definition, field, dimension.text_format, self.known_keys)

    def directories(self, schema: StructType) -> tuple[str, ...]:
        """The default partition columns of a new table. None, if one of them holds timestamps:
        each of their values would be a directory."""
        fields = self._fields(schema)
        return () if any(str(field.data_type).startswith("timestamp") for field in fields) else self.columns

    def windows(self, schema: StructType, appends: Sequence[str] = ()) -> dict[str, str]:
        """Return the table property of each partition column of texts or numbers: the schedule and the format of its
        windows, or `keys`. Dates and timestamps need none, because they fit windows of any length. An exception is an
        asset that appends: it finds the rows of a window by the key, so the table keeps the schedule.

        Args:
            appends: The key of the asset, if it appends.
        """
        properties: dict[str, str] = {}
        for made, dimension, field in zip(self.definitions, self.dimensions, self._fields(schema), strict=False):
            if not _holds_texts(field):
                if appends and isinstance(made, dg.TimeWindowPartitionsDefinition):
                    zone = f"; {made.timezone}" if str(field.data_type) == "timestamp" else ""
                    properties[f"{WINDOWS}{field.name}{_OF}{'/'.join(appends)}"] = f"{made.cron_schedule}{zone}"
                continue
            about = "keys"
            if isinstance(made, dg.TimeWindowPartitionsDefinition):
                written = _written_format(made, dimension.text_format, field)
                about = f"{made.cron_schedule}; {written}"
            properties[WINDOWS + field.name] = about
        return properties

    def ensure_same_windows(self, snapshot: Snapshot, appends: Sequence[str] = ()) -> None:
        """Check that the values of a partition column stand for windows of this definition, by the property of a table
        that an asset has created or taken for its own. `appends` is as for `windows`.

        Raises:
            InvalidRequestError: They stand for shorter windows, or longer ones: the definition was another when they
                were written. No run would ever replace their rows, which would stay beside those of the new windows.
        """
        for name, schedule in self.windows(snapshot.schema, appends).items():
            recorded = snapshot.metadata.configuration.get(name, schedule)
            if recorded != schedule:
                column = name.removeprefix(WINDOWS).partition(_OF)[0]
                raise InvalidRequestError(
                    f"The column {column} of the table holds other partitions than those of the asset",
                    cause=f"They were {recorded!r} before and are {schedule!r} now: rows of the old ones would stay "
                    "beside the new ones",
                    remedy="Give the asset a table of its own; or delete the rows of the old partitions, and then "
                    f"alter().set_properties({{{name!r}: {schedule!r}}}).commit()",
                    column=column,
                )

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.partitions)

    @property
    def described(self) -> dict[str, str]:
        """The keys, in the words of a commit."""
        keys = self.keys
        return {"partition": keys[0]} if len(keys) == 1 else {"first_partition": keys[0], "last_partition": keys[-1]}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dimension.column for dimension in self.dimensions)

    def predicate(self, schema: StructType) -> Expression:
        """The rows of all selected partitions.

        Raises:
            ColumnNotFoundError: The table has no such column.
            InvalidRequestError: A key does not mean exactly one value of the column.
        """
        per_dimension = [tuple(dict.fromkeys(some)) for some in zip(*self.partitions.values(), strict=True)]
        if math.prod(map(len, per_dimension)) != len(self.partitions):
            return disjunction(*self.scopes(schema).values())
        return self._all_in(self._fields(schema), per_dimension)

    def scopes(self, schema: StructType) -> dict[str, Expression]:
        """The rows of each selected partition, by its key. Raises as `predicate`."""
        fields = self._fields(schema)
        return {
            key: self._all_in(fields, [(partition,) for partition in partitions])
            for key, partitions in self.partitions.items()
        }

    def _all_in(self, fields: Sequence[StructField], partitions: Iterable[Sequence[Partition]]) -> Expression:
        """The rows that lie, in each dimension, in one of its partitions."""
        return conjunction(
            *(
                partitions_predicate(field.name, field.data_type, some, text_format=dimension.text_format)
                for field, dimension, some in zip(fields, self.dimensions, partitions, strict=True)
            )
        )

    def _fields(self, schema: StructType) -> list[StructField]:
        fields = []
        for column in self.columns:
            field = schema.find(column)
            if field is None:
                raise ColumnNotFoundError(
                    f"partition_expr names the column {column!r}, which the table does not have",
                    remedy=f"Its columns are {', '.join(schema.names)}",
                    column=column,
                )
            fields.append(field)
        return fields


def _written_format(made: dg.TimeWindowPartitionsDefinition, text_format: str | None, field: StructField) -> str:
    """The format of the texts or numbers of a column; with the zone, where it writes that."""
    written = text_format or made.fmt
    if text_format is None and str(field.data_type) != "string":
        # Daily keys are kept as the number 20130105.
        written = written.replace("%Y-%m-%d", "%Y%m%d")
    return f"{written} {made.timezone}" if "%z" in written.lower() else written


def _holds_texts(field: StructField) -> bool:
    return str(field.data_type) in ("string", "byte", "short", "integer", "long")


def select_partitions(
    context: dg.InputContext | dg.OutputContext,
    partition_expr: Mapping[str, str] | None,
    partition_format: Mapping[str, str] | None = None,
) -> PartitionSelection:
    """The partitions of an asset that a run reads or writes.

    Raises:
        InvalidRequestError: `partition_expr` is missing, or does not name a column for every dimension.
    """

    def known_keys(definition: dg.PartitionsDefinition[str]) -> Sequence[str]:
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            return definition.get_partition_keys(dynamic_partitions_store=context.step_context.instance)
        return definition.get_partition_keys()

    return _selection(
        context.asset_partitions_def,
        context.asset_partition_keys,
        partition_expr,
        partition_format,
        f"Asset {context.asset_key.to_user_string()}",
        known_keys,
    )


def written_partitions(
    context: dg.OutputContext,
    partition_expr: Mapping[str, str] | None,
    partition_format: Mapping[str, str] | None = None,
) -> PartitionSelection | None:
    """The partitions that a run writes; None for an output that has no partitions.

    Raises:
        InvalidRequestError: As `select_partitions`; or the output has partitions, and the run names none of them. Its
            rows would take the place of all partitions.
    """
    if context.has_asset_partitions and context.asset_partition_keys:
        return select_partitions(context, partition_expr, partition_format)
    # A range that ends before it begins has no key, either.
    if context.has_asset_partitions or (
        is_in_run(context) and context.step_context.has_asset_partitions_for_output(context.name)
    ):
        raise InvalidRequestError(
            f"Asset {context.asset_key.to_user_string()} has partitions, and the run names none of them",
            cause="A schedule or sensor of a partitioned job launches such runs, and so does Python without a "
            "partition_key",
            remedy="Launch a run with a partition: build_schedule_from_partitioned_job, RunRequest(partition_key=…); "
            "for all at once a run over a range (BackfillPolicy.single_run)",
        )
    return None


def partition_rows(
    partitions_def: dg.PartitionsDefinition[str],
    key: str,
    partition_expr: ByDimension,
    partition_format: ByDimension,
    schema: StructType,
) -> Expression:
    """The rows of one partition. Raises as `select_partitions`, and ColumnNotFoundError."""
    expr, text_format = by_dimension(partition_expr), by_dimension(partition_format)
    selection = _selection(partitions_def, [key], expr, text_format, "The check", no_keys)
    return selection.predicate(schema)


def by_dimension(value: ByDimension) -> Mapping[str, str]:
    """A text for each dimension. One text is about the only dimension, whose name is empty."""
    return {"": value} if isinstance(value, str) else dict(value or {})


def _selection(
    partitions_def: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    partition_expr: Mapping[str, str] | None,
    partition_format: Mapping[str, str] | None,
    asset: str,
    known_keys: Callable[[dg.PartitionsDefinition[str]], Sequence[str]],
) -> PartitionSelection:
    expr = ensure_expression(partitions_def, partition_expr, partition_format, asset)
    formats = partition_format or {}
    return PartitionSelection(
        tuple(Dimension(expr[name], formats.get(name)) for name in dimension_names(partitions_def)),
        {str(key): partitions_of_key(partitions_def, key) for key in keys},
        dimension_definitions(partitions_def),
        known_keys,
    )


def ensure_expression(
    partitions_def: dg.PartitionsDefinition[str],
    partition_expr: Mapping[str, str] | None,
    partition_format: Mapping[str, str] | None,
    asset: str,
) -> Mapping[str, str]:
    """`partition_expr`, if it names a column for every dimension, and `partition_format` none that there is not.

    Raises:
        InvalidRequestError: They do not.
    """
    names = dimension_names(partitions_def)
    if partition_expr is None or set(partition_expr) != set(names):
        example = '"partition_expr": "column"'
        if names != ("",):
            example = '"partition_expr": {' + ", ".join(f'"{name}": "column"' for name in names) + "}"
        raise InvalidRequestError(
            f"{asset[0].upper()}{asset[1:]} has partitions, but its metadata does not say which column holds them",
            cause=f"partition_expr is {dict(partition_expr) if partition_expr else 'missing'}",
            remedy=f"Define the asset with metadata={{{example}}}",
            asset=asset,
        )
    if unknown := sorted(set(partition_format or ()) - set(names)):
        raise InvalidRequestError(
            f"partition_format of {asset[0].lower()}{asset[1:]} names {unknown[0]!r}, which is not a dimension",
            remedy="Give one format, or for multi-dimensional partitions a format for some of the dimensions",
            asset=asset,
        )
    return partition_expr


def dimension_names(partitions_def: dg.PartitionsDefinition[str]) -> tuple[str, ...]:
    """The dimensions of multi-dimensional partitions; of others one whose name is empty."""
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return tuple(partitions_def.partition_dimension_names)
    return ("",)


def dimension_definitions(partitions_def: dg.PartitionsDefinition[str]) -> tuple[dg.PartitionsDefinition[str], ...]:
    """The definition of each of `dimension_names`."""
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return tuple(dimension.partitions_def for dimension in partitions_def.partitions_defs)
    return (partitions_def,)


def keys_by_dimension(partitions_def: dg.PartitionsDefinition[str], key: str) -> tuple[str, ...]:
    """A key's part in each of `dimension_names`."""
    if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return (key,)
    multi = key if isinstance(key, dg.MultiPartitionKey) else partitions_def.get_partition_key_from_str(key)
    return tuple(multi.keys_by_dimension[dimension.name] for dimension in partitions_def.partitions_defs)


def partitions_of_key(partitions_def: dg.PartitionsDefinition[str], key: str) -> tuple[Partition, ...]:
    """The partition that a key stands for in each dimension."""
    parts = keys_by_dimension(partitions_def, key)
    return tuple(map(partition_of, dimension_definitions(partitions_def), parts))


# Changed partitions

Values = Mapping[str, object]
"""A partition: its columns and their values, in Python's types."""
PartitionKeyOf = Callable[[Values], str | None]


def dynamic_keys(
    partitions_def: dg.PartitionsDefinition[str], keys: Sequence[str]
) -> list[tuple[dg.DynamicPartitionsDefinition, list[str]]]:
    """The dynamic partitions among the dimensions, and what the keys hold of each."""
    return [
        (made, list(dict.fromkeys(keys_by_dimension(partitions_def, key)[index] for key in keys)))
        for index, made in enumerate(dimension_definitions(partitions_def))
        if isinstance(made, dg.DynamicPartitionsDefinition) and made.name is not None
    ]


@dataclass(frozen=True, slots=True)
class Touched:
    """The partition keys of a batch of commits: those that are there, those that will be, and how many values lie
    outside of the partitions."""

    keys: tuple[str, ...]
    later: tuple[str, ...]
    num_outside: int


class TouchedPartitions:
    """Maps the partitions of a table that commits touched to the keys of what is run.

    Args:
        partitions_def: Of what is run.
        partition_expr: The column of each dimension; by default the table's only partition column.
        partition_format: The format of the column, where it does not hold the key itself.
        partition_key_of: Instead of both.

    Raises:
        InvalidRequestError: The arguments do not name a column for every dimension.
    """

    def __init__(
        self,
        partitions_def: dg.PartitionsDefinition[str],
        partition_expr: ByDimension = None,
        partition_format: ByDimension = None,
        partition_key_of: PartitionKeyOf | None = None,
    ) -> None:
        self.partitions_def = partitions_def
        self._key_of = partition_key_of
        self._names = dimension_names(partitions_def)
        is_multi = isinstance(partitions_def, dg.MultiPartitionsDefinition)
        if is_multi and partition_key_of is None:
            if not isinstance(partition_expr, Mapping) or set(partition_expr) != set(self._names):
                raise InvalidRequestError(
                    f"partition_expr must name a column for each of {', '.join(self._names)}",
                    remedy="Pass a mapping of dimensions to columns",
                )
        elif isinstance(partition_expr, Mapping) and not is_multi:
            raise InvalidRequestError(
                "partition_expr must be one column for partitions of one dimension", remedy="Pass the column's name"
            )
        self._columns = by_dimension(partition_expr)
        self._formats = by_dimension(partition_format)
        if unknown := sorted(set(self._formats) - set(self._names)):
            raise InvalidRequestError(
                f"partition_format names {unknown[0] or 'no dimension'!r}, but the dimensions are {self._names}",
                remedy="Pass a mapping of dimensions to formats, or one format for partitions of one dimension",
            )

    def find(self, partitions: pa.Table, instance: dg.DagsterInstance | None) -> Touched:
        """The keys of touched partitions, one row each.

        Raises:
            InvalidRequestError: A value maps to no key, and does not lie outside of the partitions either.
        """
        keys: set[str] = set()
        later: set[str] = set()
        num_outside = 0
        for values in partitions.to_pylist():
            if self._key_of is not None:
                matching_keys = self._by_function(values)
            else:
                matching_keys = self._by_columns(values, partitions.schema, instance)
            if matching_keys.where == "inside":
                keys.update(matching_keys.keys)
            elif matching_keys.where == "later":
                later.update(matching_keys.keys)
            else:
                num_outside += matching_keys is not _PASSED_OVER
        return Touched(tuple(sorted(keys)), tuple(sorted(later)), num_outside)

    def has_key(self, key: str) -> bool:
        """Whether a partition is there. Keys of dynamic partitions are added."""
        try:
            parts = keys_by_dimension(self.partitions_def, key)
            return all(
                isinstance(made, dg.DynamicPartitionsDefinition) or made.has_partition_key(part)
                for made, part in zip(dimension_definitions(self.partitions_def), parts, strict=True)
            )
        except ValueError:
            # A key that is not a point in time.
            return False

    def where(self, key: str) -> str:
        """Where a key lies that an earlier tick has found: `inside`, `outside` or `later`, as of a value. The
        partitions may be others since.

        Raises:
            InvalidRequestError: It is none of theirs.
        """
        parts = key.split("|") if len(self._names) > 1 else [key]
        if len(parts) != len(self._names):
            raise InvalidRequestError(f"{key!r} is not a key of {len(self._names)} dimensions")
        dimensions = zip(self._names, dimension_definitions(self.partitions_def), parts, strict=True)
        return self._combined([keys_of_value(made, name, STRING, part) for name, made, part in dimensions]).where

    def _by_function(self, values: Values) -> MatchingKeys:
        assert self._key_of is not None
        key = self._key_of(values)
        if key is None:
            return _PASSED_OVER
        if not self.has_key(key):
            raise InvalidRequestError(
                f"partition_key_of gave {key!r} for {dict(values)}, which is not a partition",
                remedy="Give a key of the partitions, or None to pass the values over",
                partition=key,
            )
        return MatchingKeys((key,), "inside")

    def _by_columns(self, values: Values, schema: pa.Schema, instance: dg.DagsterInstance | None) -> MatchingKeys:
        matching_keys: list[MatchingKeys] = []
        types = {field.name: field.data_type for field in schema_from_arrow(schema)}

        def known_keys(definition: dg.PartitionsDefinition[str]) -> Sequence[str]:
            if isinstance(definition, dg.DynamicPartitionsDefinition):
                name = definition.name
                return [] if instance is None or name is None else instance.get_dynamic_partitions(name)
            return definition.get_partition_keys()

        for name, definition in zip(self._names, dimension_definitions(self.partitions_def), strict=True):
            column = _column_of(values, self._columns.get(name))
            data_type = types[column]
            is_spelled = str(data_type) in ("timestamp", "timestamp_ntz")
            matching_keys.append(
                keys_of_value(
                    definition,
                    column,
                    data_type,
                    values[column],
                    text_format=self._formats.get(name),
                    known_keys=known_keys if is_spelled else no_keys,
                )
            )
        return self._combined(matching_keys)

    def _combined(self, matching_keys: Sequence[MatchingKeys]) -> MatchingKeys:
        """The keys, from those of each dimension."""
        if self._names == ("",):
            return matching_keys[0]
        if any(one.where == "outside" for one in matching_keys):
            return OUTSIDE
        combined = [dict[str, str]()]
        for name, one in zip(self._names, matching_keys, strict=True):
            if bars := [key for key in one.keys if "|" in key]:
                raise InvalidRequestError(
                    f"The value {bars[0]!r} of {name} maps to no key of multi-dimensional partitions",
                    cause="Their keys are joined by bars",
                    remedy="Replace bars in the column, or pass a partition_key_of that maps such values",
                )
            combined = [{**keys, name: key} for keys in combined for key in one.keys]
        is_later = any(one.where == "later" for one in matching_keys)
        return MatchingKeys(tuple(dg.MultiPartitionKey(keys) for keys in combined), "later" if is_later else "inside")


_PASSED_OVER = MatchingKeys((), "outside")
"""What the user's own mapping passes over is not worth a word."""


def _column_of(values: Values, column: str | None) -> str:
    if column is None and len(values) == 1:
        return next(iter(values))
    columns = [name for name in values if column is not None and name.lower() == column.lower()]
    if not columns:
        raise InvalidRequestError(
            f"partition_expr {column!r} is not a partition column of the table",
            remedy=f"The partition columns are {', '.join(values) or 'none'}",
        )
    return columns[0]
