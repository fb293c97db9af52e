"""Turns the requested properties of a table into protocol and metadata, or into an error that says why this is
impossible.

Creating a table, altering it and evolving its schema all pass through `settle` before anything is committed. It adds
the changes that the request implies (column ids, the protocol) and refuses contradictions by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.schema_check import ensure_valid_table_schema
from delta_orch.protocol.schema_edit import Path, field_at, nearest_field, quote_path, resolve_path, type_at
from delta_orch.protocol.type_text import with_declared_types
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    MapType,
)
from delta_orch.table import iceberg
from delta_orch.table.column_definitions import (
    ensure_definitions,
    ensure_expressions_fit,
    ensure_not_depended_on,
    is_generated,
)
from delta_orch.table.column_mapping import (
    MAX_COLUMN_ID,
    ColumnMappingMode,
    assign_column_mapping,
    ensure_mode_may_change,
    highest_id,
)
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import protocol_for_existing_table, with_features


def settle(
    before: TableConfiguration | None,
    wanted: TableConfiguration,
    features: Iterable[str] = (),
    *,
    is_mapped: bool = False,
) -> TableConfiguration:
    """The table as it can be committed: columns mapped, protocol grown, every rule checked.

    Args:
        before: The table as it is; None where it is created.
        wanted: What changes: schema, configuration, partition columns. Its protocol is at least that of `before`.
        features: Features that the user named.
        is_mapped: The columns have their physical names and ids already: `with_column_mapping` was called step by step.

    Returns: `before` itself where nothing changed.

    Raises:
        InvalidRequestError, SchemaMismatchError, InvalidPropertyError: A rule of the protocol forbids it; the message
            says which. Nothing was changed.
        ColumnNotFoundError: The statistics property names a missing column.
        UnsupportedFeatureError: It needs a feature this release does not write.
    """
    if before is not None and wanted.schema != before.schema:
        wanted = wanted.with_schema(with_declared_types(wanted.schema))
    mapped = wanted if is_mapped else with_column_mapping(before, wanted)
    if before is not None and mapped.schema == before.schema:
        # A schema that stays keeps its text: other writers may have put more into it than is known here.
        mapped = mapped.after(None, replace(mapped.metadata, schema_string=before.metadata.schema_string))
    settled = mapped.after(protocol_for_existing_table(mapped, features), None)
    if settled == before:
        return before
    _ensure_rules(before, settled)
    return settled.for_writing()


def with_column_mapping(before: TableConfiguration | None, wanted: TableConfiguration) -> TableConfiguration:
    """The table with a physical name and an id for every column, where columns are to be mapped.

    A property on a table whose protocol lacks the feature is not in force: its files know columns by their names.

    Raises:
        InvalidRequestError: The mode cannot change so on a table that exists.
    """
    mode = requested_mapping(wanted)
    in_force = ColumnMappingMode.NONE if before is None else before.column_mapping
    if before is not None:
        ensure_mode_may_change(in_force, mode)
    if mode is ColumnMappingMode.NONE:
        return wanted
    begins = before is not None and in_force is ColumnMappingMode.NONE
    last_id = 0 if begins or before is None else highest_id(before.schema)
    properties = wanted.metadata.configuration
    last_id = max(wanted.properties.max_column_id, last_id)
    nested_ids = iceberg.needs_nested_ids(wanted)
    schema, last = assign_column_mapping(wanted.schema, last_id, keeps_names=begins, nested_ids=nested_ids)
    # In force from here on: columns added later are new.
    mapped = wanted.after(with_features(wanted.protocol, {"columnMapping"}), None).with_schema(schema)
    return mapped.with_properties({**properties, MAX_COLUMN_ID: str(last)})


def requested_mapping(configuration: TableConfiguration) -> ColumnMappingMode:
    """The mode that the property asks for. It is in force once the protocol has the feature."""
    return ColumnMappingMode(configuration.properties.column_mapping_mode)


def _ensure_rules(before: TableConfiguration | None, settled: TableConfiguration) -> None:
    _ensure_schema(before, settled)
    ensure_definitions(settled.schema, None if before is None else before.schema)
    ensure_expressions_fit(settled, before)
    if before is None or _statistics_asked(before) != _statistics_asked(settled):
        _ensure_statistics(settled)
    iceberg.ensure_compatible(settled)


def _statistics_asked(configuration: TableConfiguration) -> tuple[object, ...]:
    return configuration.properties.data_skipping_stats_columns, configuration.metadata.partition_columns


def _ensure_statistics(configuration: TableConfiguration) -> None:
    """The reference writes to no table that asks for others."""
    earlier_paths: list[Path] = []
    for path in configuration.properties.data_skipping_stats_columns or ():
        resolved = resolve_path(configuration.schema, path)
        wrong = None
        if resolved[0] in configuration.metadata.partition_columns:
            wrong = "a partition column"
        elif any(resolved[: len(other)] == other or other[: len(resolved)] == resolved for other in earlier_paths):
            wrong = "a column that it names already"
        elif isinstance(kind := type_at(configuration.schema, resolved), ArrayType | MapType) or kind in (
            BINARY,
            BOOLEAN,
        ):
            wrong = f"a column of type {kind}"
        if wrong is not None:
            raise InvalidRequestError(
                f"delta.dataSkippingStatsColumns names {quote_path(resolved)}, {wrong}",
                cause="No file is left out by its statistics",
                remedy="Leave it out of the list",
                column=".".join(resolved),
            )
        earlier_paths.append(resolved)


def _ensure_schema(before: TableConfiguration | None, settled: TableConfiguration) -> None:
    feed_is_new = settled.properties.enable_change_data_feed and (
        before is None or not before.properties.enable_change_data_feed
    )
    # Names that only column mapping allows are judged again where it ends.
    is_unmapped = (
        before is not None
        and requested_mapping(before) is not ColumnMappingMode.NONE
        and requested_mapping(settled) is ColumnMappingMode.NONE
    )
    schema_before = None if before is None or feed_is_new or is_unmapped else before.schema
    partition_columns = settled.metadata.partition_columns
    if (
        before is not None
        and schema_before == settled.schema
        and before.metadata.partition_columns == partition_columns
    ):
        return
    ensure_valid_table_schema(
        settled.schema,
        partition_columns,
        any_characters=requested_mapping(settled) is not ColumnMappingMode.NONE,
        has_feed=settled.properties.enable_change_data_feed,
        known=schema_before,
    )


def ensure_may_widen(table: TableConfiguration, path: Path, before: DataType, after: DataType) -> None:
    """Check that a place in a table may get another type, which is wider, whether a user asks for it or the data.

    Raises:
        InvalidRequestError: An expression of the table is about it, or its values in the log, or Iceberg, forbid it.
    """
    column, name = ".".join(path), quote_path(path)
    if (before, after) == (DATE, TIMESTAMP_NTZ) and path[0] in table.metadata.partition_columns:
        raise InvalidRequestError(
            f"The partition column {name} cannot become {after}",
            cause="The log spells its values as dates, not as timestamps",
            column=column,
        )
    iceberg.ensure_may_widen(table, name, before, after)
    if is_generated(field_at(table.schema, nearest_field(table.schema, path)[0])):
        raise InvalidRequestError(
            f"The generated column {name} cannot change its type",
            cause="Its values must stay those of its expression",
            column=column,
        )
    ensure_not_depended_on(table, path, f"changed to {after}")
