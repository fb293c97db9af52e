"""Declared types of columns with `char(n)` or `varchar(n)` inside. Spark keeps the whole type as text in the column's
metadata, so a change of the column must change the text, too. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.schema_edit import Path, nearest_field, with_field, with_fields
from delta_orch.protocol.type_text import (
    CHAR_VARCHAR_TYPE,
    DeclaredLength,
    declared_lengths,
    spell_declared_type,
)
from delta_orch.protocol.types import STRING, ArrayType, DataType, MapType, StructField, StructType


def with_declared_types(schema: StructType) -> StructType:
    """The schema, its declared types spelled as the columns are now; those without a text that has a length go."""
    return StructType(tuple(map(_following, schema)))


def with_renamed_place(schema: StructType, path: Path, new_name: str) -> StructType:
    """The schema in which a field inside a column was renamed, with its new name in the declared types around it.

    Args:
        path: Of the field, with its old name.
    """
    above = path[:-1]
    while above:
        around, _ = nearest_field(schema, above)
        place = path[len(around) :]

        def renamed(field: StructField, place: Path = place) -> StructField:
            lengths = _lengths_of(field)
            return field if lengths is None else _declare(field, [_moved(one, place, new_name) for one in lengths])

        schema = with_field(schema, around, renamed)
        above = around[:-1]
    return schema


def place_of_text(data_type: DataType, place: Path) -> Path | None:
    """A place below a column as the schema spells it; None where it has no text there."""
    spelled: list[str] = []
    for name in place:
        match data_type:
            case StructType():
                field = data_type.find(name)
                if field is None:
                    return None
                name, data_type = field.name, field.data_type
            case ArrayType(element_type) if name == "element":
                data_type = element_type
            case MapType(key_type, value_type) if name in ("key", "value"):
                data_type = key_type if name == "key" else value_type
            case _:
                return None
        spelled.append(name)
    return tuple(spelled) if data_type == STRING else None


def _following(field: StructField) -> StructField:
    field = replace(field, data_type=with_fields(field.data_type, _following))
    lengths = _lengths_of(field)
    return field if lengths is None else _declare(field, lengths)


def _lengths_of(field: StructField) -> tuple[DeclaredLength, ...] | None:
    """The lengths inside a nested column; None where nothing is declared, or nothing that can be read."""
    text = field.metadata.get(CHAR_VARCHAR_TYPE)
    if not isinstance(text, str) or field.data_type == STRING:
        return None
    try:
        return declared_lengths(text)
    except SchemaMismatchError:
        return None


def _declare(field: StructField, lengths: Iterable[DeclaredLength]) -> StructField:
    placed = ((length, place_of_text(field.data_type, length.place)) for length in lengths)
    kept = [replace(length, place=place) for length, place in placed if place is not None]
    metadata = {key: value for key, value in field.metadata.items() if key != CHAR_VARCHAR_TYPE}
    if kept:
        metadata[CHAR_VARCHAR_TYPE] = spell_declared_type(field.data_type, kept)
    return replace(field, metadata=metadata)


def _moved(length: DeclaredLength, place: Path, new_name: str) -> DeclaredLength:
    before = length.place[: len(place)]
    if tuple(map(str.lower, before)) != tuple(map(str.lower, place)):
        return length
    return replace(length, place=(*place[:-1], new_name, *length.place[len(place) :]))
