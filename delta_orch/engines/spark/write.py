"""The native write: Spark's Parquet writer, statistics from the footers it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.file_schema import columns_in_files, has_nested_ids, random_prefix
from delta_orch.engines.footer_statistics import read_footer_statistics, statistics_of_files
from delta_orch.engines.spark.adds import adds_table
from delta_orch.engines.spark.errors import package_on_workers, spark_errors
from delta_orch.engines.spark.file_columns import with_file_names
from delta_orch.engines.spark.host import DataFrame, SparkHost, WrittenFile
from delta_orch.engines.spark.partition_text import parse_partition_directory
from delta_orch.engines.spark.projection import plan_projection
from delta_orch.engines.spark.rows_to_write import brought_together, project, task_limit
from delta_orch.engines.spark.scan_files import hadoop_root
from delta_orch.engines.spark.settings import ANALYSIS_SETTINGS, WRITE_OPTIONS, write_settings
from delta_orch.engines.spark.variant_input import PURPOSE, with_variants
from delta_orch.engines.spark.write_in_tasks import write_in_tasks
from delta_orch.errors import InvalidRequestError
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
    rows = with_variants(rows, spec.written_schema)
    if has_nested_ids(columns_in_files(spec), spec.column_mapping):
        # Spark gives no ids to elements, keys and values; Arrow does.
        return write_in_tasks(host, rows, spec)
    page_version = spec.data_page_version
    settings = write_settings(spec.target_file_size_bytes, shred_variants=spec.shred_variants)
    with host.settings(ANALYSIS_SETTINGS), host.settings(settings):
        source = parse_schema(rows.schema.json())
        max_tasks = task_limit(host, spec)
        projection = plan_projection(source, spec, is_time_zone_pinned=host.is_time_zone_pinned, max_tasks=max_tasks)
        with spark_errors("evaluate the checks of this write", checks=projection.check_names, is_analysis=True):
            projected = host.analysed(project(host.pinned(rows, ANALYSIS_SETTINGS), projection, spec, max_tasks))
            named = with_file_names(
                projected, columns_in_files(spec), spec.column_mapping, projection.partition_columns
            )
            ready = brought_together(named, projection, spec, projection.partition_columns)
        with spark_errors(f"write to {spec.store.uri}", checks=projection.check_names), package_on_workers(PURPOSE):
            files = host.write_files(
                host.pinned(ready, settings),
                spec.store,
                root_uri,
                _directory(spec),
                projection.partition_columns,
                {
                    **WRITE_OPTIONS,
                    **spec.store.hadoop_options(),
                    "compression": codec,
                    "parquet.writer.version": _WRITER_VERSIONS[page_version],
                },
            )
    return _adds(files, spec, is_time_zone_pinned=host.is_time_zone_pinned)


def _directory(spec: WriteSpec) -> str:
    """Where below the root the files of this write go, "" for directly there. A random prefix is one for all of them:
    Spark's committer makes the names below it."""
    prefix = "" if spec.random_prefix_length is None else random_prefix(spec.random_prefix_length)
    return "/".join(part for part in (spec.directory, prefix) if part)


def _adds(files: Sequence[WrittenFile], spec: WriteSpec, *, is_time_zone_pinned: bool) -> pa.Table:
    """Spark writes an empty file where there are no rows at all: it is left behind, unnamed."""
    paths = [encode_path(file.path) for file in files]
    filesystem, _ = spec.store.data_filesystem()
    resolved = [spec.store.resolve(path) for path in paths]
    footers = read_footer_statistics(
        filesystem, resolved, statistics_of_files(spec), says_tight=spec.statistics.says_tight
    )
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
