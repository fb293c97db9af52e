"""The rows of a scan plan as a DataFrame: file scans, deletion vectors, the table's own column names, filters.

Deletion vectors become 64-bit words, a row a file, broadcast into the condition of an anti-join. As a column of the
joined rows, a bitmap would be copied with each row. In the condition of an anti-join it is not. Each file of the scan
has a number, like a partition value, by which the join finds the bitmap. A path would have to be hashed for every row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_orch.engines.file_traits import read_num_rows
from delta_orch.engines.scan_plan import RowTracking, ScanPlan
from delta_orch.engines.spark.arrow_filter import arrow_filtered
from delta_orch.engines.spark.errors import DAMAGE_MARK, spark_errors
from delta_orch.engines.spark.frames import (
    FILE_COLUMN,
    POSITION_COLUMN,
    arrow_to_frame,
    sql_functions,
    union_by_name,
)
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, UTC_NAMES, SparkHost
from delta_orch.engines.spark.scan_files import (
    ADDRESS_FILE,
    BASE_ROW_ID,
    COMMIT_VERSION,
    NUMBER_COLUMN,
    prepare_scan,
    scans_by_name,
)
from delta_orch.engines.spark.sql_text import bounded_sql, field_of, same_values, timestamp_ntz_sql
from delta_orch.errors import (
    ColumnNotFoundError,
    CorruptDeletionVectorError,
    InvalidRequestError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.nodes import Cast, Coerced, Expression, In, Opaque
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import quote_identifier, quote_string, type_sql
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import children_of, columns_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.protocol.arrow_building import int64_range
from delta_orch.protocol.schema import Places, below, char_columns
from delta_orch.protocol.types import (
    CHAR_VARCHAR_TYPE,
    DOUBLE,
    FLOAT,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    types_of,
)
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VECTOR_FILE = "delta_orch_vector_file"
_WORDS = "delta_orch_vector_words"
_LIKELY_ROWS = 1 << 26
"""Up to this sum of last positions, deletion vectors are trusted. Their words take 8 MiB. A damaged vector of a few
bytes can mark a very large position, and the bits before it would fill the memory."""
_OWN_NAMES = (NUMBER_COLUMN, FILE_COLUMN, POSITION_COLUMN, ADDRESS_FILE, BASE_ROW_ID, COMMIT_VERSION)
"""The columns that a scan adds to the columns of files if positions are requested."""
_VECTOR_SCHEMA = StructType((StructField(_VECTOR_FILE, LONG), StructField(_WORDS, ArrayType(LONG))))

_ZONE = "spark.sql.session.timeZone"
_NULL_STRUCTS = "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing"
_MAKES_INSTANTS = re.compile("timestamp|unixtime|_unix", re.IGNORECASE)


def scan_rows(host: SparkHost, plan: ScanPlan) -> DataFrame:
    """Return the rows of a plan. See `SparkEngine.scan`."""
    names = plan.schema.names if plan.columns is None else plan.columns
    missing = [name for name in names if plan.schema.find(name) is None]
    if missing:
        raise ColumnNotFoundError(
            f"The table has no column {missing[0]}",
            remedy=f"Its columns are {', '.join(plan.schema.names)}",
            columns=missing,
        )
    if plan.where is not None:
        ensure_zone_does_not_matter(host, [plan.where], lambda: plan.schema)
    with spark_errors(f"read {plan.store.uri}", is_analysis=True):
        return host.analysed_scan(plan, lambda some: _scanned(host, some, names))


def _scanned(host: SparkHost, plan: ScanPlan, names: Sequence[str]) -> DataFrame:
    whole = any(map(_holds_struct, plan.schema)) and _loses_structs(host)
    chars = char_columns(plan.schema)
    parts = ((_live_rows(host, part, by), _table_columns(part, by, whole, chars)) for part, by in scans_by_name(plan))
    rows = union_by_name([host.pinned(live, ANALYSIS_SETTINGS).selectExpr(*columns) for live, columns in parts])
    if chars:
        rows = rows.select(*(_declared(host, f, f.name in chars) for f in plan.schema))
    if plan.where is not None:
        rows = rows.where(bounded_sql(plan.where))
    if plan.output is not None:
        paths = [(".".join(map(quote_identifier, column.path)), column.name) for column in plan.output]
        selected = [f"{path} AS {quote_identifier(name)}" for path, name in paths]
    else:
        selected = [quote_identifier(field_of(plan.schema, name).name) for name in names]
    if plan.arrow_filter is not None:
        rows = arrow_filtered(host.unpinned(rows), plan.arrow_filter, plan.schema)
        rows = host.pinned(rows, ANALYSIS_SETTINGS)
    return host.unpinned(rows.selectExpr(*selected))


def _declared(host: SparkHost, field: StructField, has_chars: bool) -> Column:
    """Return a column. In comparisons with a constant or another `char`, Spark pads the shorter text, as in its own
    tables."""
    column = sql_functions(host.session).col(quote_identifier(field.name))
    if not has_chars:
        return column
    return column.alias(field.name, metadata={CHAR_VARCHAR_TYPE: field.metadata[CHAR_VARCHAR_TYPE]})


def _holds_struct(field: StructField) -> bool:
    return any(isinstance(part, StructType) for part in types_of(field.data_type))


def _loses_structs(host: SparkHost) -> bool:
    """Whether this Spark reads a struct as null if a file has none of the requested fields."""
    version = tuple(map(int, host.session.version.split(".")[:2]))
    return version < (4, 1) or host.session.conf.get(_NULL_STRUCTS) == "true"


def _live_rows(host: SparkHost, plan: ScanPlan, names: StructType) -> DataFrame:
    """Return the rows that no deletion vector marks, with their names in files. Rows have positions if row tracking or
    addresses need them. Only files with a deletion vector have the extra cost."""
    tracked = bool(plan.made_columns)
    vectors = FileTable(plan.files).deletion_vector if "deletion_vector" in plan.files.column_names else None
    if vectors is None or vectors.null_count == len(vectors):
        if tracked:
            _ensure_own_names_are_free(names)
        return host.scan_files(prepare_scan(plan, names), positioned=tracked)
    _ensure_own_names_are_free(names)
    marked = replace(plan, files=plan.files.filter(vectors.is_valid()))
    whole = replace(plan, files=plan.files.filter(vectors.is_null()))
    positioned = host.scan_files(prepare_scan(marked, names, numbered=True), positioned=True)
    rows = _without_marked(host, positioned, _vector_table(plan.store, marked.files))
    rows = rows.drop(NUMBER_COLUMN) if tracked else rows.drop(NUMBER_COLUMN, FILE_COLUMN, POSITION_COLUMN)
    if not whole.files.num_rows:
        return rows
    return rows.unionByName(host.scan_files(prepare_scan(whole, names), positioned=tracked))


def _ensure_own_names_are_free(names: StructType) -> None:
    """Raise InvalidRequestError if a column of the files has the name of a column that the scan adds."""
    if clashes := [name for name in _OWN_NAMES if names.find(name) is not None]:
        raise InvalidRequestError(
            f"The table has a column {clashes[0]!r}, but this package reserves the name for scans on Spark",
            cause="The scan adds such a column, because the table has deletion vectors, or because row ids or "
            "addresses are needed",
            remedy='Use engine="local", or write the table again with another name for the column',
            column=clashes[0],
        )


def _without_marked(host: SparkHost, positioned: DataFrame, vectors: pa.Table) -> DataFrame:
    frame = arrow_to_frame(host.session, vectors, _VECTOR_SCHEMA)
    # `get` gives null beyond the last word, and null does not match.
    word = f"get(v.{_WORDS}, CAST(r.{POSITION_COLUMN} DIV 64 AS INT))"
    # The table may have columns of the vectors' names.
    is_marked = f"r.{NUMBER_COLUMN} = v.{_VECTOR_FILE} AND getbit({word}, CAST(r.{POSITION_COLUMN} % 64 AS INT)) = 1"
    rows, marks = positioned.alias("r"), frame.alias("v").hint("broadcast")
    return rows.join(marks, sql_functions(host.session).expr(is_marked), "left_anti")


def _vector_table(store: LogStore, files: pa.Table) -> pa.Table:
    """Return the deletion vectors of files, in `_VECTOR_SCHEMA`. Each file must have one.

    Raises MissingFileError, CorruptDeletionVectorError, TableError: A vector, or its file, cannot be read.
    """
    vectors = [v for v in read_deletion_vectors(store, deletion_vector_descriptors(files)) if v is not None]
    lengths = [vector.bitmap.max() + 1 if vector.bitmap else 0 for vector in vectors]
    if sum(lengths) > _LIKELY_ROWS:
        lengths = read_num_rows(store, FileTable(files).path.to_pylist())
    words = [_words(vector.row_indexes(length)) for length, vector in zip(lengths, vectors, strict=True)]
    offsets = np.concatenate(([0], np.cumsum([len(w) for w in words])))
    if offsets[-1] >= 1 << 31:
        raise CorruptDeletionVectorError(
            "The deletion vectors of a scan are too large to be applied",
            cause=f"{offsets[-1] * 8} bytes of bitmaps",
            remedy="Scan fewer files at a time, or purge deleted rows",
        )
    column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(np.concatenate(words)))
    return pa.Table.from_arrays([int64_range(0, files.num_rows), column], names=list(_VECTOR_SCHEMA.names))


def _words(rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return bits as signed 64-bit words. For each row r, bit r % 64 of word r / 64 is set."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    bits = np.zeros((int(rows[-1]) // 64 + 1) * 64, dtype=np.uint8)
    bits[rows] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _table_columns(plan: ScanPlan, names: StructType, whole: bool, chars: Mapping[str, Places]) -> Iterator[str]:
    """Return a SELECT list over the rows of the files, with the logical names of all columns and fields.

    Void columns, which no file holds, are added (PROTOCOL, "Primitive Types").

    Args:
        whole: Keep Spark from reading some fields of structs only.
        chars: The columns with texts to fill up.
    """
    tracking, addresses = plan.row_tracking, plan.row_addresses
    partitions = {name.lower() for name in plan.partition_columns}
    for by, logical in zip(names, plan.schema, strict=True):
        value = quote_identifier(by.name)
        if tracking is not None and logical.name in tracking.names:
            value = _tracked_sql(plan.files, tracking, logical.name)
        elif addresses is not None and logical.name in addresses.names:
            value = ADDRESS_FILE if logical.name == addresses.file_number else POSITION_COLUMN
        elif logical.data_type == VOID:
            value = "NULL"
        elif logical.name.lower() not in partitions:
            if whole and _holds_struct(by):
                value = f"coalesce({value}, {value})"
            value = _renamed_sql(value, by.data_type, logical.data_type)
        if logical.name in chars:
            value = _filled_sql(value, logical.data_type, chars[logical.name])
        yield f"{value} AS {quote_identifier(logical.name)}"


def _tracked_sql(files: pa.Table, tracking: RowTracking, name: str) -> str:
    """Return a column of row tracking over positioned rows (PROTOCOL, "Reader Requirements for Row Tracking"). A row
    without a value in the log raises an error."""
    if name == tracking.row_id:
        stored, default, in_log = tracking.materialized_row_id, f"{BASE_ROW_ID} + {POSITION_COLUMN}", "base_row_id"
    else:
        stored, default = tracking.materialized_row_commit_version, COMMIT_VERSION
        in_log = "default_row_commit_version"
    values = [default] if stored is None else [quote_identifier(stored), default]
    if files.column(in_log).null_count:
        text = quote_string(f"[{DAMAGE_MARK}]The log has no {name} for rows of ")
        end = quote_string(f"[end of {DAMAGE_MARK}]")
        values.append(f"CAST(raise_error(concat({text}, {FILE_COLUMN}, {end})) AS BIGINT)")
    return values[0] if len(values) == 1 else f"coalesce({', '.join(values)})"


def _renamed_sql(value: str, physical: DataType, logical: DataType, depth: int = 0) -> str:
    """The value with the table's names inside, and with timestamps where the file has nanoseconds. Structs are split,
    so that Spark still reads only their requested fields.

    Floats go through an expression that changes nothing. It prevents Spark from comparing filters with the bounds in
    Parquet's footers. For Spark, NaN is greater than every number, but most writers (arrow-cpp, arrow-rs) ignore NaN in
    the maximum, so rows would be lost.
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
    if not _holds_nanoseconds(physical, logical):
        return f"CAST({value} AS {type_sql(logical)})"
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
    return _timestamp_sql(value, logical)


def _filled_sql(value: str, data_type: DataType, places: Places, depth: int = 0) -> str:
    """Return the value with `char(n)` texts padded with spaces."""
    if not places:
        return value
    if () in places:
        return f"rpad({value}, greatest({places[()]}, char_length({value})), ' ')"
    item = f"delta_orch_{depth}"

    def items(values: str, inner: DataType, name: str) -> str:
        filled = _filled_sql(item, inner, below(places, name), depth + 1)
        return values if filled == item else f"transform({values}, {item} -> {filled})"

    match data_type:
        case ArrayType():
            return items(value, data_type.element_type, "element")
        case MapType():
            keys = items(f"map_keys({value})", data_type.key_type, "key")
            return f"map_from_arrays({keys}, {items(f'map_values({value})', data_type.value_type, 'value')})"
    assert isinstance(data_type, StructType)
    parts = ((f, f"{value}.{quote_identifier(f.name)}") for f in data_type)
    filled = (
        f"{quote_string(f.name)}, {_filled_sql(part, f.data_type, below(places, f.name), depth)}" for f, part in parts
    )
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(filled)}) END"


def _has_float_field(data_type: DataType) -> bool:
    """Whether a struct has a float that filters may use. They cannot use floats inside arrays and maps."""
    if not isinstance(data_type, StructType):
        return data_type in (FLOAT, DOUBLE)
    return any(_has_float_field(f.data_type) for f in data_type)


def _holds_nanoseconds(in_file: DataType, data_type: DataType) -> bool:
    """Whether a part is read as nanoseconds and must become a timestamp."""
    pairs = zip(types_of(in_file), types_of(data_type), strict=True)
    return any(by == LONG and to in (TIMESTAMP, TIMESTAMP_NTZ) for by, to in pairs)


def _timestamp_sql(nanoseconds: str, data_type: DataType) -> str:
    """Return nanoseconds since the epoch as a timestamp of either kind, rounded down, independent of the session's time
    zone."""
    micros = f"({nanoseconds} DIV 1000 - CASE WHEN {nanoseconds} % 1000 < 0 THEN 1 ELSE 0 END)"
    return f"timestamp_micros({micros})" if data_type == TIMESTAMP else timestamp_ntz_sql(micros)


def ensure_zone_does_not_matter(
    host: SparkHost, expressions: Iterable[Expression], schema: Callable[[], StructType]
) -> None:
    """Refuse expressions that the session would evaluate in another zone than UTC. Only text that delta_orch does not
    take apart is in question: constants of other predicates say their zone.

    Raises UnsupportedExpressionError: The session's time zone is not UTC, and the text uses timestamps.
    """
    if host.is_time_zone_pinned:
        return
    parts = [part for expression in expressions for part in _opaque_parts(expression)]
    texts = [t for part in parts if _looks_at_instants(part, t := to_spark_sql(part), schema())]
    if texts and (zone := host.session.conf.get(_ZONE)).lower() not in UTC_NAMES:
        raise UnsupportedExpressionError(
            f"The session's time zone {zone} would change the meaning of {texts[0]!r}",
            cause="Predicates of a scan are evaluated in UTC, but this Spark session has only one time zone",
            remedy=f'Set {_ZONE} to "UTC" while the rows are read, or filter the DataFrame instead of the scan',
            expression=texts[0],
        )


def _opaque_parts(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, Opaque | Coerced | Cast):
        yield expression
        return
    for child in () if isinstance(expression, In) else children_of(expression):
        yield from _opaque_parts(child)


def _looks_at_instants(node: Expression, text: str, schema: StructType) -> bool:
    types = (find_column(column.path, schema)[1] for column in columns_of(node))
    return _MAKES_INSTANTS.search(text) is not None or TIMESTAMP in types
