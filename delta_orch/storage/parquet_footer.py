"""What the footers of Parquet files tell, and whether they are safe to look into.

Arrow ends the process (`std::terminate`, or worse) when it is asked for the metadata of a column chunk that contradicts
the file's schema, for statistics that are too short for their type, or meets a schema whose enumerations it does not
know: those calls have no way to report an error. So a footer is looked through as bytes before Arrow may see it, the
schema always, the column chunks before somebody asks for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import MissingFileError, TableError
from delta_orch.storage.base import LogStore
from delta_orch.storage.os_errors import storage_error
from delta_orch.storage.thrift_walk import BINARY, INTEGERS, LISTS, STRUCT, ThriftWalk

if TYPE_CHECKING:
    from delta_orch.storage.legacy_calendar import LegacyCalendar

_READERS = 8
_LEGACY_MARK = b"org.apache.spark.legacy"
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
_KNOWN_SCHEMAS = 16

# By the format's enumeration of physical types: the fewest bytes a minimum or maximum takes; -1 is the column's length.
_BOUND_BYTES = (1, 4, 8, 12, 4, 8, 0, -1)
_MOST_REPETITION, _MOST_CONVERTED_TYPE, _MOST_CODEC = 2, 21, 7
_MOST_COLUMNS_DEEP = 500
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(1 << 63)

# Field numbers of the format's Thrift definition.
_SCHEMA, _ROW_GROUPS = 2, 4
_TYPE, _TYPE_LENGTH, _REPETITION, _CHILDREN, _CONVERTED_TYPE = 1, 2, 3, 5, 6
_ELEMENT_NUMBERS = (_TYPE, _TYPE_LENGTH, _REPETITION, _CHILDREN, _CONVERTED_TYPE, 7, 8, 9)
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_CHUNK_METADATA, _CRYPTO_METADATA = 3, 8
_CHUNK_TYPE, _CHUNK_CODEC, _CHUNK_VALUES, _CHUNK_STATISTICS, _CHUNK_SIZES = 1, 4, 5, 12, 16
_BOUNDS = (1, 2, 5, 6)
_TEXT_BYTES, _HISTOGRAMS = 1, (2, 3)
_REPEATED, _BYTE_ARRAY = 2, 6


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column as its chunks must have it.

    Attributes:
        physical_type: By the format's enumeration.
        bound_bytes: The fewest bytes of a minimum or maximum.
        levels: How many repetition levels and how many definition levels there are.
    """

    physical_type: int
    bound_bytes: int
    levels: tuple[int, int]


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a file, its schema known to be sound.

    Attributes:
        tail: The end of the file, with all of the footer.
    """

    tail: bytes
    _leaves: tuple[_Leaf, ...]

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """As Arrow has it; single column chunks must not be asked for before `ensure_sound_chunks`.

        Raises:
            pyarrow.ArrowException, OSError: Arrow does not take it; or its row groups do not add up to its rows.
        """
        return _consistent(pq.ParquetFile(pa.BufferReader(self.tail)).metadata)

    def adopt(self, metadata: pq.FileMetaData) -> None:
        """Take what Arrow has read from the very file for `metadata`, which costs nothing then. Raises as it does."""
        self.__dict__["metadata"] = _consistent(metadata)

    @cached_property
    def calendar(self) -> LegacyCalendar | None:
        """How its dates and times have to be moved; None where they mean what Parquet says. Raises as `metadata`."""
        said = self.metadata.metadata or {}
        version = said.get(b"org.apache.spark.version")
        if version is None or (version >= b"3.1.0" and not any(key.startswith(_LEGACY_MARK) for key in said)):
            return None
        # Rare, and what it takes is slow to import.
        from delta_orch.storage.legacy_calendar import legacy_calendar

        return legacy_calendar(self.metadata)

    def ensure_sound_chunks(self) -> None:
        """Check that the metadata of every column chunk may be asked for. Reads nothing.

        Raises:
            pyarrow.ArrowInvalid: They may not; the file is damaged, or its footer encrypted in parts.
        """
        walk = ThriftWalk(_footer_of(self.tail))
        for field in walk.fields():
            if field != _ROW_GROUPS or walk.kind not in LISTS:
                walk.skip()
                continue
            for _ in range(walk.list_size()):
                _ensure_sound_row_group(walk, self._leaves)


def _consistent(metadata: pq.FileMetaData) -> pq.FileMetaData:
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise pa.ArrowInvalid(f"The row groups have {sum(groups)} rows, the file says {metadata.num_rows}")
    return metadata


def read_footer(source: pa.NativeFile) -> ParquetFooter:
    """The footer of a file that is open.

    Raises:
        pyarrow.ArrowInvalid: It is no Parquet file, or its schema is damaged.
        OSError: It cannot be read.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("It does not end as a Parquet file does")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > size - 4:
        raise pa.ArrowInvalid(f"It says that its footer has {length} bytes, and has {size} in all")
    if length > len(tail):
        tail = source.read_at(length, size - length)
    return ParquetFooter(tail, _sound_leaves(_footer_of(tail)))


def _footer_of(tail: bytes) -> bytes:
    return tail[-8 - int.from_bytes(tail[-8:-4], "little") : -8]


_known_schemas: deque[tuple[bytes, tuple[_Leaf, ...]]] = deque(maxlen=_KNOWN_SCHEMAS)
"""What footers begin with that were looked through lately: the files of a table mostly begin alike."""


def _sound_leaves(footer: bytes) -> tuple[_Leaf, ...]:
    """The columns of a footer's schema. Raises pyarrow.ArrowInvalid where Arrow must not see it."""
    for beginning, leaves in list(_known_schemas):
        if footer.startswith(beginning):
            return leaves
    walk = ThriftWalk(footer)
    for field in walk.fields():
        if field == _SCHEMA and walk.kind in LISTS:
            leaves = _ensure_sound_schema(walk)
            _known_schemas.appendleft((footer[: walk.at], leaves))
            return leaves
        walk.skip()
    raise pa.ArrowInvalid("The footer has no schema")


def _ensure_sound_schema(walk: ThriftWalk) -> tuple[_Leaf, ...]:
    leaves: list[_Leaf] = []
    pending: list[int] = []
    levels: list[tuple[int, int]] = [(1, 1)]
    for position in range(walk.list_size()):
        numbers = _element_numbers(walk)
        children = numbers.get(_CHILDREN, 0)
        if not pending and position:
            raise pa.ArrowInvalid("The schema has columns outside its root")
        if pending:
            pending[-1] -= 1
        repetition = numbers.get(_REPETITION, 0) if position else 0
        inside = (levels[-1][0] + (repetition == _REPEATED), levels[-1][1] + (repetition > 0))
        if children or not position:
            pending.append(children)
            levels.append(inside)
        else:
            leaves.append(_leaf(numbers, inside))
        if len(pending) > _MOST_COLUMNS_DEEP:
            raise pa.ArrowInvalid("The schema has too many columns inside each other")
        while pending and not pending[-1]:
            pending.pop()
            levels.pop()
    if pending:
        raise pa.ArrowInvalid("The schema has fewer columns than it says")
    return tuple(leaves)


def _element_numbers(walk: ThriftWalk) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for field in walk.fields():
        if field not in _ELEMENT_NUMBERS or walk.kind not in INTEGERS:
            walk.skip()
            continue
        if field in numbers or (number := walk.integer()) not in _INT32:
            raise pa.ArrowInvalid("A column of the schema has a number that is none")
        numbers[field] = number
    _ensure_below(numbers.get(_TYPE, 0), len(_BOUND_BYTES) - 1, "physical type")
    _ensure_below(numbers.get(_REPETITION, 0), _MOST_REPETITION, "repetition")
    _ensure_below(numbers.get(_CONVERTED_TYPE, 0), _MOST_CONVERTED_TYPE, "converted type")
    _ensure_below(numbers.get(_TYPE_LENGTH, 0), _INT32.stop, "length")
    _ensure_below(numbers.get(_CHILDREN, 0), _INT32.stop, "number of columns inside")
    return numbers


def _ensure_below(number: int, most: int, what: str) -> None:
    if not 0 <= number <= most:
        raise pa.ArrowInvalid(f"A column has the {what} {number}")


def _leaf(numbers: dict[int, int], levels: tuple[int, int]) -> _Leaf:
    physical_type = numbers.get(_TYPE)
    if physical_type is None:
        raise pa.ArrowInvalid("A column has no physical type")
    bound_bytes = _BOUND_BYTES[physical_type]
    return _Leaf(physical_type, numbers.get(_TYPE_LENGTH, 0) if bound_bytes < 0 else bound_bytes, levels)


def _ensure_sound_row_group(walk: ThriftWalk, leaves: Sequence[_Leaf]) -> None:
    for field in walk.fields():
        if field in (_GROUP_BYTES, _GROUP_ROWS) and walk.kind in INTEGERS:
            _ensure_count(walk.integer(), "A row group")
        elif field != _COLUMNS or walk.kind not in LISTS:
            walk.skip()
        else:
            count = walk.list_size()
            if count != len(leaves):
                raise pa.ArrowInvalid(f"A row group has {count} columns and the schema {len(leaves)}")
            for leaf in leaves:
                _ensure_sound_chunk(walk, leaf)


def _ensure_count(number: int, what: str) -> None:
    if number not in _INT64:
        raise pa.ArrowInvalid(f"{what} has {number} rows or bytes")


def _ensure_sound_chunk(walk: ThriftWalk, leaf: _Leaf) -> None:
    found = None
    for field in walk.fields():
        if field == _CRYPTO_METADATA:
            raise pa.ArrowInvalid("A column is encrypted")
        if field != _CHUNK_METADATA or walk.kind != STRUCT:
            walk.skip()
            continue
        for inner in walk.fields():
            if inner == _CHUNK_TYPE and walk.kind in INTEGERS:
                found = walk.integer()
            elif inner == _CHUNK_CODEC and walk.kind in INTEGERS:
                _ensure_below(walk.integer(), _MOST_CODEC, "codec")
            elif inner == _CHUNK_VALUES and walk.kind in INTEGERS:
                _ensure_count(walk.integer(), "A column chunk")
            elif inner == _CHUNK_STATISTICS and walk.kind == STRUCT:
                _ensure_sound_statistics(walk, leaf.bound_bytes)
            elif inner == _CHUNK_SIZES and walk.kind == STRUCT:
                _ensure_sound_sizes(walk, leaf)
            else:
                walk.skip()
    if found != leaf.physical_type:
        raise pa.ArrowInvalid(
            f"A column chunk is of physical type {found}, its column of physical type {leaf.physical_type}"
        )


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
                raise pa.ArrowInvalid("A column chunk has a size of texts that it cannot have")
        elif field in _HISTOGRAMS and walk.kind in LISTS:
            count = walk.list_size()
            if count and count != leaf.levels[field - _HISTOGRAMS[0]]:
                raise pa.ArrowInvalid(f"A column chunk has a histogram of {count} levels")
            for _ in range(count):
                walk.integer()
        else:
            walk.skip()


def read_num_rows(store: LogStore, log_paths: Sequence[str]) -> list[int]:
    """The number of rows of data files, from their footers.

    Args:
        log_paths: As the log spells them.

    Raises:
        MissingFileError: A file is not there.
        TableError: One is not readable as Parquet.
        StorageError: One cannot be read.
    """
    filesystem = store.data_filesystem()[0]

    def read(log_path: str) -> int:
        path = store.resolve(log_path)
        try:
            with filesystem.open_input_file(path) as source:
                return int(read_footer(source).metadata.num_rows)
        except FileNotFoundError as e:
            raise MissingFileError(
                f"The data file {path} is not there",
                cause="The log names it, but vacuum or something else has deleted it",
                remedy="Read a newer version, or restore the file",
                path=path,
            ) from e
        except (OSError, pa.ArrowException) as e:
            if isinstance(e, OSError) and e.errno is not None:
                raise storage_error(e, "read", path) from e
            raise TableError(
                f"The data file {path} is not readable as Parquet",
                cause=str(e),
                remedy="Restore the file from a backup, or remove it from the table",
                path=path,
            ) from e

    if len(log_paths) < 2:
        return [read(path) for path in log_paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_READERS, len(log_paths)), thread_name_prefix="delta-footer-read") as executor:
        return list(executor.map(read, log_paths))
