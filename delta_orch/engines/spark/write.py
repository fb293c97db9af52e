"""The native write: Spark's Parquet writer, statistics from the footers it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.file_schema import CHANGE_DATA_DIRECTORY, columns_in_files, random_prefix
from delta_orch.engines.footer_statistics import read_footer_statistics, statistics_of_files
from delta_orch.engines.spark.adds import adds_table
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.file_columns import with_file_names
from delta_orch.engines.spark.host import DataFrame, SparkHost, WrittenFile
from delta_orch.engines.spark.partition_text import parse_partition_directory
from delta_orch.engines.spark.projection import WriteProjection, plan_projection
from delta_orch.engines.spark.scan_files import hadoop_root
from delta_orch.engines.spark.settings import ANALYSIS_SETTINGS, WRITE_OPTIONS, write_settings
from delta_orch.engines.spark.sql_text import escape_braces
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.protocol.data_path import encode_path
from delta_orch.protocol.schema import parse_schema

_WRITER_VERSIONS = {"1.0": "v1", "2.0": "v2"}
_CODECS = {"uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "lzo", "brotli", "zstd"}


def write_rows(host: SparkHost, rows: DataFrame, spec: WriteSpec) -> pa.Table:
    """Write all rows as new files; see `Engine.write`."""
    root_uri = hadoop_root(spec.store)
    codec = spec.compression.lower()
    if codec not in _CODECS:
        raise InvalidRequestError(
            f"There is no Parquet codec {spec.compression!r}", remedy=f"Use one of {', '.join(sorted(_CODECS))}"
        )
    page_version = spec.data_page_version
    settings = write_settings(spec.target_file_size_bytes, shred_variants=spec.shred_variants)
    with host.settings(ANALYSIS_SETTINGS), host.settings(settings):
        source = parse_schema(rows.schema.json())
        max_tasks = 1
        if spec.identities:
            max_tasks = _task_limit(host)
            # Narrow, and nothing at all where the rows come from no more tasks than that.
            rows = rows.coalesce(max_tasks)
        projection = plan_projection(source, spec, is_time_zone_pinned=host.is_time_zone_pinned, max_tasks=max_tasks)
        with spark_errors("evaluate the checks of this write", checks=projection.check_names, is_analysis=True):
            projected = host.analysed(_project(host.pinned(rows, ANALYSIS_SETTINGS), projection))
            named = with_file_names(
                projected, columns_in_files(spec), spec.column_mapping, projection.partition_columns
            )
            clustered = _clustered(named, spec, projection)
        with spark_errors(f"write to {spec.store.uri}", checks=projection.check_names):
            files = host.write_files(
                host.pinned(clustered, settings),
                spec.store,
                root_uri,
                _directory(spec),
                projection.partition_columns,
                {**WRITE_OPTIONS, "compression": codec, "parquet.writer.version": _WRITER_VERSIONS[page_version]},
            )
    return _adds(files, spec, is_time_zone_pinned=host.is_time_zone_pinned)


def _task_limit(host: SparkHost) -> int:
    """As many tasks as the session uses after a shuffle."""
    setting = str(host.session.conf.get("spark.sql.shuffle.partitions"))
    return int(setting) if setting.isdigit() and int(setting) else 200


def _directory(spec: WriteSpec) -> str:
    """Where below the root the files of this write go, "" for directly there. A random prefix is one for all of them:
    Spark's committer makes the names below it."""
    if spec.change_type is not None:
        return CHANGE_DATA_DIRECTORY
    return "" if spec.random_prefix_length is None else random_prefix(spec.random_prefix_length)


def _project(rows: DataFrame, projection: WriteProjection) -> DataFrame:
    for step in projection.steps:
        rows = rows.selectExpr(*step)
    return rows


def _clustered(rows: DataFrame, spec: WriteSpec, projection: WriteProjection) -> DataFrame:
    """Bring the rows of a partition together, or each task would leave a file in each of them.

    A rebalance, unlike a repartition, splits what is large and merges what is small, by the sizes that the shuffle
    has measured.
    """
    if not spec.optimize_write or (not projection.partition_columns and spec.target_file_size_bytes is None):
        return rows
    columns = ", ".join(map(quote_identifier, projection.partition_columns))
    hint = f"REBALANCE({columns})" if columns else "REBALANCE"
    return rows.sparkSession.sql(f"SELECT /*+ {escape_braces(hint)} */ * FROM {{rows}}", rows=rows)


def _adds(files: Sequence[WrittenFile], spec: WriteSpec, *, is_time_zone_pinned: bool) -> pa.Table:
    """Spark writes an empty file where there are no rows at all: it is left behind, unnamed."""
    paths = [encode_path(file.path) for file in files]
    filesystem, _ = spec.store.data_filesystem()
    resolved = [spec.store.resolve(path) for path in paths]
    footers = read_footer_statistics(filesystem, resolved, statistics_of_files(spec))
    directories = [file.path.rpartition("/")[0] for file in files]
    values = _values_by_directory(set(directories), spec, is_time_zone_pinned=is_time_zone_pinned)
    table = adds_table(
        paths=paths,
        partition_values=[values[directory] for directory in directories],
        sizes=[file.size for file in files],
        modification_times=[file.modification_time for file in files],
        stats=footers.column("stats"),
    )
    return table.filter(pc.greater(footers.column("num_records"), 0))


def _values_by_directory(
    directories: set[str], spec: WriteSpec, *, is_time_zone_pinned: bool
) -> dict[str, dict[str, str | None]]:
    fields = [f for name in spec.partition_columns if (f := spec.schema.find(name)) is not None]
    types = [f.data_type for f in fields]
    names = spec.partition_names
    return {
        directory: dict(
            zip(
                names, parse_partition_directory(directory, types, is_time_zone_pinned=is_time_zone_pinned), strict=True
            )
        )
        for directory in directories
    }
