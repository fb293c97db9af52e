"""Footers of Parquet files, and whether they are safe to look into.

Arrow reports most damage as an error. But Arrow 26 still ends the process (SIGABRT) when it is asked for a column chunk
whose physical type or number of levels contradicts the schema, or for a minimum or maximum that is too short for its
type. Those calls cannot report an error. So the chunks are checked first, for the columns that are asked for. The check
finds damage. It does not defend against a file that was made to deceive it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from delta_orch.storage.legacy_calendar import LegacyCalendar

_LEGACY_MARK = b"org.apache.spark.legacy"
_MAGIC = b"PAR1"
_ARROW_TYPES, _NO_TYPES = b"\x18\x0cARROW:schema\x18", b"\x18\x0cno:such:type\x18"
"""The key under which Arrow's writers store the types that they had in memory, and what is around it in Thrift."""
_TAIL_BYTES = 64 * 1024
_MOST_FOOTER_BYTES = 1 << 30
"""Footers are read as a whole. 5,000 columns in a thousand row groups take half of it."""
_MOST_ROW_GROUPS, _MOST_ROWS = 100_000, 1 << 36
"""Of a file. Each row group takes time and memory of its own, and whoever counts rows believes the footer."""
_FEW_ROWS, _MUCH_BYTES = 8192, 1 << 30
# In the order of the format's enumeration.
_PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_BOUND_BYTES = (1, 4, 8, 12, 4, 8, 0, -1)
"""The fewest bytes of a minimum or maximum; -1 means the column's length."""
_BYTE_ARRAY = 6

# Field numbers of the format's Thrift definition.
_ROW_GROUPS, _COLUMNS = 4, 1
_CHUNK_METADATA, _CRYPTO_METADATA = 3, 8
_CHUNK_TYPE, _CHUNK_PATH, _CHUNK_STATISTICS, _CHUNK_SIZES = 1, 3, 12, 16
_BOUNDS = (1, 2, 5, 6)
_BROTLI = re.compile(rb"(?:[\x15\x25\x35\x45]|\x05\x08|\x05\x88\x80*\x00)(?:\x08|\x88\x80*\x00)")
"""The field of a chunk's codec with Brotli's number, in every way that Thrift can write it."""
_TEXT_BYTES, _HISTOGRAMS = 1, (2, 3)


class _Leaf(NamedTuple):
    """What the chunks of a column must agree with.

    Attributes:
        physical_type: By the format's enumeration.
        bound_bytes: The fewest bytes of a minimum or maximum.
        levels: How many repetition levels and how many definition levels there are.
        path: The column's path, as chunks spell it. A name with a dot makes it wrong.
    """

    physical_type: int
    bound_bytes: int
    levels: tuple[int, int]
    path: bytes


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a file.

    Attributes:
        tail: The end of the file, with all of the footer.
        is_whole_file: Whether `tail` is all of the file.
    """

    tail: bytes
    is_whole_file: bool = False

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """As Arrow has it. Call `ensure_sound_chunks` before you ask it for a column chunk.

        Raises:
            pyarrow.ArrowException, OSError: Arrow refuses it, or its row groups do not add up to its rows.
        """
        try:
            return _consistent(pq.ParquetFile(pa.BufferReader(self.tail)).metadata)
        except pa.ArrowInvalid:
            return self.plain_metadata

    @cached_property
    def plain_metadata(self) -> pq.FileMetaData:
        """As `metadata`, without the types that the writer had in memory: Arrow decodes to Parquet's own. It cannot
        filter views, and refuses types that contradict the file (UUIDs in a column of bytes). Raises as `metadata`."""
        plain = _footer_of(self.tail).replace(_ARROW_TYPES, _NO_TYPES)
        return _consistent(pq.ParquetFile(pa.BufferReader(_MAGIC + plain + self.tail[-8:])).metadata)

    def adopt(self, metadata: pq.FileMetaData) -> None:
        """Use what Arrow has read from the same file for `metadata`. Raises as it does."""
        self.__dict__["metadata"] = _consistent(metadata)

    @property
    def may_expand(self) -> bool:
        """Whether its rows may take much more memory than its bytes do. Whoever has few rows and lies about sizes gets
        that many times a page. Raises as `metadata`."""
        rows, groups = self.metadata.num_rows, range(self.metadata.num_row_groups)
        if rows >= _FEW_ROWS or self.may_be_brotli:
            return True
        return any(rows * self.metadata.row_group(g).total_byte_size > _MUCH_BYTES for g in groups)

    @cached_property
    def may_be_brotli(self) -> bool:
        """Whether a column may be packed with Brotli: the number of that codec is somewhere in the footer."""
        return _BROTLI.search(_footer_of(self.tail)) is not None

    @cached_property
    def calendar(self) -> LegacyCalendar | None:
        """How its dates and times must be moved; None if they mean what Parquet says. Raises as `metadata`."""
        said = self.metadata.metadata or {}
        version = said.get(b"org.apache.spark.version")
        if version is None or (version >= b"3.1.0" and not any(key.startswith(_LEGACY_MARK) for key in said)):
            return None
        # Rare, and what it takes is slow to import.
        from delta_orch.storage.legacy_calendar import legacy_calendar

        return legacy_calendar(self.metadata)

    def leaves_below(self, names: Iterable[str]) -> list[int]:
        """The indexes of all leaf columns at or below these columns, given by their dotted paths."""
        # A name may hold dots itself.
        prefixes = tuple(f"{name}." for name in names)
        schema = self.metadata.schema
        return [index for index in range(len(schema)) if f"{schema.column(index).path}.".startswith(prefixes)]

    @cached_property
    def _row_groups_at(self) -> int:
        """Where the list of row groups begins in the footer; 0 without one."""
        walk = ThriftWalk(_footer_of(self.tail))
        return next((walk.at for _ in walk.only(_ROW_GROUPS, LISTS)), 0)

    @cached_property
    def _leaves(self) -> Sequence[_Leaf]:
        return [_leaf(self.metadata.schema.column(index)) for index in range(self.metadata.num_columns)]

    def ensure_sound_chunks(self, leaves: Collection[int] | None = None) -> None:
        """Check that Arrow may be asked for the metadata of column chunks, of every row group. Reads nothing.

        Args:
            leaves: The indexes of the columns to check; None checks all.

        Raises:
            pyarrow.ArrowException, OSError: The file is damaged, or its footer is encrypted in part.
        """
        metadata, columns = self.metadata, self._leaves
        for group in range(metadata.num_row_groups):
            if (count := metadata.row_group(group).num_columns) != len(columns):
                raise pa.ArrowInvalid(f"A row group has {count} columns and the schema {len(columns)}")
        try:
            self._check_chunks(columns, leaves)
        except IndexError:
            raise pa.ArrowInvalid("The footer ends in the middle") from None

    def _check_chunks(self, columns: Sequence[_Leaf], leaves: Collection[int] | None) -> None:
        walk = ThriftWalk(_footer_of(self.tail))
        # A name with a dot may make two paths one.
        if leaves is not None and len({leaf.path for leaf in columns}) == len(columns):
            walk.at = self._row_groups_at
            if not walk.at or _check_where_named(walk, walk.list_size(), columns, leaves):
                return
            walk.at = 0
        for _ in walk.only(_ROW_GROUPS, LISTS):
            for _ in range(walk.list_size()):
                _ensure_sound_row_group(walk, columns)


def _consistent(metadata: pq.FileMetaData) -> pq.FileMetaData:
    if (count := metadata.num_row_groups) > _MOST_ROW_GROUPS:
        raise pa.ArrowInvalid(f"It has {count} row groups, more than {_MOST_ROW_GROUPS}: rewrite it with fewer")
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise pa.ArrowInvalid(f"The row groups have {sum(groups)} rows, the file says {metadata.num_rows}")
    if metadata.num_rows > _MOST_ROWS:
        raise pa.ArrowInvalid(f"It claims {metadata.num_rows} rows, more than {_MOST_ROWS}")
    return metadata


def read_footer(source: pa.NativeFile) -> ParquetFooter:
    """The footer of an open file.

    Raises:
        pyarrow.ArrowInvalid: It is no Parquet file.
        OSError: It cannot be read.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("It does not end as a Parquet file does")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > _MOST_FOOTER_BYTES:
        raise pa.ArrowInvalid(f"The footer claims {length} bytes, more than {_MOST_FOOTER_BYTES}")
    if length > size - 4:
        raise pa.ArrowInvalid(f"The footer claims {length} bytes of a file of {size} bytes")
    if length > len(tail):
        tail = source.read_at(length, size - length)
    return ParquetFooter(tail, len(tail) == size)


def _footer_of(tail: bytes) -> bytes:
    return tail[-8 - int.from_bytes(tail[-8:-4], "little") : -8]


def _leaf(column: pq.ColumnSchema) -> _Leaf:
    physical_type = _PHYSICAL_TYPES.index(column.physical_type)
    bound_bytes = _BOUND_BYTES[physical_type]
    levels = (column.max_repetition_level + 1, column.max_definition_level + 1)
    return _Leaf(physical_type, column.length if bound_bytes < 0 else bound_bytes, levels, _thrift_path(column.path))


def _thrift_path(path: str) -> bytes:
    names = [name.encode() for name in path.split(".")]
    # A list of strings, and what comes behind it. More than 14 names, or one of 128 bytes, are spelled otherwise: such
    # a column is not found.
    lengths_and_names = b"".join(bytes([min(len(name), 127)]) + name for name in names)
    return bytes([0x19, min(len(names), 14) << 4 | 8]) + lengths_and_names + b"\x15"


def _check_where_named(walk: ThriftWalk, groups: int, columns: Sequence[_Leaf], leaves: Collection[int]) -> bool:
    """Check the chunks of some columns and jump over all others: every chunk is found by the path of its column.

    Returns: False, and the walk where it was, if the chunks do not look as almost all writers write them.
    """
    footer, start, wanted = walk.data, walk.at, frozenset(leaves)
    at = start
    for _ in range(groups):
        for index, leaf in enumerate(columns):
            before, at = at, footer.find(leaf.path, at)
            if at < 0:
                walk.at = start
                return False
            if index in wanted:
                begin = _metadata_begin(footer, before, at)
                if begin is None:
                    walk.at = start
                    return False
                walk.at = at
                _ensure_sound_metadata(walk, leaf, footer[begin])
            at += len(leaf.path)
    return True


def _metadata_begin(footer: bytes, before: int, path: int) -> int | None:
    """Where a chunk's physical type stands, if its metadata begins with that and a list of encodings, up to `path`."""
    begin = footer.rfind(b"\x1c\x15", before, path) + 2
    is_usual = begin > 1 and path - begin > 2 and footer[begin + 1] == 0x19 and footer[begin + 2] & 15 in INTEGERS
    # The type and each encoding take a byte.
    is_usual = is_usual and path - begin - 3 == footer[begin + 2] >> 4 < 15 and footer[begin:path].isascii()
    return begin if is_usual else None


def _ensure_sound_row_group(walk: ThriftWalk, columns: Sequence[_Leaf]) -> None:
    for _ in walk.only(_COLUMNS, LISTS):
        walk.list_size()
        for leaf in columns:
            _ensure_sound_chunk(walk, leaf)


def _ensure_sound_chunk(walk: ThriftWalk, leaf: _Leaf) -> None:
    for _ in walk.only(_CHUNK_METADATA, (STRUCT,)):
        _ensure_sound_metadata(walk, leaf)
        return
    raise pa.ArrowInvalid("A column chunk has no metadata")


def _ensure_sound_metadata(walk: ThriftWalk, leaf: _Leaf, raw_type: int | None = None) -> None:
    """Check the metadata of a chunk, and pass over the rest of the chunk.

    Args:
        raw_type: The physical type as the bytes have it, if the walk is behind it and the encodings.
    """
    physical_type = None if raw_type is None else raw_type >> 1 ^ -(raw_type & 1)
    for field in walk.fields(0 if raw_type is None else _CHUNK_PATH - 1):
        if field == _CHUNK_TYPE and walk.kind in INTEGERS:
            physical_type = walk.integer()
        elif field == _CHUNK_STATISTICS and walk.kind == STRUCT:
            _ensure_sound_statistics(walk, leaf.bound_bytes)
        elif field == _CHUNK_SIZES and walk.kind == STRUCT:
            _ensure_sound_sizes(walk, leaf)
        else:
            walk.skip()
    if physical_type != leaf.physical_type:
        raise pa.ArrowInvalid(
            f"A column chunk is of physical type {physical_type}, its column of physical type {leaf.physical_type}"
        )
    for field in walk.fields(_CHUNK_METADATA):
        if field == _CRYPTO_METADATA:
            raise pa.ArrowInvalid("A column is encrypted")
        walk.skip()


def _ensure_sound_statistics(walk: ThriftWalk, bound_bytes: int) -> None:
    for field in walk.fields():
        if field not in _BOUNDS or walk.kind != BINARY:
            walk.skip()
        elif (length := walk.binary_length()) < bound_bytes:
            raise pa.ArrowInvalid(f"A column chunk has a minimum or maximum of {length} bytes, not {bound_bytes}")


def _ensure_sound_sizes(walk: ThriftWalk, leaf: _Leaf) -> None:
    for field in walk.fields():
        if field == _TEXT_BYTES and walk.kind in INTEGERS:
            if walk.integer() < 0 or leaf.physical_type != _BYTE_ARRAY:
                raise pa.ArrowInvalid("A column chunk has a byte size of strings that it cannot have")
        elif field in _HISTOGRAMS and walk.kind in LISTS:
            count = walk.list_size()
            if count and count != leaf.levels[field - _HISTOGRAMS[0]]:
                raise pa.ArrowInvalid(f"A column chunk has a histogram of {count} levels")
            for _ in range(count):
                walk.integer()
        else:
            walk.skip()


BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_MOST_DEPTH = 60


class ThriftWalk:
    """A place in a structure of Thrift's compact protocol.

    Every method raises IndexError where the bytes end too early, and pyarrow.ArrowInvalid where they are no structure.

    Attributes:
        data: All the bytes.
        at: The place.
        kind: The type of the field's value that comes next, as the protocol numbers them.
    """

    __slots__ = ("_depth", "at", "data", "kind")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._depth = 0
        self.at = 0
        self.kind = STRUCT

    def fields(self, number: int = 0) -> Iterator[int]:
        """The number of each field of the structure here. Its value must be read or skipped before the next.

        Args:
            number: The number of the field before, if the walk is inside the structure.
        """
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise pa.ArrowInvalid("A footer has too many structures inside each other")
        try:
            while header := self._byte():
                number = number + (header >> 4) if header > 15 else self.integer()
                self.kind = header & 15
                yield number
        finally:
            self._depth -= 1

    def only(self, number: int, kinds: Sequence[int]) -> Iterator[None]:
        """Stop at each field of this number, and of one of these types, in the structure here; pass over the others."""
        for field in self.fields():
            if field == number and self.kind in kinds:
                yield
            else:
                self.skip()

    def skip(self) -> None:
        """Pass over the value of the field."""
        self._skip(self.kind)

    def list_size(self) -> int:
        """Begin a list; its elements follow. Whatever type it says they have, a reader that knows better ignores it."""
        return self._list_header()[0]

    def integer(self) -> int:
        """A signed number of any width."""
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def binary_length(self) -> int:
        """Pass over a string of bytes; its length."""
        length = self._unsigned()
        self.at += length
        return length

    def _skip(self, kind: int, *, is_element: bool = False) -> None:
        if kind in INTEGERS:
            self._unsigned()
        elif kind == BINARY:
            self.binary_length()
        elif kind in BOOLEANS:
            self.at += is_element  # A field of that type has its value in the type.
        elif kind == BYTE:
            self.at += 1
        elif kind == DOUBLE:
            self.at += 8
        elif kind in LISTS:
            count, element = self._list_header()
            for _ in range(count):
                self._skip(element, is_element=True)
        elif kind == STRUCT:
            for _ in self.fields():
                self.skip()
        else:
            raise pa.ArrowInvalid(f"A footer has a value of the type {kind}, which Parquet does not use")

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        size = header >> 4
        size = self._unsigned() if size == 15 else size
        if size > len(self.data) - self.at:
            raise IndexError  # Every element takes a byte at least.
        return size, header & 15

    def _unsigned(self) -> int:
        data, at, number, shift = self.data, self.at, 0, 0
        while (byte := data[at]) > 127:
            number |= (byte & 127) << shift
            at += 1
            shift += 7
            if shift > 63:
                raise pa.ArrowInvalid("A footer has a number of more than 64 bits")
        self.at = at + 1
        return number | byte << shift

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte
