"""`optimize`: merges small files and rewrites files with many deleted rows. No row changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
from delta_orch.engines.select import EngineChoice
from delta_orch.engines.space_curve import MAX_COLUMNS, Curve
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.resolve import ensure_partition_predicate, resolve_predicate
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.protocol.arrow_building import int64_array, one_chunk, string_array, string_map_array
from delta_orch.protocol.schema_edit import Path, quote_path, resolve_path, type_at
from delta_orch.scan.scan import scan_of_files
from delta_orch.storage.base import Maintenance
from delta_orch.storage.prefetch import FAR_THREADS, FAR_WAIT_BYTES, map_ahead
from delta_orch.table.clustering import ensure_bounded, indexed_columns, logical_paths
from delta_orch.verbs.compaction import candidates, compaction_metrics, cut_bins
from delta_orch.writing.moved_rows import RowCopies, group_numbers, stage_moved
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write, WritePlan, run_plan
from delta_orch.writing.target import existing_target


def optimize(
    log: TableLog,
    snapshot: Snapshot,
    where: str | Expression | None,
    target_file_size_bytes: int | None,
    max_deleted_rows_ratio: float,
    engine: EngineChoice,
    options: CommitOptions,
    zorder_by: Sequence[str] | None = None,
    full: bool = False,
) -> CommitResult:
    """Merge files smaller than the target size, partition by partition, in one commit that changes no row.

    Deleted rows are not copied. A file with many deleted rows is rewritten even if there is no file to merge it with.
    The commit sets `dataChange` to false, so change feeds and streams ignore it. Concurrent appends never conflict, but
    a concurrent commit that removes a merged file does. With row tracking, rows keep their ids and commit versions. A
    second run does nothing, unless two files became so small that they now fit together.

    With `zorder_by`, and on a clustered table, `rewrite_along_curve` rewrites files so that similar rows share a file.

    Args:
        where: A predicate over partition columns. Other partitions do not change.
        target_file_size_bytes: By default `delta.targetFileSize`, or 128 MiB.
        max_deleted_rows_ratio: A file is rewritten if a greater share of its rows is deleted. With 1, no file is
            rewritten for this reason.

    Returns: `skipped` if there is nothing to merge. In that case nothing was written.

    Raises:
        InvalidRequestError: `target_file_size_bytes` or `max_deleted_rows_ratio` is invalid, or `zorder_by` is empty.
        InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or uses a column that is not a partition
            column.
        ConcurrentDeleteReadError, ConcurrentDeleteDeleteError: Another commit removed a merged file. The table has the
            other commit.
        MaintenanceNotAllowedError: The catalog maintains the table itself. Nothing was written.
    """
    log.store.ensure_may_maintain(Maintenance.REORGANIZE, "optimize()")
    if target_file_size_bytes is not None and not _is_positive(target_file_size_bytes):
        raise InvalidRequestError(f"target_file_size_bytes must be an integer from 1, not {target_file_size_bytes!r}")
    if not 0 <= max_deleted_rows_ratio <= 1:
        raise InvalidRequestError(f"max_deleted_rows_ratio must be between 0 and 1, not {max_deleted_rows_ratio!r}")
    if zorder_by is not None and not zorder_by:
        raise InvalidRequestError(
            "zorder_by is empty", remedy="Pass columns, such as zorder_by=['id'], or leave it out"
        )
    predicate = None
    if where is not None:
        predicate = resolve_predicate(where, snapshot.schema)
        ensure_partition_predicate(predicate, snapshot.partition_columns, "where")
    properties = existing_target(snapshot).table.properties
    size = target_file_size_bytes or properties.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
    parameters = {
        "predicate": "[]" if where is None else f"[{where if isinstance(where, str) else predicate}]",
        "targetSize": str(size),
        "zOrderBy": "[]",
        "auto": "false",
    }
    if zorder_by or full or snapshot.clustering:
        return rewrite_along_curve(
            log, snapshot, predicate, size, max_deleted_rows_ratio, zorder_by, full, parameters, engine, options
        )

    def compact(write: Write) -> dict[str, int] | None:
        bins = plan_compaction(snapshot, predicate, size, max_deleted_rows_ratio)
        return compaction_metrics(*write.move(bins)) if bins else None

    return run_plan(log, snapshot, WritePlan("OPTIMIZE", parameters, compact, options, engine=engine))


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def plan_compaction(
    snapshot: Snapshot,
    where: Expression | None,
    target_file_size_bytes: int,
    max_deleted_rows_ratio: float = 0.05,
) -> tuple[pa.Table, ...]:
    """Pack files below the target size, and files with many deleted rows, into bins of at most that size. This function
    reads nothing.

    Returns: The files of each bin. They belong to one partition and become one file. A bin of a single file has a file
    with deleted rows, which are not copied.
    """
    files, live_bytes, is_stale = candidates(snapshot, where, max_deleted_rows_ratio)
    chosen = pc.or_(is_stale, pc.less(live_bytes, target_file_size_bytes))
    files, live_bytes, is_stale = pc.filter(files, chosen), pc.filter(live_bytes, chosen), pc.filter(is_stale, chosen)
    keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
    return cut_bins(files, keys, live_bytes, target_file_size_bytes, pc.indices_nonzero(is_stale).to_pylist())


# `optimize(zorder_by=…)`, and `optimize()` of a clustered table: similar rows share files


CLUSTERING_PROVIDER = "liquid"
"""The `clusteringProvider` of clustered files. This package and the reference implementation use the same value, so
each can continue the work of the other."""
_CUBE, _COLUMNS, _CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"
_FILE_COLUMNS = (*REMOVED_FILE_COLUMNS, "stats")


def rewrite_along_curve(
    log: TableLog,
    snapshot: Snapshot,
    where: Expression | None,
    file_size_bytes: int,
    max_deleted_rows_ratio: float,
    zorder_by: Sequence[str] | None,
    full: bool,
    parameters: Mapping[str, object],
    engine: EngineChoice,
    options: CommitOptions,
) -> CommitResult:
    """Rewrite files so that each holds rows with similar values in some columns. Filters over these columns can then
    skip files. No row changes, and rows keep their ids.

    With `zorder_by`, all files of the partitions are rewritten along a Z-curve, at each call. A table with clustering
    columns is clustered along a Hilbert curve, or sorted if there is one column. Only files that are not clustered yet
    are rewritten, with `full` all files. New files are marked by `clusteringProvider` and tags, as in the reference
    implementation.

    Raises as `optimize`.
    """
    clustering = logical_paths(snapshot.schema, snapshot.clustering or ())
    if zorder_by:
        if clustering:
            raise InvalidRequestError(
                "zorder_by cannot be used for a clustered table",
                cause=f"The table is clustered by {', '.join(map(quote_path, clustering))}",
                remedy="Leave zorder_by out, or change the clustering columns: alter().cluster_by(…)",
            )
        paths: Sequence[Path] = _zorder_columns(snapshot, zorder_by)
    else:
        paths = clustering
    if full and not clustering:
        raise InvalidRequestError(
            "full is only for clustered tables",
            remedy="Leave full out, or cluster the table first: alter().cluster_by(…)",
        )
    columns = [Column(path) for path in paths]
    names = orjson.dumps([".".join(path) for path in paths]).decode()
    recorded_parameters = (
        {**parameters, "zOrderBy": names} if zorder_by else {**parameters, "clusterBy": names, "isFull": full}
    )

    def rewrite(write: Write) -> dict[str, int] | None:
        if zorder_by:
            files = snapshot.files(_FILE_COLUMNS, where).combine_chunks()
            groups = _by_partition(files, snapshot)
        else:
            files = _to_cluster(snapshot, names, max_deleted_rows_ratio, full=full)
            groups = [files] if files.num_rows else []
        if not groups:
            return None
        curve: Curve = "zorder" if zorder_by else "hilbert"
        marks = None if zorder_by else _marks(names)
        adds, removed = move_along_curve(write, groups, columns, curve, file_size_bytes, marks)
        return compaction_metrics(adds, removed) | {"numFilesSkipped": snapshot.num_files - removed.num_rows}

    return run_plan(log, snapshot, WritePlan("OPTIMIZE", recorded_parameters, rewrite, options, engine=engine))


def _zorder_columns(snapshot: Snapshot, names: Sequence[str]) -> list[Path]:
    ensure_sequence_of_names(names, "zorder_by")
    paths = [resolve_path(snapshot.schema, name) for name in names]
    if len(set(paths)) < len(paths) or len(paths) > MAX_COLUMNS:
        raise InvalidRequestError(
            "zorder_by has a column twice" if len(set(paths)) < len(paths) else "zorder_by has too many columns",
            remedy=f"Pass each column once, and at most {MAX_COLUMNS} columns. Two or three work best",
        )
    indexed = set(indexed_columns(snapshot.schema, snapshot.properties))
    for path in paths:
        if path[0] in snapshot.partition_columns:
            raise InvalidRequestError(
                f"{quote_path(path)} is a partition column",
                cause="All rows of a partition have the same value in this column",
                remedy="Leave the column out of zorder_by",
                column=".".join(path),
            )
        ensure_bounded(path, type_at(snapshot.schema, path))
        if path not in indexed:
            raise InvalidRequestError(
                f"No statistics are collected for {quote_path(path)}",
                cause="The column is beyond delta.dataSkippingNumIndexedCols, or not in delta.dataSkippingStatsColumns",
                remedy="Change that property. Without statistics, the order of rows could not skip files",
                column=".".join(path),
            )
    return paths


def _by_partition(files: pa.Table, snapshot: Snapshot) -> list[pa.Table]:
    if not files.num_rows or not snapshot.partition_columns:
        return [files] if files.num_rows else []
    keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
    keyed = pc.sort_by(pa.table({"key": keys, "row": int64_array(range(files.num_rows))}), "key")
    counts = pc.value_counts(keyed.column("key").combine_chunks()).field("counts").to_pylist()
    ordered = pc.take(files, keyed.column("row"))
    groups, start = [], 0
    for count in counts:
        groups.append(ordered.slice(start, count))
        start += count
    return groups


def files_to_cluster(snapshot: Snapshot, max_deleted_rows_ratio: float = 0.05) -> pa.Table:
    """Return the files that `optimize` of a clustered table rewrites: files that are not clustered, and files with many
    deleted rows. This function reads only the log."""
    files = snapshot.files(_FILE_COLUMNS).combine_chunks()
    _, _, is_stale = candidates(snapshot, None, max_deleted_rows_ratio)
    return pc.filter(files, pc.or_(one_chunk(pc.is_null(FileTable(files).clustering_provider)), is_stale))


def _to_cluster(snapshot: Snapshot, names: str, max_deleted_rows_ratio: float, *, full: bool) -> pa.Table:
    """Return `files_to_cluster`. With `full`, return all files, unless one run has clustered all of them by these
    columns already."""
    to_do = files_to_cluster(snapshot, max_deleted_rows_ratio)
    if not full:
        return to_do
    files = snapshot.files(_FILE_COLUMNS).combine_chunks()
    tags = [dict(tags or ()) for tags in FileTable(files).tags.to_pylist()]
    cubes = {tag.get(_CUBE) for tag in tags}
    is_done = len(cubes) == 1 and None not in cubes and all(tag.get(_COLUMNS) == names for tag in tags)
    return to_do if is_done else files


def _marks(names: str) -> dict[str, pa.Array]:
    tags = {_CUBE: str(uuid.uuid4()), _COLUMNS: names, _CURVE: "hilbert"}
    return {"clustering_provider": string_array([CLUSTERING_PROVIDER]), "tags": string_map_array([tags])}


# Moving similar rows into the same files


def move_along_curve(
    write: Write,
    groups: Sequence[pa.Table],
    columns: Sequence[Column],
    curve: Curve,
    file_size_bytes: int,
    marks: dict[str, pa.Array] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Write the rows of each group of files into new files, in the order of a curve through some columns. Readers see
    the same rows.

    Args:
        groups: Groups of files, each of one partition, with `REMOVED_FILE_COLUMNS` and `stats`.
        marks: Columns of `ADD_SCHEMA`, each with one value for all new files.

    Returns: The added files and the removed files.
    """
    snapshot = write.snapshot
    assert snapshot is not None
    copies = RowCopies(snapshot)
    spec = replace(copies.spec(write.target.write_spec()), keeps_order=True, target_file_size_bytes=file_size_bytes)

    def rewrite(files: pa.Table) -> pa.Table:
        counts = record_counts(files)
        rows = write.engine.scan(copies.plan(scan_of_files(snapshot, files.select(REMOVED_FILE_COLUMNS))))
        ordered = write.engine.along_curve(
            rows,
            columns,
            curve,
            num_rows=None if counts.null_count else pc.sum(counts).as_py(),
            num_files=max(1, -(-FileTable(files).size_bytes // file_size_bytes)),
        )
        return write.engine.write(ordered, spec)

    is_small = all(FileTable(files).size_bytes < FAR_WAIT_BYTES for files in groups)
    is_waiting = is_small and not snapshot.store.is_near and write.engine.name == "local"
    parts = list(map_ahead(rewrite, groups, FAR_THREADS) if is_waiting else map(rewrite, groups))
    adds = pa.concat_tables(parts)
    for name, value in (marks or {}).items():
        index = adds.schema.get_field_index(name)
        repeated = pc.take(value, pa.array([0] * adds.num_rows, pa.int64()))
        adds = adds.set_column(index, ADD_SCHEMA.field(name), repeated)
    removed = pa.concat_tables(groups).select(REMOVED_FILE_COLUMNS)
    keys = (group_numbers([files.num_rows for files in some]) for some in (parts, groups))
    stage_moved(write.transaction, adds, removed, tuple(keys))
    copies.note_in(write.transaction)
    return adds, removed
