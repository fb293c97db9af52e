"""Chooses sidecars of the previous V2 checkpoint that the next one may refer to.

Only where each of these is proven:

* No row of the sidecar is of a file that a commit since has touched, and no tombstone in it has expired.
* Its columns are exactly those that would be written today: the same statistics, in the same types.
* Nobody may be about to delete it. Log cleanup protects the sidecars of every checkpoint that is there (PROTOCOL,
  "Metadata Cleanup", step 4), but a checkpoint that is being written is not there yet: the previous one has to hold its
  sidecars until then, so it must be far from being cleaned up itself.

Small sidecars are written again together with what is new. So their number stays in proportion to the number of files,
and a checkpoint writes no more than what has changed and a little.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import delta_orch.arrow_compute as pc
from delta_orch.log.read.checkpoint_decoding import has_deletion_vectors, live_mask
from delta_orch.log.read.checkpoint_reader import Checkpoint, ParquetPart, RowGroup, child_of, readable, run_parallel
from delta_orch.log.read.reconcile import TouchedFiles
from delta_orch.log.upkeep.checkpoint_columns import CheckpointColumns
from delta_orch.protocol.actions import Sidecar
from delta_orch.protocol.arrow_building import plain
from delta_orch.protocol.paths import commit_path

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot

SIDECAR_ROWS = 100_000
"""File actions a sidecar holds at most: one row group, which readers decode in a tenth of a second."""

_SMALL_ROWS = SIDECAR_ROWS // 4
_DAY_MS = 24 * 60 * 60 * 1000
_ACTIONS = ("add", "remove")
_FILE_URIS, _AFTER_FILE_URIS = "file:", "file;"


class KnownSidecar(NamedTuple):
    """A sidecar, and how many actions of each kind it holds."""

    sidecar: Sidecar
    num_adds: int
    num_removes: int


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """The plan for the previous checkpoint's file actions.

    Attributes:
        reused: Sidecars to refer to again.
        rewritten: The files whose live rows are written anew.
    """

    reused: tuple[KnownSidecar, ...]
    rewritten: tuple[ParquetPart, ...]

    def row_groups(self, action: str) -> list[RowGroup]:
        return [group for part in self.rewritten for group in part.row_groups(action)]


def plan_reuse(snapshot: Snapshot, columns: CheckpointColumns, expired_ms: int) -> ReusePlan:
    """Decide for every file of the snapshot's checkpoint.

    Args:
        columns: What is written today.
        expired_ms: Tombstones as old as that have expired.

    Raises:
        CorruptLogError: A sidecar is damaged.
        IncompleteCheckpointError: One is gone.
    """
    checkpoint = snapshot.checkpoint
    if checkpoint is None:
        return ReusePlan((), ())
    if not checkpoint.sidecars or not _is_held(snapshot, checkpoint):
        return ReusePlan((), checkpoint.file_parts)
    touched = snapshot.tail.touched
    parts = list(zip(checkpoint.sidecars, checkpoint.sidecar_parts, strict=True))
    reusable = run_parallel(lambda pair: _reusable(*pair, columns, touched, expired_ms), parts)
    return ReusePlan(
        tuple(sidecar for sidecar in reusable if sidecar is not None),
        (
            *(part for (_, part), sidecar in zip(parts, reusable, strict=True) if sidecar is None),
            *checkpoint.embedded_parts,
        ),
    )


def _is_held(snapshot: Snapshot, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is more than a day away from being cleaned up.

    Cleanup goes by the time of commits and by whole days, and removes no checkpoint of a commit that is younger than
    the retention.
    """
    commit = snapshot.store.head(commit_path(checkpoint.version))
    if commit is None:
        return False
    age_ms = time.time_ns() // 1_000_000 - commit.modification_time_ms
    return age_ms < snapshot.properties.log_retention_ms - _DAY_MS


def _reusable(
    sidecar: Sidecar, part: ParquetPart, columns: CheckpointColumns, touched: TouchedFiles, expired_ms: int
) -> KnownSidecar | None:
    if part.metadata.num_rows < _SMALL_ROWS or not _has_columns_of_today(part, columns):
        return None
    counts = {}
    for action in _ACTIONS:
        groups = part.row_groups(action)
        if action == "remove" and any(_may_expire(group, expired_ms) for group in groups):
            return None
        untouched_counts = [_count_untouched(group, action, touched) for group in groups]
        if None in untouched_counts:
            return None
        counts[action] = sum(count or 0 for count in untouched_counts)
    return KnownSidecar(sidecar, counts["add"], counts["remove"])


def _has_columns_of_today(part: ParquetPart, columns: CheckpointColumns) -> bool:
    return bool(part.metadata.schema.to_arrow_schema().equals(columns.sidecar_schema, check_metadata=False))


def _may_expire(group: RowGroup, expired_ms: int) -> bool:
    """Whether a tombstone has expired or does not say when it does; going by the footer."""
    leaf = "remove.deletionTimestamp"
    if group.null_count(leaf) != group.null_count("remove.path"):
        return True
    statistics = group.statistics(group.part.leaves.index(leaf))
    return statistics is None or not statistics.has_min_max or statistics.min <= expired_ms


def _count_untouched(group: RowGroup, action: str, touched: TouchedFiles) -> int | None:
    """The number of actions in a row group; None where a commit has touched the file of one."""
    nulls = group.null_count(f"{action}.path")
    if nulls is not None and _lies_elsewhere(group, action, touched):
        return group.num_rows - nulls
    vectors_matter = touched.any_vector or has_deletion_vectors(action, group)
    names = ["path", "deletionVector"] if vectors_matter and group.has(f"{action}.deletionVector") else ["path"]
    count = 0
    for struct in group.iter_structs(action, names):
        with readable(group.part.path):
            paths = plain(child_of(struct, "path"))
            vectors = plain(child_of(struct, "deletionVector")) if len(names) > 1 else None
        present = pc.sum(pc.is_valid(paths)).as_py() or 0
        if live_mask(paths, vectors, touched).true_count != present:
            return None
        count += present
    return count


def _lies_elsewhere(group: RowGroup, action: str, touched: TouchedFiles) -> bool:
    """Whether the footer proves that no touched path lies between the first and the last one of the group."""
    leaf = group.part.leaves.index(f"{action}.path")
    statistics = group.statistics(leaf)
    if statistics is None or not statistics.has_min_max:
        return False
    first, last = statistics.min, statistics.max
    if not isinstance(first, str) or not isinstance(last, str) or (first < _AFTER_FILE_URIS and last >= _FILE_URIS):
        # Such a path may be spelled in several ways, and bounds are of the one that was used.
        return False
    between = pc.and_(pc.greater_equal(touched.paths, first), pc.less_equal(touched.paths, last))
    return not between.true_count
