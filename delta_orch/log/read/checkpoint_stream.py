"""The live file actions of a checkpoint from one end to the other, in bounded memory: for whoever passes over all of
them once (the next checkpoint, a full checksum, checks)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.read.checkpoint_decoding import (
    SCHEMAS,
    columns_of,
    dv_ids,
    has_deletion_vectors,
    needed_leaves,
    needs_parsed_statistics,
    with_parsed_statistics,
)
from delta_orch.log.read.checkpoint_reader import Checkpoint, RowGroup, child_of, readable
from delta_orch.log.read.reconcile import TouchedFiles, file_keys
from delta_orch.protocol.action_json import STATS_PARSED
from delta_orch.protocol.arrow_building import one_chunk, plain
from delta_orch.protocol.paths import canonical_paths

_DELETION_VECTOR = "deletionVector"


def iter_live(checkpoint: Checkpoint, action: str, names: Sequence[str], touched: TouchedFiles) -> Iterator[pa.Table]:
    """The `add` or `remove` actions of a checkpoint whose files later commits do not touch, in its order, some ten
    thousand rows at a time. Nothing is kept.

    Args:
        names: Columns of `ADD_SCHEMA` or `REMOVE_SCHEMA`.

    Raises:
        CorruptLogError: A file of the checkpoint is damaged.
        IncompleteCheckpointError: One is gone.
        ProtocolViolationError: A field has the wrong type.
    """
    for group in checkpoint.row_groups(action):
        yield from iter_live_rows(group, action, names, touched)


def iter_live_rows(group: RowGroup, action: str, names: Sequence[str], touched: TouchedFiles) -> Iterator[pa.Table]:
    """As `iter_live`, of one row group."""
    schema = pa.schema([SCHEMAS[action].field(name) for name in names])
    has_vectors = touched.any_vector or has_deletion_vectors(action, group)
    leaves = {"path", *needed_leaves(action, names)}
    if has_vectors and len(touched):
        leaves.add(_DELETION_VECTOR)
    if "stats" in names and needs_parsed_statistics(action, group):
        leaves.add(STATS_PARSED)
    present = sorted(leaf for leaf in leaves if group.has(f"{action}.{leaf}"))
    for struct in group.iter_structs(action, present, use_threads=True):
        with readable(group.part.path):
            raw = {leaf: plain(child_of(struct, leaf)) for leaf in present}
        keep = live_mask(raw["path"], raw.get(_DELETION_VECTOR) if has_vectors else None, touched)
        if not keep.true_count:
            continue
        kept = raw if keep.true_count == len(keep) else {leaf: pc.filter(column, keep) for leaf, column in raw.items()}
        live = {leaf: pa.chunked_array([kept[leaf]]) if leaf in kept else None for leaf in leaves}
        if STATS_PARSED in leaves:
            live["stats"] = with_parsed_statistics(live["stats"], live[STATS_PARSED])
        columns = columns_of(action, live, names, keep.true_count)
        yield pa.Table.from_arrays([columns[name] for name in names], schema=schema)


def live_mask(paths: pa.Array, vectors: pa.Array | None, touched: TouchedFiles) -> pa.BooleanArray:
    """Which rows hold an action, and one whose file is not touched.

    Args:
        paths: Null in the rows of other actions.
        vectors: Their deletion vectors; None where no file, touched or not, has one.
    """
    keep = pc.is_valid(paths)
    if not len(touched) or not keep.true_count:
        return keep
    canonical = canonical_paths(paths)
    candidates = pc.fill_null(pc.is_in(canonical, value_set=touched.paths), False)
    if not candidates.true_count:
        return keep
    if touched.any_vector or vectors is not None:
        ids = None if vectors is None else dv_ids(pa.chunked_array([vectors]))
        ids = pa.nulls(len(paths), pa.string()) if ids is None else one_chunk(ids)
        candidates = pc.and_(candidates, pc.is_in(file_keys(canonical, ids), value_set=touched.keys))
    return pc.and_not(keep, candidates)
