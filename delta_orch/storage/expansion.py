"""How much memory the rows of a Parquet file take once they are decoded.

A dictionary holds a value once, and a run of a billion rows takes five bytes: a file of 4 KB can hold terabytes. What a
footer says of sizes need not be true. Row counts, the headers of pages and the values of dictionaries decide.
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
"""A file may always take that many times its size: zstd alone packs repeated bytes so, and of the codecs only Brotli
packs better. Dictionaries of honest files are then seldom decoded for this check."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_HEADER_BYTES, _DICTIONARY_PAGE, _LENGTH_BYTES = (256, 1 << 24), 2, 4
_FEW_ROWS = 16
_LONG_BYTES, _TIMES_OF_WIDE = 128, 16
"""Of values that are worth to stay in a dictionary, on average, and by how much the dictionary must be smaller."""


class _Pages(NamedTuple):
    """The pages of a column chunk.

    Attributes:
        dictionary_bytes, dictionary_values: Of the dictionary; 0 without one.
        data_bytes: What its data pages take, uncompressed.
        longest_page: The largest of them. No value outside a dictionary is longer.
    """

    dictionary_bytes: int = 0
    dictionary_values: int = 0
    data_bytes: int = 0
    longest_page: int = 0

    @property
    def longest(self) -> int:
        """No value of the dictionary is longer."""
        return max(self.dictionary_bytes - _LENGTH_BYTES * max(self.dictionary_values, 0), 0)

    @property
    def mean(self) -> int:
        """Of the values of the dictionary."""
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
    """Refuse to decode what takes far more memory than the file's size lets expect. Reads headers of pages, and, where
    these allow too much, the values.

    A value that is repeated from a dictionary counts each time. Values outside dictionaries count by the uncompressed
    sizes of their pages. Only Brotli packs pages more than 33,000 times, so that other pages need not be looked at.

    Args:
        groups: The row groups to read.
        names: The columns to read, by their dotted paths; None means all.
        path: The file's, for errors.
        is_near: Whether reading a header costs no round trip. Otherwise only files of less than a byte a row are read,
            and those that may use Brotli.

    Raises:
        TableError: It takes more than `DELTA_ORCH_EXPANDED_BYTES` (1 GiB) and 33,000 times the file's size.
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
    bounds, found = [], RepeatedTexts()
    for leaf in looked_at:
        chunks = []
        for number, group in row_groups.items():
            chunk = group.column(leaf)
            if not (group.num_rows or chunk.num_values):
                continue  # It has no page.
            pages = _pages_of(source, chunk, reads_all=may_be_brotli)
            _ensure(pages.longest_page, most, path)
            values = max(group.num_rows, chunk.num_values) if leaf in texts else 0
            is_prefixed = "DELTA_BYTE_ARRAY" in chunk.encodings
            longest = pages.longest_page if is_prefixed else pages.longest
            bounds.append((values * longest, pages.data_bytes, number, leaf, is_prefixed))
            chunks.append((chunk, pages))
        if leaf in texts and chunks:
            found = _with_column(found, columns[leaf].path, chunks)
    total, exact = fixed + sum(bound + data for bound, data, *_ in bounds), fixed
    # The values of those columns are looked at that may take most, until the other bounds are low enough.
    for bound, data, number, leaf, is_prefixed in sorted(bounds, reverse=True):
        if total <= most:
            break
        path_in_file = columns[leaf].path
        text = _text_bytes(source, metadata, number, path_in_file, is_prefixed=is_prefixed) if bound else 0
        size = max(data, text)
        total, exact = total - bound - data + size, exact + size
        _ensure(exact, most, path)
    return found


def _with_column(
    found: RepeatedTexts, path: str, chunks: Sequence[tuple[pq.ColumnChunkMetaData, _Pages]]
) -> RepeatedTexts:
    """What is known, with one more column."""
    stored = sum(chunk.total_uncompressed_size for chunk, _ in chunks)
    expanded = sum(chunk.num_values * pages.mean for chunk, pages in chunks if pages.mean >= _LONG_BYTES)
    if any(_holds_others(chunk, pages) for chunk, pages in chunks):
        return found._replace(row_bytes=found.row_bytes + max(pages.mean for _, pages in chunks))
    wide = {path} if expanded > _TIMES_OF_WIDE * stored else set()
    return found._replace(dictionaries=(*found.dictionaries, path), wide=found.wide | wide)


def _holds_others(chunk: pq.ColumnChunkMetaData, pages: _Pages) -> bool:
    """Whether values are outside the dictionary, as far as one can see: those in it take no more than five bytes."""
    places = chunk.total_uncompressed_size - pages.dictionary_bytes
    is_plain = not pages.dictionary_bytes or places > 5 * chunk.num_values + _HEADER_BYTES[0]
    return is_plain or any(encoding.startswith("DELTA") for encoding in chunk.encodings)


def is_readable(row_bytes: int, file_bytes: int) -> bool:
    """Whether a file of so many bytes may have rows that take so many, wherever nobody has set another limit."""
    return row_bytes <= max(_DEFAULT_BYTES, _MOST_TIMES * file_bytes)


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


def _pages_of(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, *, reads_all: bool = False) -> _Pages:
    """The pages of a chunk up to its dictionary, or all. Arrow takes a dictionary from any page."""
    at, dictionary_at = chunk.data_page_offset, chunk.dictionary_page_offset or 0
    at = dictionary_at if 0 < dictionary_at < at else at
    end = min(at + chunk.total_compressed_size, source.size())
    found = _Pages()
    while at < end and (reads_all or not found.dictionary_bytes):
        kind, size, stored, values, length = _page_header(source, at)
        if kind == _DICTIONARY_PAGE:
            found = found._replace(dictionary_bytes=size, dictionary_values=values)
        else:
            data = found.data_bytes + max(size, 0)
            found = found._replace(data_bytes=data, longest_page=max(found.longest_page, size))
        at += length + max(stored, 0)
    return found


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
        except IndexError:
            if most == _HEADER_BYTES[-1]:
                raise pa.ArrowInvalid("The header of a page ends in the middle") from None
        else:
            break
    return found[1], found[2], found[3], found[7], walk.at


def _text_bytes(source: pa.NativeFile, metadata: pq.FileMetaData, group: int, path: str, *, is_prefixed: bool) -> int:
    """What the values of a column chunk take. Decoded is only the dictionary, and for each row the place in it."""
    if is_prefixed:
        # Arrow makes no dictionary of such values. A few rows at a time take no more than as many pages.
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
