"""Variant columns while reading: shredded or not, they leave a file as struct<metadata: binary, value: binary>."""

from __future__ import annotations

import pyarrow as pa

from delta_orch.protocol.types import StructType, holds_variant
from delta_orch.protocol.variant.nested import reconstruct_columns


def with_variants(rows: pa.Table, schema: StructType) -> pa.Table:
    """The rows of a file with every variant in them put together again (variant-shredding, "Reconstructing a Shredded
    Variant").

    Raises:
        InvalidVariantError: A file holds a variant that is none.
    """
    for index, name in enumerate(rows.column_names):
        field = schema.find(name)
        if field is not None and holds_variant(field.data_type):
            rows = rows.set_column(index, name, reconstruct_columns(rows.column(index), field.data_type))
    return rows
