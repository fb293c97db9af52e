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

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    Mask,
    boolean_array,
    gather,
    join,
    valid_mask,
    with_validity,
)
from delta_orch.protocol.variant.convert import assemble, convert_located
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.json_columns import unquoted_texts
from delta_orch.protocol.variant.layouts import Children, child_spaces, container_headers, containers, value_sizes
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.navigate import Located
from delta_orch.protocol.variant.reconstruct import block_rows_of, metadata_column, reconstruct_variant, value_column
from delta_orch.protocol.variant.shredding import VariantGroup, parse_variant_type
from delta_orch.protocol.variant.values import BasicType, PrimitiveType

SAMPLE_ROWS = 4096
MAX_FIELDS = 100
_COMMON_TYPE = 0.9
"""A column is worth it where at least that share of the values has its type."""
_COMMON_FIELD = 0.1
"""… and a field where at least that share of the objects has it."""

_KINDS: dict[str, tuple[pa.DataType, tuple[PrimitiveType, ...]]] = {
    "integer": (pa.int64(), (PrimitiveType.INT8, PrimitiveType.INT16, PrimitiveType.INT32, PrimitiveType.INT64)),
    "double": (pa.float64(), (PrimitiveType.DOUBLE,)),
    "float": (pa.float32(), (PrimitiveType.FLOAT,)),
    "boolean": (pa.bool_(), (PrimitiveType.TRUE, PrimitiveType.FALSE)),
    "string": (pa.string(), (PrimitiveType.STRING,)),
    "date": (pa.date32(), (PrimitiveType.DATE,)),
    "timestamp": (pa.timestamp("us", "UTC"), (PrimitiveType.TIMESTAMP,)),
    "timestamp_ntz": (pa.timestamp("us"), (PrimitiveType.TIMESTAMP_NTZ,)),
    "binary": (pa.binary(), (PrimitiveType.BINARY,)),
}
_OTHER = "other"
_NAMES = (*_KINDS, _OTHER)


def _kinds_by_first_byte() -> Bytes:
    """For each first byte of a value the position in `_NAMES` of what it is shredded as."""
    table = np.full(256, _NAMES.index(_OTHER), np.uint8)
    for name, (_, types) in _KINDS.items():
        for kind in types:
            table[BasicType.PRIMITIVE | kind << 2] = _NAMES.index(name)
    table[np.arange(256) & 3 == BasicType.SHORT_STRING] = _NAMES.index("string")
    return table


_KIND_OF = _kinds_by_first_byte()


@dataclass(frozen=True, slots=True)
class ShreddingPlan:
    """The typed columns of one variant column: one for the values themselves, or some for fields of objects.

    Attributes:
        kind: What the values are, as a name of this module; None where they are objects.
        fields: Names of fields and what they are, in the order of their names.
    """

    kind: str | None
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def arrow_type(self) -> pa.DataType:
        """The column's type in a file. Groups of fields are required, as the rules of shredding ask."""
        if self.kind is not None:
            typed = _KINDS[self.kind][0]
        else:
            typed = pa.struct([pa.field(name, _field_type(kind), nullable=False) for name, kind in self.fields])
        return pa.struct(
            [
                pa.field("metadata", pa.binary(), nullable=False),
                pa.field("value", pa.binary()),
                pa.field("typed_value", typed),
            ]
        )


def _field_type(kind: str) -> pa.DataType:
    return pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", _KINDS[kind][0])])


def plan_shredding(sample: pa.Array) -> ShreddingPlan | None:
    """Typed columns for variants like these; None where none are worth it.

    Args:
        sample: A variant column, shredded or not; its first `SAMPLE_ROWS` rows are looked at.

    Raises:
        InvalidVariantError: A value is damaged.
    """
    located, names = _locate(reconstruct_variant(sample.slice(0, SAMPLE_ROWS)))
    if not len(located.rows):
        return None
    first_bytes = located.data[located.starts]
    is_object = first_bytes & 3 == BasicType.OBJECT
    if 2 * is_object.sum() < len(first_bytes):
        kind = _common_kind(first_bytes)
        return None if kind is None else ShreddingPlan(kind)
    layout = containers(located.data, located.starts[is_object], located.ends[is_object], objects=True)
    children, starts, _ = child_spaces(located.data, layout)
    codes = names.dictionaries.codes_at(names.codes[located.rows[is_object]][children.rows], children.ids)
    found: list[tuple[str, str]] = []
    # The commonest first: where there are too many, the rare ones stay in the values.
    used, counts = np.unique(codes, return_counts=True)
    for code, count in sorted(zip(used.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        if count < _COMMON_FIELD * is_object.sum() or len(found) == MAX_FIELDS:
            break
        kind = _common_kind(located.data[starts[codes == code]])
        if kind is not None:
            found.append((names.dictionaries.names_at(np.array([code]))[0].decode(), kind))
    return ShreddingPlan(None, tuple(sorted(found, key=lambda f: f[0].encode()))) if found else None


def _common_kind(first_bytes: Bytes) -> str | None:
    # A variant null says nothing about the type of the others.
    kinds = _KIND_OF[first_bytes[first_bytes != PrimitiveType.NULL << 2]]
    counts = np.bincount(kinds, minlength=len(_NAMES))
    best = int(counts.argmax())
    return _NAMES[best] if _NAMES[best] != _OTHER and counts[best] >= max(1, _COMMON_TYPE * len(kinds)) else None


def shred_variants(array: pa.Array, plan: ShreddingPlan) -> pa.StructArray:
    """A variant column as the plan has it; a null stays null.

    Args:
        array: A variant column, shredded or not, with any number of values that do not fit the plan.

    Returns: Arrow type `plan.arrow_type`.

    Raises:
        InvalidVariantError: A value is damaged.
        InvalidRequestError: A column takes more than 2 GiB.
    """
    variants = reconstruct_variant(array)
    block_rows = block_rows_of(variants)
    if len(variants) > block_rows:
        blocks = (variants.slice(start, block_rows) for start in range(0, len(variants), block_rows))
        return _concatenated([_shredded(block, plan) for block in blocks])
    return _shredded(variants, plan)


def _concatenated(blocks: list[pa.Array]) -> pa.Array:
    try:
        return pa.concat_arrays(blocks)
    except pa.ArrowInvalid as e:
        raise InvalidRequestError("A shredded column takes more than 2 GiB", cause=str(e)) from None


def _shredded(variants: pa.StructArray, plan: ShreddingPlan) -> pa.StructArray:
    located, names = _locate(variants)
    length = len(variants)
    if plan.kind is not None:
        typed, rest = _split(located, plan.kind, names, length)
        value = rest.to_column(length)
    else:
        typed, value = _shred_objects(located, plan.fields, names, length)
    present = valid_mask(variants)
    children = [variants.field("metadata"), _nullable(value), typed]
    mask = None if present.all() else boolean_array(~present)
    return pa.StructArray.from_arrays(children, fields=list(plan.arrow_type), mask=mask)


def _locate(variants: pa.StructArray) -> tuple[Located, Names]:
    present = valid_mask(variants)
    group: VariantGroup = parse_variant_type(variants.type)
    values = value_column(group, variants, present)
    names = Names.of_lazy(lambda: metadata_column(group, variants, present), present)
    return Located.of(values, np.arange(len(variants))), names


def _split(located: Located, kind: str, names: Names, length: int) -> tuple[pa.Array, Located]:
    """The values of a kind as a typed column, and the others."""
    arrow_type, _ = _KINDS[kind]
    fits = _KIND_OF[located.data[located.starts]] == _NAMES.index(kind)
    chosen = _some(located, fits)
    pieces = list(convert_located(chosen, arrow_type, "raise", lambda rest: unquoted_texts(rest, names)))
    return assemble(pieces, length, arrow_type), _some(located, ~fits)


def _some(located: Located, chosen: Mask) -> Located:
    return Located(located.rows[chosen], located.data, located.starts[chosen], located.ends[chosen])


def _nullable(column: ByteColumn) -> pa.BinaryArray:
    return with_validity(column.to_binary(), column.sizes > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Fields:
    """All fields of some objects: which row each belongs to, its id and name (by code), and where its value lies."""

    rows: Ints
    ids: Ints
    codes: Ints
    starts: Ints
    ends: Ints

    @staticmethod
    def of(objects: Located, names: Names) -> _Fields:
        layout = containers(objects.data, objects.starts, objects.ends, objects=True)
        children, starts, ends = child_spaces(objects.data, layout)
        codes = names.dictionaries.codes_at(names.codes[objects.rows][children.rows], children.ids)
        return _Fields(objects.rows[children.rows], children.ids, codes, starts, ends)

    def located(self, data: Bytes, code: int) -> Located:
        """The values of the fields of one name."""
        chosen = np.flatnonzero(self.codes == code)
        rows = self.rows[chosen]
        if (rows[1:] == rows[:-1]).any():
            raise invalid_variant("an object has two fields of one name")
        return Located(rows, data, self.starts[chosen], self.ends[chosen])


def _shred_objects(
    located: Located, fields: Sequence[tuple[str, str]], names: Names, length: int
) -> tuple[pa.StructArray, ByteColumn]:
    is_object = located.data[located.starts] & 3 == BasicType.OBJECT
    objects = _some(located, is_object)
    found = _Fields.of(objects, names)
    codes = names.dictionaries.codes_of([name.encode() for name, _ in fields])
    groups = []
    for (_, kind), code in zip(fields, codes.tolist(), strict=True):
        typed, rest = _split(found.located(objects.data, code), kind, names, length)
        groups.append(
            pa.StructArray.from_arrays([_nullable(rest.to_column(length)), typed], fields=list(_field_type(kind)))
        )
    there = np.zeros(length, np.bool_)
    there[objects.rows] = True
    struct = pa.StructArray.from_arrays(
        groups,
        fields=[pa.field(name, _field_type(kind), nullable=False) for name, kind in fields],
        mask=None if there.all() else boolean_array(~there),
    )
    left_over = _left_over(objects, found, ~np.isin(found.codes, codes[codes >= 0]), length)
    return struct, join([left_over, _some(located, ~is_object).to_column(length)])


def _left_over(objects: Located, fields: _Fields, kept: Mask, length: int) -> ByteColumn:
    """Objects with some of their fields alone; missing where none is left."""
    rows, starts = fields.rows[kept], fields.starts[kept]
    sizes = value_sizes(objects.data, starts, fields.ends[kept])
    value_bytes = np.bincount(rows, sizes, minlength=length).astype(np.int64)
    first = np.cumsum(value_bytes) - value_bytes
    offsets = np.cumsum(sizes) - sizes - first[rows]
    headers = container_headers(value_bytes > 0, Children(rows, fields.ids[kept], offsets), value_bytes, objects=True)
    values = gather(objects.data, starts, sizes)
    return join([headers, ByteColumn(np.append(first, len(values.data)), values.data)])
