"""Texts declared `char(n)` as readers see them: filled up with spaces."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.conform import offsets_and_mask
from delta_orch.protocol.schema import Places, below


def filled_up(rows: pa.Table, columns: Mapping[str, Places]) -> pa.Table:
    """Rows in the types of a table. A text that is longer than declared stays as it is."""
    for index, field in enumerate(rows.schema):
        if (places := columns.get(field.name)) is not None:
            chunks = [_filled(chunk, places) for chunk in rows.column(index).chunks]
            rows = rows.set_column(index, field, pa.chunked_array(chunks, field.type))
    return rows


def _filled(array: pa.Array, places: Places) -> pa.Array:
    if not places:
        return array
    if () in places:
        return pc.utf8_rpad(array, width=places[()], padding=" ")
    if pa.types.is_struct(array.type):
        parts = [_filled(array.field(i), below(places, field.name)) for i, field in enumerate(array.type)]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=mask)
    offsets, mask = offsets_and_mask(array)
    if pa.types.is_map(array.type):
        keys, items = _filled(array.keys, below(places, "key")), _filled(array.items, below(places, "value"))
        return pa.MapArray.from_arrays(offsets, keys, items, type=array.type, mask=mask)
    elements = _filled(array.values, below(places, "element"))
    return pa.ListArray.from_arrays(offsets, elements, type=array.type, mask=mask)
