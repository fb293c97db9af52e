"""Chooses the files to rewrite together, and describes the commit.

With auto compaction (`delta.autoOptimize.autoCompact`), a write that leaves many small files is followed by a commit
that merges them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import MaintenanceNotAllowedError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.file_columns import FileTable, record_counts
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, Committed
from delta_orch.protocol.arrow_building import all_booleans, int64_array, one_chunk
from delta_orch.storage.base import Maintenance
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write, WritePlan, run_plan

# Row ratios are compared as integers, in parts of this number.
_PARTS = 1_000_000


def cut_bins(
    files: pa.Table, partition_keys: pa.Array, live_bytes: pa.Array, limit_bytes: int, stale: Collection[int]
) -> tuple[pa.Table, ...]:
    """Group files of one partition into bins of at most `limit` bytes. A bin has at least two files, or one `stale`
    file. This function reads nothing.

    Args:
        stale: Positions in `files` of the files that must be rewritten.
    """
    if not files.num_rows:
        return ()
    rows = int64_array(range(files.num_rows))
    keyed = pa.table({"partition": partition_keys, "live_bytes": live_bytes, "row": rows})
    keyed = pc.sort_by(keyed, "partition", "live_bytes", "row")
    # After sorting, the files of a bin are neighbours, so each bin is a slice and nothing is copied.
    in_order = pc.take(files.combine_chunks(), keyed.column("row"))
    partitions = pc.dictionary_encode(keyed.column("partition").combine_chunks())
    marked = frozenset(stale)
    moved = frozenset(place for place, row in enumerate(keyed.column("row").to_pylist()) if row in marked)
    sizes = keyed.column("live_bytes").to_pylist()
    bins = pack_bins(partitions.indices.to_pylist(), sizes, limit_bytes, moved)
    return tuple(in_order.slice(start, stop - start) for start, stop in bins)


def candidates(
    snapshot: Snapshot, where: Expression | None, max_deleted_rows_ratio: float
) -> tuple[pa.Table, pa.Array, pa.Array]:
    """Return the candidate files, the bytes of their live rows, and whether too many rows are deleted."""
    # `where` uses only partition columns, so a file that may match does match.
    if not snapshot.configuration.supports("deletionVectors"):
        files = snapshot.files(REMOVED_FILE_COLUMNS, where).combine_chunks()
        return files, one_chunk(FileTable(files).size), all_booleans(False, files.num_rows)
    files = snapshot.files((*REMOVED_FILE_COLUMNS, "stats"), where).combine_chunks()
    size = one_chunk(FileTable(files).size)
    deleted = pc.coalesce(pc.struct_field(one_chunk(FileTable(files).deletion_vector), "cardinality"), 0)
    # A file without a row count is treated as full. A file with a deletion vector always has a row count.
    rows = pc.coalesce(record_counts(files), 0)
    live_bytes = pc.if_else(
        pc.and_(pc.greater(deleted, 0), pc.greater(rows, 0)),
        pc.multiply(pc.divide(size, pc.max_element_wise(rows, 1)), pc.subtract(rows, deleted)),
        size,
    )
    most = pc.multiply(rows, round(max_deleted_rows_ratio * _PARTS))
    is_stale = pc.and_(pc.greater(pc.multiply(deleted, _PARTS), most), pc.greater(rows, 0))
    return files.select(REMOVED_FILE_COLUMNS), live_bytes, is_stale


def pack_bins(
    partitions: Sequence[int], sizes: Sequence[int], limit_bytes: int, stale: Collection[int] = ()
) -> Iterator[tuple[int, int]]:
    """Cut a list that is sorted by partition and size into runs. A run has files of one partition and at most `limit`
    bytes. It has at least two files, or one `stale` file.

    Yields: `(start, stop)` of each run. Because sizes ascend, greedy cutting leaves at most one file per partition that
    would still fit with a neighbour.
    """
    start, total = 0, 0
    for i, (partition, size) in enumerate(zip(partitions, sizes, strict=True)):
        if i > start and (partition != partitions[start] or total + size > limit_bytes):
            if i - start >= 2 or start in stale:
                yield start, i
            start, total = i, 0
        total += size
    if len(sizes) - start >= 2 or start in stale:
        yield start, len(sizes)


def compaction_metrics(adds: pa.Table, removed: pa.Table) -> dict[str, int]:
    """Return the `operationMetrics` of OPTIMIZE, under the names of the reference implementation."""
    sizes = sorted(FileTable(adds).size.to_pylist())
    removed_bytes = FileTable(removed).size_bytes
    metrics = {
        "numAddedFiles": adds.num_rows,
        "numAddedBytes": sum(sizes),
        "numRemovedFiles": removed.num_rows,
        "numRemovedBytes": removed_bytes,
        "numDeletionVectorsRemoved": removed.num_rows - FileTable(removed).deletion_vector.null_count,
    }
    if sizes:
        last = len(sizes) - 1
        metrics |= {
            "minFileSize": sizes[0],
            "p25FileSize": sizes[last // 4],
            "p50FileSize": sizes[last // 2],
            "p75FileSize": sizes[last * 3 // 4],
            "maxFileSize": sizes[-1],
        }
    return metrics


_LOGGER = logging.getLogger(__name__)

# The defaults of the reference implementation. There, only settings of the session can change them.
MIN_FILES = 50
MAX_FILE_BYTES = 128 * 1024 * 1024
_MAX_DELETED_ROWS_RATIO = 0.05
_OPERATIONS = frozenset({"WRITE", "DELETE", "UPDATE", "MERGE", "CREATE OR REPLACE TABLE AS SELECT"})
"""Operations that write rows. Commits that only move rows do not start another compaction."""


def compact_after(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """Merge the small files of the partitions that a commit wrote to, if one of them has at least `MIN_FILES` files.

    A file is small if it has less than half of `MAX_FILE_BYTES`. The commit is an `OPTIMIZE` with `auto` true in its
    parameters. It changes no row. Rows are rewritten in this process, whichever engine wrote them. Merged files of a
    clustered table count as not clustered until `optimize()`.

    Raises no error, because the write is committed already. A failure is logged, and the next write tries again.
    """
    try:
        if commit.operation in _OPERATIONS and commit.table.properties.auto_compact not in (None, "false"):
            log.store.ensure_may_maintain(Maintenance.REORGANIZE, "Compaction after a write")
            _compact(log, read, commit)
    except MaintenanceNotAllowedError as e:
        _LOGGER.info("%s", e)
    except Exception:
        _LOGGER.warning("Could not compact %s after version %d", log.store.uri, commit.version, exc_info=True)


def _compact(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    added = [files for files in commit.actions.adds if files.num_rows]
    if not added:
        return
    snapshot = log.snapshot() if read is None else log.advance(read)
    bins = _bins(snapshot, pa.concat_tables([files.select(["partition_values"]) for files in added]))
    if not bins:
        return

    def compact(write: Write) -> dict[str, int]:
        return compaction_metrics(*write.move(bins))

    parameters = {"predicate": "[]", "targetSize": str(MAX_FILE_BYTES), "zOrderBy": "[]", "auto": "true"}
    run_plan(log, snapshot, WritePlan("OPTIMIZE", parameters, compact, CommitOptions()))


def _bins(snapshot: Snapshot, added: pa.Table) -> tuple[pa.Table, ...]:
    files, live_bytes, is_stale = candidates(snapshot, None, _MAX_DELETED_ROWS_RATIO)
    keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
    written = file_partition_keys(added, snapshot.schema, snapshot.partition_columns)
    is_small = pc.or_(is_stale, pc.less(live_bytes, MAX_FILE_BYTES // 2))
    counted = pc.value_counts(pc.filter(keys, pc.and_(is_small, pc.is_in(keys, value_set=written))))
    many = pc.filter(counted.field("values"), pc.greater_equal(counted.field("counts"), MIN_FILES))
    chosen = pc.and_(is_small, pc.is_in(keys, value_set=many))
    stale = pc.indices_nonzero(pc.filter(is_stale, chosen)).to_pylist()
    return cut_bins(
        pc.filter(files, chosen), pc.filter(keys, chosen), pc.filter(live_bytes, chosen), MAX_FILE_BYTES, stale
    )
