"""Footers of Parquet files, and a check of their column chunks.

Arrow reports most damage as an error. But Arrow 26 aborts the process (SIGABRT) when it opens the metadata of a column
chunk whose physical type or number of levels contradicts the schema, or whose bounds are too short for its type. These
calls cannot report an error, so the chunks of the columns to read are checked first. The check finds damage. It does
not defend against a file that was made to deceive it.

Each comparison here prevents aborts. Of 1,926 footers with a few wrong bytes, Arrow 26.0 aborted for 72: 43 physical
types, 26 histograms of levels, 2 sizes of texts, 1 bound. It aborted for no footer that passed. The search for the path
of one column takes 25 ms in 200 columns of 50 row groups; a walk through all chunks takes 0.9 s.
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
"""The key of the types that Arrow's writers store, with the bytes of Thrift around it; and an unused key."""
_TAIL_BYTES = 64 * 1024
_MOST_FOOTER_BYTES = 1 << 30
"""The limit for a footer, which is read as a whole. 5,000 columns in a thousand row groups take half of it."""
_MOST_ROW_GROUPS, _MOST_ROWS = 100_000, 1 << 36
"""The limits of a file. Each row group takes time and memory, and a count of rows believes the footer."""
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
"""The codec field of a chunk with the number of Brotli, in every spelling of Thrift."""
_TEXT_BYTES, _HISTOGRAMS = 1, (2, 3)


class _Leaf(NamedTuple):
    """A leaf column of the schema, for comparison with its chunks.

    Attributes:
        physical_type: A number of the format's enumeration.
        bound_bytes: The fewest bytes of a minimum or maximum.
        levels: The number of repetition levels and of definition levels.
        path: The path as chunks spell it. It is wrong for a name with a dot.
    """

    physical_type: int
    bound_bytes: int
    levels: tuple[int, int]
    path: bytes


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a file.

    Attributes:
        tail: The end of the file, with the whole footer.
        is_whole_file: Whether `tail` is the whole file.
    """

    tail: bytes
    is_whole_file: bool = False

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The footer as Arrow parses it. Call `ensure_sound_chunks` before you open a column chunk.

        Raises:
            pyarrow.ArrowException, OSError: Arrow refuses the footer, or its row groups do not add up to its rows.
        """
        try:
            return _consistent(pq.ParquetFile(pa.BufferReader(self.tail)).metadata)
        except pa.ArrowInvalid:
            return self.plain_metadata

    @cached_property
    def plain_metadata(self) -> pq.FileMetaData:
        """Like `metadata`, without the types that Arrow's writer stored, so Arrow decodes to the types of Parquet.

        Needed because Arrow cannot filter views, and refuses stored types that contradict the file (UUIDs in a column
        of bytes). Raises like `metadata`.
        """
        plain = _footer_of(self.tail).replace(_ARROW_TYPES, _NO_TYPES)
        return _consistent(pq.ParquetFile(pa.BufferReader(_MAGIC + plain + self.tail[-8:])).metadata)

    def adopt(self, metadata: pq.FileMetaData) -> None:
        """Use metadata that Arrow already read from the same file. Raises like `metadata`."""
        self.__dict__["metadata"] = _consistent(metadata)

    @property
    def may_expand(self) -> bool:
        """Whether the rows may take much more memory than the file has bytes. Few rows cannot, because a row takes a
        page at most. Raises like `metadata`."""
        rows, groups = self.metadata.num_rows, range(self.metadata.num_row_groups)
        if rows >= _FEW_ROWS or self.may_be_brotli:
            return True
        return any(rows * self.metadata.row_group(g).total_byte_size > _MUCH_BYTES for g in groups)

    @cached_property
    def may_be_brotli(self) -> bool:
        """Whether a column may be compressed with Brotli: the number of the codec occurs in the footer."""
        return _BROTLI.search(_footer_of(self.tail)) is not None

    @cached_property
    def calendar(self) -> LegacyCalendar | None:
        """The conversion of dates and times; None if they are in the calendar of Parquet. Raises like `metadata`."""
        entries = self.metadata.metadata or {}
        version = entries.get(b"org.apache.spark.version")
        if version is None or (version >= b"3.1.0" and not any(key.startswith(_LEGACY_MARK) for key in entries)):
            return None
        # Imported here, because such files are rare and the import is slow.
        from delta_orch.storage.legacy_calendar import legacy_calendar

        return legacy_calendar(self.metadata)

    def leaves_below(self, names: Iterable[str]) -> list[int]:
        """The indexes of all leaf columns at or below the columns of these dotted paths."""
        # A name may contain dots.
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
        """Check that Arrow can open the metadata of the column chunks of every row group. Makes no request.

        Args:
            leaves: The indexes of the columns to check; None checks all.

        Raises:
            pyarrow.ArrowException, OSError: The file is damaged, or a part of its footer is encrypted.
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
        # If names contain dots, two columns may have the same path.
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
        raise pa.ArrowInvalid(f"The file has {count} row groups, more than {_MOST_ROW_GROUPS}. Rewrite it with fewer")
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise pa.ArrowInvalid(f"The row groups have {sum(groups)} rows, the file says {metadata.num_rows}")
    if metadata.num_rows > _MOST_ROWS:
        raise pa.ArrowInvalid(f"The file claims {metadata.num_rows} rows, more than {_MOST_ROWS}")
    return metadata


def read_footer(source: pa.NativeFile) -> ParquetFooter:
    """Read the footer of an open file.

    Raises:
        pyarrow.ArrowInvalid: The file is not a Parquet file.
        OSError: The file cannot be read.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("The file does not end like a Parquet file")
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
    # A list of strings, and the byte behind it. More than 14 names, or a name of 128 bytes, have another spelling. The
    # search for such a column fails, and the walk finds it.
    lengths_and_names = b"".join(bytes([min(len(name), 127)]) + name for name in names)
    return bytes([0x19, min(len(names), 14) << 4 | 8]) + lengths_and_names + b"\x15"


def _check_where_named(walk: ThriftWalk, groups: int, columns: Sequence[_Leaf], leaves: Collection[int]) -> bool:
    """Check the chunks of some columns. It searches the path of each column, which is faster than a walk.

    Returns: False, and the walk at its old place, if the chunks are not spelled as almost all writers spell them.
    """
    footer, start, checked_leaves = walk.data, walk.at, frozenset(leaves)
    at = start
    for _ in range(groups):
        for index, leaf in enumerate(columns):
            before, at = at, footer.find(leaf.path, at)
            if at < 0:
                walk.at = start
                return False
            if index in checked_leaves:
                begin = _metadata_begin(footer, before, at)
                if begin is None:
                    walk.at = start
                    return False
                walk.at = at
                _ensure_sound_metadata(walk, leaf, footer[begin])
            at += len(leaf.path)
    return True


def _metadata_begin(footer: bytes, before: int, path: int) -> int | None:
    """The place of a chunk's physical type, if only that and a list of encodings precede `path` in its metadata."""
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
    """Check the metadata of a chunk, and skip the rest of the chunk.

    Args:
        raw_type: The encoded physical type, if the walk is already behind it and the encodings.
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

    Every method raises IndexError if the bytes end too early, and pyarrow.ArrowInvalid if they are not a structure.

    Attributes:
        data: All bytes.
        at: The index of the next byte.
        kind: The number of the type of the next value in the protocol.
    """

    __slots__ = ("_depth", "at", "data", "kind")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._depth = 0
        self.at = 0
        self.kind = STRUCT

    def fields(self, number: int = 0) -> Iterator[int]:
        """Yield the number of each field of the structure here. The caller must read or skip its value.

        Args:
            number: The number of the previous field, if the walk is inside the structure.
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
        """Stop at each field of the structure here with this number and one of these types. Skip the other fields."""
        for field in self.fields():
            if field == number and self.kind in kinds:
                yield
            else:
                self.skip()

    def skip(self) -> None:
        """Skip the value of the field."""
        self._skip(self.kind)

    def list_size(self) -> int:
        """Begin a list; its elements follow. The type in its header is ignored, because the schema decides about it."""
        return self._list_header()[0]

    def integer(self) -> int:
        """Read a signed number of any width."""
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def binary_length(self) -> int:
        """Skip a string of bytes. Returns its length."""
        length = self._unsigned()
        self.at += length
        return length

    def _skip(self, kind: int, *, is_element: bool = False) -> None:
        if kind in INTEGERS:
            self._unsigned()
        elif kind == BINARY:
            self.binary_length()
        elif kind in BOOLEANS:
            self.at += is_element  # The type of a field contains its value.
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
            raise IndexError  # Every element takes at least a byte.
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
