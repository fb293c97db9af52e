"""Arrow columns of file actions: one row for each logical file, never one Python object. How they are made of actions,
and how many records they tell of.

A logical file is keyed by (`path`, `dv_id`) (PROTOCOL, "Action Reconciliation"). `path` is spelled as in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.action_json import ADD_FIELDS, CDC_FIELDS, REMOVE_FIELDS, parse_deletion_vector
from delta_orch.protocol.actions import DeletionVectorDescriptor, JsonValue
from delta_orch.protocol.arrow_building import (
    STRING_MAP,
    bool_array,
    int32_array,
    int64_array,
    one_chunk,
    string_array,
    string_map_array,
    struct_array,
    validity_bitmap,
)

DELETION_VECTOR_TYPE = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline_dv", pa.string()),
        ("offset", pa.int32()),
        ("size_in_bytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)


class _Column:
    """A column of a `FileTable`, under the name of the attribute."""

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type

    def __set_name__(self, owner: type[FileTable], name: str) -> None:
        self._name = name

    def __get__(self, files: FileTable, owner: type[FileTable]) -> pa.ChunkedArray:
        return files.table.column(self._name)


class FileTable:
    """A table of files, or a batch of one, with its columns as attributes: `FileTable(adds).path`.

    One name for each column of `ADD_SCHEMA`, `REMOVE_SCHEMA` and `CDC_SCHEMA`, which have their types. An attribute
    raises KeyError where the table was read without that column.
    """

    __slots__ = ("table",)

    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self.table = table

    @property
    def size_bytes(self) -> int:
        """The sizes of all files together; 0 for no files."""
        return pc.sum(self.size).as_py() or 0

    path = _Column(pa.string())
    dv_id = _Column(pa.string())
    partition_values = _Column(STRING_MAP)
    size = _Column(pa.int64())
    modification_time = _Column(pa.int64())
    data_change = _Column(pa.bool_())
    stats = _Column(pa.string())
    tags = _Column(STRING_MAP)
    deletion_vector = _Column(DELETION_VECTOR_TYPE)
    base_row_id = _Column(pa.int64())
    default_row_commit_version = _Column(pa.int64())
    clustering_provider = _Column(pa.string())
    deletion_timestamp = _Column(pa.int64())
    extended_file_metadata = _Column(pa.bool_())


FILE_TYPES = {name: column.type for name, column in vars(FileTable).items() if isinstance(column, _Column)}
"""The type of each column, by its name."""


def _schema(names: str) -> pa.Schema:
    return pa.schema([pa.field(name, FILE_TYPES[name], nullable=name != "path") for name in names.split()])


ADD_SCHEMA = _schema(
    "path dv_id partition_values size modification_time data_change stats tags deletion_vector base_row_id "
    "default_row_commit_version clustering_provider"
)
"""Live files, and files about to be added. Times in milliseconds since the epoch, sizes in bytes."""

NO_FILES = pa.Table.from_batches([], ADD_SCHEMA)
"""`ADD_SCHEMA.empty_table()` imports pandas where it is installed."""

REMOVE_SCHEMA = _schema(
    "path dv_id deletion_timestamp data_change extended_file_metadata partition_values size stats tags deletion_vector "
    "base_row_id default_row_commit_version"
)
"""Tombstones, and files about to be removed."""

CDC_SCHEMA = _schema("path partition_values size data_change tags")
"""Change data files of one commit (PROTOCOL, "Add CDC File")."""

SCHEMAS: Mapping[str, pa.Schema] = {"add": ADD_SCHEMA, "remove": REMOVE_SCHEMA, "cdc": CDC_SCHEMA}
_FIELDS: Mapping[str, Mapping[str, str]] = {"add": ADD_FIELDS, "remove": REMOVE_FIELDS, "cdc": CDC_FIELDS}
_REQUIRED = {"add": ("path", "size"), "remove": ("path",), "cdc": ("path",)}
_DEFAULTS: Mapping[tuple[str, str], JsonValue] = {
    ("add", "partition_values"): {},
    ("add", "data_change"): True,
    ("add", "modification_time"): 0,
    ("remove", "data_change"): True,
    ("cdc", "data_change"): False,
    ("cdc", "partition_values"): {},
}


def build_batch(action: str, bodies: Sequence[JsonValue]) -> pa.RecordBatch:
    """The bodies of one kind of file action (`add`, `remove`, `cdc`) as columns of `SCHEMAS[action]`.

    Raises:
        TypeError, ValueError, AttributeError, KeyError, OverflowError: A body is malformed.
    """
    schema, fields = SCHEMAS[action], _FIELDS[action]
    arrays: dict[str, pa.Array] = {}
    for name, key in fields.items():
        values = [body.get(key) for body in bodies]
        if name in _REQUIRED[action] and None in values:
            raise ValueError(f"{key} is missing")
        if name == "deletion_vector":
            arrays |= _vector_columns(values)
            continue
        if (default := _DEFAULTS.get((action, name))) is not None and None in values:
            values = [default if v is None else v for v in values]
        arrays[name] = _column(schema.field(name).type, values)
    return pa.RecordBatch.from_arrays([arrays[n] for n in schema.names], schema=schema)


def _column(data_type: pa.DataType, values: Sequence[JsonValue]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), data_type)
    return _BUILDERS[data_type](values)


def _vector_columns(values: Sequence[JsonValue]) -> dict[str, pa.Array]:
    n = len(values)
    if values.count(None) == n:
        return {"deletion_vector": pa.nulls(n, DELETION_VECTOR_TYPE), "dv_id": pa.nulls(n, pa.string())}
    vectors = [parse_deletion_vector(v) for v in values]
    ids = string_array([v.unique_id if v else None for v in vectors])
    return {"deletion_vector": deletion_vector_array(vectors), "dv_id": ids}


def deletion_vector_array(descriptors: Sequence[DeletionVectorDescriptor | None]) -> pa.StructArray:
    """Descriptors as a column of `DELETION_VECTOR_TYPE`; None stays null."""
    children = [
        string_array([None if d is None else d.storage_type for d in descriptors]),
        string_array([None if d is None else d.path_or_inline_dv for d in descriptors]),
        int32_array([None if d is None else d.offset for d in descriptors]),
        int32_array([None if d is None else d.size_in_bytes for d in descriptors]),
        int64_array([None if d is None else d.cardinality for d in descriptors]),
    ]
    return struct_array(DELETION_VECTOR_TYPE, children, validity_bitmap(descriptors))


def _strings(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return string_array(values)
    except AttributeError:
        # Statistics written as an object instead of a string are understood all the same.
        return string_array([orjson.dumps(v).decode() if isinstance(v, (dict, list)) else v for v in values])


def _integers(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return int64_array(values)
    except TypeError:
        return int64_array([None if v is None else _integer(v) for v in values])


def _integer(value: JsonValue) -> int:
    if isinstance(value, (int, str)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise TypeError(f"expected an integer, found {value!r}")


def _maps(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return string_map_array(values)
    except AttributeError:
        return string_map_array([v and {k: _text(item) for k, item in v.items()} for v in values])


def _text(value: JsonValue) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return orjson.dumps(value).decode()
    raise TypeError(f"expected a string, found {value!r}")


_BUILDERS: Mapping[pa.DataType, Callable[[Sequence[JsonValue]], pa.Array]] = {
    pa.string(): _strings,
    pa.int64(): _integers,
    pa.bool_(): bool_array,
    STRING_MAP: _maps,
}


_RECORDS = pa.schema([("numRecords", pa.int64())])
_FEW = 64
_MOST_ROWS = 1 << 32
"""A larger number cannot be the row count of a Parquet file."""


def record_counts(files: pa.Table) -> pa.Array:
    """`numRecords` of each file (columns of `ADD_SCHEMA`): of the data file, deleted rows counted; null
    where the statistics do not say, or say what no file has."""
    if "stats" not in files.column_names:
        return pa.nulls(files.num_rows, pa.int64())
    return pa.concat_arrays([int64_array([]), *map(_counts, FileTable(files).stats.chunks)])


def known_records(tables: Sequence[pa.Table]) -> int:
    """The `record_counts` of all these files; those that do not say count nothing."""
    return sum(pc.sum(record_counts(files)).as_py() or 0 for files in tables)


ROW_COUNT_COLUMNS = ("stats", "deletion_vector")
"""What `live_row_counts` needs of a file table."""


def live_row_counts(files: pa.Table) -> pa.Array:
    """The rows of each file without those that its deletion vector marks; null where statistics do not say."""
    records = record_counts(files)
    if "deletion_vector" not in files.column_names or FileTable(files).deletion_vector.null_count == files.num_rows:
        return records
    marked = pc.struct_field(one_chunk(FileTable(files).deletion_vector), "cardinality")
    counts = pc.subtract(records, pc.coalesce(marked, 0))
    is_possible = pc.and_(pc.greater_equal(counts, 0), pc.less_equal(counts, records))
    return pc.if_else(is_possible, counts, pa.nulls(1, pa.int64())[0])


def live_rows(files: pa.Table) -> int | None:
    """The rows of all files together, as `live_row_counts`; None where one does not say."""
    counts = live_row_counts(files)
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _counts(stats: pa.StringArray) -> pa.Array:
    if len(stats) > _FEW:
        from delta_orch.log.files.stats_json import read_stats_json

        with suppress(pa.ArrowInvalid):
            counts = read_stats_json(stats, _RECORDS).column(0).combine_chunks()
            is_believed = pc.and_(pc.greater_equal(counts, 0), pc.less_equal(counts, _MOST_ROWS))
            return pc.if_else(is_believed, counts, pa.nulls(1, pa.int64())[0])
    return int64_array(list(map(_count, stats.to_pylist())))


def _count(text: str | None) -> int | None:
    count = parse_object(text).get("numRecords")
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_ROWS else None


def with_record_count(stats: str | None, count: int) -> str:
    """Statistics with the number of records added. Statistics that were not JSON are replaced."""
    return orjson.dumps({**members_of(stats), "numRecords": count}).decode()


def with_wide_bounds(stats: str | None) -> str | None:
    """Statistics of a file whose deletion vector has changed: what they say of single columns is not exact any more."""
    return None if stats is None else orjson.dumps({**members_of(stats), "tightBounds": False}).decode()


def members_of(text: str | None) -> dict[str, JsonValue]:
    """As `parse_object`, for `orjson.dumps`: numbers are written as they stand. Doubles would round decimals, and then
    bounds do not hold."""
    if not parse_object(text):
        return {}
    from json import loads

    def as_written(number: str) -> orjson.Fragment:
        return orjson.Fragment(number)

    try:
        members: dict[str, JsonValue] = loads(text or "", parse_float=as_written, parse_int=as_written)
    except RecursionError:
        return {}
    return members


def parse_object(text: str | None) -> dict[str, JsonValue]:
    """The JSON object that a text is; an empty one for any other."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
