"""From the commits a sensor finds to the runs it requests, and what it keeps of them between two ticks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg
import pyarrow as pa

from delta_orch.dagster.partition_keys import OUTSIDE, FoundKeys, keys_of_value, no_keys
from delta_orch.dagster.partition_selection import (
    ByDimension,
    by_dimension,
    dimension_definitions,
    dimension_names,
    keys_by_dimension,
)
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.tail import NO_TABLE, TailBatch, TailCursor, parse_cursor
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.types import STRING

Values = Mapping[str, object]
"""A partition: its columns and their values, in Python's types."""
PartitionKeyOf = Callable[[Values], str | None]

_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


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
class WantedRun:
    """A run to request: of one partition, of a range where `last` is another key than `first`, or without partitions.

    Attributes:
        starting_version, ending_version: The commits that are the reason for it.
    """

    run_key: str
    starting_version: int
    ending_version: int
    first: str | None = None
    last: str | None = None

    def request(self, table_id: str, tags: Mapping[str, str], *, table: str = "") -> dg.RunRequest:
        """The request, with tags that name the table and the commits.

        Args:
            table: Its name in a sensor of many. It is part of the run key, as copies of a table have the same id.
        """
        run_key = f"{table}:{self.run_key}" if table else self.run_key
        own = {
            **tags,
            **({"delta/table": table} if table else {}),
            "delta/table_id": table_id,
            "delta/starting_version": str(self.starting_version),
            "delta/ending_version": str(self.ending_version),
        }
        if self.first is not None and self.last != self.first:
            return dg.RunRequest(run_key=run_key, tags={**own, _RANGE_START: self.first, _RANGE_END: self.last})
        return dg.RunRequest(run_key=run_key, partition_key=self.first, tags=own)


@dataclass(frozen=True, slots=True)
class SensorState:
    """What a sensor keeps between two ticks: `{table id}:{version}`, and where there is more, JSON behind it.

    Attributes:
        cursor: How far the log has been read.
        waiting: Keys of partitions that hold changes and are not there yet.
        left: Runs that were found and are still to be requested.
    """

    cursor: TailCursor = NO_TABLE
    waiting: tuple[str, ...] = ()
    left: tuple[WantedRun, ...] = ()

    def __str__(self) -> str:
        if not self.waiting and not self.left:
            return str(self.cursor)
        left = [[run.run_key, run.starting_version, run.ending_version, run.first, run.last] for run in self.left]
        return f"{self.cursor} {json.dumps({'waiting': list(self.waiting), 'left': left})}"

    def with_waiting(self, keys: Iterable[str]) -> SensorState:
        return replace(self, waiting=tuple(dict.fromkeys((*self.waiting, *keys))))


def parse_state(text: str) -> SensorState:
    """The inverse of `str(state)`.

    Raises:
        InvalidRequestError: The text is not one.
    """
    cursor, separator, rest = text.partition(" {")
    if not separator:
        return SensorState(parse_cursor(text))
    try:
        stored = json.loads("{" + rest)
        left = tuple(WantedRun(*run) for run in stored["left"])
        return SensorState(parse_cursor(cursor), tuple(stored["waiting"]), left)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{text[:200]!r} is not a cursor", cause="A cursor is {table id}:{version}", remedy="Reset the cursor"
        ) from error


def parse_cursors(text: str | None) -> dict[str, str | None]:
    """The states of a sensor of many tables, by name: a JSON object of texts.

    Raises:
        InvalidRequestError: The text is not one.
    """
    try:
        states = json.loads(text or "{}")
    except ValueError:
        states = None
    if not isinstance(states, dict) or not all(isinstance(state, str) for state in states.values()):
        raise InvalidRequestError(
            f"{str(text)[:200]!r} is not a cursor of many tables",
            cause="It is a JSON object: name → {table id}:{version}",
            remedy="Reset the cursor",
        )
    return states


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
                found = self._by_function(values)
            else:
                found = self._by_columns(values, partitions.schema, instance)
            if found.where == "inside":
                keys.update(found.keys)
            elif found.where == "later":
                later.update(found.keys)
            else:
                num_outside += found is not _PASSED_OVER
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

    def runs(self, touched: Touched, batch: TailBatch, *, by_range: bool, longest: int) -> list[WantedRun]:
        """A run for each key, or for each row of at most `longest` neighbors."""
        versions = (batch.starting_version, batch.ending_version)
        if not by_range:
            return [WantedRun(f"{batch.run_key}:{key}", *versions, key, key) for key in touched.keys]
        ranges = self._ranges(touched.keys, longest)
        return [WantedRun(f"{batch.run_key}:{first}...{last}", *versions, first, last) for first, last in ranges]

    def _ranges(self, keys: Sequence[str], longest: int) -> list[tuple[str, str]]:
        definition = self.partitions_def
        assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
        ranges: list[tuple[str, str]] = []
        length = 0
        for key in sorted(keys, key=lambda key: definition.time_window_for_partition_key(key).start.timestamp()):
            if ranges and length < longest and definition.get_next_partition_key(ranges[-1][1]) == key:
                ranges[-1] = (ranges[-1][0], key)
                length += 1
            else:
                ranges.append((key, key))
                length = 1
        return ranges

    def _by_function(self, values: Values) -> FoundKeys:
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
        return FoundKeys((key,), "inside")

    def _by_columns(self, values: Values, schema: pa.Schema, instance: dg.DagsterInstance | None) -> FoundKeys:
        found: list[FoundKeys] = []
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
            found.append(
                keys_of_value(
                    definition,
                    column,
                    data_type,
                    values[column],
                    text_format=self._formats.get(name),
                    known_keys=known_keys if is_spelled else no_keys,
                )
            )
        return self._combined(found)

    def _combined(self, found: Sequence[FoundKeys]) -> FoundKeys:
        """The keys, from those of each dimension."""
        if self._names == ("",):
            return found[0]
        if any(one.where == "outside" for one in found):
            return OUTSIDE
        combined = [dict[str, str]()]
        for name, one in zip(self._names, found, strict=True):
            if bars := [key for key in one.keys if "|" in key]:
                raise InvalidRequestError(
                    f"The value {bars[0]!r} of {name} maps to no key of multi-dimensional partitions",
                    cause="Their keys are joined by bars",
                    remedy="Replace bars in the column, or pass a partition_key_of that maps such values",
                )
            combined = [{**keys, name: key} for keys in combined for key in one.keys]
        is_later = any(one.where == "later" for one in found)
        return FoundKeys(tuple(dg.MultiPartitionKey(keys) for keys in combined), "later" if is_later else "inside")


_PASSED_OVER = FoundKeys((), "outside")
"""What the user's own mapping passes over is not worth a word."""


def _column_of(values: Values, column: str | None) -> str:
    if column is None and len(values) == 1:
        return next(iter(values))
    found = [name for name in values if column is not None and name.lower() == column.lower()]
    if not found:
        raise InvalidRequestError(
            f"partition_expr {column!r} is not a partition column of the table",
            remedy=f"The partition columns are {', '.join(values) or 'none'}",
        )
    return found[0]
