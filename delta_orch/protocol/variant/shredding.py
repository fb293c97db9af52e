"""The shape of a variant column in Parquet: metadata, value, and what was shredded into typed columns (Variant
Shredding, "Value Shredding", "Shredded Value Types", "Arrays", "Objects").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.convert import is_binary, is_text
from delta_orch.protocol.variant.values import ARROW_TYPES, DECIMAL_DIGITS, Kind, invalid_variant

_MAX_SHREDDED_LEVELS = 100
_KIND_OF_ARROW = {t: kind for kind, t in ARROW_TYPES.items()}


class TypedObject(NamedTuple):
    """Shredded fields by name, in the order of the names' UTF-8 bytes: the order in which objects list their fields."""

    fields: Mapping[str, VariantGroup]


class TypedArray(NamedTuple):
    """A shredded array."""

    element: VariantGroup


class VariantGroup(NamedTuple):
    """Which columns one variant has, or one shredded part of it.

    Only the outermost group has metadata, and not even that where it was read without.

    Attributes:
        has_metadata, has_value: Whether there are such columns.
        typed: The layout of `typed_value`, or None. A primitive type is its `Kind`; booleans are `TRUE`.
    """

    has_metadata: bool
    has_value: bool
    typed: Kind | TypedObject | TypedArray | None


def parse_variant_type(data_type: pa.DataType, *, metadata_required: bool = True) -> VariantGroup:
    """The shape of a variant column, shredded or not.

    Args:
        data_type: As a Parquet reader gives it: a struct of `metadata`, `value` and `typed_value` in any order, the
            latter two optional.
        metadata_required: Whether a group without metadata is an error.

    Raises:
        InvalidVariantError: No variant, or shredded as a type that cannot be (unsigned integers, milliseconds, fixed
            binaries that are no UUIDs, maps, …).
    """
    data_type = storage_type(data_type)
    if not pa.types.is_struct(data_type):
        raise _no_variant(f"A column of Arrow type {data_type} is not a group of metadata and value")
    group = _parse_group(data_type, outermost=True, level=0)
    if metadata_required and not group.has_metadata:
        raise _no_variant("It has no metadata column")
    return group


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """The type beneath an extension type (UUIDs, variants), and other types as they are."""
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _parse_group(group: pa.StructType, *, outermost: bool, level: int) -> VariantGroup:
    if level > _MAX_SHREDDED_LEVELS:
        raise _no_variant(f"Its columns are nested deeper than {_MAX_SHREDDED_LEVELS} levels")
    types: dict[str, pa.DataType] = {}
    for field in group:
        if field.name in types:
            raise _no_variant(f"It has two columns named {field.name}")
        types[field.name] = field.type
    field_names = {"metadata", "value", "typed_value"} if outermost else {"value", "typed_value"}
    if unknown := types.keys() - field_names:
        raise _no_variant(f"It has columns that do not belong there: {', '.join(sorted(unknown))}")
    if not types.keys() & {"value", "typed_value"}:
        raise _no_variant("It has neither a value nor a typed_value column")
    for name in ("metadata", "value"):
        if name in types and not is_binary(_plain(types[name])):
            raise _no_variant(f"Its {name} column is not binary but {types[name]}")
    typed = _parse_typed(types["typed_value"], level) if "typed_value" in types else None
    return VariantGroup("metadata" in types, "value" in types, typed)


def _parse_typed(t: pa.DataType, level: int) -> Kind | TypedObject | TypedArray:
    if pa.types.is_struct(t):
        if len({field.name for field in t}) != t.num_fields:
            raise _no_variant("Two shredded fields have one name")
        return TypedObject(
            {field.name: _parse_field(field, level) for field in sorted(t, key=lambda f: f.name.encode())}
        )
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        if not pa.types.is_struct(t.value_type):
            raise _no_variant(f"The elements of a shredded array are not groups but {t.value_type}")
        return TypedArray(_parse_group(t.value_type, outermost=False, level=level + 1))
    return _primitive_type(t)


def _parse_field(field: pa.Field, level: int) -> VariantGroup:
    if not pa.types.is_struct(field.type):
        raise _no_variant(f"The shredded field {field.name} is not a group but {field.type}")
    return _parse_group(field.type, outermost=False, level=level + 1)


def _plain(t: pa.DataType) -> pa.DataType:
    return t.value_type if pa.types.is_dictionary(t) else t


def _primitive_type(t: pa.DataType) -> Kind:
    plain = _plain(t)
    if isinstance(plain, pa.BaseExtensionType):
        if plain.extension_name != "arrow.uuid":
            raise _unsupported(t)
        plain = plain.storage_type
    if is_binary(plain):
        return Kind.BINARY
    if is_text(plain):
        return Kind.STRING
    if pa.types.is_decimal(plain):
        return _decimal_type(plain)
    if pa.types.is_timestamp(plain) and plain.tz:
        plain = pa.timestamp(plain.unit, "UTC")
    kind = _KIND_OF_ARROW.get(plain)
    if kind is None:
        raise _unsupported(t)
    return kind


def _decimal_type(t: pa.DataType) -> Kind:
    if pa.types.is_decimal256(t) or not 0 <= t.scale <= t.precision:
        raise _unsupported(t)
    # Arrow reads all decimals into one class by default. The precision shows the type in Parquet.
    if pa.types.is_decimal128(t):
        return next(kind for kind, digits in DECIMAL_DIGITS.items() if t.precision <= digits)
    return Kind.DECIMAL4 if t.bit_width == 32 else Kind.DECIMAL8


def _unsupported(t: pa.DataType) -> InvalidVariantError:
    return _no_variant(f"Variants cannot be shredded as {t}")


def _no_variant(problem: str) -> InvalidVariantError:
    return invalid_variant("its columns break the rules of shredding", problem)
