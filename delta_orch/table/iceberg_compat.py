"""Iceberg compatibility V1 and V2: what a table must keep to so that it can be read as an Iceberg table, too
(PROTOCOL, "Writer Requirements for IcebergCompatV1", "Writer Requirements for IcebergCompatV2").
"""

from __future__ import annotations

from collections.abc import Iterator

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.schema import TYPE_CHANGES, data_type_from_json
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    INTEGER,
    LONG,
    SHORT,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    fields_of,
    types_of,
)
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.configuration import TableConfiguration

_INTEGERS = (BYTE, SHORT, INTEGER, LONG)


def ensure_iceberg_compatible(configuration: TableConfiguration) -> None:
    """Check that a table that promises to be readable as Iceberg can keep it.

    Raises:
        InvalidRequestError: It cannot; every contradiction is named. Nothing was changed.
    """
    properties = configuration.properties
    if not properties.is_iceberg_compatible:
        return
    problems = list(_problems(configuration))
    if problems:
        names = [f"icebergCompatV{v}" for v in (1, 2) if getattr(properties, f"enable_iceberg_compat_v{v}")]
        raise InvalidRequestError(
            f"The table cannot be compatible with Iceberg ({' and '.join(names)})",
            cause="; ".join(problems),
            remedy="Change what contradicts it, or leave the property off",
            features=names,
            problems=problems,
        )


def _problems(configuration: TableConfiguration) -> Iterator[str]:
    features, properties = configuration.features, configuration.properties
    if ColumnMappingMode(properties.column_mapping_mode) is ColumnMappingMode.NONE:
        yield "it needs delta.columnMapping.mode 'name' or 'id'"
    if properties.enable_iceberg_compat_v1:
        if properties.enable_iceberg_compat_v2:
            yield "V1 and V2 exclude each other: set delta.enableIcebergCompatV1 to false"
        if "deletionVectors" in features:
            yield "V1 excludes the table feature deletionVectors"
    elif "deletionVectors" in features and properties.enable_deletion_vectors:
        yield "V2 excludes deletion vectors: set delta.enableDeletionVectors to false"
    forbidden = {str(t) for t in types_of(configuration.schema) if _is_forbidden(t, properties)}
    if forbidden:
        yield f"it excludes the types {', '.join(sorted(forbidden))}"
    yield from _type_changes(configuration)


def _is_forbidden(data_type: DataType, properties: TableProperties) -> bool:
    if data_type in (VOID, VARIANT):
        return True
    return properties.enable_iceberg_compat_v1 and isinstance(data_type, (ArrayType, MapType))


def _type_changes(configuration: TableConfiguration) -> Iterator[str]:
    if TYPE_CHANGES not in configuration.metadata.schema_string:
        return
    for field in fields_of(configuration.schema):
        for change in field.metadata.get(TYPE_CHANGES) or ():
            before, after = data_type_from_json(change["fromType"]), data_type_from_json(change["toType"])
            if not iceberg_can_widen(before, after):
                yield f"Iceberg cannot express that column {field.name} went from {before} to {after}"


def ensure_iceberg_can_widen(properties: TableProperties, column: str, before: DataType, after: DataType) -> None:
    """Raise InvalidRequestError where the table is to stay readable as Iceberg, which cannot express a change of
    type."""
    if properties.is_iceberg_compatible and not iceberg_can_widen(before, after):
        raise InvalidRequestError(
            f"Column {column} cannot go from {before} to {after} on a table that is compatible with Iceberg",
            cause="Iceberg has no such change of type",
            remedy="Set the property of Iceberg compatibility to false first",
            column=column,
        )


def iceberg_can_widen(before: DataType, after: DataType) -> bool:
    """Whether Iceberg knows a change of type, too: not to double from an integer, not from date, not the scale."""
    if before in _INTEGERS:
        return after in _INTEGERS
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        return before.scale == after.scale
    return before != DATE
