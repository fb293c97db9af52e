"""Texts declared as `char(n)` or `varchar(n)`, at any depth of a column.

The protocol knows no such types. Spark keeps the declaration in the column's metadata, and Delta on Spark refuses rows
with longer texts, of either kind and wherever in the column. It stores a shorter `char` as it is given and pads it on
reading; so what is written here is the text as given, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from delta_orch.engines.base import LengthCheck
from delta_orch.errors import ProtocolViolationError, SchemaMismatchError
from delta_orch.protocol.schema_edit import Path
from delta_orch.protocol.type_text import CHAR_VARCHAR_TYPE, declared_lengths
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructField, StructType
from delta_orch.table.declared_types import place_of_text


def length_checks(schema: StructType) -> Iterator[LengthCheck]:
    """What texts of a table must not be longer than, wherever they are in it.

    Raises:
        ProtocolViolationError: A declaration cannot be read.
    """
    yield from _lengths_in(schema, ())


def _lengths_in(data_type: DataType, path: Path) -> Iterator[LengthCheck]:
    match data_type:
        case StructType(fields):
            for field in fields:
                below = (*path, field.name)
                declared = field.metadata.get(CHAR_VARCHAR_TYPE)
                if isinstance(declared, str):
                    yield from _lengths_of(field, declared, below)
                yield from _lengths_in(field.data_type, below)
        case ArrayType(element_type):
            yield from _lengths_in(element_type, (*path, "element"))
        case MapType(key_type, value_type):
            yield from _lengths_in(key_type, (*path, "key"))
            yield from _lengths_in(value_type, (*path, "value"))


def _lengths_of(field: StructField, declared: str, path: Path) -> Iterator[LengthCheck]:
    try:
        lengths = declared_lengths(declared)
    except SchemaMismatchError as e:
        raise ProtocolViolationError(
            f"The declared type of column {field.name} cannot be read", cause=declared[:200], column=field.name
        ) from e
    for length in lengths:
        place = place_of_text(field.data_type, length.place)
        if place is not None:
            yield LengthCheck((*path, *place), str(length), length.max_characters)
