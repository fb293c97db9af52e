"""Extracts the value at a path from each variant of a column, as a column.

For the shredded part of the path only typed columns are read. The rest is found in the encoded values, all rows at
once. Only requested values are reconstructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_orch.protocol.arrow_building import VARIANT_STORAGE, longs_from_numpy, valid_mask
from delta_orch.protocol.variant.byte_columns import ByteColumn, Ints, Mask, join, with_validity
from delta_orch.protocol.variant.convert import (
    OnMismatch,
    assemble,
    convert_array,
    convert_located,
    is_text,
    plain_storage,
    refuse,
    sources_of,
)
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.json_columns import unquoted_texts
from delta_orch.protocol.variant.reconstruct import (
    encode_group,
    in_blocks,
    list_offsets,
    metadata_column,
    required,
    split_group,
    variant_array,
)
from delta_orch.protocol.variant.shredding import TypedArray, TypedObject, VariantGroup, parse_variant_type
from delta_orch.protocol.variant.values import Kind
from delta_orch.protocol.variant.variant import Path, parse_path


def variant_get(
    array: pa.Array | pa.ChunkedArray,
    path: str | Sequence[str | int],
    arrow_type: pa.DataType | None = None,
    *,
    on_mismatch: OnMismatch = "raise",
) -> pa.Array | pa.ChunkedArray:
    """The values at a path.

    Args:
        array: A variant column as a Parquet reader gives it, shredded or not. A chunked array comes back chunked.
            The columns beside the path need not have been read; the metadata only if a value on the way, or the result,
            is not typed.
        path: Like `$.user.tags[0]`; `variant.parse_path` has the rules.
        arrow_type: A primitive type; module `convert` says which values become which types. None returns variants.
        on_mismatch: What to do with a value that cannot have that type: `raise`, or make it `null`.

    Returns:
        An array of `arrow_type`, or of `arrow_building.VARIANT_STORAGE`. Null where the row is null, where nothing
        stands at the path, and, except among variants, where a variant null does.

    Raises:
        InvalidVariantError: The columns, or values on the way, break the rules.
        SchemaMismatchError: A value cannot have the type, and `on_mismatch` is `raise`.
        InvalidRequestError: No path, or a type that no variant can be read as.
    """
    steps = parse_path(path)
    target = None if arrow_type is None or arrow_type.equals(VARIANT_STORAGE) else arrow_type
    if target is not None:
        sources_of(target)
    if target is not None and (pa.types.is_string_view(target) or pa.types.is_binary_view(target)):
        # Arrow's kernels do not know views yet.
        stored = pa.large_string() if pa.types.is_string_view(target) else pa.large_binary()
        return variant_get(array, steps, stored, on_mismatch=on_mismatch).cast(target)
    if isinstance(array, pa.ChunkedArray):
        parse_variant_type(array.type, metadata_required=False)
        chunks = [variant_get(chunk, steps, target, on_mismatch=on_mismatch) for chunk in array.chunks]
        return pa.chunked_array(chunks, type=target or VARIANT_STORAGE)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    group = parse_variant_type(array.type, metadata_required=target is None)
    return in_blocks(array, lambda block: _extract(group, block, steps, target, on_mismatch))


@dataclass(frozen=True, slots=True, eq=False)
class _Typed:
    """How far a path has come in the typed columns: the group it stands at.

    Attributes:
        group, array: The group and its columns.
        present: Rows of the array in which the group may have a value.
        rows: The row of the whole column each of them belongs to, ascending.
        required: Rows that must have a value, so that none means a variant null.
    """

    group: VariantGroup
    array: pa.StructArray
    present: Mask
    rows: Ints
    required: Mask | None


def _extract(
    group: VariantGroup, array: pa.StructArray, steps: Path, target: pa.DataType | None, on_mismatch: OnMismatch
) -> pa.Array:
    present = valid_mask(array)
    names = Names.of(lambda: metadata_column(group, array, present), present)
    typed: _Typed | None = _Typed(group, array, present, np.arange(len(array)), present)
    located: list[Located] = []
    for step in steps:
        located = [values.step(step, names) for values in located]
        if typed is not None:
            typed, values = _descend(typed, step, names)
            located.append(values)
    if target is None:
        values_column = _variants(typed, located, names, len(array))
        return variant_array(metadata_column(group, array, present), values_column, values_column.sizes > 0)
    pieces: list[tuple[Ints, pa.Array]] = []
    if typed is not None:
        arrays, values = _typed_values(typed, target, on_mismatch, names)
        pieces.extend(arrays)
        located.append(values)
    for values in located:
        pieces.extend(convert_located(values, target, on_mismatch, lambda rest: unquoted_texts(rest, names)))
    return assemble(pieces, len(array), target)


def _descend(at: _Typed, step: str | int, names: Names) -> tuple[_Typed | None, Located]:
    """Take one step of the path: in the typed columns if they have the step, and in the values that are not
    shredded."""
    parts = split_group(at.group, at.array, at.present)
    shape = at.group.typed
    if isinstance(shape, TypedObject) and isinstance(step, str) and step in shape.fields:
        below = parts.typed_array.field(step)
        return _Typed(shape.fields[step], below, parts.typed & valid_mask(below), at.rows, None), _nothing()
    values = Located.of(parts.residual if isinstance(step, str) else parts.value, at.rows).step(step, names)
    if isinstance(shape, TypedArray) and isinstance(step, int):
        return _element(shape, parts.typed_array, parts.typed, at.rows, step), values
    return None, values


def _nothing() -> Located:
    none = np.zeros(0, np.int64)
    return Located(none, np.zeros(0, np.uint8), none, none)


def _element(typed: TypedArray, lists: pa.Array, there: Mask, rows: Ints, index: int) -> _Typed:
    offsets = list_offsets(lists)
    chosen = np.flatnonzero(there & (np.diff(offsets) > index))
    elements = lists.values.take(longs_from_numpy(offsets[chosen] + index))
    return _Typed(typed.element, elements, valid_mask(elements), rows[chosen], np.ones(len(chosen), np.bool_))


def _variants(typed: _Typed | None, located: list[Located], names: Names, length: int) -> ByteColumn:
    columns = [values.to_column(length) for values in located]
    if typed is not None:
        column = encode_group(typed.group, typed.array, typed.present, names.take(typed.rows))
        if typed.required is not None:
            column = required(column, typed.required)
        columns.append(column.expand(typed.rows, length))
    return join(columns)


def _typed_values(
    at: _Typed, target: pa.DataType, on_mismatch: OnMismatch, names: Names
) -> tuple[list[tuple[Ints, pa.Array]], Located]:
    """The typed column as `target`, and the values beside it that are still to be converted."""
    group = at.group
    parts = split_group(group, at.array, at.present)
    values = Located.of(parts.value, at.rows)
    if group.typed is None:
        return [], values
    if isinstance(group.typed, Kind) and group.typed in sources_of(target):
        converted = convert_array(with_validity(plain_storage(parts.typed_array), parts.typed), target, on_mismatch)
        return [(at.rows, converted)], values
    if is_text(target):
        return [], Located.of(encode_group(group, at.array, at.present, names.take(at.rows)), at.rows)
    if parts.typed.any():
        containers = Kind.OBJECT if isinstance(group.typed, TypedObject) else Kind.ARRAY
        refuse(group.typed if isinstance(group.typed, Kind) else containers, target, on_mismatch)
    return [], values
