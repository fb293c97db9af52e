"""The shape of a variant column in Parquet: metadata, value, and what was shredded into typed columns (Variant
Shredding, "Value Shredding", "Shredded Value Types", "Arrays", "Objects").
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.values import PrimitiveType

_MAX_SHREDDED_LEVELS = 100
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class TypedPrimitive:
    """A typed column of one primitive type. `kind` of a boolean is `TRUE`."""

    kind: PrimitiveType
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class TypedField:
    """A shredded field of an object: its name, its position in the struct, and its own columns."""

    name: str
    index: int
    group: VariantGroup


@dataclass(frozen=True, slots=True)
class TypedObject:
    """Shredded fields, in the order of the UTF-8 bytes of their names: the order objects list their fields in."""

    fields: tuple[TypedField, ...]

    def field(self, name: str) -> TypedField | None:
        return next((f for f in self.fields if f.name == name), None)


@dataclass(frozen=True, slots=True)
class TypedArray:
    """A shredded array."""

    element: VariantGroup


@dataclass(frozen=True, slots=True)
class VariantGroup:
    """The columns of one variant, or of one shredded part of it; positions in the struct, None where absent.

    Only the outermost group has metadata, and not even that where it was read without.
    """

    metadata_index: int | None
    value_index: int | None
    typed_index: int | None
    typed: TypedPrimitive | TypedObject | TypedArray | None


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
        raise _no_variant(f"A column of Arrow type {data_type} is no group of metadata and value")
    group = _parse_group(data_type, outermost=True, level=0)
    if metadata_required and group.metadata_index is None:
        raise _no_variant("It has no metadata column")
    return group


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """The type beneath an extension type (UUIDs, variants), and other types as they are."""
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _parse_group(group: pa.StructType, *, outermost: bool, level: int) -> VariantGroup:
    if level > _MAX_SHREDDED_LEVELS:
        raise _no_variant(f"Its columns are nested deeper than {_MAX_SHREDDED_LEVELS} levels")
    positions: dict[str, int] = {}
    for position, field in enumerate(group):
        if field.name in positions:
            raise _no_variant(f"It has two columns named {field.name}")
        positions[field.name] = position
    known = {"metadata", "value", "typed_value"} if outermost else {"value", "typed_value"}
    if unknown := positions.keys() - known:
        raise _no_variant(f"It has columns that do not belong there: {', '.join(sorted(unknown))}")
    if not positions.keys() & {"value", "typed_value"}:
        raise _no_variant("It has neither a value nor a typed_value column")
    for name in ("metadata", "value"):
        if name in positions and not _is_binary(group[positions[name]].type):
            raise _no_variant(f"Its {name} column is not binary but {group[positions[name]].type}")
    typed = None
    if "typed_value" in positions:
        typed = _parse_typed(group[positions["typed_value"]].type, level)
    return VariantGroup(positions.get("metadata"), positions.get("value"), positions.get("typed_value"), typed)


def _is_binary(t: pa.DataType) -> bool:
    if pa.types.is_dictionary(t):
        return _is_binary(t.value_type)
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t))


def _parse_typed(t: pa.DataType, level: int) -> TypedPrimitive | TypedObject | TypedArray:
    if pa.types.is_struct(t):
        fields = [_parse_field(field, position, level) for position, field in enumerate(t)]
        if len({f.name for f in fields}) != len(fields):
            raise _no_variant("Two shredded fields have one name")
        return TypedObject(tuple(sorted(fields, key=lambda f: f.name.encode())))
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        if not pa.types.is_struct(t.value_type):
            raise _no_variant(f"The elements of a shredded array are no groups but {t.value_type}")
        return TypedArray(_parse_group(t.value_type, outermost=False, level=level + 1))
    return TypedPrimitive(_primitive_type(t), t)


def _parse_field(field: pa.Field, position: int, level: int) -> TypedField:
    if not pa.types.is_struct(field.type):
        raise _no_variant(f"The shredded field {field.name} is no group but {field.type}")
    return TypedField(field.name, position, _parse_group(field.type, outermost=False, level=level + 1))


def _primitive_type(t: pa.DataType) -> PrimitiveType:
    types = pa.types
    if types.is_dictionary(t):
        return _primitive_type(t.value_type)
    if isinstance(t, pa.BaseExtensionType):
        if t.extension_name == "arrow.uuid":
            return PrimitiveType.UUID
        raise _unsupported(t)
    for kind, test in _PLAIN_TYPES:
        if test(t):
            return kind
    if types.is_decimal(t):
        return _decimal_type(t)
    if types.is_timestamp(t) and t.unit in ("us", "ns"):
        return PrimitiveType[("TIMESTAMP" if t.tz else "TIMESTAMP_NTZ") + ("_NANOS" if t.unit == "ns" else "")]
    if types.is_time64(t) and t.unit == "us":
        return PrimitiveType.TIME
    if types.is_fixed_size_binary(t) and t.byte_width == _UUID_BYTES:
        return PrimitiveType.UUID
    raise _unsupported(t)


_PLAIN_TYPES = (
    (PrimitiveType.TRUE, pa.types.is_boolean),
    (PrimitiveType.INT8, pa.types.is_int8),
    (PrimitiveType.INT16, pa.types.is_int16),
    (PrimitiveType.INT32, pa.types.is_int32),
    (PrimitiveType.INT64, pa.types.is_int64),
    (PrimitiveType.FLOAT, pa.types.is_float32),
    (PrimitiveType.DOUBLE, pa.types.is_float64),
    (PrimitiveType.DATE, pa.types.is_date32),
    (PrimitiveType.BINARY, _is_binary),
    (
        PrimitiveType.STRING,
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
    ),
)


def _decimal_type(t: pa.DataType) -> PrimitiveType:
    if pa.types.is_decimal256(t) or not 0 <= t.scale <= t.precision:
        raise _unsupported(t)
    # Arrow reads all decimals into one class unless it is told otherwise: the precision tells what Parquet has.
    if pa.types.is_decimal128(t):
        widest = 9 if t.precision <= 9 else 18 if t.precision <= 18 else 38
    else:
        widest = 9 if t.bit_width == 32 else 18
    return {9: PrimitiveType.DECIMAL4, 18: PrimitiveType.DECIMAL8, 38: PrimitiveType.DECIMAL16}[widest]


def _unsupported(t: pa.DataType) -> InvalidVariantError:
    return _no_variant(f"Variants cannot be shredded as {t}")


def _no_variant(problem: str) -> InvalidVariantError:
    return invalid_variant("its columns break the rules of shredding", problem)
