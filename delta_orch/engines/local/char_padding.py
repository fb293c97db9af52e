"""Texts declared `char(n)` as readers see them: filled up with spaces."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import children_of, with_children
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
        names = [field.name for field in array.type]
    else:
        names = ["key", "value"] if pa.types.is_map(array.type) else ["element"]
    parts = [_filled(child, below(places, name)) for child, name in zip(children_of(array), names, strict=True)]
    return with_children(array, parts, array.type)
