"""The file actions of a checkpoint that still count: row groups, and the rows of each that are live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.read.checkpoint_decoding import (
    SCHEMAS,
    Column,
    Mask,
    decode_columns,
    decode_dv_ids,
    has_deletion_vectors,
    iter_paths,
)
from delta_orch.log.read.checkpoint_reader import Checkpoint, RowGroup, run_parallel
from delta_orch.log.read.reconcile import TouchedFiles, file_keys
from delta_orch.protocol.arrow_building import narrowed_mask, one_chunk
from delta_orch.protocol.paths import canonical_paths

_GROUPS_AT_ONCE = 2


class LiveRows(NamedTuple):
    """The rows of one row group that count.

    Attributes:
        keep: Boolean, one a row of the group; None where all rows count.
        paths: The paths of those that count, spelled as in the log.
    """

    group: RowGroup
    keep: Mask | None
    paths: Column

    def narrowed(self, still: Mask) -> LiveRows:
        """The rows that `still` marks; it has one value for each live row."""
        still = one_chunk(still)
        keep = still if self.keep is None else narrowed_mask(one_chunk(self.keep), still)
        return LiveRows(self.group, keep, pc.filter(self.paths, still))


class CheckpointFileActions:
    """All `add` or all `remove` actions of a checkpoint but those whose files later commits touch.

    Immutable: `without` and `where` give others that share what is decoded. Paths are decoded on first use and kept;
    other columns are decoded on each request.
    """

    def __init__(
        self, checkpoint: Checkpoint, action: str, touched: TouchedFiles, live: list[LiveRows] | None = None
    ) -> None:
        self._checkpoint = checkpoint
        self._action = action
        self._touched = touched
        self._wider_live = live
        self._rows: dict[RowGroup, LiveRows] = {}

    def without(self, touched: TouchedFiles) -> CheckpointFileActions:
        """The same less the files touched by commits; `touched` includes the files this one leaves out already."""
        live = self.__dict__.get("_live", self._wider_live)
        return CheckpointFileActions(self._checkpoint, self._action, touched, live)

    def row_groups(self) -> list[RowGroup]:
        """The row groups that may hold such actions."""
        return self._checkpoint.row_groups(self._action)

    def where_groups(self, choose: Callable[[RowGroup], pa.BooleanArray]) -> CheckpointFileActions:
        """The actions that a function of a row group keeps: one value a row of the group, whatever action it holds.
        Paths are decoded only for groups that keep at least one row. Raises as `columns`."""
        live_groups = self._known_live
        if live_groups is not None:
            chosen = {rows.group: choose(rows.group) for rows in live_groups if len(rows.paths)}
            return self._with_live([_narrowed(rows, chosen[rows.group]) for rows in live_groups if len(rows.paths)])
        kept = {group: mask for group in self.row_groups() if (mask := choose(group)).true_count}
        return self._with_live([_narrowed(rows, kept[rows.group]) for rows in self._rows_of(list(kept))])

    @property
    def _known_live(self) -> list[LiveRows] | None:
        if "_live" in self.__dict__:
            return self._live
        return None if self._wider_live is None else self._live

    def _rows_of(self, groups: list[RowGroup]) -> list[LiveRows]:
        """The live rows of some row groups, kept for the next time."""
        unknown = [group for group in groups if group not in self._rows]
        for rows in run_parallel(lambda group: _live_rows(self._action, group, self._touched), unknown):
            self._rows[rows.group] = rows
        return [self._rows[group] for group in groups]

    def where_rows(self, choose: Callable[[LiveRows], pa.BooleanArray]) -> CheckpointFileActions:
        """As `where`, with a function of the rows of one group: it decodes what it wants."""

        def narrow(rows: LiveRows) -> LiveRows:
            if not len(rows.paths):
                return rows
            kept = choose(rows)
            return rows if kept.true_count == len(kept) else rows.narrowed(kept)

        return self._with_live(run_parallel(narrow, self._live))

    def _with_live(self, live: list[LiveRows]) -> CheckpointFileActions:
        narrowed = CheckpointFileActions(self._checkpoint, self._action, self._touched)
        narrowed.__dict__["_live"] = live
        return narrowed

    @property
    def num_rows(self) -> int:
        return sum(len(rows.paths) for rows in self._live)

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        """The columns asked for, of `ADD_SCHEMA` or `REMOVE_SCHEMA`, one value a live row.

        Raises:
            CorruptLogError: A file of the checkpoint is damaged.
            IncompleteCheckpointError: One is gone.
        """
        groups = [rows for rows in self._live if len(rows.paths)]
        if names == ["path"]:
            tables = [pa.table({"path": rows.paths}) for rows in groups]
        else:
            tables = self._tables(groups, names)
        schema = SCHEMAS[self._action]
        return {
            name: pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], schema.field(name).type)
            for name in names
        }

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """`columns` in pieces: no more than a few row groups are decoded at a time. Raises as `columns`."""
        groups = [rows for rows in self._live if len(rows.paths)]
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            yield from self._tables(groups[start : start + _GROUPS_AT_ONCE], names)

    def _tables(self, groups: Sequence[LiveRows], names: Sequence[str]) -> list[pa.Table]:
        return run_parallel(lambda rows: self.table(rows, names, use_threads=len(groups) == 1), groups)

    @cached_property
    def _live(self) -> list[LiveRows]:
        if self._wider_live is not None:
            return [_still_live(self._action, rows, self._touched) for rows in self._wider_live]
        return self._rows_of(self.row_groups())

    def table(self, rows: LiveRows, names: Sequence[str], use_threads: bool = False) -> pa.Table:
        """Columns of the live rows of one group. Raises as `columns`."""
        others = [name for name in names if name != "path"]
        decoded = decode_columns(self._action, rows.group, others, rows.keep, use_threads) if others else {}
        schema = SCHEMAS[self._action]
        arrays = [rows.paths if name == "path" else decoded[name] for name in names]
        return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))


def _narrowed(rows: LiveRows, mask: pa.BooleanArray) -> LiveRows:
    """The rows that a second mask, over all rows of the group, marks as well."""
    return rows.narrowed(mask if rows.keep is None else pc.filter(mask, rows.keep))


def _live_rows(action: str, group: RowGroup, touched: TouchedFiles) -> LiveRows:
    has_vectors = touched.any_vector or has_deletion_vectors(action, group)
    masks, kept_paths = [], []
    for paths in iter_paths(action, group):
        # Batch by batch, so that dead rows never lie beside live ones in memory for the whole group.
        keep = pc.is_valid(paths)
        if len(touched) and not has_vectors:
            keep = pc.and_not(keep, pc.is_in(canonical_paths(paths), value_set=touched.paths))
        masks.append(keep)
        kept_paths.append(paths if keep.true_count == len(keep) else pc.filter(paths, keep))
    mask = pa.concat_arrays(masks)
    rows = LiveRows(group, None if mask.true_count == len(mask) else mask, pa.chunked_array(kept_paths))
    return _still_live(action, rows, touched) if has_vectors else rows


def _still_live(action: str, rows: LiveRows, touched: TouchedFiles) -> LiveRows:
    """The rows less those whose files are touched."""
    if not len(touched) or not len(rows.paths):
        return rows
    candidates = pc.is_in(canonical_paths(rows.paths), value_set=touched.paths)
    if not pc.any(candidates).as_py():
        return rows
    if touched.any_vector or has_deletion_vectors(action, rows.group):
        dead = _with_touched_keys(action, rows, candidates, touched)
    else:
        dead = candidates
    return rows.narrowed(pc.invert(dead))


def _with_touched_keys(action: str, rows: LiveRows, candidates: Mask, touched: TouchedFiles) -> Mask:
    """Marks the rows whose path and deletion vector are touched; `candidates` marks those whose path is."""
    paths = canonical_paths(pc.filter(rows.paths, candidates))
    vectors = decode_dv_ids(action, rows.group, rows.keep)
    ids = pa.nulls(len(paths), pa.string()) if vectors is None else pc.filter(vectors, candidates)
    dead = pc.is_in(file_keys(paths, ids), value_set=touched.keys)
    return narrowed_mask(one_chunk(candidates), dead)
