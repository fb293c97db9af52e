"""Which of a shredded variant's columns a path needs: the others do not have to be read from the file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.protocol.variant.path import parse_path
from delta_orch.protocol.variant.shredding import TypedArray, TypedObject, VariantGroup, parse_variant_type


def columns_of_path(data_type: pa.DataType, path: str | Sequence[str | int]) -> list[tuple[str, ...]]:
    """The columns that `extract.variant_get` looks at for a path, as names from the variant's group down.

    A name stands for everything beneath it: `("typed_value", "geo")` are all columns of that field. An array read with
    only these columns gives the same result for that path, and for no shorter or other one.

    Args:
        data_type: The variant's whole type, from the file's schema.
        path: As for `variant_get`.

    Raises:
        InvalidVariantError: No variant, or shredded as a type that cannot be.
        InvalidRequestError: No path.
    """
    group = parse_variant_type(data_type)
    columns: list[tuple[str, ...]] = [("metadata",)]
    prefix: tuple[str, ...] = ()
    for step in parse_path(path):
        columns.extend(_value_column(group, prefix))
        field = group.typed.field(step) if isinstance(group.typed, TypedObject) and isinstance(step, str) else None
        if field is not None:
            prefix, group = (*prefix, "typed_value", field.name), field.group
        elif isinstance(group.typed, TypedArray) and isinstance(step, int):
            # Readers cannot take part of a list's element; names stop here.
            return [*columns, (*prefix, "typed_value")]
        else:
            return columns if group.typed_index is None else [*columns, *_presence(group, prefix)]
    whole = [(*prefix, "typed_value")] if group.typed_index is not None else []
    return [*columns, *_value_column(group, prefix), *whole]


def _value_column(group: VariantGroup, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [] if group.value_index is None else [(*prefix, "value")]


def _presence(group: VariantGroup, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Columns that tell whether there is a typed_value, which a path beside it depends on."""
    if isinstance(group.typed, TypedObject) and group.typed.fields:
        first = group.typed.fields[0]
        return [(*prefix, "typed_value", first.name)]
    return [(*prefix, "typed_value")]
