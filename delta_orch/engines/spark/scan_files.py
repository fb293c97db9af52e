"""A scan plan as Spark needs it: typed partition values, and files that refer to them.

What the log says of one file, such as the id of its first row, travels like a partition value: a constant of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import FILE_NUMBERS, ScanPlan
from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.engines.spark.sql_text import field_of, plain_schema
from delta_orch.errors import UnsupportedStoreError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import partition_strings, row_codes
from delta_orch.protocol.arrow_building import int64_array, int64_range, longs_from_numpy, one_chunk
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.types import LONG, VOID, StructField, StructType
from delta_orch.storage.base import LogStore, os_errors
from delta_orch.storage.storage_options import parse_location
from delta_orch.table.column_mapping import physical_name

# Columns that only exist inside a plan: constants of a file, all of type long.
NUMBER_COLUMN = "delta_orch_file_number"
BASE_ROW_ID = "delta_orch_base_row_id"
COMMIT_VERSION = "delta_orch_default_row_commit_version"
ADDRESS_FILE = "delta_orch_address_file"
_SMALLEST_BYTES, _LIKELY_BYTES = 64, 16 << 30
"""Between them, the log is believed. An empty Parquet file of one column has more than 100 bytes."""


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """The files of one scan.

    Attributes:
        store: The table's store.
        root_uri: The table's directory for Hadoop.
        data_schema: The columns in the files; all nullable, without the log's column metadata.
        partition_schema: The columns that come from the log: partition columns, then constants of a file.
        partitions: One row a distinct partition, columns and Arrow types of `partition_schema`.
        partition_index: For each file its row in `partitions`; int64.
        files: `path`, `size`, `modification_time`.
        pushed: Leaves out files by the filters of the query that runs the scan; None where nothing can tell which.
    """

    store: LogStore
    root_uri: str
    data_schema: StructType
    partition_schema: StructType
    partitions: pa.Table
    partition_index: pa.Array
    files: pa.Table
    pushed: PushedFilters | None = None
    key: tuple[object, ...] = ()
    """Of all scans of a snapshot, those with the same key have the same files."""


def prepare_scan(plan: ScanPlan, names: StructType, *, numbered: bool = False) -> ScanFiles:
    """Prepare the files of a scan. Nothing is read from them, listed or started.

    Args:
        plan: What to scan. Deletion vectors are not looked at.
        names: Its columns as the files name them, in the order of its schema (`file_names`).
        numbered: Give each row the number of its file in the plan, in `NUMBER_COLUMN`.

    Raises:
        UnsupportedStoreError: Spark cannot reach the store.
        ProtocolViolationError: A partition value does not fit its type, or a path leads out of the table.
    """
    ensure_paths_inside(plan.store, FileTable(plan.files).path)
    plan.ensure_each_once()
    plain = plain_schema(names)
    fields = [field_of(plan.schema, name) for name in plan.partition_columns]
    stored_as = dict(zip(plan.schema.names, plain, strict=True))
    partition_schema = StructType(tuple(stored_as[field.name] for field in fields))
    partitions, index = distinct_partitions(plan.files, partition_schema, [physical_name(field) for field in fields])
    constants = _file_constants(plan, numbered)
    if constants:
        # Each file is a partition of its own then.
        columns = [*(column.take(index) for column in partitions.columns), *constants.values()]
        partitions = pa.Table.from_arrays(columns, names=[*partitions.column_names, *constants])
        index = int64_range(0, plan.files.num_rows)
        partition_schema = StructType((*partition_schema, *(StructField(name, LONG) for name in constants)))
    return ScanFiles(
        store=plan.store,
        root_uri=hadoop_root(plan.store),
        data_schema=StructType(tuple(_stored_fields(plan, plain))),
        partition_schema=partition_schema,
        partitions=partitions,
        partition_index=index,
        files=_with_sizes(plan),
        pushed=None
        if plan.prune is None
        else PushedFilters(names, plan.schema, plan.store.uri, plan.prune, FileTable(plan.files).path),
        key=(names, partition_schema, plan.schema, _digest(plan.files)),
    )


def _digest(files: pa.Table) -> bytes:
    """Which files these are: a scan may have been cut into tasks."""
    paths = pa.RecordBatch.from_arrays([one_chunk(FileTable(files).path)], names=["path"])
    return blake2b(paths.serialize()).digest()


def _file_constants(plan: ScanPlan, numbered: bool) -> dict[str, pa.Array | pa.ChunkedArray]:
    constants: dict[str, pa.Array | pa.ChunkedArray] = {}
    if plan.row_tracking is not None:
        constants[BASE_ROW_ID] = FileTable(plan.files).base_row_id
        constants[COMMIT_VERSION] = FileTable(plan.files).default_row_commit_version
    if plan.row_addresses is not None:
        constants[ADDRESS_FILE] = plan.files.column(FILE_NUMBERS)
    if numbered:
        constants[NUMBER_COLUMN] = int64_range(0, plan.files.num_rows)
    return constants


def _stored_fields(plan: ScanPlan, plain: StructType) -> Iterator[StructField]:
    """The columns to read from files, the materialized ones of row tracking last."""
    tracking = plan.row_tracking
    elsewhere = {field_of(plan.schema, name).name for name in plan.partition_columns}
    elsewhere.update(plan.made_columns)
    for logical, by in zip(plan.schema, plain, strict=True):
        if logical.name not in elsewhere and by.data_type != VOID:
            yield by
    if tracking is not None:
        for name in (tracking.materialized_row_id, tracking.materialized_row_commit_version):
            if name is not None:
                yield StructField(name, LONG)


def _with_sizes(plan: ScanPlan) -> pa.Table:
    """The files, with sizes that Spark can rely on.

    Spark passes over row groups behind the size that it is told, and cuts a size of petabytes into millions of pieces,
    which fill the driver's memory. So the store is asked where the log has a size that no file is likely to have, or
    where what is read replaces the files. On a local file system `LogFileIndex.java` looks at each file anyway.
    """
    files = plan.files.select(["path", "size", "modification_time"])
    sizes = pc.fill_null(one_chunk(FileTable(files).size), 0)
    unknown = pc.or_(pc.less(sizes, _SMALLEST_BYTES), pc.greater(sizes, _LIKELY_BYTES))
    asked = list(range(len(sizes))) if plan.is_copied else pc.indices_nonzero(unknown).to_pylist()
    if not asked:
        return files
    filesystem, _ = plan.store.data_filesystem()
    paths = [plan.store.resolve(FileTable(files).path[i].as_py()) for i in asked]
    found = sizes.to_pylist()
    with os_errors("look up data files in", plan.store.uri):
        infos = filesystem.get_file_info(paths)
    for i, info in zip(asked, infos, strict=True):
        # A missing file must be opened to be reported.
        found[i] = info.size or 1
    return files.set_column(1, "size", int64_array(found))


def ensure_paths_inside(store: LogStore, paths: pa.ChunkedArray) -> None:
    """Refuse paths that lead out of the table, by the store's own rule.

    Spark itself would open every scheme that Hadoop knows, `http` among them.
    """
    # An encoded dot counts, too. All are rare, so that each path is checked by itself.
    suspicious = pc.match_substring_regex(paths, r"\.\.|%2[eE]|^/|^[A-Za-z][A-Za-z0-9+.-]*:")
    if store.external_paths is not None:
        suspicious = pc.is_valid(paths)
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


def distinct_partitions(
    files: pa.Table, partition_schema: StructType, keys: Sequence[str]
) -> tuple[pa.Table, pa.Array]:
    """The distinct partitions of some files, typed, and for each file which of them it is in. `keys` are the names that
    the columns have in the log."""
    if not len(partition_schema):
        of_all = longs_from_numpy(np.zeros(files.num_rows, np.int64))
        return pa.Table.from_arrays([], schema=pa.schema([])), of_all
    texts = partition_strings(FileTable(files).partition_values, keys)
    code = row_codes(texts)
    first_rows = pc.index_in(pc.unique(code), value_set=code)
    arrays = [
        one_chunk(partition_column_to_arrow(one_chunk(column).take(first_rows), f.data_type))
        for column, f in zip(texts.columns, partition_schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(partition_schema.names)), code
