"""Reads the footers of Parquet files that other programs wrote, and turns them into a schema and into log entries."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.footer_statistics import serialize_footer_statistics, statistics_of_files
from delta_orch.errors import (
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    SchemaMismatchError,
    StorageError,
)
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.actions import JsonObject
from delta_orch.protocol.arrow_building import (
    bool_array,
    int64_array,
    schema_from_arrow,
    string_array,
    string_map_array,
)
from delta_orch.protocol.partition_values import HIVE_NULL, parse_partition_value, serialize_partition_value
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    INTEGER,
    SHORT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.storage.legacy_calendar import legacy_calendar
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.type_widening import is_widening, with_type_change

Progress = Callable[[int, int], None]
"""A function that receives the number of read footers and the total."""

T = TypeVar("T")
# Parquet stores all these types as 32 bits, so readers of the wider type need no type history.
OF_32_BITS = (BYTE, SHORT, INTEGER)
_VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
_OF_VARIANTS = {"metadata", "value", "typed_value"}
_IS_VARIANT = {"ARROW:extension:name": "arrow.parquet.variant"}
_CALENDAR_TYPES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)


class FileSchema(NamedTuple):
    """The columns of one or more files, and the path of one of these files."""

    schema: StructType
    path: str


def read_schemas(store: LogStore, files: Sequence[FileMeta], progress: Progress | None = None) -> list[FileSchema]:
    """Return the distinct schemas of files, in order of appearance.

    Args:
        files: The files, with `path` as the log spells it.

    Raises:
        InvalidRequestError: A file is not a Parquet file.
        SchemaMismatchError: A column has a type that a Delta table cannot have.
        StorageError: A file cannot be read.
    """
    paths_by_schema: dict[StructType, str] = {}
    for done, (file, schema) in enumerate(_footers(store, files, _schema_of), 1):
        paths_by_schema.setdefault(schema, decode_path(file.path))
        if progress is not None:
            progress(done, len(files))
    return [FileSchema(schema, path) for schema, path in paths_by_schema.items()]


def _footers(
    store: LogStore, files: Sequence[FileMeta], look: Callable[[pq.FileMetaData, str], T]
) -> Iterator[tuple[FileMeta, T]]:
    filesystem = store.data_filesystem()[0]

    def read(file: FileMeta) -> T:
        path = decode_path(file.path)
        try:
            with filesystem.open_input_file(store.resolve(file.path)) as source:
                metadata = read_footer(source).metadata
        except FileNotFoundError as e:
            raise MissingFileError(f"The file {path} does not exist", cause=str(e), path=path) from e
        except pa.ArrowException as e:
            raise InvalidRequestError(
                f"{path} is not a Parquet file",
                cause=str(e),
                remedy="Move the file, or give it a name that begins with _ or a dot",
                path=path,
            ) from e
        except OSError as e:
            raise StorageError(f"The footer of {path} cannot be read", cause=str(e), path=path) from e
        return look(metadata, path)

    yield from zip(files, map_ahead(read, files, FAR_THREADS), strict=True)


def _schema_of(metadata: pq.FileMetaData, path: str) -> StructType:
    leaves = count()
    fields = [_as_read(field, metadata, leaves, path) for field in metadata.schema.to_arrow_schema()]
    if next(leaves) != metadata.num_columns:
        raise SchemaMismatchError(f"The columns of {path} are not unique", path=path)
    try:
        schema = schema_from_arrow(pa.schema(fields))
    except SchemaMismatchError as e:
        raise SchemaMismatchError(f"The file {path} does not fit a Delta table", cause=e.problem, path=path) from e
    folded = [name.lower() for name in schema.names]
    if len(set(folded)) < len(folded):
        raise SchemaMismatchError(f"Two columns of {path} differ only in case", path=path)
    return schema


def _as_read(field: pa.Field, metadata: pq.FileMetaData, leaves: Iterator[int], path: str) -> pa.Field:
    """Return the field with a type that every client reads. A timestamp of 96 bits is an instant."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
        _as_read(pa.field(field.name, kind), metadata, leaves, path)
        return field
    if pa.types.is_struct(kind):
        read = field.with_type(pa.struct([_as_read(child, metadata, leaves, path) for child in kind]))
        # Only the footer shows that a struct, shredded or not, holds a variant. Arrow's schema does not.
        names, printed = {child.name for child in kind}, str(metadata.schema)
        if not {"metadata"} <= names <= _OF_VARIANTS or f" {field.name} (Variant" not in printed:
            return read
        if re.search(rf" {re.escape(field.name)} {{\n[^\n]* (metadata|value|typed_value)\b", printed):
            raise SchemaMismatchError(
                f"The column {field.name!r} of the file {path} may or may not be a variant",
                cause="The file has several groups of this name, and only some of them are variants",
                remedy="Write the file again with different names for these groups",
                path=path,
                column=field.name,
            )
        return read.with_type(_VARIANT).with_metadata(_IS_VARIANT)
    if pa.types.is_map(kind):
        key = _as_read(kind.key_field, metadata, leaves, path)
        return field.with_type(pa.map_(key, _as_read(kind.item_field, metadata, leaves, path)))
    if hasattr(kind, "value_field"):
        return field.with_type(pa.list_(_as_read(kind.value_field, metadata, leaves, path)))
    leaf = metadata.schema.column(next(leaves))
    if leaf.physical_type == "INT96":
        return field.with_type(pa.timestamp("us", "UTC"))
    if pa.types.is_float16(kind) or pa.types.is_uint64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        raise SchemaMismatchError(
            f"The file {path} does not fit a Delta table",
            cause=f"Column {leaf.path} has the type {kind}, which other clients cannot read",
            remedy="Write the file again with another type: float, long, or timestamps in microseconds",
            path=path,
            column=leaf.path,
        )
    return field


# One schema for all files


def merged_schema(file_schemas: Sequence[FileSchema]) -> StructType:
    """Return one schema for the rows of all files. Columns match by name, without regard to case, in the order of their
    first file. All columns are nullable. A column with several types gets the widest type, and its metadata records the
    change (PROTOCOL, "Type Widening").

    Raises:
        SchemaMismatchError: No type of the files can hold all values of a column. The error names two files. Or the
            type of a column is null in all files.
    """
    return _struct([(one.schema, one.path) for one in file_schemas], "")


_Typed = tuple[DataType, str]
_Change = tuple[DataType, DataType, str]


def _struct(types: Sequence[tuple[StructType, str]], prefix: str) -> StructType:
    names: dict[str, str] = {}
    stated: dict[str, JsonObject] = {}
    columns: dict[str, list[_Typed]] = {}
    for schema, path in types:
        for field in schema:
            names.setdefault(field.name.lower(), field.name)
            stated[field.name.lower()] = {**stated.get(field.name.lower(), {}), **field.metadata}
            columns.setdefault(field.name.lower(), []).append((field.data_type, path))
    fields = []
    for folded, typed in columns.items():
        changes: list[_Change] = []
        name = names[folded]
        column = StructField(name, _type(typed, f"{prefix}{name}", "", changes), True, stated[folded])
        for before, after, place in changes:
            column = with_type_change(column, before, after, place)
        fields.append(column)
    return StructType(tuple(fields))


def _type(typed: Sequence[_Typed], column: str, place: str, changes: list[_Change]) -> DataType:
    def inside(name: str, inner: Sequence[_Typed]) -> DataType:
        return _type(inner, f"{column}.{name}", f"{place}.{name}" if place else name, changes)

    # A column of the type null does not determine the type.
    typed = [(t, path) for t, path in typed if t != VOID] or typed
    structs = [(t, path) for t, path in typed if isinstance(t, StructType)]
    if len(structs) == len(typed):
        return _struct(structs, f"{column}.")
    arrays = [(t, path) for t, path in typed if isinstance(t, ArrayType)]
    if len(arrays) == len(typed):
        return ArrayType(inside("element", [(t.element_type, path) for t, path in arrays]), True)
    maps = [(t, path) for t, path in typed if isinstance(t, MapType)]
    if len(maps) == len(typed):
        return MapType(
            inside("key", [(t.key_type, path) for t, path in maps]),
            inside("value", [(t.value_type, path) for t, path in maps]),
            True,
        )
    return _widest(typed, column, place, changes)


def _widest(typed: Sequence[_Typed], column: str, place: str, changes: list[_Change]) -> DataType:
    examples: dict[DataType, str] = {}
    for data_type, path in typed:
        examples.setdefault(data_type, path)
    if list(examples) == [VOID]:
        raise SchemaMismatchError(
            f"The type of column {column} is unknown",
            cause=f"All values are null, for example in {examples[VOID]}",
            remedy="Write the files again, with a type for the column or without the column",
            column=column,
        )
    # The widest type is the one that most other types can become.
    ordered = sorted(examples, key=lambda t: sum(_becomes(other, t) for other in examples))
    for before, after in pairwise(ordered):
        if not _becomes(before, after):
            first, second = sorted((before, after), key=list(examples).index)
            raise SchemaMismatchError(
                f"Column {column} has types that cannot be unified",
                cause=f"It is {first} in {examples[first]}, and {second} in {examples[second]}",
                remedy="Write one of the files again with the type of the other",
                column=column,
                paths=[examples[first], examples[second]],
            )
        if not (before in OF_32_BITS and after in OF_32_BITS):
            changes.append((before, after, place))
    return ordered[-1]


def _becomes(source: DataType, target: DataType) -> bool:
    return source != target and is_widening(source, target)


# Partition values from directories


def partition_values_of(
    files: Sequence[FileMeta], columns: Sequence[StructField], remedy: str | None = None
) -> list[dict[str, str | None]]:
    """Return the partition values of each file from the directories `name=value` above it, as the log spells them.

    Args:
        files: The files, with `path` as the log spells it.
        remedy: The remedy for directories that do not name the partition columns.

    Raises:
        InvalidRequestError: The directories do not name the partition columns, or a value does not fit its column.
    """
    values_by_directory: dict[str, dict[str, str | None]] = {}
    directories = [posixpath.dirname(decode_path(file.path)) for file in files]
    for file, directory in zip(files, directories, strict=True):
        if directory not in values_by_directory:
            values_by_directory[directory] = _values_of(directory, columns, decode_path(file.path), remedy)
    return [values_by_directory[directory] for directory in directories]


def _values_of(directory: str, columns: Sequence[StructField], path: str, remedy: str | None) -> dict[str, str | None]:
    """Return the partition values of a directory, as the log spells them."""
    parts = directory.split("/") if directory else []
    pairs = [part.partition("=") for part in parts]
    named = [unquote(name) for name, separator, _ in pairs if separator]
    if [name.lower() for name in named] != [column.name.lower() for column in columns]:
        column_names = ", ".join(column.name for column in columns) or "no column"
        types = ", ".join(f'"{name}": "string"' for name in named)
        raise InvalidRequestError(
            f"The directories of {path} do not name the partition columns",
            cause=f"The partition columns are {column_names}, and the directories name {', '.join(named) or 'none'}",
            remedy=remedy
            or (
                f"Give their names with types, for example partition_schema={{{types}}}"
                if named
                else "Leave partition_schema out, or move the file into a directory name=value"
            ),
            path=path,
        )
    texts = [text for _, separator, text in pairs if separator]
    return {column.name: _value(column, text, path) for column, text in zip(columns, texts, strict=True)}


def _value(column: StructField, escaped: str, path: str) -> str | None:
    if escaped == HIVE_NULL:
        return None
    # Escapes that are not valid Unicode show as U+FFFD in the error.
    text = unquote(escaped) if "%" in escaped else escaped
    try:
        value = parse_partition_value(unquote(escaped, errors="strict"), column.data_type)
    except (ProtocolViolationError, UnicodeDecodeError) as e:
        value, cause = None, str(e)
    else:
        cause = "An empty text is null in a table"
    if value is None:
        raise InvalidRequestError(
            f"The directory of {path} gives {text!r} for the partition column {column.name}, "
            f"which is not a value of the type {column.data_type}",
            cause=cause,
            remedy="Choose another type for the column, or rename the directory",
            path=path,
            column=column.name,
        )
    return serialize_partition_value(value, column.data_type)


# Log entries


def described_files(
    store: LogStore,
    files: Sequence[FileMeta],
    partitions: Sequence[dict[str, str | None]],
    spec: WriteSpec,
    progress: Progress | None = None,
) -> pa.Table:
    """Return the files as rows of `ADD_SCHEMA`, with statistics from their footers.

    A bound is left out if the footer does not prove it: maximal floats of writers that ignore NaN, dates and times of
    old calendars, and unsigned numbers.

    Args:
        files: The files, with `path` as the log spells it.
        partitions: The partition values of each file, as the log spells them.
    """
    columns = statistics_of_files(spec)
    plain = tuple(column for column in columns if column.data_type not in _CALENDAR_TYPES)

    def statistics(metadata: pq.FileMetaData, _: str) -> str:
        indexed = columns if legacy_calendar(metadata) is None else plain
        return serialize_footer_statistics(metadata, indexed, says_tight=spec.statistics.says_tight)

    stats = []
    for done, (_, text) in enumerate(_footers(store, files, statistics), 1):
        stats.append(text)
        if progress is not None:
            progress(done, len(files))
    names = {
        "path": string_array([file.path for file in files]),
        "partition_values": string_map_array(list(partitions)),
        "size": int64_array([file.size for file in files]),
        "modification_time": int64_array([file.modification_time_ms for file in files]),
        "data_change": bool_array([True] * len(files)),
        "stats": string_array(stats),
    }
    arrays = [names[f.name] if f.name in names else pa.nulls(len(files), f.type) for f in ADD_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)
