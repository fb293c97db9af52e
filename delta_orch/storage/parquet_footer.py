"""What the footers of Parquet files tell, and whether they are safe to look into.

Arrow ends the process (`std::terminate`) when it is asked for the metadata of a column chunk that contradicts the
file's schema, or for statistics that are too short for their type: those calls have no way to report an error. A
damaged footer must be found out before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import MissingFileError, TableError
from delta_orch.storage.base import LogStore
from delta_orch.storage.os_errors import storage_error

_READERS = 8

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}

# Field numbers and types of the format's Thrift definition and of Thrift's compact protocol.
_ROW_GROUPS, _COLUMNS, _CHUNK_METADATA, _CRYPTO_METADATA = 4, 1, 3, 8
_CHUNK_TYPE, _CHUNK_STATISTICS = 1, 12
_BOUNDS = (1, 2, 5, 6)
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12


def ensure_sound_footer(metadata: pq.FileMetaData) -> None:
    """Check that the metadata of every column chunk may be asked for. Reads nothing.

    Raises:
        pyarrow.ArrowInvalid: They may not; the file is damaged, or its footer encrypted in parts.
    """
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    written = sink.getvalue().to_pybytes()
    length = int.from_bytes(written[-8:-4], "little")
    columns = map(metadata.schema.column, range(metadata.num_columns))
    wanted = [(_TYPES.index(column.physical_type), _bound_bytes(column)) for column in columns]
    walk = _Walk(written[-8 - length : -8])
    for field in walk.fields():
        if field != _ROW_GROUPS:
            walk.skip()
            continue
        for _ in range(walk.list_size()):
            _ensure_sound_row_group(walk, wanted)


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
                return int(pq.read_metadata(source).num_rows)
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
    with ThreadPoolExecutor(min(_READERS, len(log_paths)), thread_name_prefix="delta-footer-read") as executor:
        return list(executor.map(read, log_paths))


def _bound_bytes(column: pq.ColumnSchema) -> int:
    """The fewest bytes that a minimum or maximum of the column takes."""
    return _BYTES[column.physical_type] if column.physical_type in _BYTES else int(column.length)


def _ensure_sound_row_group(walk: _Walk, wanted: list[tuple[int, int]]) -> None:
    for field in walk.fields():
        if field != _COLUMNS:
            walk.skip()
            continue
        count = walk.list_size()
        if count != len(wanted):
            raise pa.ArrowInvalid(f"A row group has {count} columns and the schema {len(wanted)}")
        for physical_type, bound_bytes in wanted:
            _ensure_sound_chunk(walk, physical_type, bound_bytes)


def _ensure_sound_chunk(walk: _Walk, physical_type: int, bound_bytes: int) -> None:
    found = None
    for field in walk.fields():
        if field == _CRYPTO_METADATA:
            raise pa.ArrowInvalid("A column is encrypted")
        if field != _CHUNK_METADATA:
            walk.skip()
            continue
        for inner in walk.fields():
            if inner == _CHUNK_TYPE:
                found = walk.integer()
            elif inner == _CHUNK_STATISTICS:
                _ensure_sound_statistics(walk, bound_bytes)
            else:
                walk.skip()
    if found != physical_type:
        raise pa.ArrowInvalid(f"A column chunk is of physical type {found}, its column of type {physical_type}")


def _ensure_sound_statistics(walk: _Walk, bound_bytes: int) -> None:
    for field in walk.fields():
        if field not in _BOUNDS:
            walk.skip()
        elif 0 < (length := walk.binary_length()) < bound_bytes:
            raise pa.ArrowInvalid(f"A column chunk has a minimum or maximum of {length} bytes, not {bound_bytes}")


class _Walk:
    """A place in a Thrift structure that Arrow itself has written, in the compact protocol."""

    __slots__ = ("_at", "_data", "_kind")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._kind = _STRUCT

    def fields(self) -> Iterator[int]:
        """The number of each field of the structure here. Its value must be taken or skipped before the next."""
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header > 15 else self.integer()
            self._kind = header & 15
            yield number

    def skip(self) -> None:
        """Pass over the value of the field."""
        self._skip(self._kind)

    def list_size(self) -> int:
        """Begin a list; its elements follow."""
        return self._list_header()[0]

    def integer(self) -> int:
        """A signed number of any width."""
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def binary_length(self) -> int:
        """Pass over a string of bytes; its length."""
        length = self._unsigned()
        self._at += length
        return length

    def _skip(self, kind: int) -> None:
        if kind in _INTEGERS:
            while self._data[self._at] > 127:
                self._at += 1
            self._at += 1
        elif kind == _BINARY:
            self.binary_length()
        elif kind in _BOOLEANS:
            return
        elif kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind in _LISTS:
            count, element = self._list_header()
            for _ in range(count):
                self._skip_element(element)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 15)
        else:
            for _ in self.fields():
                self._skip(self._kind)

    def _skip_element(self, kind: int) -> None:
        if kind in _BOOLEANS:
            self._at += 1
        else:
            self._skip(kind)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        size = header >> 4
        return (self._unsigned() if size == 15 else size), header & 15

    def _unsigned(self) -> int:
        number, shift = self._byte(), 7
        if number < 128:
            return number
        number &= 127
        while (byte := self._byte()) > 127:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte
