"""Deletion vectors in Spark: the rows of a few files, without those their vectors mark.

The vectors become 64-bit words, a row a file, broadcast into the condition of an anti-join. A bitmap as a column of the
joined rows would travel with each of them; in the condition of an anti-join it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.engines.spark.host import DataFrame
from delta_orch.engines.spark.values import arrow_to_frame
from delta_orch.errors import CorruptDeletionVectorError, MissingFileError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.log.arrow_building import string_array
from delta_orch.log.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.protocol.types import LONG, STRING, ArrayType, StructField, StructType
from delta_orch.storage.base import LogStore

# Names that only exist inside the plan.
FILE_COLUMN = "delta_orch_row_file"
POSITION_COLUMN = "delta_orch_row_position"
_KEY = "delta_orch_vector_file"
_WORDS = "delta_orch_vector_words"

_LOOKUP_SCHEMA = StructType((StructField(_KEY, STRING), StructField(_WORDS, ArrayType(LONG))))


def with_position(rows: DataFrame) -> DataFrame:
    """The rows of a file scan and where each of them stands: `FILE_COLUMN`, `POSITION_COLUMN`."""
    metadata = rows.metadataColumn("_metadata")
    return rows.select(
        *[rows[quote_identifier(name)] for name in rows.columns],
        metadata.getField("file_path").alias(FILE_COLUMN),
        metadata.getField("row_index").alias(POSITION_COLUMN),
    )


def live_rows(session: Any, positioned: DataFrame, store: LogStore, files: pa.Table, uris: list[str]) -> DataFrame:
    """The rows whose file's vector does not mark them; the two position columns are gone.

    Args:
        positioned: The rows of exactly these files, from `with_position`.
        files: Columns `path` and `deletion_vector`; every file has a vector.
        uris: For each file what Spark has in `_metadata.file_path`.

    Raises:
        MissingFileError, CorruptDeletionVectorError: A vector, or its file, cannot be read.
    """
    lookup = arrow_to_frame(session, _lookup_table(store, files, uris), _LOOKUP_SCHEMA).hint("broadcast")
    # A file under another spelling than expected would show its deleted rows without a word: better an error.
    known = ", ".join(quote_string(uri) for uri in uris)
    is_known = (
        f"CASE WHEN {FILE_COLUMN} IN ({known}) THEN TRUE "
        f"ELSE raise_error(concat('delta_orch: no deletion vector for ', {FILE_COLUMN})) END"
    )
    position = positioned[POSITION_COLUMN]
    # `get` gives null beyond the last word, and null does not match.
    word = lookup[_WORDS].getItem(0)
    from pyspark.sql import functions as sf

    word = sf.get(lookup[_WORDS], (position / 64).cast("int"))
    marked = sf.getbit(word, (position % 64).cast("int")) == 1
    same_file = positioned[FILE_COLUMN] == lookup[_KEY]
    rows = positioned.join(lookup, same_file & marked, "left_anti").where(is_known)
    return rows.drop(FILE_COLUMN, POSITION_COLUMN)


def _lookup_table(store: LogStore, files: pa.Table, uris: list[str]) -> pa.Table:
    vectors = read_deletion_vectors(store, deletion_vector_descriptors(files))
    words = []
    for path, vector in zip(files.column("path").to_pylist(), vectors, strict=True):
        assert vector is not None
        words.append(_words(vector.row_indexes(_num_rows(store, path))))
    offsets = np.concatenate(([0], np.cumsum([len(w) for w in words]))).astype(np.int64)
    if offsets[-1] >= 1 << 31:
        raise CorruptDeletionVectorError(
            "The deletion vectors of a scan are too large to be applied",
            cause=f"{offsets[-1] * 8} bytes of bitmaps",
            remedy="Scan fewer files at a time, or purge deleted rows",
        )
    values = pa.array(np.concatenate(words) if words else np.zeros(0, dtype=np.int64))
    column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return pa.Table.from_arrays([string_array(uris), column], names=[_KEY, _WORDS])


def _words(rows: Any) -> Any:
    """Bits as signed 64-bit words: bit r % 64 of word r / 64 is set for each row r."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    bits = np.zeros((int(rows[-1]) // 64 + 1) * 64, dtype=np.uint8)
    bits[rows] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _num_rows(store: LogStore, log_path: str) -> int:
    filesystem, _ = store.data_filesystem()
    path = store.resolve(log_path)
    try:
        with filesystem.open_input_file(path) as source:
            return int(pq.read_metadata(source).num_rows)
    except FileNotFoundError as e:
        raise MissingFileError(
            f"The data file {path} is not there",
            cause="The log names it, but vacuum or something else has deleted it",
            remedy="Read a newer version, or restore the file",
            path=path,
        ) from e
