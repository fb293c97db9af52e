"""A version as a data set of pyarrow: only where plain Parquet files hold exactly its rows."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from delta_orch.engines.read_errors import reading
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import SchemaMismatchError, UnsupportedFeatureError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import typed_partitions
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.schema import char_columns
from delta_orch.protocol.types import VARIANT, DataType, StructType
from delta_orch.scan.file_listing import bare_types
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.type_widening import has_type_changes


def arrow_dataset(snapshot: Snapshot) -> ds.FileSystemDataset:
    """The live files as a data set. See `TableSnapshot.to_pyarrow_dataset`."""
    schema = snapshot.schema
    files = snapshot.files(["path", "size", "partition_values", "dv_id"])
    if snapshot.configuration.column_mapping is not ColumnMappingMode.NONE:
        _refuse("Its columns are mapped: the files know them by other names", "columnMapping")
    if FileTable(files).dv_id.null_count < files.num_rows:
        _refuse("Deletion vectors mark rows of its files, and pyarrow would read these rows", "deletionVectors")
    if has_type_changes(schema):
        _refuse("Columns have been widened: older files hold other types", "typeWidening")
    if any("variant" in text for text in bare_types(schema).values()):
        _refuse(f"It has columns of the type {VARIANT}, which pyarrow does not know", "variantType")
    if char_columns(schema):
        _refuse("It has columns of char(n), whose values a reader fills up with spaces", "char")
    partitions = typed_partitions(files, schema, snapshot.partition_columns)
    in_files = StructType(tuple(f for f in schema if f.name not in snapshot.partition_columns))
    filesystem = snapshot.store.data_filesystem()[0]
    ScanPlan(snapshot.store, schema, snapshot.partition_columns, files, each_once=True).ensure_each_once()
    paths = [snapshot.store.resolve(path) for path in FileTable(files).path.to_pylist()]
    snapshot.store.ensure_regular(paths)
    for _ in map_ahead(lambda path: _ensure_plain(filesystem, path, in_files), paths, FAR_THREADS):
        pass
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(path, filesystem, partition_expression=_guarantee(partitions, row))
        for row, path in enumerate(paths)
    ]
    return ds.FileSystemDataset(fragments, schema_to_arrow(schema), parquet, filesystem)


def _refuse(cause: str, feature: str) -> NoReturn:
    raise UnsupportedFeatureError(
        "The table is more than its Parquet files",
        cause=cause,
        remedy="Read it with scan().to_arrow() or scan().to_reader()",
        feature=feature,
    )


def _guarantee(partitions: pa.Table, row: int) -> pc.Expression:
    guarantee = pc.scalar(True)
    for name, column in zip(partitions.column_names, partitions.columns, strict=True):
        value = column[row]
        of_column = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        guarantee = of_column if guarantee.equals(pc.scalar(True)) else guarantee & of_column
    return guarantee


def _ensure_plain(filesystem: pafs.FileSystem, path: str, schema: StructType) -> None:
    """Check that a file holds the columns as the table has them, or not at all."""
    with reading(path), filesystem.open_input_file(path) as source:
        footer = read_footer(source)
        calendar, metadata = footer.calendar, footer.metadata
        found = metadata.schema.to_arrow_schema()
    if calendar is not None:
        _refuse(f"{path} may hold dates of the Julian calendar", "legacyCalendar")
    if any(metadata.schema.column(i).physical_type == "INT96" for i in range(metadata.num_columns)):
        _refuse(f"{path} holds times in 96 bits", "int96")
    ours = bare_types(schema)
    folded = {name.lower(): name for name in ours}
    for field in found:
        name = folded.get(field.name.lower())
        if name is None:
            continue
        told = _type_of(field, path)
        if name != field.name or told is None or str(told) != ours[name]:
            _refuse(f"The column {name} is {ours[name]}, and in {path} it is {field.name}: {field.type}", "schema")


def _type_of(field: pa.Field, path: str) -> DataType | None:
    try:
        return schema_from_arrow(pa.schema([field])).fields[0].data_type
    except SchemaMismatchError:
        return None
