"""Variants for users: one value (`Variant`), and columns of them.

A scan gives a variant column as struct<metadata: binary, value: binary>, whichever way its files store it. Row null and
variant null are told apart: the former is a null of the struct, the latter a value. Bytes that break the rules of the
encoding raise `InvalidVariantError` (Variant binary encoding; PROTOCOL, "Variant Data Type").
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import VARIANT_STORAGE
from delta_orch.protocol.variant.byte_columns import byte_strings, with_validity
from delta_orch.protocol.variant.decode import python_values
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.encode import encode_variant, parse_json
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.json_columns import json_texts
from delta_orch.protocol.variant.reconstruct import located_variants, reconstruct_variant, variant_array
from delta_orch.protocol.variant.values import VariantValue
from delta_orch.protocol.variant.variant import Variant

__all__ = [
    "Variant",
    "encode_variant",
    "json_to_variant",
    "parse_json",
    "variant_get",
    "variant_to_json",
    "variant_to_python",
    "variants_to_arrow",
]


def variant_to_python(array: pa.Array | pa.ChunkedArray, *, sql_null: VariantValue = None) -> list[VariantValue]:
    """Each row as Python objects, as `Variant.to_python` gives them.

    Args:
        array: A variant column, shredded or not.
        sql_null: What to put for rows that are null. A variant null is None; give something else here to tell them
            apart.

    Raises:
        InvalidVariantError: The columns or the values break the rules.
    """
    rows: list[VariantValue] = []
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        located, names, length = _located(chunk)
        values = python_values(located, names)
        if len(located.rows) == length:
            rows.extend(values)
            continue
        of_chunk = [sql_null] * length
        for row, value in zip(located.rows.tolist(), values, strict=True):
            of_chunk[row] = value
        rows.extend(of_chunk)
    return rows


def variant_to_json(array: pa.Array | pa.ChunkedArray) -> pa.StringArray | pa.ChunkedArray:
    """The canonical JSON text of each row, as `Variant.to_json` gives it. A null row is null, a variant null `null`.

    Args:
        array: A variant column, shredded or not. A chunked array comes back chunked.

    Raises:
        InvalidVariantError: The columns or the values break the rules.
        InvalidRequestError: The text of an array takes more than 2 GiB.
    """
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([variant_to_json(chunk) for chunk in array.chunks], type=pa.string())
    located, names, length = _located(array)
    column = json_texts(located, names).expand(located.rows, length)
    present = np.zeros(length, np.bool_)
    present[located.rows] = True
    _, offsets, data = column.to_binary().buffers()
    return with_validity(pa.StringArray.from_buffers(length, offsets, data), present)


def _located(array: pa.Array) -> tuple[Located, Names, int]:
    variants = reconstruct_variant(array)
    return *located_variants(variants), len(variants)


def variants_to_arrow(variants: Iterable[Variant | None]) -> pa.StructArray:
    """A column of variants; None is a null row.

    Raises:
        InvalidRequestError: More than 2 GiB.
    """
    listed = list(variants)
    present = np.fromiter((v is not None for v in listed), np.bool_, len(listed))
    metadata = byte_strings(b"" if v is None else v.metadata for v in listed)
    return variant_array(metadata, byte_strings(b"" if v is None else v.value for v in listed), present)


def json_to_variant(texts: pa.Array | pa.ChunkedArray) -> pa.StructArray | pa.ChunkedArray:
    """A column of JSON text as variants; null stays null, the text `null` becomes a variant null.

    Raises:
        InvalidRequestError: A text is not JSON that a variant can hold. `context["row"]` is its row number in its
            array.
    """
    if isinstance(texts, pa.ChunkedArray):
        return pa.chunked_array([json_to_variant(chunk) for chunk in texts.chunks], type=VARIANT_STORAGE)
    return variants_to_arrow(_parse_row(row, text) for row, text in enumerate(texts.to_pylist()))


def _parse_row(row: int, text: str | None) -> Variant | None:
    try:
        return None if text is None else parse_json(text)
    except InvalidRequestError as e:
        raise InvalidRequestError(e.problem, cause=e.cause, remedy=e.remedy, row=row, **e.context) from None
