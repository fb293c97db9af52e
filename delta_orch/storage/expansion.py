"""How much memory the rows of a Parquet file take once they are decoded.

A dictionary holds a value once, and a run of a billion rows takes five bytes: a file of 4 KB can hold terabytes. What a
footer says of sizes need not be true. Row counts, the headers of dictionary pages and their values decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.errors import TableError
from delta_orch.protocol.arrow_building import children_of
from delta_orch.storage.parquet_footer import INTEGERS, STRUCT, ParquetFooter, ThriftWalk

BYTES_VARIABLE = "DELTA_ORCH_EXPANDED_BYTES"
_DEFAULT_BYTES = 1 << 30
_MOST_TIMES = 16_000
"""A file may always take that many times its size: zstd alone packs repeated bytes so. Dictionaries of honest files are
then seldom decoded for this check."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_HEADER_BYTES, _DICTIONARY_PAGE, _LENGTH_BYTES = (256, 1 << 24), 2, 4


def ensure_bounded(
    source: pa.NativeFile,
    footer: ParquetFooter,
    groups: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    path: str,
    is_near: bool = True,
) -> None:
    """Refuse to decode what takes far more memory than the file's size lets expect. Reads headers of dictionary pages,
    and, where these allow too much, the values.

    Args:
        groups: The row groups to read.
        names: The columns to read, by their dotted paths; None means all.
        path: The file's, for errors.
        is_near: Whether reading a header costs no round trip. Otherwise only files of less than a byte a row are read.

    Raises:
        TableError: It takes more than `DELTA_ORCH_EXPANDED_BYTES` (1 GiB) and 16,000 times the file's size.
        pyarrow.ArrowException, OSError: The file is damaged.
    """
    metadata = footer.metadata
    row_groups = {group: metadata.row_group(group) for group in groups}
    rows = sum(group.num_rows for group in row_groups.values())
    most = max(_most_bytes(), _MOST_TIMES * source.size())
    leaves = range(metadata.num_columns) if names is None else footer.leaves_below(names)
    columns = {leaf: metadata.schema.column(leaf) for leaf in leaves}
    is_text = is_near or isinstance(source, pa.BufferReader) or source.size() < rows
    texts = [leaf for leaf, column in columns.items() if is_text and column.physical_type == "BYTE_ARRAY"]
    fixed = rows * sum(_WIDTHS.get(column.physical_type, column.length) for column in columns.values())
    _ensure(fixed, most, path)
    footer.ensure_sound_chunks(texts)
    bounds = []
    for number, group in row_groups.items():
        for leaf in texts:
            chunk = group.column(leaf)
            bounds.append((max(group.num_rows, chunk.num_values) * _longest_value(source, chunk), number, leaf))
    if fixed + sum(bound for bound, _, _ in bounds) <= most:
        return
    total = fixed
    for bound, number, leaf in bounds:
        is_flat = not columns[leaf].max_repetition_level
        total += _text_bytes(source, metadata, number, columns[leaf].path, most, is_flat=is_flat) if bound else 0
        _ensure(total, most, path)


def _most_bytes() -> int:
    given = os.environ.get(BYTES_VARIABLE, "")
    return int(given) if given.isascii() and given.isdigit() else _DEFAULT_BYTES


def _ensure(total: int, most: int, path: str) -> None:
    if total > most:
        raise TableError(
            f"The rows of the file {path} take {total} bytes of memory, more than {most}",
            cause="The file repeats few values very often, by accident or to exhaust the reader's memory",
            remedy=f"Read fewer columns, or set {BYTES_VARIABLE} to the bytes that a file's rows may take",
            path=path,
        )


def _longest_value(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    """No value of a column chunk's dictionary is longer; 0 without one. Arrow takes it from any page."""
    at, dictionary_at = chunk.data_page_offset, chunk.dictionary_page_offset or 0
    at = dictionary_at if 0 < dictionary_at < at else at
    end = min(at + chunk.total_compressed_size, source.size())
    while at < end:
        kind, size, stored, values, length = _page_header(source, at)
        if kind == _DICTIONARY_PAGE:
            return max(size - _LENGTH_BYTES * max(values, 0), 0)
        at += length + max(stored, 0)
    return 0


def _page_header(source: pa.NativeFile, at: int) -> tuple[int, int, int, int, int]:
    """Kind, size, stored size and number of values in the dictionary of a page, and the length of the header."""
    for most in _HEADER_BYTES:
        walk, found = ThriftWalk(source.read_at(most, at)), {1: -1, 2: 0, 3: 0, 7: 0}
        try:
            for field in walk.fields():
                if field in (1, 2, 3) and walk.kind in INTEGERS:
                    found[field] = walk.integer()
                elif field == 7 and walk.kind == STRUCT:
                    for inner in walk.fields():
                        if inner == 1 and walk.kind in INTEGERS:
                            found[field] = walk.integer()
                        else:
                            walk.skip()
                else:
                    walk.skip()
        except pa.ArrowInvalid:
            if most == _HEADER_BYTES[-1]:
                raise
        else:
            break
    return found[1], found[2], found[3], found[7], walk.at


def _text_bytes(
    source: pa.NativeFile, metadata: pq.FileMetaData, group: int, path: str, most: int, *, is_flat: bool
) -> int:
    """What the values of a column chunk take: at most, if that is enough to know, or exactly. Decoded is only the
    dictionary, and for each row the place in it."""
    file = pq.ParquetFile(source, metadata=metadata, read_dictionary=[path])
    if is_flat:
        # The first row comes with the whole dictionary.
        first = next(file.iter_batches(1, row_groups=[group], columns=[path], use_threads=False))
        longest = max((_longest(values.dictionary) for values in _dictionaries(first.column(0))), default=0)
        if (bound := int(metadata.row_group(group).num_rows) * longest) <= most:
            return bound
    found = 0
    for batch in file.iter_batches(1 << 20, row_groups=[group], columns=[path], use_threads=False):
        for values in _dictionaries(batch.column(0)):
            lengths = pc.take(pc.cast(pc.binary_length(values.dictionary), pa.int64()), values.indices)
            found += pc.sum(lengths).as_py() or 0
    return int(found)


def _longest(dictionary: pa.Array) -> int:
    return int(pc.max(pc.binary_length(dictionary)).as_py() or 0)


def _dictionaries(values: pa.Array) -> Iterator[pa.DictionaryArray]:
    if pa.types.is_dictionary(values.type):
        yield values
    for child in children_of(values):
        yield from _dictionaries(child)
