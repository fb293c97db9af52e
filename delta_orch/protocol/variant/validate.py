"""Whether a column holds variants at all: asked before somebody else's bytes become part of a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from delta_orch.protocol.types import VARIANT, ArrayType, DataType, MapType, StructType, holds_variant
from delta_orch.protocol.variant.byte_columns import column_from_arrow, valid_mask
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.layouts import value_sizes
from delta_orch.protocol.variant.metadata import invalid_variant


def ensure_variants(array: pa.Array, data_type: DataType) -> None:
    """Check the variants anywhere in a column: each has metadata of a known version and exactly one value. What is
    inside objects and arrays is not looked at.

    Args:
        array: In the Arrow type of `data_type`; variants are struct<metadata: binary, value: binary>.

    Raises:
        InvalidVariantError: One is none.
    """
    match data_type:
        case StructType(fields):
            for field, child in zip(fields, array.flatten(), strict=True):
                if holds_variant(field.data_type):
                    ensure_variants(child, field.data_type)
        case ArrayType(element_type, _):
            ensure_variants(array.flatten(), element_type)
        case MapType(_, value_type, _):
            entries = pa.ListArray.from_arrays(array.offsets, array.items, mask=_null_mask(array))
            ensure_variants(entries.flatten(), value_type)
        case _ if data_type == VARIANT:
            _ensure_column(array)


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count and not array.offset else None


def _ensure_column(array: pa.StructArray) -> None:
    present = valid_mask(array)
    parts = {name: column_from_arrow(array.field(name), present) for name in ("metadata", "value")}
    for name, column in parts.items():
        if (column.sizes[present] == 0).any():
            raise invalid_variant(f"it has no {name}")
    rows = np.flatnonzero(present)
    if not len(rows):
        return
    value = parts["value"]
    sizes = value_sizes(value.data, value.starts[rows], value.ends[rows])
    if (sizes != value.sizes[rows]).any():
        raise invalid_variant("bytes follow its value")
    _ = Names.of(parts["metadata"], present).dictionaries
