"""`optimize`: fewer, larger files with the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import Engine
from delta_orch.expressions.nodes import Expression
from delta_orch.log.arrow_building import bool_array, int64_array
from delta_orch.log.snapshot import Snapshot
from delta_orch.log.table_log import TableLog
from delta_orch.log.transaction import CommitResult, Transaction
from delta_orch.operations.overwrite import REMOVED_FILE_COLUMNS
from delta_orch.operations.partition_keys import partition_keys
from delta_orch.operations.request import (
    CommitOptions,
    TableDefinition,
    ensure_partition_predicate,
    resolve_predicate,
)
from delta_orch.operations.scan import scan_of_files
from delta_orch.operations.target import existing_target

DEFAULT_TARGET_FILE_SIZE_BYTES = 128 * 1024 * 1024
"""Where neither the caller nor `delta.targetFileSize` says otherwise."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Which files to merge: each bin holds files of one partition that become one."""

    bins: tuple[pa.Table, ...]

    @property
    def num_files(self) -> int:
        return sum(b.num_rows for b in self.bins)


def optimize(
    table_log: TableLog,
    snapshot: Snapshot,
    engine: Engine,
    *,
    where: str | Expression | None = None,
    target_file_size_bytes: int | None = None,
    options: CommitOptions,
) -> CommitResult | None:
    """Merge files smaller than the target size, partition by partition, in one commit that changes no row.

    The commit says `dataChange` false, so change feeds and streams ignore it. Concurrent appends never conflict; a
    concurrent commit that removes one of the merged files does. Run again, it finds nothing left to do unless the
    rewriting shrank files so far that two of them now fit together.

    Args:
        where: A predicate over partition columns; other partitions are left alone.

    Returns: None where there is nothing to merge: then nothing was written.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at another column.
        ConcurrentDeleteReadError, ConcurrentDeleteDeleteError: A merged file is gone. The table holds the other commit.
    """
    target = existing_target(snapshot, TableDefinition())
    predicate = None
    if where is not None:
        predicate = resolve_predicate(where, snapshot.schema)
        ensure_partition_predicate(predicate, snapshot.partition_columns, "where")
    size = target_file_size_bytes or target.properties.target_file_size_bytes or DEFAULT_TARGET_FILE_SIZE_BYTES
    plan = plan_compaction(snapshot, predicate, size)
    if not plan.bins:
        return None
    transaction = Transaction(
        table_log,
        snapshot,
        operation="OPTIMIZE",
        operation_parameters={
            "predicate": "[]" if where is None else f"[{where if isinstance(where, str) else predicate}]",
            "targetSize": str(size),
            "zOrderBy": "[]",
            "auto": "false",
        },
        txns=options.txns,
        user_metadata=options.user_metadata,
        commit_info=options.commit_info,
    )
    if transaction.stale_txns():
        return transaction.commit()
    scans = [scan_of_files(snapshot, files) for files in plan.bins]
    # A bin is a file: nothing is to be split again.
    spec = replace(target.write_spec(), target_file_size_bytes=None)
    adds = without_data_change(engine.rewrite(scans, spec))
    removed = pa.concat_tables(plan.bins)
    transaction.read_files(removed)
    transaction.add_files(adds)
    transaction.remove_files(removed, data_change=False)
    transaction.set_operation_metrics(compaction_metrics(adds, removed))
    return transaction.commit()


def plan_compaction(snapshot: Snapshot, where: Expression | None, target_file_size_bytes: int) -> CompactionPlan:
    """Pack the files below the target size into bins of at most that size, never across partitions. Pure."""
    # `where` looks at partition columns alone, so what may match does.
    files = snapshot.files(REMOVED_FILE_COLUMNS, where)
    small = files.filter(pc.less(files.column("size"), target_file_size_bytes))
    if small.num_rows < 2:
        return CompactionPlan(())
    keyed = pa.table(
        {
            "partition": partition_keys(small, snapshot.schema, snapshot.partition_columns),
            "size": small.column("size"),
            "row": int64_array(range(small.num_rows)),
        }
    ).sort_by([("partition", "ascending"), ("size", "ascending"), ("row", "ascending")])
    # Sorted, the files of a bin are neighbours: each is a slice, nothing is copied twice.
    in_order = small.combine_chunks().take(keyed.column("row"))
    partitions = keyed.column("partition").combine_chunks().dictionary_encode()
    bins = pack_bins(partitions.indices.to_pylist(), keyed.column("size").to_pylist(), target_file_size_bytes)
    return CompactionPlan(tuple(in_order.slice(start, stop - start) for start, stop in bins))


def pack_bins(partitions: Sequence[int], sizes: Sequence[int], limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a list sorted by partition and size into runs of at least two files, one partition and at most the limit.

    Yields: `(start, stop)` of each run. Ascending sizes make greedy cutting leave at most one file per partition that
    would still have fitted with a neighbour.
    """
    start, total = 0, 0
    for i, (partition, size) in enumerate(zip(partitions, sizes, strict=True)):
        if i > start and (partition != partitions[start] or total + size > limit_bytes):
            if i - start >= 2:
                yield start, i
            start, total = i, 0
        total += size
    if len(sizes) - start >= 2:
        yield start, len(sizes)


def without_data_change(adds: pa.Table) -> pa.Table:
    """The files, marked as holding only rows the table had before."""
    index = adds.schema.get_field_index("data_change")
    return adds.set_column(index, adds.schema.field(index), bool_array([False] * adds.num_rows))


def compaction_metrics(adds: pa.Table, removed: pa.Table) -> dict[str, int]:
    """`operationMetrics` of OPTIMIZE, under the names the reference implementation uses."""
    sizes = sorted(adds.column("size").to_pylist())
    removed_bytes = pc.sum(removed.column("size")).as_py() or 0
    metrics = {
        "numAddedFiles": adds.num_rows,
        "numAddedBytes": sum(sizes),
        "numRemovedFiles": removed.num_rows,
        "numRemovedBytes": removed_bytes,
        "numDeletionVectorsRemoved": 0,
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
