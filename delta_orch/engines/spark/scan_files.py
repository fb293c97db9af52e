"""From a scan plan to what Spark is told: partitions as typed values, files as an index into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import OutputColumn, ScanPlan
from delta_orch.engines.spark.live_rows import NUMBER_FIELD
from delta_orch.engines.spark.nanoseconds import holds_nanoseconds, timestamp_sql
from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.engines.spark.sql_text import same_values, type_sql
from delta_orch.engines.spark.tracked_columns import (
    FILE_CONSTANTS,
    materialized_fields,
    of_each_file,
    tracked_names,
    tracked_sql,
    with_file_constants,
)
from delta_orch.errors import UnsupportedStoreError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.log.files.arrow_building import int32_array, int64_array, int64_range, string_array
from delta_orch.log.files.partition_columns import one_chunk, partition_strings
from delta_orch.protocol.data_path import encode_path
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import DOUBLE, FLOAT, VOID, ArrayType, DataType, MapType, StructField, StructType
from delta_orch.storage.base import LogStore
from delta_orch.storage.locations import parse_location
from delta_orch.table.column_mapping import physical_name


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """The files of one scan.

    Attributes:
        store: The table's store.
        root_uri: The table's directory for Hadoop.
        data_schema: The columns in the files; all nullable, without the log's column metadata.
        partition_schema: The columns that come from the log; under row tracking `FILE_CONSTANTS` are among them.
        partitions: One row a distinct partition, columns and Arrow types of `partition_schema`.
        partition_index: For each file its row in `partitions`; int64.
        files: `path`, `size`, `modification_time`.
        pushed: Leaves out files by what is asked of the scan when it runs; None where nobody can tell which.
    """

    store: LogStore
    root_uri: str
    data_schema: StructType
    partition_schema: StructType
    partitions: pa.Table
    partition_index: pa.Array
    files: pa.Table
    pushed: PushedFilters | None = None


def prepare_scan(plan: ScanPlan, names: StructType, *, numbered: bool = False) -> ScanFiles:
    """Pure log work: nothing is read, listed or started.

    Args:
        plan: What to scan.
        names: Its columns as the files name them, in the order of its schema (`file_names`).
        numbered: Give each row the number of its file in the plan, in `NUMBER_FIELD`.

    Raises:
        UnsupportedFeatureError: A file carries a deletion vector, or files know columns by other names.
        UnsupportedStoreError: The store is not one Spark can reach.
        ProtocolViolationError: A partition value is none of its type, or a path leaves the table.
    """
    ensure_paths_inside(plan.store, plan.files.column("path"))
    partition_names = [physical_name(_field(plan.schema, name)) for name in plan.partition_columns]
    partition_schema = StructType(tuple(_plain(_field(names, name)) for name in partition_names))
    partitions, index = distinct_partitions(plan.files, partition_schema)
    if plan.row_tracking is not None:
        partitions, index = with_file_constants(plan, partitions, index)
        partition_schema = StructType((*partition_schema, *FILE_CONSTANTS))
    if numbered:
        partitions, index = of_each_file(partitions, index, {NUMBER_FIELD.name: int64_range(0, plan.files.num_rows)})
        partition_schema = StructType((*partition_schema, NUMBER_FIELD))
    return ScanFiles(
        store=plan.store,
        root_uri=hadoop_root(plan.store),
        data_schema=StructType((*_stored_fields(plan, names), *materialized_fields(plan.row_tracking))),
        partition_schema=partition_schema,
        partitions=partitions,
        partition_index=index,
        files=_with_sizes(plan.store, plan.files.select(["path", "size", "modification_time"])),
        pushed=None
        if plan.prune is None
        else PushedFilters(plan.store.uri, plan.prune, plan.files.column("path"), names, plan.schema),
    )


def _stored_fields(plan: ScanPlan, names: StructType) -> Iterator[StructField]:
    elsewhere = {_field(plan.schema, name).name for name in plan.partition_columns} | {
        *tracked_names(plan.row_tracking)
    }
    for logical, by in zip(plan.schema, names, strict=True):
        if logical.name not in elsewhere and by.data_type != VOID:
            yield _plain(by)


def _with_sizes(store: LogStore, files: pa.Table) -> pa.Table:
    """Spark reads as many bytes as it is told a file has: a log that says nothing, or zero, would lose its rows."""
    sizes = pc.fill_null(one_chunk(files.column("size")), 0)
    unknown = pc.indices_nonzero(pc.less_equal(sizes, 0)).to_pylist()
    if not unknown:
        return files
    filesystem, _ = store.data_filesystem()
    paths = [store.resolve(files.column("path")[i].as_py()) for i in unknown]
    found = sizes.to_pylist()
    for i, info in zip(unknown, filesystem.get_file_info(paths), strict=True):
        # A file that is not there has to be opened to be missed.
        found[i] = info.size or 1
    return files.set_column(1, "size", int64_array(found))


def table_columns(plan: ScanPlan, names: StructType) -> list[str]:
    """A SELECT list over the rows of the files: every column of the table under its logical name, at every level.

    Columns that no file holds because they hold nothing are added (PROTOCOL, "Primitive Types", void). With row
    tracking the rows are positioned (`live_rows.with_position`).
    """
    return [
        f"{_column_sql(plan, by, logical)} AS {quote_identifier(logical.name)}"
        for by, logical in zip(names, plan.schema, strict=True)
    ]


def output_column_sql(column: OutputColumn) -> str:
    """A column of a scan, or a field of a struct in one, as an item of a SELECT list over the table's columns."""
    return f"{'.'.join(map(quote_identifier, column.path))} AS {quote_identifier(column.name)}"


def _column_sql(plan: ScanPlan, by: StructField, logical: StructField) -> str:
    if logical.name in tracked_names(plan.row_tracking):
        return tracked_sql(plan, logical.name)
    if logical.data_type == VOID:
        return "NULL"
    if logical.name in {_field(plan.schema, name).name for name in plan.partition_columns}:
        return quote_identifier(by.name)
    return _renamed_sql(quote_identifier(by.name), by.data_type, logical.data_type)


def _renamed_sql(value: str, physical: DataType, logical: DataType, depth: int = 0) -> str:
    """Only names differ, and nanoseconds become timestamps. Structs are taken apart, so that Spark still reads no more
    of them than is asked for.

    Floats go through an expression that changes nothing, which keeps Spark from holding its filters against the bounds
    in Parquet's footers: to Spark NaN is above every number, while most writers leave it out of the maximum (arrow-cpp,
    arrow-rs), and rows would be lost.
    """
    if physical in (FLOAT, DOUBLE):
        return f"nanvl({value}, CAST('NaN' AS {type_sql(physical)}))"
    if same_values(physical, logical) and not _has_float_field(physical):
        return value
    if isinstance(physical, StructType) and isinstance(logical, StructType):
        fields = ", ".join(
            f"{quote_string(to.name)}, "
            f"{_renamed_sql(f'{value}.{quote_identifier(by.name)}', by.data_type, to.data_type, depth)}"
            for by, to in zip(physical, logical, strict=True)
        )
        return f"CASE WHEN {value} IS NOT NULL THEN named_struct({fields}) END"
    if holds_nanoseconds(physical, logical):
        return _timestamps_sql(value, physical, logical, depth)
    return f"CAST({value} AS {type_sql(logical)})"


def _timestamps_sql(value: str, physical: DataType, logical: DataType, depth: int) -> str:
    item = f"delta_orch_{depth}"

    def items(values: str, by: DataType, to: DataType) -> str:
        return f"transform({values}, {item} -> {_renamed_sql(item, by, to, depth + 1)})"

    match physical, logical:
        case ArrayType(), ArrayType():
            return items(value, physical.element_type, logical.element_type)
        case MapType(), MapType():
            keys = items(f"map_keys({value})", physical.key_type, logical.key_type)
            values = items(f"map_values({value})", physical.value_type, logical.value_type)
            return f"map_from_arrays({keys}, {values})"
        case _:
            return timestamp_sql(value, logical)


def _has_float_field(data_type: DataType) -> bool:
    """Whether a struct has a float that filters may look at: what is in arrays and maps is out of their reach."""
    if not isinstance(data_type, StructType):
        return data_type in (FLOAT, DOUBLE)
    return any(_has_float_field(f.data_type) for f in data_type)


def ensure_paths_inside(store: LogStore, paths: pa.ChunkedArray) -> None:
    """Refuse paths that climb out of the table, by the store's own rule."""
    # An encoded dot is a dot too; both are rare enough to look at one by one.
    suspicious = pc.match_substring_regex(paths, r"\.\.|%2[eE]")
    for path in paths.filter(suspicious).to_pylist():
        store.resolve(path)


def hadoop_root(store: LogStore) -> str:
    """The table's directory as Hadoop spells it, URI-encoded.

    Raises UnsupportedStoreError where no Spark executor could open it.
    """
    if store.uri.startswith("memory:"):
        raise UnsupportedStoreError(
            f"Spark cannot read or write {store.uri}",
            cause="It exists in the memory of this Python process only",
            remedy="Use a local directory, or the local engine",
            uri=store.uri,
        )
    location = parse_location(store.uri)
    if location is None:
        return store.uri
    scheme, _, rest = location.hadoop_uri.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}{slash}{encode_path(path)}"


def distinct_partitions(files: pa.Table, partition_schema: StructType) -> tuple[pa.Table, pa.Array]:
    """The distinct partitions of some files, typed, and for each file which of them it is in."""
    code = int64_array([0] * files.num_rows)
    if not len(partition_schema):
        return pa.Table.from_arrays([], schema=pa.schema([])), code
    texts = partition_strings(files.column("partition_values"), partition_schema.names)
    for column in texts.columns:
        encoded = one_chunk(column).dictionary_encode(null_encoding="encode")
        digits = encoded.indices.cast(pa.int64())
        # Re-encoding after each column keeps the code below files x values, far from overflowing.
        code = pc.add(pc.multiply(code, int64_array([len(encoded.dictionary)])[0]), digits)
        code = code.dictionary_encode().indices.cast(pa.int64())
    first_rows = pc.index_in(pc.unique(code), value_set=code)
    arrays = [
        one_chunk(partition_column_to_arrow(one_chunk(column).take(first_rows), f.data_type))
        for column, f in zip(texts.columns, partition_schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(partition_schema.names)), code


def file_rows(files: ScanFiles) -> str:
    """The text of `LogFileIndex.java`: partition, size, modification time and path, a line a file."""
    columns = files.files
    if columns.num_rows == 0:
        return ""
    return _join_rows(
        [
            files.partition_index.cast(pa.string()),
            pc.fill_null(one_chunk(columns.column("size")), 0).cast(pa.string()),
            pc.fill_null(one_chunk(columns.column("modification_time")), 0).cast(pa.string()),
            # A raw line break would end the row; the JVM decodes its escape like any other.
            pc.replace_substring(one_chunk(columns.column("path")), pattern="\n", replacement="%0A"),
        ]
    )


def partition_rows(files: ScanFiles) -> str:
    """The text of `LogFileIndex.java`: Catalyst's values, a line a partition."""
    if not len(files.partition_schema) or files.partitions.num_rows == 0:
        return ""
    return _join_rows([_catalyst_text(one_chunk(column)) for column in files.partitions.columns])


def _join_rows(columns: Sequence[pa.Array]) -> str:
    tab, newline = string_array(["\t", "\n"])
    lines = pc.binary_join_element_wise(*columns, tab)
    as_list = pa.ListArray.from_arrays(int32_array([0, len(lines)]), lines)
    text: str = pc.binary_join(as_list, newline)[0].as_py()
    return text


def _catalyst_text(values: pa.Array) -> pa.Array:
    """Dates as days, timestamps as microseconds, binary in base64; null is `\\N`, and the rest is escaped."""
    kind = values.type
    if pa.types.is_date32(kind):
        texts = values.cast(pa.int32()).cast(pa.string())
    elif pa.types.is_timestamp(kind):
        texts = values.cast(pa.int64()).cast(pa.string())
    elif pa.types.is_binary(kind):
        texts = _base64(values)
    elif pa.types.is_floating(kind):
        texts = _java_floats(values.cast(pa.string()))
    else:
        texts = values.cast(pa.string())
    if pa.types.is_string(kind):
        for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n")):
            texts = pc.replace_substring(texts, pattern=plain, replacement=escaped)
    return pc.fill_null(texts, string_array(["\\N"])[0])


def _java_floats(texts: pa.Array) -> pa.Array:
    for arrow, java in (("nan", "NaN"), ("inf", "Infinity")):
        texts = pc.replace_substring(texts, pattern=arrow, replacement=java)
    return texts


def _base64(values: pa.Array) -> pa.Array:
    from base64 import b64encode

    return string_array([None if v is None else b64encode(v).decode() for v in values.to_pylist()])


def _field(schema: StructType, name: str) -> StructField:
    found = schema.find(name)
    assert found is not None, f"partition column {name} is not in the schema"
    return found


def plain_schema(schema: StructType) -> StructType:
    """The columns as Spark may rely on them: anything may be null in a file, and of the metadata only the comment is
    for users (field ids would even make Spark match columns by them)."""
    return StructType(tuple(map(_plain, schema)))


def _plain(field: StructField) -> StructField:
    metadata: dict[str, Any] = {k: v for k, v in field.metadata.items() if k == "comment"}
    return StructField(field.name, _plain_type(field.data_type), True, metadata)


def _plain_type(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return plain_schema(data_type)
        case ArrayType(element_type, _):
            return ArrayType(_plain_type(element_type))
        case MapType(key_type, value_type, _):
            return MapType(_plain_type(key_type), _plain_type(value_type))
        case _:
            return data_type
