"""Which column of a data file is a column of the table.

Files know a column by its physical name, and in mode `id` by its field id where they carry ids (PROTOCOL, "Reader
Requirements for Column Mapping").
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.engines.conform import find_name
from delta_orch.features.column_mapping import ColumnMappingMode, field_id, physical_name
from delta_orch.protocol.types import StructField

_PARQUET_ID = b"PARQUET:field_id"


def find_in_file(field: StructField, candidates: Sequence[pa.Field], mode: ColumnMappingMode) -> int | None:
    """The position of a table's column among the columns of a file, or of a struct in it; None if it is not there."""
    if mode is ColumnMappingMode.NONE:
        return find_name(field.name, [c.name for c in candidates])
    # Columns that are no columns of the table (`_change_type`) have no id and go by their name.
    if mode is ColumnMappingMode.ID and field_id(field) is not None:
        ids = [(c.metadata or {}).get(_PARQUET_ID) for c in candidates]
        if any(i is not None for i in ids):
            wanted = str(field_id(field)).encode()
            return ids.index(wanted) if wanted in ids else None
    name = physical_name(field)
    return next((index for index, c in enumerate(candidates) if c.name == name), None)
