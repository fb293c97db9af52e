"""Column mapping: logical names and the physical names and ids behind them (PROTOCOL, "Column Mapping").

A column's logical name is what users see; data files, statistics and partition values know it by its physical name, and
in mode `id` data files by the field id of the Parquet schema. Without column mapping both names are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.schema_edit import with_fields
from delta_orch.protocol.types import DataType, StructField, StructType

PHYSICAL_NAME = "delta.columnMapping.physicalName"
FIELD_ID = "delta.columnMapping.id"
NESTED_IDS = "parquet.field.nested.ids"
NESTED_IDS_OF_READERS = "delta.columnMapping.nested.ids"


class ColumnMappingMode(StrEnum):
    NONE = "none"
    NAME = "name"
    ID = "id"


def physical_name(field: StructField) -> str:
    """The name of a field in data files, statistics and partition values; its own where it is not mapped."""
    return str(field.metadata.get(PHYSICAL_NAME, field.name))


def field_id(field: StructField) -> int | None:
    """The Parquet field id of a field, None where it has none."""
    found = field.metadata.get(FIELD_ID)
    return found if isinstance(found, int) else None


def nested_field_ids(field: StructField) -> Mapping[str, int]:
    """The Parquet field ids of elements, keys and values inside a field: place → id. A place is `element`, `key`,
    `value`, `value.element`, … Empty where there are none (PROTOCOL, "Writer Requirements for
    IcebergCompatV2")."""
    stored = field.metadata.get(NESTED_IDS) or field.metadata.get(NESTED_IDS_OF_READERS)
    if not isinstance(stored, Mapping):
        return {}
    # Keys begin with the field's name, physical or logical; either may hold dots itself.
    prefixes = {f"{physical_name(field)}.", f"{field.name}."}
    found: dict[str, int] = {}
    for key, value in stored.items():
        prefix = next((p for p in prefixes if key.startswith(p)), None)
        if prefix is not None and isinstance(value, int):
            found[key.removeprefix(prefix)] = value
    return found


def physical_path(schema: StructType, path: Sequence[str]) -> tuple[str, ...]:
    """The physical names along a logical path through structs; names that are not found stay as they are."""
    result: list[str] = []
    current: DataType | None = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        result.append(name if field is None else physical_name(field))
        current = None if field is None else field.data_type
    return tuple(result)


def to_physical(schema: StructType, mode: ColumnMappingMode) -> StructType:
    """The schema as data files have it: the same columns in the same order, named physically at every level.

    Raises:
        ProtocolViolationError: A field of a mapped table has no physical name, or in mode `id` no id.
    """
    if mode is ColumnMappingMode.NONE:
        return schema
    return StructType(tuple(physical_field(f, mode) for f in schema))


def physical_field(field: StructField, mode: ColumnMappingMode) -> StructField:
    """One column as `to_physical`; the same errors."""
    if mode is ColumnMappingMode.NONE:
        return field
    if PHYSICAL_NAME not in field.metadata or (mode is ColumnMappingMode.ID and field_id(field) is None):
        raise ProtocolViolationError(
            f"Column {field.name!r} of a table with column mapping lacks its physical name or id",
            cause=f"The mode is {mode}, and the schema has no {PHYSICAL_NAME} or {FIELD_ID} for it",
            column=field.name,
        )
    return replace(
        field,
        name=physical_name(field),
        data_type=with_fields(field.data_type, lambda inner: physical_field(inner, mode)),
    )
