"""Which of a shredded variant's columns a path needs: the others do not have to be read from the file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

from delta_orch.protocol.variant.path import parse_path
from delta_orch.protocol.variant.shredding import (
    TypedArray,
    TypedObject,
    TypedPrimitive,
    VariantGroup,
    parse_variant_type,
    storage_type,
)

Column = tuple[str, ...]
"""Names from the variant's group down. All beneath it is meant: `("typed_value", "geo")` is that whole field."""


def columns_of_path(
    data_type: pa.DataType, path: str | Sequence[str | int], *, null_columns: Collection[Column] = ()
) -> list[Column]:
    """The columns that `extract.variant_get` looks at for a path.

    An array read with only these columns gives the same result for that path, and for no shorter or other one.

    Args:
        data_type: The variant's whole type, from the file's schema.
        path: As for `variant_get`.
        null_columns: `value` columns that are null in every row, as the statistics of the row groups have it. They are
            left out; where none remains on the way to a column of a primitive type, so is the metadata, which costs
            most. Then only a primitive type may be asked for, no variants.

    Raises:
        InvalidVariantError: No variant, or shredded as a type that cannot be.
        InvalidRequestError: No path.
    """
    group = parse_variant_type(data_type)
    values, typed, end = _columns(group, parse_path(path))
    filled = [column for column in values if column not in null_columns]
    if not filled and isinstance(end, TypedPrimitive):
        return typed
    # Some column has to be there, if only to be null.
    return [("metadata",), *(filled if filled or typed else values), *typed]


def null_columns(footer: pq.FileMetaData, name: str) -> set[Column]:
    """Columns of a variant that are null in every row of a file, as far as its footer tells: for `columns_of_path`.

    Args:
        footer: The Parquet file's metadata.
        name: The variant's name, a top-level column.
    """
    first = 0
    for field in footer.schema.to_arrow_schema():
        leaves = _leaves(field.type)
        if field.name == name:
            return {leaf for position, leaf in enumerate(leaves, first) if _is_null(footer, position)}
        first += len(leaves)
    return set()


def _is_null(footer: pq.FileMetaData, position: int) -> bool:
    for row_group in range(footer.num_row_groups):
        chunk = footer.row_group(row_group).column(position)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count != chunk.num_values:
            return False
    return True


def _leaves(data_type: pa.DataType) -> list[Column]:
    """The leaf columns of a type in the order of the file; elements, keys and values of lists and maps have no name."""
    data_type = storage_type(data_type)
    if pa.types.is_struct(data_type):
        return [(field.name, *leaf) for field in data_type for leaf in _leaves(field.type)]
    if pa.types.is_map(data_type):
        return [("", *leaf) for t in (data_type.key_type, data_type.item_type) for leaf in _leaves(t)]
    if pa.types.is_nested(data_type):
        return [("", *leaf) for leaf in _leaves(data_type.value_type)]
    return [()]


def _columns(
    group: VariantGroup, steps: Sequence[str | int]
) -> tuple[list[Column], list[Column], TypedPrimitive | TypedObject | TypedArray | None]:
    """The value columns on the way, the typed column, and what that is where the whole path was shredded."""
    values: list[Column] = []
    prefix: Column = ()
    for step in steps:
        if group.value_index is not None:
            values.append((*prefix, "value"))
        field = group.typed.field(step) if isinstance(group.typed, TypedObject) and isinstance(step, str) else None
        if field is None:
            return values, _beside(group, prefix), None
        prefix, group = (*prefix, "typed_value", field.name), field.group
    if group.value_index is not None:
        values.append((*prefix, "value"))
    return values, [] if group.typed is None else [(*prefix, "typed_value")], group.typed


def _beside(group: VariantGroup, prefix: Column) -> list[Column]:
    """What to read of a typed column in which the path does not go on by names."""
    if isinstance(group.typed, TypedObject) and group.typed.fields:
        # It tells which rows are objects; any field does.
        return [(*prefix, "typed_value", group.typed.fields[0].name)]
    # Readers cannot take part of a list's element.
    return [] if group.typed is None else [(*prefix, "typed_value")]
