"""Variants into shredded columns (Variant Shredding, "Value Shredding").

Which columns are worth having is decided on a sample; every value then goes where its exact type belongs, and what the
columns cannot hold stays in `value`. Only integers change their width: they are shredded as int64, whatever number of
bits a writer has needed for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_orch.protocol.arrow_building import valid_mask
from delta_orch.protocol.variant.byte_columns import ByteColumn, Bytes, Ints, gather, join, with_validity
from delta_orch.protocol.variant.convert import assemble, convert_located
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.json_columns import unquoted_texts
from delta_orch.protocol.variant.layouts import KINDS, Children, container_headers, value_sizes
from delta_orch.protocol.variant.reconstruct import in_blocks, located_variants, null_mask, reconstruct_variant
from delta_orch.protocol.variant.values import ARROW_TYPES, INTEGERS, BasicType, Kind

SAMPLE_ROWS = 4096
MAX_FIELDS = 100
_COMMON_TYPE = 0.9
"""A column is worth it where at least that share of the values has its type."""
_COMMON_FIELD = 0.1
"""… and a field where at least that share of the objects has it."""

SHREDDED = (
    Kind.INT64,
    Kind.DOUBLE,
    Kind.FLOAT,
    Kind.TRUE,
    Kind.STRING,
    Kind.DATE,
    Kind.TIMESTAMP,
    Kind.TIMESTAMP_NTZ,
    Kind.BINARY,
)
"""The types a column can have. Integers of all widths become `INT64`, booleans `TRUE`."""
_OTHER = 255


def _shredded_kinds() -> Bytes:
    """For each first byte of a value the type of the column it is shredded into, or `_OTHER`."""
    table = np.full(256, _OTHER, np.uint8)
    table[list(SHREDDED)] = SHREDDED
    table[list(INTEGERS)] = Kind.INT64
    table[Kind.FALSE] = Kind.TRUE
    shredded: Bytes = table[KINDS]
    return shredded


_KIND_OF = _shredded_kinds()


@dataclass(frozen=True, slots=True)
class ShreddingPlan:
    """The typed columns of one variant column: one for the values themselves, or some for fields of objects.

    Attributes:
        kind: The type of the values' column; None where they are objects.
        fields: Names of fields and what they are, in the order of their names.
    """

    kind: Kind | None
    fields: tuple[tuple[str, Kind], ...] = ()

    @property
    def arrow_type(self) -> pa.DataType:
        """The column's type in a file. Groups of fields are required, as the rules of shredding ask."""
        if self.kind is not None:
            typed = ARROW_TYPES[self.kind]
        else:
            typed = pa.struct([pa.field(name, _field_type(kind), nullable=False) for name, kind in self.fields])
        return pa.struct(
            [
                pa.field("metadata", pa.binary(), nullable=False),
                pa.field("value", pa.binary()),
                pa.field("typed_value", typed),
            ]
        )


def _field_type(kind: Kind) -> pa.DataType:
    return pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", ARROW_TYPES[kind])])


def plan_shredding(sample: pa.Array) -> ShreddingPlan | None:
    """Typed columns for variants like these; None where none are worth it.

    Args:
        sample: A variant column, shredded or not. Its first `SAMPLE_ROWS` rows are read.

    Raises:
        InvalidVariantError: A value is damaged.
    """
    located, names = located_variants(reconstruct_variant(sample.slice(0, SAMPLE_ROWS)))
    if not len(located.rows):
        return None
    first_bytes = located.data[located.starts]
    is_object = first_bytes & 3 == BasicType.OBJECT
    if 2 * is_object.sum() < len(first_bytes):
        kind = _common_kind(first_bytes)
        return None if kind is None else ShreddingPlan(kind)
    _, fields, codes = located.some(is_object).fields(names)
    leaf_kinds: list[tuple[str, Kind]] = []
    # The commonest first: where there are too many, the rare ones stay in the values.
    used, counts = np.unique(codes, return_counts=True)
    for code, count in sorted(zip(used.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        if count < _COMMON_FIELD * is_object.sum() or len(leaf_kinds) == MAX_FIELDS:
            break
        kind = _common_kind(fields.data[fields.starts[codes == code]])
        if kind is not None:
            leaf_kinds.append((names.dictionaries.names_at(np.array([code]))[0], kind))
    return ShreddingPlan(None, tuple(sorted(leaf_kinds, key=lambda f: f[0].encode()))) if leaf_kinds else None


def _common_kind(first_bytes: Bytes) -> Kind | None:
    # A variant null has no type.
    kinds = _KIND_OF[first_bytes[first_bytes != Kind.NULL << 2]]
    counts = np.bincount(kinds, minlength=1)
    best = int(counts.argmax())
    return Kind(best) if best != _OTHER and counts[best] >= max(1, _COMMON_TYPE * len(kinds)) else None


def shred_variants(array: pa.Array, plan: ShreddingPlan) -> pa.StructArray:
    """A variant column as the plan has it; a null stays null.

    Args:
        array: A variant column, shredded or not, with any number of values that do not fit the plan.

    Returns: Arrow type `plan.arrow_type`.

    Raises:
        InvalidVariantError: A value is damaged.
        InvalidRequestError: A column takes more than 2 GiB.
    """
    return in_blocks(reconstruct_variant(array), lambda block: _shredded(block, plan))


def _shredded(variants: pa.StructArray, plan: ShreddingPlan) -> pa.StructArray:
    located, names = located_variants(variants)
    length = len(variants)
    if plan.kind is not None:
        typed, value = _split(located, plan.kind, names, length)
    else:
        typed, value = _shred_objects(located, plan.fields, names, length)
    children = [variants.field("metadata"), _nullable(value), typed]
    return pa.StructArray.from_arrays(children, fields=list(plan.arrow_type), mask=null_mask(valid_mask(variants)))


def _split(located: Located, kind: Kind, names: Names, length: int) -> tuple[pa.Array, ByteColumn]:
    """The values of a type as a typed column, and the others."""
    fits = _KIND_OF[located.data[located.starts]] == kind
    target = ARROW_TYPES[kind]
    pieces = list(convert_located(located.some(fits), target, "raise", lambda rest: unquoted_texts(rest, names)))
    return assemble(pieces, length, target), located.some(~fits).to_column(length)


def _nullable(column: ByteColumn) -> pa.BinaryArray:
    return with_validity(column.to_binary(), column.sizes > 0)


def _shred_objects(
    located: Located, fields: Sequence[tuple[str, Kind]], names: Names, length: int
) -> tuple[pa.StructArray, ByteColumn]:
    is_object = located.data[located.starts] & 3 == BasicType.OBJECT
    objects = located.some(is_object)
    children, is_present, found_codes = objects.fields(names)
    codes = names.dictionaries.codes_of([name.encode() for name, _ in fields])
    groups = []
    for (_, kind), code in zip(fields, codes.tolist(), strict=True):
        typed, rest = _split(is_present.of_code(found_codes, code), kind, names, length)
        groups.append(pa.StructArray.from_arrays([_nullable(rest), typed], fields=list(_field_type(kind))))
    there = np.zeros(length, np.bool_)
    there[objects.rows] = True
    struct = pa.StructArray.from_arrays(
        groups,
        fields=[pa.field(name, _field_type(kind), nullable=False) for name, kind in fields],
        mask=null_mask(there),
    )
    kept = ~np.isin(found_codes, codes[codes >= 0])
    left_over = _left_over(is_present.some(kept), children.ids[kept], length)
    return struct, join([left_over, located.some(~is_object).to_column(length)])


def _left_over(fields: Located, ids: Ints, length: int) -> ByteColumn:
    """Objects with some of their fields alone; missing where none is left."""
    sizes = value_sizes(fields.data, fields.starts, fields.ends)
    value_bytes = np.bincount(fields.rows, sizes, minlength=length).astype(np.int64)
    first = np.cumsum(value_bytes) - value_bytes
    offsets = np.cumsum(sizes) - sizes - first[fields.rows]
    headers = container_headers(value_bytes > 0, Children(fields.rows, ids, offsets), value_bytes, objects=True)
    values = gather(fields.data, fields.starts, sizes)
    return join([headers, ByteColumn(np.append(first, len(values.data)), values.data)])
