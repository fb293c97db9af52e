"""Action reconciliation on Arrow columns (PROTOCOL, "Action Reconciliation").

A logical file is keyed by (canonical path, deletion vector id); the newest action of a key wins. The commits after a
checkpoint (the tail) are reconciled among themselves; of the checkpoint's rows those survive whose key the tail does
not touch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.columns.arrow_building import int64_range, string_array, string_scalar
from delta_orch.log.columns.file_columns import ADD_SCHEMA, REMOVE_SCHEMA
from delta_orch.log.columns.partition_columns import one_chunk
from delta_orch.log.commits.commit_reader import LogActions
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_orch.protocol.data_path import canonical_paths

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


@dataclass(frozen=True, slots=True)
class Tail:
    """The reconciled state of a run of commits.

    Attributes:
        protocol, metadata: The newest ones, None where no commit has one.
        txns, domain_metadata: The newest of each app id and domain, removed domains included.
        adds: Files that are live, columns of `ADD_SCHEMA`.
        tombstones: Files that are not, columns of `REMOVE_SCHEMA`.
        touched: Every file some commit added or removed: what the checkpoint says of them no longer counts.
        commit_info: Of the newest commit.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)
    domain_metadata: Mapping[str, DomainMetadata] = field(default_factory=dict)
    adds: pa.Table = field(default_factory=lambda: pa.Table.from_batches([], ADD_SCHEMA))
    tombstones: pa.Table = field(default_factory=lambda: pa.Table.from_batches([], REMOVE_SCHEMA))
    touched: TouchedFiles = field(default_factory=TouchedFiles.none)
    commit_info: Mapping[str, Any] | None = None

    def fold(self, actions: LogActions) -> Tail:
        """This state and the commits that follow it."""
        adds, tombstones = self.adds, self.tombstones
        touched = self.touched
        if actions.adds.num_rows or actions.removes.num_rows:
            touched = touched.plus(_touched(actions))
            adds, tombstones = _reconcile(self, actions)
        return Tail(
            protocol=actions.protocol or self.protocol,
            metadata=actions.metadata or self.metadata,
            txns={**self.txns, **actions.txns},
            domain_metadata={**self.domain_metadata, **actions.domain_metadata},
            adds=adds,
            tombstones=tombstones,
            touched=touched,
            commit_info=actions.commit_info,
        )


def file_keys(paths: pa.Array | pa.ChunkedArray, dv_ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One string for each logical file, from canonical paths and deletion vector ids."""
    return one_chunk(
        pc.binary_join_element_wise(paths, dv_ids, string_scalar("\x00"), null_handling="replace", null_replacement="")
    )


def _touched(actions: LogActions) -> TouchedFiles:
    adds, removes = actions.adds, actions.removes
    paths = _concat(canonical_paths(adds["path"]), canonical_paths(removes["path"]))
    vectors = _concat(adds["dv_id"], removes["dv_id"])
    return TouchedFiles(pc.unique(paths), pc.unique(file_keys(paths, vectors)), vectors.null_count < len(vectors))


def _reconcile(before: Tail, actions: LogActions) -> tuple[pa.Table, pa.Table]:
    """Live files and tombstones after the commits. Older state takes part as if it were one commit before them all."""
    adds = pa.concat_tables([before.adds, actions.adds])
    removes = pa.concat_tables([before.tombstones, actions.removes])
    orders = _concat(
        _constant(_BEFORE_ALL, before.adds.num_rows),
        actions.add_order,
        _constant(_BEFORE_ALL, before.tombstones.num_rows),
        actions.remove_order,
    )
    paths = _concat(canonical_paths(adds["path"]), canonical_paths(removes["path"]))
    keys = file_keys(paths, _concat(adds["dv_id"], removes["dv_id"]))
    newest = _first_of_each(keys, pc.array_sort_indices(orders, order="descending"))
    is_winner = pc.is_in(int64_range(0, len(keys)), value_set=newest)
    return _winners(adds, is_winner[: adds.num_rows]), _winners(removes, is_winner[adds.num_rows :])


def _winners(files: pa.Table, is_winner: pa.BooleanArray) -> pa.Table:
    return _compact(files if is_winner.true_count == len(is_winner) else files.filter(is_winner))


def _compact(files: pa.Table) -> pa.Table:
    """Fewer chunks, where folding in one commit after the other has left many: each costs every later step."""
    chunks = files.column(0).num_chunks
    return files.combine_chunks() if chunks > _MAX_CHUNKS else files


def _first_of_each(keys: pa.Array, sequence: pa.Array) -> pa.Array:
    """Of each key the row that comes first in a sequence of all rows; int64."""
    # Codes of a dictionary count up in order of first appearance: a row is the first of its key exactly where the
    # running maximum of the codes grows.
    codes = keys.take(sequence).dictionary_encode().indices
    highest = pc.cumulative_max(codes)
    grows = pc.not_equal(highest[1:], highest[:-1])
    first = pa.concat_arrays([one_chunk(grows).slice(0, 0), _one_true(), grows]) if len(keys) else grows
    return pc.cast(sequence.filter(first), pa.int64())


def _one_true() -> pa.BooleanArray:
    return string_array([""]).is_valid()


def _constant(value: int, count: int) -> pa.Array:
    data = pa.py_buffer(value.to_bytes(8, sys.byteorder, signed=True) * count)
    return pa.Array.from_buffers(pa.int64(), count, [None, data])


def _concat(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of all; without columns that are empty it copies once."""
    chunks = [chunk for c in columns for chunk in (c.chunks if isinstance(c, pa.ChunkedArray) else [c]) if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else one_chunk(columns[0])
