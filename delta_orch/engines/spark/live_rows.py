"""Deletion vectors in Spark: the rows of a few files, without those their vectors mark.

The vectors become 64-bit words, a row a file, broadcast into the condition of an anti-join. A bitmap as a column of the
joined rows would travel with each of them; in the condition of an anti-join it does not. What finds it is a number that
each file of the scan has like a partition value: the path would have to be hashed for every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.engines.read_errors import read_error
from delta_orch.engines.spark.host import DataFrame
from delta_orch.engines.spark.sql_text import escape_braces
from delta_orch.engines.spark.values import arrow_to_frame
from delta_orch.errors import CorruptDeletionVectorError
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.log.files.arrow_building import int64_range
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.protocol.types import LONG, STRING, ArrayType, StructField, StructType
from delta_orch.storage.base import LogStore

# Names that only exist inside the plan.
FILE_COLUMN = "delta_orch_row_file"
POSITION_COLUMN = "delta_orch_row_position"
NUMBER_COLUMN = "delta_orch_file_number"
POSITION_FIELDS = (StructField(FILE_COLUMN, STRING), StructField(POSITION_COLUMN, LONG))
NUMBER_FIELD = StructField(NUMBER_COLUMN, LONG)
_READERS = 16
_KEY = "delta_orch_vector_file"
_WORDS = "delta_orch_vector_words"
_ROWS = "delta_orch_positioned_rows"
_VECTORS = "delta_orch_deletion_vectors"

_LOOKUP_SCHEMA = StructType((StructField(_KEY, LONG), StructField(_WORDS, ArrayType(LONG))))


def with_position(rows: DataFrame) -> DataFrame:
    """The rows of a file scan and where each of them stands: `FILE_COLUMN`, `POSITION_COLUMN`."""
    metadata = rows.metadataColumn("_metadata")
    return rows.select(
        *[rows[quote_identifier(name)] for name in rows.columns],
        metadata.getField("file_path").alias(FILE_COLUMN),
        metadata.getField("row_index").alias(POSITION_COLUMN),
    )


def live_rows(
    session: Any, positioned: DataFrame, store: LogStore, files: pa.Table, *, keep_position: bool
) -> DataFrame:
    """The rows whose file's vector does not mark them.

    Args:
        positioned: The rows of exactly these files, from `with_position`, with the number of their file in `files`
            (`NUMBER_FIELD`).
        files: Columns `path` and `deletion_vector`; every file has a vector.
        keep_position: Keep the two position columns.

    Raises:
        MissingFileError, CorruptDeletionVectorError, TableError: A vector, or its file, cannot be read.
    """
    vectors = arrow_to_frame(session, _lookup_table(store, files), _LOOKUP_SCHEMA)
    hidden = (NUMBER_COLUMN,) if keep_position else (NUMBER_COLUMN, FILE_COLUMN, POSITION_COLUMN)
    columns = [quote_identifier(name) for name in positioned.columns if name not in hidden]
    # `get` gives null beyond the last word, and null does not match.
    word = f"get(v.{_WORDS}, CAST(r.{POSITION_COLUMN} DIV 64 AS INT))"
    text = (
        f"SELECT /*+ BROADCAST(v) */ {', '.join(f'r.{column}' for column in columns)} FROM {_ROWS} AS r "
        f"LEFT ANTI JOIN {_VECTORS} AS v ON r.{NUMBER_COLUMN} = v.{_KEY} "
        f"AND getbit({word}, CAST(r.{POSITION_COLUMN} % 64 AS INT)) = 1"
    )
    text = escape_braces(text).replace(_ROWS, "{rows}").replace(_VECTORS, "{vectors}")
    return session.sql(text, rows=positioned, vectors=vectors)


def _lookup_table(store: LogStore, files: pa.Table) -> pa.Table:
    vectors = read_deletion_vectors(store, deletion_vector_descriptors(files))
    words = []
    for num_rows, vector in zip(_row_counts(store, files.column("path").to_pylist()), vectors, strict=True):
        assert vector is not None
        words.append(_words(vector.row_indexes(num_rows)))
    offsets = np.concatenate(([0], np.cumsum([len(w) for w in words]))).astype(np.int64)
    if offsets[-1] >= 1 << 31:
        raise CorruptDeletionVectorError(
            "The deletion vectors of a scan are too large to be applied",
            cause=f"{offsets[-1] * 8} bytes of bitmaps",
            remedy="Scan fewer files at a time, or purge deleted rows",
        )
    values = pa.array(np.concatenate(words) if words else np.zeros(0, dtype=np.int64))
    column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return pa.Table.from_arrays([int64_range(0, files.num_rows), column], names=[_KEY, _WORDS])


def _words(rows: Any) -> Any:
    """Bits as signed 64-bit words: bit r % 64 of word r / 64 is set for each row r."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    bits = np.zeros((int(rows[-1]) // 64 + 1) * 64, dtype=np.uint8)
    bits[rows] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _row_counts(store: LogStore, log_paths: Sequence[str]) -> list[int]:
    with ThreadPoolExecutor(min(_READERS, len(log_paths)), thread_name_prefix="delta-row-counts") as executor:
        return list(executor.map(lambda path: _num_rows(store, path), log_paths))


def _num_rows(store: LogStore, log_path: str) -> int:
    path = store.resolve(log_path)
    try:
        with store.data_filesystem()[0].open_input_file(path) as source:
            return int(pq.read_metadata(source).num_rows)
    except (OSError, pa.ArrowException) as e:
        raise read_error(e, path) from e
