"""Action reconciliation on Arrow columns (PROTOCOL, "Action Reconciliation").

A logical file is keyed by (canonical path, deletion vector id); the newest action of a key wins. The commits after a
checkpoint (the tail) are reconciled among themselves; of the checkpoint's rows those survive whose key the tail does
not touch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import ProtocolViolationError
from delta_orch.log.files.commit_reader import LogActions
from delta_orch.log.files.file_columns import ADD_SCHEMA, REMOVE_SCHEMA, FileTable
from delta_orch.protocol.arrow_building import all_booleans, int64_range, longs_to_numpy, one_chunk, string_array
from delta_orch.protocol.paths import canonical_paths

_BEFORE_ALL = -1
_MAX_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class TouchedFiles:
    """The logical files some commits speak of.

    Attributes:
        paths: Their canonical paths, each once.
        keys: Their keys (`file_keys`), each once.
        any_vector: Whether some of them has a deletion vector.
    """

    paths: pa.StringArray
    keys: pa.StringArray
    any_vector: bool

    @classmethod
    def none(cls) -> TouchedFiles:
        return cls(string_array([]), string_array([]), False)

    def __len__(self) -> int:
        return len(self.keys)

    def plus(self, other: TouchedFiles) -> TouchedFiles:
        if not len(self) or not len(other):
            return self if len(self) else other
        return TouchedFiles(
            pc.unique(pa.concat_arrays([self.paths, other.paths])),
            pc.unique(pa.concat_arrays([self.keys, other.keys])),
            self.any_vector or other.any_vector,
        )


class TailFiles(NamedTuple):
    """The files of a run of commits, reconciled.

    Attributes:
        adds: Files that are live, columns of `ADD_SCHEMA`.
        tombstones: Files that are not, columns of `REMOVE_SCHEMA`.
        touched: Every file some commit added or removed.
    """

    adds: pa.Table
    tombstones: pa.Table
    touched: TouchedFiles

    @classmethod
    def none(cls) -> TailFiles:
        return cls(pa.Table.from_batches([], ADD_SCHEMA), pa.Table.from_batches([], REMOVE_SCHEMA), TouchedFiles.none())


def file_keys(paths: pa.Array | pa.ChunkedArray, dv_ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Keys of logical files: one string each, from canonical paths and deletion vector ids."""
    return one_chunk(pc.binary_join_element_wise(paths, dv_ids, "\x00", null_handling="replace", null_replacement=""))


def reconcile_files(before: TailFiles | None, runs: Sequence[LogActions]) -> TailFiles:
    """The files after some runs of commits. Older state takes part as if it were one commit before them all.

    Raises:
        ProtocolViolationError: A file action is malformed; the error names the log file.
    """
    before = TailFiles.none() if before is None else before
    if not runs:
        return before
    run = LogActions.files_of(runs)
    adds = pa.concat_tables([before.adds, run.adds])
    removes = pa.concat_tables([before.tombstones, run.removes])
    orders = _concat(
        _constant(_BEFORE_ALL, before.adds.num_rows),
        run.add_order,
        _constant(_BEFORE_ALL, before.tombstones.num_rows),
        run.remove_order,
    )
    paths = _concat(canonical_paths(FileTable(adds).path), canonical_paths(FileTable(removes).path))
    keys = file_keys(paths, _concat(FileTable(adds).dv_id, FileTable(removes).dv_id))
    newest = _first_of_each(keys, pc.array_sort_indices(orders, order="descending"))
    is_winner = pc.is_in(int64_range(0, len(keys)), value_set=newest)
    if len(newest) < len(keys):
        _ensure_not_added_and_removed(keys, orders, is_winner)
    return TailFiles(
        _winners(adds, is_winner[: adds.num_rows]),
        _winners(removes, is_winner[adds.num_rows :]),
        before.touched.plus(_touched(run)),
    )


def _ensure_not_added_and_removed(keys: pa.Array, orders: pa.Array, is_winner: pa.BooleanArray) -> None:
    """Raises ProtocolViolationError where one commit adds and removes a logical file: the actions of a commit have no
    order, and readers differ in which of them counts."""
    contested = pc.is_in(keys, value_set=pc.filter(keys, pc.invert(is_winner)))
    codes = pc.dictionary_encode(pc.filter(keys, contested)).indices
    files = longs_to_numpy(one_chunk(pc.cast(codes, pa.int64())))
    numbers = longs_to_numpy(one_chunk(pc.filter(orders, contested)))
    in_order = np.lexsort((numbers, files))
    files, numbers = files[in_order], numbers[in_order]
    # Removals of a commit have an even number, additions the next one.
    is_pair = (numbers[:-1] % 2 == 0) & (np.diff(numbers) == 1) & (np.diff(files) == 0)
    if is_pair.any():
        first = int(in_order[int(np.flatnonzero(is_pair)[0])])
        path = pc.filter(keys, contested)[first].as_py().partition("\x00")[0]
        raise ProtocolViolationError(
            f"A commit adds and removes {path!r}",
            cause="The protocol forbids two actions on one file in one commit, as readers differ in which one counts",
            remedy="Find the commit in the log, and delete the action that its writer did not mean",
            path=path,
        )


def names_a_file_twice(actions: LogActions) -> bool:
    """Whether two file actions are of one logical file."""
    adds, removes = actions.adds, actions.removes
    paths = _concat(canonical_paths(FileTable(adds).path), canonical_paths(FileTable(removes).path))
    keys = file_keys(paths, _concat(FileTable(adds).dv_id, FileTable(removes).dv_id))
    return len(pc.unique(keys)) < len(keys)


def _touched(run: LogActions) -> TouchedFiles:
    adds, removes = FileTable(run.adds), FileTable(run.removes)
    paths = _concat(canonical_paths(adds.path), canonical_paths(removes.path))
    vectors = _concat(adds.dv_id, removes.dv_id)
    return TouchedFiles(pc.unique(paths), pc.unique(file_keys(paths, vectors)), vectors.null_count < len(vectors))


def _winners(files: pa.Table, is_winner: pa.BooleanArray) -> pa.Table:
    winners = files if is_winner.true_count == len(is_winner) else pc.filter(files, is_winner)
    # Folding in one commit after the other leaves many chunks, and each costs every later step.
    return winners.combine_chunks() if winners.column(0).num_chunks > _MAX_CHUNKS else winners


def _first_of_each(keys: pa.Array, sequence: pa.Array) -> pa.Array:
    """Of each key the row that comes first in a sequence of all rows; int64."""
    # Codes of a dictionary count up in order of first appearance: a row is the first of its key exactly where the
    # running maximum of the codes grows.
    codes = pc.dictionary_encode(pc.take(keys, sequence)).indices
    highest = pc.cumulative_max(codes)
    grows = pc.not_equal(highest[1:], highest[:-1])
    first = pa.concat_arrays([all_booleans(True, 1), grows]) if len(keys) else grows
    return pc.cast(pc.filter(sequence, first), pa.int64())


def _constant(value: int, count: int) -> pa.Array:
    data = pa.py_buffer(value.to_bytes(8, sys.byteorder, signed=True) * count)
    return pa.Array.from_buffers(pa.int64(), count, [None, data])


def _concat(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Concatenate arrays into one; empty ones are skipped, so that it copies once."""
    chunks = [chunk for c in columns for chunk in (c.chunks if isinstance(c, pa.ChunkedArray) else [c]) if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else one_chunk(columns[0])
