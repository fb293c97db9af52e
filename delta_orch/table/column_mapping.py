"""Column mapping: logical names and the physical names and ids behind them (PROTOCOL, "Column Mapping").

A column's logical name is what users see; data files, statistics and partition values know it by its physical name, and
in mode `id` data files by the field id of the Parquet schema. Without column mapping both names are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.protocol.types import DataType, StructField, StructType, fields_of, parts_of, types_of

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
    """The Parquet field id of a field, or None."""
    recorded_id = field.metadata.get(FIELD_ID)
    return recorded_id if isinstance(recorded_id, int) else None


def nested_field_ids(field: StructField) -> Mapping[str, int]:
    """The Parquet field ids of elements, keys and values inside a field: place → id. A place is `element`, `key`,
    `value`, `value.element`, … Empty where there are none (PROTOCOL, "Writer Requirements for
    IcebergCompatV2")."""
    stored = field.metadata.get(NESTED_IDS) or field.metadata.get(NESTED_IDS_OF_READERS)
    if not isinstance(stored, Mapping):
        return {}
    # Keys begin with the field's name, physical or logical; either may hold dots itself.
    prefixes = {f"{physical_name(field)}.", f"{field.name}."}
    ids_by_place: dict[str, int] = {}
    for key, value in stored.items():
        prefix = next((p for p in prefixes if key.startswith(p)), None)
        if prefix is not None and isinstance(value, int):
            ids_by_place[key.removeprefix(prefix)] = value
    return ids_by_place


def physical_path(schema: StructType, path: Sequence[str]) -> tuple[str, ...]:
    """The physical names along a logical path through structs; names that are not found stay as they are."""
    result: list[str] = []
    current: DataType | None = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        result.append(name if field is None else physical_name(field))
        current = None if field is None else field.data_type
    return tuple(result)


def physical_partitions(schema: StructType, partition_columns: Sequence[str]) -> tuple[str, ...]:
    """The physical names of the partition columns, in their order."""
    fields = (schema.find(name) for name in partition_columns)
    return tuple(physical_name(field) for field in fields if field is not None)


def ensure_distinct_names(schema: StructType) -> None:
    """Check that no two fields of a struct have names that differ only in case.

    Raises:
        ProtocolViolationError: Two do: names are looked up without regard to case.
    """
    for struct in types_of(schema):
        if isinstance(struct, StructType) and len({field.name.lower() for field in struct}) < len(struct):
            names = [field.name.lower() for field in struct]
            twice = next(field for n, field in enumerate(struct) if field.name.lower() in names[:n])
            raise _mistaken("the name of another column but for case", twice)


def ensure_distinct_columns(schema: StructType) -> None:
    """Check that no column of a mapped table is stored as another one. Fields are looked up struct by struct.

    Raises:
        ProtocolViolationError: Two fields of a struct have the same id, or the same physical name but for case; or
            files cannot have a column of such a name.
    """
    for struct in types_of(schema):
        names: set[str] = set()
        ids: set[int] = set()
        for field in struct if isinstance(struct, StructType) else ():
            name, known_id = physical_name(field).lower(), field_id(field)
            if "\0" in name:
                raise _mistaken("a physical name that ends in the middle, at a NUL", field)
            if name in names or known_id in ids:
                raise _mistaken("the physical name or id of another column", field)
            names.add(name)
            ids.update(() if known_id is None else (known_id,))


def _mistaken(what: str, field: StructField) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"The column {field.name!r} has {what}",
        cause="Values of one would be read and written as those of the other",
        remedy="Restore the commit that wrote the metadata from a backup",
        column=field.name,
    )


def to_physical(schema: StructType, mode: ColumnMappingMode) -> StructType:
    """The schema as data files have it: the same columns in the same order, named physically at every level.

    Raises:
        ProtocolViolationError: A field of a mapped table has no physical name, or in mode `id` no id.
    """
    if mode is ColumnMappingMode.NONE:
        return schema
    return StructType(tuple(physical_field(f, mode) for f in schema))


def physical_field(field: StructField, mode: ColumnMappingMode) -> StructField:
    """One column as in `to_physical`. Raises the same errors."""
    if mode is ColumnMappingMode.NONE:
        return field
    if PHYSICAL_NAME not in field.metadata or (mode is ColumnMappingMode.ID and field_id(field) is None):
        raise ProtocolViolationError(
            f"Column {field.name!r} of a table with column mapping lacks its physical name or id",
            cause=f"The mode is {mode}, and the schema has no {PHYSICAL_NAME} or {FIELD_ID} for it",
            column=field.name,
        )
    from delta_orch.protocol.schema_edit import with_fields

    return replace(
        field,
        name=physical_name(field),
        data_type=with_fields(field.data_type, lambda inner: physical_field(inner, mode)),
    )


MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_MAPPING_KEYS = frozenset({PHYSICAL_NAME, FIELD_ID, NESTED_IDS, NESTED_IDS_OF_READERS})
_MAX_ID = 2**31 - 1


def assign_column_mapping(
    schema: StructType, max_column_id: int, *, keeps_names: bool = False, nested_ids: bool = False
) -> tuple[StructType, int]:
    """Give a physical name and an id to every column that lacks one, at any depth. Existing ones stay.

    Args:
        max_column_id: The highest id ever assigned. Higher ids in the schema count as well.
        keeps_names: Data files know the columns by their names, because no column mapping was in force. Physical names
            in the schema are leftovers then. Otherwise a column without a physical name is new and gets a UUID.
        nested_ids: Give elements of arrays and keys and values of maps ids, too (PROTOCOL, "Writer Requirements for
            IcebergCompatV2").

    Returns: The schema, and the highest id given by now.

    Raises:
        InvalidRequestError: There are no ids left.
    """
    ids = _Ids(max_column_id if keeps_names else max(max_column_id, highest_id(schema)))
    assigned = tuple(_assign_field(field, keeps_names, nested_ids, ids) for field in schema)
    return StructType(assigned), ids.last


def without_column_mapping(schema: StructType) -> StructType:
    """The schema of a table whose files know every column, at any depth, by its own name: no physical names, no ids."""
    from delta_orch.protocol.schema_edit import without_metadata

    return without_metadata(schema, _MAPPING_KEYS.__contains__)


def highest_id(schema: StructType) -> int:
    """The highest id of any column, element, key or value; 0 without ids."""
    return max((i for field in fields_of(schema) for i in _ids_of(field)), default=0)


def ensure_mode_may_change(before: ColumnMappingMode, after: ColumnMappingMode) -> None:
    """Check that an existing table may go from one mode to the other: only from `none` to `name`.

    Raises:
        InvalidRequestError: It may not, because existing files could no longer be read.
    """
    if before is after or (before is ColumnMappingMode.NONE and after is ColumnMappingMode.NAME):
        return
    if before is ColumnMappingMode.NONE:
        remedy = "Use mode 'name'; mode 'id' is for new tables"
    else:
        drops = "Drop the feature columnMapping, which rewrites the files: drop_feature('columnMapping')"
        remedy = drops if after is ColumnMappingMode.NONE else f"Stay with '{before}'"
    raise InvalidRequestError(
        f"delta.columnMapping.mode cannot go from '{before}' to '{after}' on an existing table",
        cause="Its files identify columns by the mode they were written with",
        remedy=remedy,
        property="delta.columnMapping.mode",
    )


@dataclass(slots=True)
class _Ids:
    """Counts column ids up."""

    last: int

    def take(self) -> int:
        if self.last >= _MAX_ID:
            raise InvalidRequestError("All column ids are used up", cause=f"{MAX_COLUMN_ID} is {self.last}")
        self.last += 1
        return self.last


def _assign_field(field: StructField, keeps_names: bool, nested_ids: bool, ids: _Ids) -> StructField:
    if keeps_names:
        field = replace(field, metadata={k: v for k, v in field.metadata.items() if k not in _MAPPING_KEYS})
    import uuid

    added: dict[str, object] = {}
    if field_id(field) is None:
        added[FIELD_ID] = ids.take()
    if PHYSICAL_NAME not in field.metadata:
        added[PHYSICAL_NAME] = field.name if keeps_names else f"col-{uuid.uuid4()}"
    field = replace(field, metadata={**field.metadata, **added})
    if nested_ids:
        field = _with_nested_ids(field, ids)
    from delta_orch.protocol.schema_edit import with_fields

    inside = with_fields(field.data_type, lambda inner: _assign_field(inner, keeps_names, nested_ids, ids))
    return replace(field, data_type=inside)


def _with_nested_ids(field: StructField, ids: _Ids) -> StructField:
    places = list(_nested_places(field.data_type))
    if not places:
        return field
    recorded_ids = nested_field_ids(field)
    name = physical_name(field)
    nested_ids: Mapping[str, int] = {f"{name}.{place}": recorded_ids.get(place) or ids.take() for place in places}
    # The protocol's text has one key, tables of the reference implementation the other.
    return replace(field, metadata={**field.metadata, NESTED_IDS: nested_ids, NESTED_IDS_OF_READERS: nested_ids})


def _nested_places(data_type: DataType) -> Iterator[str]:
    if isinstance(data_type, StructType):
        return
    for name, inner in parts_of(data_type):
        yield name
        yield from (f"{name}.{place}" for place in _nested_places(inner))


def _ids_of(field: StructField) -> Iterator[int]:
    own = field_id(field)
    if own is not None:
        yield own
    yield from nested_field_ids(field).values()
