"""New files as rows of `log.files.file_columns.ADD_SCHEMA`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from delta_orch.log.files.arrow_building import bool_array, int64_array, string_array, string_map_array
from delta_orch.log.files.file_columns import ADD_SCHEMA


def adds_table(
    *,
    paths: Sequence[str],
    partition_values: Sequence[Mapping[str, str | None]],
    sizes: Sequence[int],
    modification_times: Sequence[int],
    stats: pa.Array | pa.ChunkedArray,
) -> pa.Table:
    """One row a file, `data_change` true; what new files cannot have is null.

    Args:
        paths: URI-encoded, relative to the table's root.
        stats: JSON strings.
    """
    known = {
        "path": string_array(paths),
        "partition_values": string_map_array(partition_values),
        "size": int64_array(sizes),
        "modification_time": int64_array(modification_times),
        "data_change": bool_array([True] * len(paths)),
        "stats": stats,
    }
    arrays = [known.get(f.name, pa.nulls(len(paths), f.type)) for f in ADD_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)
