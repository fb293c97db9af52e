"""The files and partitions of a version as typed columns, and its number of rows if statistics are complete."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import CorruptDataError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, FileTable, live_row_counts
from delta_orch.log.files.partition_columns import distinct_rows, typed_partitions
from delta_orch.log.files.stats_columns import parse_stats, stats_type
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import one_chunk, string_array
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.types import StructType

_COLUMNS = ("path", "size", "modification_time", "partition_values", "stats", "deletion_vector")
_NOTHING = pa.struct([])


def list_files(snapshot: Snapshot, where: Expression | None, *, absolute: bool) -> pa.Table:
    """The live files of a version, one row each. See `TableSnapshot.list_files`."""
    files = snapshot.files(_COLUMNS, where).combine_chunks()
    stats = _typed_statistics(snapshot, files)
    partitions = typed_partitions(files, snapshot.schema, snapshot.partition_columns)
    vectors = one_chunk(FileTable(files).deletion_vector)
    marked = pc.struct_field(vectors, "cardinality")
    if pc.is_valid(vectors).true_count > len(marked) - marked.null_count:
        raise CorruptDataError("A deletion vector does not say how many rows it marks")
    columns = {
        "path": _paths(snapshot, FileTable(files).path.to_pylist(), absolute),
        "size": one_chunk(FileTable(files).size),
        "modification_time": pc.cast(one_chunk(FileTable(files).modification_time), pa.timestamp("ms", "UTC")),
        "partition": _as_struct(partitions, files.num_rows),
        "num_records": stats.get("numRecords", pa.nulls(files.num_rows, pa.int64())),
        "num_deleted": pc.coalesce(marked, 0),
        "tight_bounds": stats.get("tightBounds", pa.nulls(files.num_rows, pa.bool_())),
        "min": stats.get("minValues", _no_fields(files.num_rows)),
        "max": stats.get("maxValues", _no_fields(files.num_rows)),
        "null_count": stats.get("nullCount", _no_fields(files.num_rows)),
    }
    return pa.table(columns)


def list_partitions(snapshot: Snapshot) -> pa.Table:
    """The distinct partitions of a version. See `TableSnapshot.partitions`."""
    names = list(snapshot.partition_columns)
    if not names:
        return pa.table({})
    return distinct_rows(typed_partitions(snapshot.files(["partition_values"]), snapshot.schema, names))


def _paths(snapshot: Snapshot, spelled: list[str], absolute: bool) -> pa.Array:
    return string_array([snapshot.store.resolve(path) if absolute else decode_path(path) for path in spelled])


def _typed_statistics(snapshot: Snapshot, files: pa.Table) -> dict[str, pa.Array]:
    table = snapshot.configuration
    also = snapshot.clustering_columns or ()
    physical, logical = (
        stats_type(table.schema, table.partition_columns, table.properties, mode, also)
        for mode in (table.column_mapping, type(table.column_mapping).NONE)
    )
    parsed = _renamed(parse_stats(FileTable(files).stats, physical), logical)
    # Not `field`: a file without statistics has no value in any of them.
    return {field.name: pc.struct_field(parsed, [field.name]) for field in logical}


def _renamed(values: pa.Array, renamed_type: pa.DataType) -> pa.Array:
    """The same structs under the names of `renamed_type`, which has the same fields in the same order."""
    if not pa.types.is_struct(renamed_type):
        return values
    children = [
        _renamed(pc.struct_field(values, [i]), renamed_type.field(i).type) for i in range(renamed_type.num_fields)
    ]
    return pa.StructArray.from_arrays(children, fields=list(renamed_type), mask=pc.is_null(values))


def _as_struct(columns: pa.Table, num_rows: int) -> pa.Array:
    if not columns.num_columns:
        return _no_fields(num_rows)
    return pa.StructArray.from_arrays([one_chunk(c) for c in columns.columns], fields=list(columns.schema))


def _no_fields(num_rows: int) -> pa.Array:
    return pa.array([{}] * num_rows, _NOTHING)


def bare_types(schema: StructType) -> dict[str, str]:
    """The type of each column as text, without nullability."""
    return {field.name: str(field.data_type) for field in schema}


_COUNT = "delta_orch_num_rows"


def count_rows(snapshot: Snapshot, plan: ScanPlan) -> int:
    """See `Scan.count`."""
    plan.ensure_each_once()
    if plan.arrow_filter is not None or not _is_of_partitions(plan):
        return _read(plan)
    counts = live_row_counts(snapshot.files(["path", *ROW_COUNT_COLUMNS], plan.where))
    unknown = pc.filter(plan.files, pc.is_null(counts))
    counted = 0 if not unknown.num_rows else _read(replace(plan, files=unknown))
    counted_files = pc.filter(plan.files, pc.is_valid(counts))
    return counted + _counted(snapshot, replace(plan, files=counted_files), pc.drop_null(counts))


def _is_of_partitions(plan: ScanPlan) -> bool:
    columns = () if plan.where is None else columns_of(plan.where)
    return all(len(column.path) == 1 and column.path[0] in plan.partition_columns for column in columns)


def _counted(snapshot: Snapshot, plan: ScanPlan, counts: pa.Array) -> int:
    if plan.where is not None:
        # Each file stands for its rows: their partition values are the same.
        partitions = typed_partitions(plan.files, snapshot.schema, plan.partition_columns)
        values = pa.table([*partitions.columns, counts], names=[*partitions.column_names, _COUNT])
        from delta_orch.engines.local.engine import LocalEngine

        engine = LocalEngine()
        counts = one_chunk(engine.to_arrow(engine.filter(engine.relation(values), plan.where)).column(_COUNT))
    return int(pc.sum(counts).as_py() or 0)


def _read(plan: ScanPlan) -> int:
    from delta_orch.engines.local.engine import LocalEngine

    engine = LocalEngine()
    return sum(batch.num_rows for batch in engine.to_reader(engine.scan(replace(plan, columns=(), output=None))))
