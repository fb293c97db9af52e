"""`optimize`: fewer, larger files with the same rows, and none that are mostly deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import ensure_partition_predicate, resolve_predicate
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.verbs.file_bins import candidates, compaction_metrics, cut_bins
from delta_orch.writing.plan import Write, WritePlan, run_plan
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

    Rows that deletion vectors mark are left behind; files with many of them are rewritten even where there is
    nothing to merge them with. The commit says `dataChange` false, so change feeds and streams ignore it. Concurrent
    appends never conflict; a concurrent commit that removes one of the merged files does. Where row tracking is
    enabled, rows keep their ids and commit versions. Run again, it finds nothing left to do unless the rewriting shrank
    files so far that two of them now fit together.

    With `zorder_by`, and on a clustered table, files are rewritten so that rows near each other share a file: see
    `verbs.curve_rewrite`.

    Args:
        where: A predicate over partition columns; other partitions are left alone.
        target_file_size_bytes: By default `delta.targetFileSize`, or 128 MiB.
        max_deleted_rows_ratio: Files of which a greater part than this is deleted are rewritten; 1 leaves them.

    Returns: `skipped` where there is nothing to merge: then nothing was written.

    Raises:
        InvalidRequestError: `target_file_size_bytes` or `max_deleted_rows_ratio` is invalid; `zorder_by` names nothing.
        InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or reads another column.
        ConcurrentDeleteReadError, ConcurrentDeleteDeleteError: A merged file is gone. The table holds the other commit.
    """
    if target_file_size_bytes is not None and not _is_positive(target_file_size_bytes):
        raise InvalidRequestError(f"target_file_size_bytes must be an integer from 1, not {target_file_size_bytes!r}")
    if not 0 <= max_deleted_rows_ratio <= 1:
        raise InvalidRequestError(f"max_deleted_rows_ratio must be between 0 and 1, not {max_deleted_rows_ratio!r}")
    if zorder_by is not None and not zorder_by:
        raise InvalidRequestError("zorder_by names no column", remedy="Name columns, or leave it out")
    predicate = None
    if where is not None:
        predicate = resolve_predicate(where, snapshot.schema)
        ensure_partition_predicate(predicate, snapshot.partition_columns, "where")
    properties = existing_target(snapshot).properties
    size = target_file_size_bytes or properties.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
    parameters = {
        "predicate": "[]" if where is None else f"[{where if isinstance(where, str) else predicate}]",
        "targetSize": str(size),
        "zOrderBy": "[]",
        "auto": "false",
    }
    if zorder_by or full or snapshot.clustering:
        from delta_orch.verbs.curve_rewrite import rewrite_along_curve

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
    """Pack the files below the target size, and those with many deleted rows, into bins of at most that size. Pure.

    Returns: The files of each bin, which are of one partition and become one file. A bin of a single file holds one
        with deleted rows, which are left behind.
    """
    files, live_bytes, is_stale = candidates(snapshot, where, max_deleted_rows_ratio)
    chosen = pc.or_(is_stale, pc.less(live_bytes, target_file_size_bytes))
    files, live_bytes, is_stale = pc.filter(files, chosen), pc.filter(live_bytes, chosen), pc.filter(is_stale, chosen)
    keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
    return cut_bins(files, keys, live_bytes, target_file_size_bytes, pc.indices_nonzero(is_stale).to_pylist())
