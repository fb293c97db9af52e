"""Files of which other rows are deleted than before: the same data files as other logical files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.arrow_building import all_booleans, string_array
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.read.deletion_vectors import deletion_vector_array
from delta_orch.log.read.skipping.record_counts import record_counts, with_wide_bounds
from delta_orch.protocol.actions import DeletionVectorDescriptor


def with_deletion_vectors(files: pa.Table, vectors: Sequence[DeletionVectorDescriptor]) -> pa.Table:
    """The files with other deletion vectors (PROTOCOL, "Deletion Vectors", "Per-file Statistics").

    Args:
        files: All columns of `file_columns.ADD_SCHEMA`.
        vectors: One a file.

    Raises:
        InvalidRequestError: A column is missing, or a file does not say how many records it has.
    """
    missing = [name for name in ADD_SCHEMA.names if name not in files.column_names]
    if missing or len(vectors) != files.num_rows:
        raise InvalidRequestError(
            "A file keeps everything but its deletion vector: all its columns are needed, and one vector a file",
            columns=missing,
        )
    if record_counts(files).null_count:
        raise InvalidRequestError(
            "A file that is to get a deletion vector does not say how many records it has",
            cause="Its statistics lack numRecords",
            remedy="Rewrite the file instead",
        )
    columns = {
        "dv_id": string_array([vector.unique_id for vector in vectors]),
        "deletion_vector": deletion_vector_array(vectors),
        "stats": string_array([with_wide_bounds(stats) for stats in files.column("stats").to_pylist()]),
        "data_change": all_booleans(True, files.num_rows),
    }
    arrays = [columns.get(name, files.column(name)) for name in ADD_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)
