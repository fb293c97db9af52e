"""Writing version checksums: from the one before and the commit, or from the whole state (PROTOCOL, "Version Checksum
File", "Writer Requirements").

A checksum that is wrong is worse than none, so one is derived only where everything it is made of is at hand and fits
together. The chain that breaks elsewhere begins again with the next checkpoint.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import FileExistsInStoreError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.checkpoint_decoding import iter_live
from delta_orch.log.read.checksum_file import file_size_histogram, histogram_counts
from delta_orch.log.read.snapshot import Snapshot, read_own_commit
from delta_orch.log.write.commit_options import Committed
from delta_orch.protocol.actions import DomainMetadata, Txn
from delta_orch.protocol.arrow_building import int64_numbers
from delta_orch.protocol.paths import checksum_path
from delta_orch.protocol.version_checksum import (
    DELETED_RECORD_BOUNDARIES,
    FILE_SIZE_BOUNDARIES,
    FileSizeHistogram,
    VersionChecksum,
    serialize_version_checksum,
)
from delta_orch.table.registry import supported_features

if TYPE_CHECKING:
    from delta_orch.log.read.checksum_file import Numbers
    from delta_orch.storage.base import LogStore

# Beyond that a checksum would cost each commit more than it tells anybody.
_MAX_SMALL_ACTIONS = 100
_NO_BINS = (0,) * len(FILE_SIZE_BOUNDARIES)
_EMPTY = VersionChecksum(
    table_size_bytes=0,
    num_files=0,
    num_metadata=1,
    num_protocol=1,
    txns=(),
    domain_metadata=(),
    file_size_histogram=FileSizeHistogram(FILE_SIZE_BOUNDARIES, _NO_BINS, _NO_BINS),
)

Small = TypeVar("Small", Txn, DomainMetadata)


def write_checksum(store: LogStore, version: int, checksum: VersionChecksum) -> bytes | None:
    """Write the checksum of a version unless there is one.

    Returns: The content of the file; None if a checksum file exists, which is not changed.

    Raises:
        StorageError: There is none, or another writer's.
    """
    data = serialize_version_checksum(checksum)
    try:
        store.put_regenerable(checksum_path(version), data)
    except FileExistsInStoreError:
        return None
    return data


def compute_checksum(snapshot: Snapshot) -> VersionChecksum:
    """The checksum of a version from its whole state. Sizes and deletion vectors of all files are decoded, in bounded
    memory.

    Raises:
        CorruptLogError: The log is damaged.
    """
    counter = StateCounter(snapshot)
    for _ in counter.watch(_iter_file_columns(snapshot, counter.columns)):
        pass
    return counter.checksum()


class StateCounter:
    """Makes the checksum of a version while its files pass by, on their way to somewhere else."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._has_vectors = snapshot.configuration.supports("deletionVectors")
        self._sizes = _SizeCounter(FILE_SIZE_BOUNDARIES)
        self._deleted = _VectorCounter()

    @property
    def columns(self) -> list[str]:
        """The columns of `ADD_SCHEMA` that it reads."""
        return ["size", "deletion_vector"] if self._has_vectors else ["size"]

    def watch(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pass on the live files of the version, all of them once, in any pieces."""
        for files in tables:
            self._sizes.add(int64_numbers(FileTable(files).size))
            if self._has_vectors:
                self._deleted.add(_deleted_records(files))
            yield files

    def checksum(self) -> VersionChecksum:
        """The counts, with the other fields of the version. Raises CorruptLogError where its commit is damaged."""
        snapshot, counted = self._snapshot, self._deleted if self._has_vectors else None
        commit = read_own_commit(snapshot)
        info = {} if commit is None or commit.commit_info is None else commit.commit_info
        enabled = snapshot.properties.enable_in_commit_timestamps
        domains = tuple(DomainMetadata(name, text) for name, text in snapshot.domain_metadata.items())
        return VersionChecksum(
            table_size_bytes=self._sizes.num_bytes,
            num_files=self._sizes.num_files,
            num_metadata=1,
            num_protocol=1,
            metadata=snapshot.metadata,
            protocol=snapshot.protocol,
            txn_id=txn_id if isinstance(txn_id := info.get("txnId"), str) else None,
            in_commit_timestamp_ms=snapshot.timestamp_ms if enabled and "inCommitTimestamp" in info else None,
            txns=tuple(txn_actions.values())
            if len(txn_actions := snapshot.txn_actions) <= _MAX_SMALL_ACTIONS
            else None,
            domain_metadata=_unless_many(domains),
            file_size_histogram=self._sizes.histogram(),
            num_deleted_records=None if counted is None else counted.num_records,
            num_deletion_vectors=None if counted is None else counted.num_vectors,
            deleted_record_counts=None if counted is None else tuple(counted.counts.tolist()),
        )


def derive_checksum(before: VersionChecksum | None, commit: Committed) -> VersionChecksum | None:
    """The checksum after a commit from the one before it. Pure.

    Args:
        before: Of the version before; None where the commit creates the table.

    Returns: None if this is unknown.
    """
    if before is None:
        if commit.before is not None:
            return None
        before = _EMPTY
    else:
        state = commit.before
        if state is None or state.version != commit.version - 1:
            return None
        if before.metadata != state.table.metadata or before.protocol != state.table.protocol:
            return None  # It describes another state than the one before the commit.
    adds, removes = commit.actions.adds, [files for files, _ in commit.actions.removes]
    if _may_add_again(adds, removes):
        return None
    added, removed = _sizes(adds), _sizes(removes)
    num_files = before.num_files + len(added) - len(removed)
    table_size_bytes = before.table_size_bytes + int(added.sum()) - int(removed.sum())
    if num_files < 0 or table_size_bytes < 0:
        return None
    derived = VersionChecksum(
        table_size_bytes=table_size_bytes,
        num_files=num_files,
        num_metadata=1,
        num_protocol=1,
        metadata=commit.table.metadata,
        protocol=commit.table.protocol,
        txn_id=commit.txn_id,
        in_commit_timestamp_ms=commit.in_commit_timestamp_ms,
        txns=_derive_txns(before.txns, commit),
        domain_metadata=_derive_domains(before.domain_metadata, commit),
        file_size_histogram=_derive_histogram(before.file_size_histogram, added.tolist(), removed.tolist()),
    )
    return _with_vectors(derived, before, adds, removes) if commit.table.supports("deletionVectors") else derived


def _may_add_again(adds: Sequence[pa.Table], removes: Sequence[pa.Table]) -> bool:
    """Whether a file that is added may be there already: that is how statistics or row ids are given to files that
    lack them, without any data change and without removing the file. Then the files cannot be counted from here."""
    if any(map(len, removes)):
        return False
    for files in adds:
        if "data_change" in files.column_names and pc.all(FileTable(files).data_change).as_py() is False:
            return True
    return False


def _derive_txns(before: tuple[Txn, ...] | None, commit: Committed) -> tuple[Txn, ...] | None:
    if not before and (before is None or not commit.txns):
        return before
    merged = {txn.app_id: txn for txn in (*before, *commit.txns)}
    retention_ms = commit.table.properties.set_transaction_retention_ms
    if retention_ms is not None:
        oldest_ms = time.time_ns() // 1_000_000 - retention_ms
        merged = {a: t for a, t in merged.items() if t.last_updated is None or t.last_updated >= oldest_ms}
    return _unless_many(tuple(merged.values()))


def _derive_domains(before: tuple[DomainMetadata, ...] | None, commit: Committed) -> tuple[DomainMetadata, ...] | None:
    if not before and (before is None or not commit.actions.domain_metadata):
        return before
    merged = {domain.domain: domain for domain in (*before, *commit.actions.domain_metadata.values())}
    return _unless_many(tuple([domain for domain in merged.values() if not domain.removed]))


def _unless_many(actions: tuple[Small, ...]) -> tuple[Small, ...] | None:
    return actions if len(actions) <= _MAX_SMALL_ACTIONS else None


def _derive_histogram(
    before: FileSizeHistogram | None, added: list[int], removed: list[int]
) -> FileSizeHistogram | None:
    """File by file: most commits add one, and whole arrays would cost more to make."""
    if before is None:
        return None
    counts, sizes = list(before.file_counts), list(before.total_bytes)
    for sign, moved in ((1, added), (-1, removed)):
        for size in moved:
            place = max(bisect_right(before.sorted_bin_boundaries, size) - 1, 0)
            counts[place] += sign
            sizes[place] += sign * size
    # The writer before us may have counted otherwise.
    if min(counts) < 0 or min(sizes) < 0:
        return None
    return FileSizeHistogram(before.sorted_bin_boundaries, tuple(counts), tuple(sizes))


def _combined(before: Sequence[int], plus: Sequence[int], minus: Sequence[int]) -> tuple[int, ...]:
    return tuple(b + p - m for b, p, m in zip(before, plus, minus, strict=True))


def _with_vectors(
    derived: VersionChecksum,
    before: VersionChecksum,
    adds: Sequence[pa.Table],
    removes: Sequence[pa.Table],
) -> VersionChecksum:
    counts, records, vectors = before.deleted_record_counts, before.num_deleted_records, before.num_deletion_vectors
    if before.protocol is None or "deletionVectors" not in supported_features(before.protocol):
        counts, records, vectors = (before.num_files, *(0,) * (len(DELETED_RECORD_BOUNDARIES) - 1)), 0, 0
    plus, minus = _VectorCounter(), _VectorCounter()
    for counter, tables in ((plus, adds), (minus, removes)):
        for files in tables:
            if "deletion_vector" not in files.column_names and "dv_id" in files.column_names:
                return derived
            counter.add(_deleted_records(files))
    if counts is not None:
        counts = _combined(counts, plus.counts.tolist(), minus.counts.tolist())
    return replace(
        derived,
        num_deleted_records=None if records is None else records + plus.num_records - minus.num_records,
        num_deletion_vectors=None if vectors is None else vectors + plus.num_vectors - minus.num_vectors,
        deleted_record_counts=None if counts is None or min(counts) < 0 else counts,
    )


class _SizeCounter:
    """Files by size."""

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        self._boundaries = boundaries
        self._counts = np.zeros(len(boundaries), np.int64)
        self._bytes = np.zeros(len(boundaries), np.int64)

    def add(self, sizes: Numbers) -> None:
        histogram = file_size_histogram(sizes, self._boundaries)
        self._counts += np.array(histogram.file_counts, np.int64)
        self._bytes += np.array(histogram.total_bytes, np.int64)

    @property
    def num_files(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        return int(self._bytes.sum())

    def histogram(self) -> FileSizeHistogram:
        return FileSizeHistogram(self._boundaries, tuple(self._counts.tolist()), tuple(self._bytes.tolist()))


class _VectorCounter:
    """Files by deleted records."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(DELETED_RECORD_BOUNDARIES), np.int64)
        self.num_records = 0
        self.num_vectors = 0

    def add(self, deleted: tuple[Numbers, int]) -> None:
        """Args:
        deleted: Records deleted of each file, 0 without a vector; the number of vectors.
        """
        records, num_vectors = deleted
        self.counts += np.array(histogram_counts(records, DELETED_RECORD_BOUNDARIES), np.int64)
        self.num_records += int(records.sum())
        self.num_vectors += num_vectors


def _iter_file_columns(snapshot: Snapshot, names: Sequence[str]) -> Iterable[pa.Table]:
    if snapshot.checkpoint is not None:
        yield from iter_live(snapshot.checkpoint, "add", names, snapshot.tail.touched)
    yield snapshot.tail.adds.select(list(names))


def _deleted_records(files: pa.Table) -> tuple[Numbers, int]:
    if "deletion_vector" not in files.column_names:
        return np.zeros(files.num_rows, np.int64), 0
    vectors = FileTable(files).deletion_vector
    return int64_numbers(pc.struct_field(vectors, ["cardinality"])), len(vectors) - vectors.null_count


def _sizes(tables: Sequence[pa.Table]) -> Numbers:
    return np.concatenate([np.zeros(0, np.int64), *[int64_numbers(FileTable(files).size) for files in tables]])
