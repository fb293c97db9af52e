"""Whether files written under one schema can be read under another of the same table, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator

from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType
from delta_orch.table.column_mapping import physical_name
from delta_orch.table.type_widening import is_followable


def schema_differences(older: StructType, newer: StructType, *, allow_dropped: bool = False) -> list[str]:
    """What of a schema cannot be followed to another: columns that are gone, types that do not widen.

    Columns are the same where their physical names are: renaming changes nothing. New columns are null in older files.

    Args:
        allow_dropped: Columns that are not in `newer` are no difference: their values are not asked for.
    """
    return list(_in_struct(older, newer, (), allow_dropped))


def _in_struct(older: StructType, newer: StructType, path: tuple[str, ...], allow_dropped: bool) -> Iterator[str]:
    by_physical = {physical_name(field).lower(): field for field in newer}
    for field in older:
        now = by_physical.get(physical_name(field).lower())
        here = (*path, field.name)
        if now is not None:
            yield from _in_type(field.data_type, now.data_type, here, allow_dropped)
        elif not allow_dropped:
            yield f"column {'.'.join(here)} was {field.data_type} and is gone"


def _in_type(older: DataType, newer: DataType, path: tuple[str, ...], allow_dropped: bool) -> Iterator[str]:
    match older, newer:
        case StructType(), StructType():
            yield from _in_struct(older, newer, path, allow_dropped)
        case ArrayType(), ArrayType():
            yield from _in_type(older.element_type, newer.element_type, (*path, "element"), allow_dropped)
        case MapType(), MapType():
            yield from _in_type(older.key_type, newer.key_type, (*path, "key"), allow_dropped)
            yield from _in_type(older.value_type, newer.value_type, (*path, "value"), allow_dropped)
        case _ if older != newer and not is_followable(older, newer):
            yield f"column {'.'.join(path)} was {older} and is {newer}"
