"""The partitions a Dagster run reads or writes, as predicates over the table's columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from delta_orch.dagster.partition_keys import ensure_one_to_one, no_keys, partition_of, plain_schedule
from delta_orch.dagster.run import is_in_run
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import conjunction, disjunction
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.pipeline.partitions import Partition, partitions_predicate
from delta_orch.protocol.table_properties import WINDOWS
from delta_orch.protocol.types import StructField, StructType

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
        """The columns that a new table is partitioned by where nobody has said. None, if one of them holds timestamps:
        each of their values would be a directory."""
        fields = self._fields(schema)
        return () if any(str(field.data_type).startswith("timestamp") for field in fields) else self.columns

    def windows(self, schema: StructType) -> dict[str, str]:
        """The table property of each column of texts or numbers: the schedule of the windows that they stand for and
        the format that they are written in, or `keys`. Dates and timestamps lie in windows of any length."""
        told: dict[str, str] = {}
        for made, dimension, field in zip(self.definitions, self.dimensions, self._fields(schema), strict=False):
            if not _holds_texts(field):
                continue
            about = "keys"
            if isinstance(made, dg.TimeWindowPartitionsDefinition):
                written = _written_format(made, dimension.text_format, field)
                about = f"{plain_schedule(made.cron_schedule)}; {written}"
            told[WINDOWS + field.name] = about
        return told

    def ensure_same_windows(self, snapshot: Snapshot) -> None:
        """Check that the texts and numbers of a partition column stand for windows of this definition, by the property
        of a table that an asset has created or taken for its own.

        Raises:
            InvalidRequestError: They stand for shorter windows, or longer ones: the definition was another when they
                were written. No run would ever replace their rows, which would stay beside those of the new windows.
        """
        for name, schedule in self.windows(snapshot.schema).items():
            known = snapshot.metadata.configuration.get(name, schedule)
            if known != schedule:
                column = name.removeprefix(WINDOWS)
                raise InvalidRequestError(
                    f"The column {column} of the table holds other partitions than those of the asset",
                    cause=f"They were {known!r} before and are {schedule!r} now: rows of the old ones would stay "
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
        wanted = '"partition_expr": "column"'
        if names != ("",):
            wanted = '"partition_expr": {' + ", ".join(f'"{name}": "column"' for name in names) + "}"
        raise InvalidRequestError(
            f"{asset[0].upper()}{asset[1:]} has partitions, but its metadata does not say which column holds them",
            cause=f"partition_expr is {dict(partition_expr) if partition_expr else 'missing'}",
            remedy=f"Define the asset with metadata={{{wanted}}}",
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
