"""Finding and changing one column of a schema by its path. Pure; schemas are values, every change is a new one.

A path goes by names through structs, and by `element`, `key` and `value` into arrays and maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import DataType, StructField, StructType, parts_of, with_parts

Path = tuple[str, ...]
ColumnPath = str | Sequence[str]
"""`"a"`, `"s.a"` with backticks around names that hold dots, or the names one by one."""


def parse_path(path: ColumnPath, schema: StructType) -> Path:
    """The names of a path; a text that is a column's whole name is that column.

    Raises:
        InvalidRequestError: It is no path.
    """
    if not isinstance(path, str):
        names = tuple(path) if isinstance(path, Sequence) else ()
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidRequestError(f"{path!r} is not a column path", remedy="Write 'a.b' or ('a', 'b')")
        return names
    if schema.find(path) is not None:
        return (path,)
    try:
        paths = parse_column_list(path)
    except ValueError:
        paths = ()
    if len(paths) != 1:
        raise InvalidRequestError(
            f"{path!r} is not a column path", remedy="Put names with dots, commas or spaces into `backticks`"
        )
    return paths[0]


def quote_path(path: Sequence[str]) -> str:
    """A path as text, with backticks where a name needs them."""
    return ".".join(name if name.replace("_", "a").isalnum() else "`" + name.replace("`", "``") + "`" for name in path)


def resolve_path(schema: StructType, path: ColumnPath) -> Path:
    """The path as the schema spells it.

    Raises:
        ColumnNotFoundError: A name is not there; the message tells the closest one.
    """
    spelled: list[str] = []
    current: DataType = schema
    for name in parse_path(path, schema):
        inner = part_at(current, name)
        if inner is None:
            raise _not_found(name, spelled, current)
        spelled.append(inner[0])
        current = inner[1]
    return tuple(spelled)


def type_at(schema: StructType, path: Sequence[str]) -> DataType:
    """The type at a resolved path; the schema itself for the empty one."""
    current: DataType = schema
    for name in path:
        inner = part_at(current, name)
        assert inner is not None, path
        current = inner[1]
    return current


def field_at(schema: StructType, path: Path) -> StructField:
    """The field at a resolved path.

    Raises:
        InvalidRequestError: The path ends at an element, key or value, which is not a field.
    """
    parent = type_at(schema, path[:-1])
    if not isinstance(parent, StructType):
        raise InvalidRequestError(
            f"{quote_path(path)} is not a column of its own",
            cause=f"It is what {quote_path(path[:-1])} holds",
            remedy="Name a column, or a field of a struct",
        )
    field = parent.find(path[-1])
    assert field is not None, path
    return field


def nearest_field(schema: StructType, path: Path) -> tuple[Path, str]:
    """The path of the field around a resolved path, and where inside it the path ends: `element`, `value.key`, …; empty
    where the path is a field itself."""
    for length in range(len(path), 0, -1):
        if isinstance(type_at(schema, path[: length - 1]), StructType):
            return path[:length], ".".join(path[length:])
    raise AssertionError(path)


def with_field(schema: StructType, path: Path, change: Callable[[StructField], StructField]) -> StructType:
    """The schema with the field at a resolved path changed."""

    def changed(struct: StructType) -> StructType:
        return StructType(tuple(change(f) if f.name == path[-1] else f for f in struct))

    return with_struct(schema, path[:-1], changed)


def with_struct(schema: StructType, path: Sequence[str], change: Callable[[StructType], StructType]) -> StructType:
    """The schema with the struct at a resolved path changed; the empty path is the schema itself.

    Raises:
        InvalidRequestError: There is no struct at the path.
    """

    def changed(data_type: DataType) -> DataType:
        if not isinstance(data_type, StructType):
            raise InvalidRequestError(
                f"{quote_path(path)} is {data_type}, not a struct", remedy="Only structs have columns inside"
            )
        return change(data_type)

    result = with_type(schema, path, changed)
    assert isinstance(result, StructType)
    return result


def with_fields(data_type: DataType, change: Callable[[StructField], StructField]) -> DataType:
    """The type with the fields of the nearest structs in it changed: its own, or those inside its arrays and maps."""
    if isinstance(data_type, StructType):
        return StructType(tuple(map(change, data_type)))
    return with_parts(data_type, lambda _, inner: with_fields(inner, change))


def without_metadata(schema: StructType, is_dropped: Callable[[str], bool]) -> StructType:
    """The schema without some keys in the metadata of its fields, at any depth."""

    def change(field: StructField) -> StructField:
        kept = {key: value for key, value in field.metadata.items() if not is_dropped(key)}
        return replace(field, data_type=with_fields(field.data_type, change), metadata=kept)

    return StructType(tuple(map(change, schema)))


def with_type(data_type: DataType, path: Sequence[str], change: Callable[[DataType], DataType]) -> DataType:
    """A type with what stands at a resolved path inside it changed."""
    if not path:
        return change(data_type)
    first, rest = path[0], path[1:]
    return with_parts(data_type, lambda name, inner: with_type(inner, rest, change) if name == first else inner)


def part_at(data_type: DataType, name: str) -> tuple[str, DataType] | None:
    """The part of a type that a name selects, with the name as the schema spells it; None if there is no such part."""
    if isinstance(data_type, StructType):
        field = data_type.find(name)
        return None if field is None else (field.name, field.data_type)
    return next((part for part in parts_of(data_type) if part[0] == name.lower()), None)


def _not_found(name: str, parents: Sequence[str], parent: DataType) -> ColumnNotFoundError:
    names = [part for part, _ in parts_of(parent)]
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    likely = next((n for n in names if close and n.lower() == close[0]), None)
    where = quote_path(parents) if parents else "the table"
    return ColumnNotFoundError(
        f"There is no column {name!r} in {where}",
        remedy=f"Did you mean {likely!r}?" if likely else f"It has {', '.join(names[:20]) or 'none'}",
        column=".".join((*parents, name)),
    )
