"""The columns a scan returns where some of them are fields of structs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from delta_orch.engines.base import OutputColumn
from delta_orch.protocol.types import DataType, StructField, StructType


def output_columns_schema(output: Iterable[OutputColumn], schema: StructType) -> StructType:
    """What is returned, as a schema; a field may be null where a struct around it may."""
    return StructType(tuple(_output_field(column, schema) for column in output))


def _output_field(column: OutputColumn, schema: StructType) -> StructField:
    fields = list(fields_on(column.path, schema))
    innermost = fields[-1]
    if len(fields) == 1:
        return innermost
    nullable = any(field.nullable for field in fields)
    return StructField(column.name, innermost.data_type, nullable, innermost.metadata)


def column_indexes(path: Sequence[str], schema: StructType) -> list[int]:
    """The position of the column in the schema, and of each field on the way in the struct around it."""
    found = []
    current: DataType = schema
    for field in fields_on(path, schema):
        assert isinstance(current, StructType)
        found.append(current.names.index(field.name))
        current = field.data_type
    return found


def fields_on(path: Sequence[str], schema: StructType) -> Iterator[StructField]:
    """The column a path begins with, and the fields it leads through."""
    current: DataType = schema
    for name in path:
        assert isinstance(current, StructType)
        field = current.find(name)
        assert field is not None
        yield field
        current = field.data_type
