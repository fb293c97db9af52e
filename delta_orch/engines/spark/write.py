"""Writes files: with Spark's Parquet writer and statistics from its footers, or with Arrow in Spark's tasks."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.file_schema import FileColumns, columns_in_files, has_nested_ids, random_prefix
from delta_orch.engines.footer_statistics import read_footer_statistics, statistics_of_files
from delta_orch.engines.local.file_writer import WrittenFile, add_table
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.errors import OF_WORKERS, spark_errors
from delta_orch.engines.spark.frames import arrow_to_frame, map_in_arrow, spark_schema
from delta_orch.engines.spark.host import (
    ANALYSIS_SETTINGS,
    WRITE_OPTIONS,
    SparkHost,
    write_settings,
)
from delta_orch.engines.spark.in_tasks import (
    RESULT_DDL,
    TASK_SCHEMA,
    adds_of_results,
    run_rewrite_tasks,
    task_writer,
    with_variants,
)
from delta_orch.engines.spark.scan import scan_rows
from delta_orch.engines.spark.scan_files import hadoop_root, physical_schema, prepare_scan
from delta_orch.engines.spark.sql_text import escape_braces, field_of, with_metadata
from delta_orch.engines.spark.write_columns import (
    SelectList,
    WriteProjection,
    is_known_before_numbers,
    parse_partition_directory,
    plan_projection,
)
from delta_orch.errors import InvalidRequestError, MissingDependencyError
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.arrow_building import int64_range
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import ArrayType, MapType, StructType, holds_geo
from delta_orch.table.column_mapping import ColumnMappingMode, field_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_WRITER_VERSIONS = {"1.0": "v1", "2.0": "v2"}
_CODECS = {"uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "lzo", "brotli", "zstd"}
_SPARK_ID = "parquet.field.id"
_DEFAULT_TASKS = 200
_MAX_REWRITE_TASKS = 256
_FOR_IDS = "Field ids of array elements and map values are written by Arrow, inside Spark's tasks"
_FOR_SHAPES = "Shapes are written by Arrow, inside Spark's tasks, with the boxes around them"
_FOR_VARIANTS = "Variants given as structs of metadata and value are checked and converted in Spark's Python workers"


def write_rows(host: SparkHost, rows: DataFrame, spec: WriteSpec) -> pa.Table:
    """Write all rows as new files. See `Engine.write`."""
    hadoop_root(spec.store)
    codec = spec.compression.lower()
    if codec not in _CODECS:
        raise InvalidRequestError(
            f"{spec.compression!r} is not a Parquet codec", remedy=f"Use one of {', '.join(sorted(_CODECS))}"
        )
    rows = with_variants(rows, spec.written_schema)
    columns = columns_in_files(spec)
    # Spark does not write ids for elements, keys and values, but Arrow does.
    has_shapes = holds_geo(columns.logical)
    in_tasks = has_shapes or has_nested_ids(columns, spec.column_mapping)
    settings = write_settings(spec.target_file_size_bytes, shred_variants=spec.shred_variants)
    with host.settings(ANALYSIS_SETTINGS), host.settings(settings):
        max_tasks = _task_limit(host, spec)
        source = parse_schema(rows.schema.json())
        projection = plan_projection(source, spec, in_tasks=in_tasks, max_tasks=max_tasks)
        with spark_errors("evaluate the checks of this write", checks=projection.check_names, is_analysis=True):
            ready = host.analysed(_project(host.pinned(rows, ANALYSIS_SETTINGS), projection, spec, max_tasks))
            if not in_tasks:
                ready = _with_file_names(ready, columns, spec.column_mapping, projection.partition_columns)
            if not projection.numbered:
                ready = _clustered(ready, spec, projection.partition_columns)
            ready = host.pinned(ready, settings)
        reason = _FOR_SHAPES if has_shapes else _FOR_IDS if in_tasks else _FOR_VARIANTS
        # A value that does not fit its column is an error of the rows, like a constraint violation.
        with spark_errors(
            f"write to {spec.store.uri}", checks=projection.check_names, is_query=True, needs_package=reason
        ):
            if in_tasks:
                # Rows that are already complete and checked are not processed again.
                plain = replace(spec, checks=(), defaults=(), generated=(), identities=())
                results = map_in_arrow(ready, task_writer(plain), RESULT_DDL).toArrow()
            else:
                options = {
                    **WRITE_OPTIONS,
                    **spec.store.hadoop_options(),
                    "compression": codec,
                    "parquet.writer.version": _WRITER_VERSIONS[spec.data_page_version],
                }
                names = projection.partition_columns
                files = host.write_files(ready, spec.store, _directory(spec), names, options)
    return adds_of_results(results) if in_tasks else _adds(files, spec)


def rewrite_files(host: SparkHost, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
    """Write new files in the order of the plans. See `Engine.rewrite`. No expression is evaluated, so rows do not pass
    through the JVM. Each plan is one task.

    Raises MissingFileError, StorageError: Nothing was committed. New files belong to no commit.
    """
    for plan in plans:
        prepare_scan(plan, physical_schema(plan))
    hadoop_root(spec.store)
    if not plans:
        return ADD_SCHEMA.empty_table()
    pickled = pa.array([pickle.dumps((plan, spec)) for plan in plans], pa.binary())
    tasks = pa.Table.from_arrays([int64_range(0, len(plans)), pickled], names=list(TASK_SCHEMA.names))
    try:
        with spark_errors("rewrite files", needs_package="Files are rewritten in Spark's tasks"):
            frame = arrow_to_frame(host.session, tasks, TASK_SCHEMA).repartition(min(len(plans), _MAX_REWRITE_TASKS))
            results = frame.mapInArrow(run_rewrite_tasks, RESULT_DDL).toArrow()
    except MissingDependencyError as e:
        if e.context.get("package") not in OF_WORKERS:
            raise
        logger.warning("%s: Spark itself rewrites the files, which takes longer", e.problem)
        return pa.concat_tables([write_rows(host, scan_rows(host, plan).coalesce(1), spec) for plan in plans])
    return adds_of_results(results)


def _task_limit(host: SparkHost, spec: WriteSpec) -> int:
    """Return the number of tasks that share identity values: the number that the session uses after a shuffle."""
    if not spec.identities:
        return 1
    setting = str(host.session.conf.get("spark.sql.shuffle.partitions"))
    return int(setting) if setting.isdigit() and int(setting) else _DEFAULT_TASKS


def _project(rows: DataFrame, projection: WriteProjection, spec: WriteSpec, max_tasks: int) -> DataFrame:
    """Apply the SELECT lists of a projection, one over the other. `WriteProjection.numbered` comes between them."""
    rows = _selected(rows, projection.filled)
    if projection.numbered:
        if is_known_before_numbers(spec):
            rows = _clustered(rows, spec, spec.partition_columns)
        # If the rows come from no more tasks than that, no shuffle is needed.
        rows = _selected(rows.coalesce(max_tasks), projection.numbered)
    return rows.selectExpr(*projection.written)


def _selected(rows: DataFrame, lists: Iterable[SelectList]) -> DataFrame:
    return reduce(lambda selected, columns: selected.selectExpr(*columns), lists, rows)


def _clustered(rows: DataFrame, spec: WriteSpec, partition_columns: Sequence[str]) -> DataFrame:
    """Bring the rows of a partition together. Otherwise each task would write a file in each partition.

    Unlike a repartition, a rebalance splits large partitions and merges small ones, by the measured sizes of the
    shuffle.
    """
    if spec.keeps_order or not spec.optimize_write or (not partition_columns and spec.target_file_size_bytes is None):
        return rows
    columns = ", ".join(map(quote_identifier, partition_columns))
    hint = f"REBALANCE({columns})" if columns else "REBALANCE"
    return rows.sparkSession.sql(f"SELECT /*+ {escape_braces(hint)} */ * FROM {{rows}}", rows=rows)


def _with_file_names(
    rows: DataFrame, columns: FileColumns, mode: ColumnMappingMode, others: Sequence[str]
) -> DataFrame:
    """Return the columns of files with physical names and field ids, and `others` unchanged (PROTOCOL, "Writer
    Requirements for Column Mapping"). Spark uses name and metadata of each column and field."""
    if mode is ColumnMappingMode.NONE:
        return rows
    ids = with_metadata(
        columns.physical(mode), lambda f: {} if (number := field_id(f)) is None else {_SPARK_ID: number}
    )
    selected = []
    for logical, field in zip(columns.logical, spark_schema(ids), strict=True):
        column = rows[quote_identifier(logical.name)]
        if isinstance(logical.data_type, StructType | ArrayType | MapType):
            # A cast between types that differ only in names keeps every value.
            column = column.cast(field.dataType)
        selected.append(column.alias(field.name, metadata=field.metadata))
    return rows.select(*selected, *(rows[quote_identifier(name)] for name in others))


def _directory(spec: WriteSpec) -> str:
    """Return the directory of this write's files below the root, "" for the root. All files share one random prefix,
    because Spark's committer chooses the names below it."""
    prefix = "" if spec.random_prefix_length is None else random_prefix(spec.random_prefix_length)
    return "/".join(part for part in (spec.directory, prefix) if part)


def _adds(paths: Sequence[str], spec: WriteSpec) -> pa.Table:
    """Return the files with rows as `ADD_SCHEMA`. If there are no rows, Spark writes an empty file, which belongs to no
    commit."""
    filesystem, _ = spec.store.data_filesystem()
    resolved = [spec.store.resolve(encode_path(path)) for path in paths]
    tight = spec.statistics.says_tight
    footers = read_footer_statistics(filesystem, resolved, statistics_of_files(spec), says_tight=tight)
    directories = [path.rpartition("/")[0] for path in paths]
    types = [field_of(spec.schema, name).data_type for name in spec.partition_columns]
    values = {directory: parse_partition_directory(directory, types) for directory in set(directories)}
    files = [
        WrittenFile(path, values[directory], footer["size"], footer["modification_time"], footer["stats"])
        for path, directory, footer in zip(paths, directories, footers.to_pylist(), strict=True)
        if footer["num_records"]
    ]
    return add_table(files, spec.partition_names)
