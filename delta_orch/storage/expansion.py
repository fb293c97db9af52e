"""The memory that the rows of a Parquet file take after they are decoded.

A dictionary holds a value once, and a run of a billion rows takes five bytes, so a file of 4 KB can hold terabytes. The
sizes in a footer may be wrong. Row counts, headers of pages and values of dictionaries decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.errors import TableError
from delta_orch.protocol.arrow_building import children_of
from delta_orch.storage.base import RepeatedTexts
from delta_orch.storage.parquet_footer import INTEGERS, STRUCT, ParquetFooter, ThriftWalk

BYTES_VARIABLE = "DELTA_ORCH_EXPANDED_BYTES"
_DEFAULT_BYTES = 1 << 30
_MOST_TIMES = 33_000
"""A file may always take this many times its size. zstd compresses repeated bytes so much, and only Brotli compresses
better. So this check seldom decodes the dictionaries of honest files."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_HEADER_BYTES, _DICTIONARY_PAGE, _LENGTH_BYTES = (256, 1 << 24), 2, 4
_FEW_ROWS = 16
_LONG_BYTES, _TIMES_OF_WIDE = 128, 16
"""The mean length of values that stay in a dictionary, and the factor by which the dictionary must be smaller."""


class _Pages(NamedTuple):
    """The pages of a column chunk.

    Attributes:
        dictionary_bytes, dictionary_values: The size of the dictionary; 0 without a dictionary.
        data_bytes: The uncompressed size of the data pages.
        longest_page: The size of the largest data page. No value outside a dictionary is longer.
    """

    dictionary_bytes: int = 0
    dictionary_values: int = 0
    data_bytes: int = 0
    longest_page: int = 0

    @property
    def longest(self) -> int:
        """A bound for the length of a value of the dictionary."""
        return max(self.dictionary_bytes - _LENGTH_BYTES * max(self.dictionary_values, 0), 0)

    @property
    def mean(self) -> int:
        """The mean length of the values of the dictionary."""
        return self.longest // max(self.dictionary_values, 1)


def ensure_bounded(
    source: pa.NativeFile,
    footer: ParquetFooter,
    groups: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    path: str,
    is_near: bool = True,
) -> RepeatedTexts:
    """Refuse columns that take far more memory than the file has bytes. Returns estimates about its text columns.

    It reads the headers of pages. If these permit too much memory, it reads the values. A value of a dictionary counts
    each time it is repeated. Values outside dictionaries count by the uncompressed sizes of their pages. Only Brotli
    compresses pages by more than a factor of 33,000, so pages of other codecs are not inspected.

    Args:
        groups: The row groups to read.
        names: The columns to read, by dotted paths; None means all.
        path: The path of the file in errors.
        is_near: Whether reading a header takes no round trip. If it does, only the headers of files with less than a
            byte a row, or that may use Brotli, are read.

    Raises:
        TableError: The rows take more than `DELTA_ORCH_EXPANDED_BYTES` (1 GiB) and 33,000 times the size of the file.
        pyarrow.ArrowException, OSError: The file is damaged.
    """
    metadata = footer.metadata
    row_groups = {group: metadata.row_group(group) for group in groups}
    rows = sum(group.num_rows for group in row_groups.values())
    most = max(_most_bytes(), _MOST_TIMES * source.size())
    leaves = range(metadata.num_columns) if names is None else footer.leaves_below(names)
    columns = {leaf: metadata.schema.column(leaf) for leaf in leaves}
    may_be_brotli = footer.may_be_brotli
    is_read = is_near or may_be_brotli or isinstance(source, pa.BufferReader) or source.size() < rows
    texts = {leaf for leaf, column in columns.items() if is_read and column.physical_type == "BYTE_ARRAY"}
    looked_at = sorted(columns) if may_be_brotli else sorted(texts)
    fixed = rows * sum(_WIDTHS.get(column.physical_type, column.length) for column in columns.values())
    _ensure(fixed, most, path)
    footer.ensure_sound_chunks(looked_at)
    bounds, texts_of_file = [], RepeatedTexts()
    for leaf in looked_at:
        chunks = []
        for number, group in row_groups.items():
            chunk = group.column(leaf)
            if not (group.num_rows or chunk.num_values):
                continue  # The chunk has no page.
            pages = _pages_of(source, chunk, reads_all=may_be_brotli)
            _ensure(pages.longest_page, most, path)
            values = max(group.num_rows, chunk.num_values) if leaf in texts else 0
            is_prefixed = "DELTA_BYTE_ARRAY" in chunk.encodings
            longest = pages.longest_page if is_prefixed else pages.longest
            bounds.append((values * longest, pages.data_bytes, number, leaf, is_prefixed))
            chunks.append((chunk, pages))
        if leaf in texts and chunks:
            texts_of_file = _with_column(texts_of_file, columns[leaf].path, chunks)
    total, exact = fixed + sum(bound + data for bound, data, *_ in bounds), fixed
    # The columns with the highest bounds are read first, until the bounds of the others are low enough.
    for bound, data, number, leaf, is_prefixed in sorted(bounds, reverse=True):
        if total <= most:
            break
        path_in_file = columns[leaf].path
        text = _text_bytes(source, metadata, number, path_in_file, is_prefixed=is_prefixed) if bound else 0
        size = max(data, text)
        total, exact = total - bound - data + size, exact + size
        _ensure(exact, most, path)
    return texts_of_file


def _with_column(
    texts_of_file: RepeatedTexts, path: str, chunks: Sequence[tuple[pq.ColumnChunkMetaData, _Pages]]
) -> RepeatedTexts:
    """Add one column to the estimates."""
    stored = sum(chunk.total_uncompressed_size for chunk, _ in chunks)
    expanded = sum(chunk.num_values * pages.mean for chunk, pages in chunks if pages.mean >= _LONG_BYTES)
    if any(_holds_others(chunk, pages) for chunk, pages in chunks):
        return texts_of_file._replace(row_bytes=texts_of_file.row_bytes + max(pages.mean for _, pages in chunks))
    wide = {path} if expanded > _TIMES_OF_WIDE * stored else set()
    return texts_of_file._replace(dictionaries=(*texts_of_file.dictionaries, path), wide=texts_of_file.wide | wide)


def _holds_others(chunk: pq.ColumnChunkMetaData, pages: _Pages) -> bool:
    """Whether values may be outside the dictionary. A value in it takes five bytes at most."""
    places = chunk.total_uncompressed_size - pages.dictionary_bytes
    is_plain = not pages.dictionary_bytes or places > 5 * chunk.num_values + _HEADER_BYTES[0]
    return is_plain or any(encoding.startswith("DELTA") for encoding in chunk.encodings)


def is_readable(row_bytes: int, file_bytes: int) -> bool:
    """Whether readers with the default limit accept a file of `file_bytes` whose rows take `row_bytes`."""
    return row_bytes <= max(_DEFAULT_BYTES, _MOST_TIMES * file_bytes)


def _most_bytes() -> int:
    text = os.environ.get(BYTES_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else _DEFAULT_BYTES


def _ensure(total: int, most: int, path: str) -> None:
    if total > most:
        raise TableError(
            f"The rows of the file {path} take {total} bytes of memory, more than {most}",
            cause="The file repeats few values very often, by accident or to exhaust the memory of its readers",
            remedy=f"Read fewer columns, or set {BYTES_VARIABLE} to the bytes that the rows of a file may take",
            path=path,
        )


def _pages_of(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, *, reads_all: bool = False) -> _Pages:
    """Find the pages of a chunk up to its dictionary, or all pages. Arrow accepts a dictionary in any page."""
    at, dictionary_at = chunk.data_page_offset, chunk.dictionary_page_offset or 0
    at = dictionary_at if 0 < dictionary_at < at else at
    end = min(at + chunk.total_compressed_size, source.size())
    pages = _Pages()
    while at < end and (reads_all or not pages.dictionary_bytes):
        kind, size, stored, values, length = _page_header(source, at)
        if kind == _DICTIONARY_PAGE:
            pages = pages._replace(dictionary_bytes=size, dictionary_values=values)
        else:
            data = pages.data_bytes + max(size, 0)
            pages = pages._replace(data_bytes=data, longest_page=max(pages.longest_page, size))
        at += length + max(stored, 0)
    return pages


def _page_header(source: pa.NativeFile, at: int) -> tuple[int, int, int, int, int]:
    """Read the header of a page: kind, size, stored size, number of values of a dictionary, length of the header."""
    for most in _HEADER_BYTES:
        walk, numbers = ThriftWalk(source.read_at(most, at)), {1: -1, 2: 0, 3: 0, 7: 0}
        try:
            for field in walk.fields():
                if field in (1, 2, 3) and walk.kind in INTEGERS:
                    numbers[field] = walk.integer()
                elif field == 7 and walk.kind == STRUCT:
                    for inner in walk.fields():
                        if inner == 1 and walk.kind in INTEGERS:
                            numbers[field] = walk.integer()
                        else:
                            walk.skip()
                else:
                    walk.skip()
        except IndexError:
            if most == _HEADER_BYTES[-1]:
                raise pa.ArrowInvalid("The header of a page ends in the middle") from None
        else:
            break
    return numbers[1], numbers[2], numbers[3], numbers[7], walk.at


def _text_bytes(source: pa.NativeFile, metadata: pq.FileMetaData, group: int, path: str, *, is_prefixed: bool) -> int:
    """The bytes of the values of a column chunk. It decodes only the dictionary, and the index of each row in it."""
    if is_prefixed:
        # Arrow has no dictionary for such values. A few rows at a time take the memory of as many pages at most.
        plain = pq.ParquetFile(source, metadata=metadata)
        batches = plain.iter_batches(_FEW_ROWS, row_groups=[group], columns=[path], use_threads=False)
        return sum(batch.nbytes for batch in batches)
    file = pq.ParquetFile(source, metadata=metadata, read_dictionary=[path])
    total = 0
    for batch in file.iter_batches(1 << 20, row_groups=[group], columns=[path], use_threads=False):
        for values in _dictionaries(batch.column(0)):
            lengths = pc.take(pc.cast(pc.binary_length(values.dictionary), pa.int64()), values.indices)
            total += pc.sum(lengths).as_py() or 0
    return int(total)


def _dictionaries(values: pa.Array) -> Iterator[pa.DictionaryArray]:
    if pa.types.is_dictionary(values.type):
        yield values
    for child in children_of(values):
        yield from _dictionaries(child)
