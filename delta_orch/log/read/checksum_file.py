"""Version checksums of the log, and the replayed state held against them (PROTOCOL, "State Validation").

Log compactions (`compactions`) and, where that costs no request across a network, checkpoints (`checkpoint_reader`) are
held against them as they are read. Their only other use is to derive the checksum of the next version
(`checksum_writer`). As a shortcut to metadata
or sizes they would not be safe: a checksum that disagrees with its log is exactly the damage it exists to reveal,
nothing in it proves that it agrees, and published tables have ones that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import ChecksumMismatchError, CorruptLogError, FileMissingInStoreError, ProtocolViolationError
from delta_orch.log.files.commit_reader import Commit, FileActions
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.actions import JsonObject, Metadata, Protocol, Txn
from delta_orch.protocol.arrow_building import int64_numbers
from delta_orch.protocol.paths import canonical_paths, checksum_path
from delta_orch.protocol.version_checksum import (
    DELETED_RECORD_BOUNDARIES,
    FileSizeHistogram,
    VersionChecksum,
    parse_version_checksum,
)
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_SHOWN = 200
# These fields do not change while a file is live. Statistics and tags may be spelled anew, dataChange is of the commit.
_FILE_COLUMNS = ("size", "modification_time", "base_row_id", "default_row_commit_version", "deletion_vector")


@dataclass(frozen=True, slots=True)
class ChecksumValidation:
    """A state that agrees with its version checksum.

    Attributes:
        version: The version.
        path: The checksum file, relative to the table's root; None if the version has no checksum file.
        checked: The fields that were compared, by their names in the file; empty if there is no file.
    """

    version: int
    path: str | None
    checked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChecksumMismatch:
    """One field of a version checksum that differs from the log. Long values are cut."""

    field: str
    recorded: str
    computed: str


def read_version_checksum(store: LogStore, version: int) -> VersionChecksum | None:
    """The checksum of a version, or None if it has no checksum file.

    Raises:
        CorruptLogError: It cannot be parsed.
        StorageError: It cannot be read.
    """
    path = checksum_path(version)
    try:
        data = store.read_bytes(path)
    except FileMissingInStoreError:
        return None
    # An empty one is what a crash of the machine may leave of a file that was not worth waiting for.
    return parse_version_checksum(data, path) if data else None


def validated(version: int, path: str | None, compared: Iterable[tuple[str, object, object]]) -> ChecksumValidation:
    """The validation of a version by the fields that were compared: their names, recorded values and computed values.

    Args:
        path: The checksum file; None where there is none.

    Raises:
        ChecksumMismatchError: Two differ. The message names every such field, `context["mismatches"]` holds them as
            `ChecksumMismatch`.
    """
    fields = list(compared)
    mismatches = tuple(
        ChecksumMismatch(field, _shown(recorded), _shown(computed))
        for field, recorded, computed in fields
        if recorded != computed
    )
    if mismatches:
        differences = "; ".join(f"{m.field}: recorded {m.recorded}, computed {m.computed}" for m in mismatches)
        raise ChecksumMismatchError(
            f"Version {version} does not agree with its version checksum",
            cause=differences,
            remedy="Find out which of the two was changed after the commit: the log may be damaged, or the checksum",
            version=version,
            path=path,
            mismatches=mismatches,
        )
    return ChecksumValidation(version, path, tuple(field for field, _, _ in fields))


def compare_commit(commit: Commit | None, checksum: VersionChecksum) -> Iterator[tuple[str, object, object]]:
    """The fields about the version's commit, None where that was cleaned up."""
    info: JsonObject = {} if commit is None or commit.commit_info is None else commit.commit_info
    if checksum.in_commit_timestamp_ms is not None and commit is not None:
        yield "inCommitTimestampOpt", checksum.in_commit_timestamp_ms, info.get("inCommitTimestamp")
    if checksum.txn_id is not None and info.get("txnId") is not None:
        yield "txnId", checksum.txn_id, info["txnId"]


def compare_files(
    live_files: Callable[[Sequence[str]], pa.Table], checksum: VersionChecksum, path: str
) -> Iterator[tuple[str, object, object]]:
    """The fields about single files. `live_files` gives columns of the live files (`Snapshot.files`)."""
    if checksum.file_size_histogram is not None:
        sizes = int64_numbers(FileTable(live_files(["size"])).size)
        recorded = checksum.file_size_histogram
        computed = file_size_histogram(sizes, recorded.sorted_bin_boundaries)
        yield "fileSizeHistogram", _filled_bins(recorded), _filled_bins(computed)
    yield from _compare_deleted_records(live_files, checksum)
    if checksum.all_files is not None:
        columns = ["path", "dv_id", "partition_values", *_FILE_COLUMNS]
        recorded_files = _comparable_files(_parse_files(checksum.all_files, path).select(columns))
        files = _comparable_files(live_files(columns))
        # For two long lists, show only the difference.
        yield "allFiles", _without(recorded_files, files), _without(files, recorded_files)


def _compare_deleted_records(
    live_files: Callable[[Sequence[str]], pa.Table], checksum: VersionChecksum
) -> Iterator[tuple[str, object, object]]:
    expected = (checksum.num_deleted_records, checksum.num_deletion_vectors, checksum.deleted_record_counts)
    if all(value is None for value in expected):
        return
    vectors = FileTable(live_files(["deletion_vector"])).deletion_vector
    deleted = int64_numbers(pc.struct_field(vectors, ["cardinality"]))
    computed = (
        int(deleted.sum()),
        len(vectors) - vectors.null_count,
        histogram_counts(deleted, DELETED_RECORD_BOUNDARIES),
    )
    fields = ("numDeletedRecordsOpt", "numDeletionVectorsOpt", "deletedRecordCountsHistogramOpt")
    for field, recorded, value in zip(fields, expected, computed, strict=True):
        if recorded is not None:
            yield field, recorded, value


def file_size_histogram(sizes_bytes: Numbers, boundaries: tuple[int, ...]) -> FileSizeHistogram:
    """The histogram of file sizes (int64) over bins that start at `boundaries`."""
    bins = _bins(sizes_bytes, boundaries)
    totals = np.zeros(len(boundaries), np.int64)
    np.add.at(totals, bins, sizes_bytes)
    return FileSizeHistogram(boundaries, histogram_counts(sizes_bytes, boundaries), tuple(totals.tolist()))


def histogram_counts(values: Numbers, boundaries: tuple[int, ...]) -> tuple[int, ...]:
    """How many values lie in each of the bins that start at `boundaries`, the last one open. Values below the first
    boundary count in the first bin."""
    return tuple(np.bincount(_bins(values, boundaries), minlength=len(boundaries)).tolist())


def _filled_bins(histogram: FileSizeHistogram) -> dict[int, tuple[int, int]]:
    """Number of files and bytes by the boundary a bin starts at, without empty bins."""
    columns = (histogram.sorted_bin_boundaries, histogram.file_counts, histogram.total_bytes)
    return {start: (files, size) for start, files, size in zip(*columns, strict=True) if files or size}


def _bins(values: Numbers, boundaries: tuple[int, ...]) -> Numbers:
    return np.maximum(np.searchsorted(np.array(boundaries, np.int64), values, side="right") - 1, 0)


def comparable_metadata(metadata: Metadata) -> dict[str, object]:
    """A metadata action as values that compare equal for equal content: the schema as JSON, not as text."""
    try:
        schema = json.loads(metadata.schema_string)
    except ValueError:
        schema = metadata.schema_string
    return {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": (metadata.format.provider, dict(metadata.format.options)),
        "schemaString": schema,
        "partitionColumns": list(metadata.partition_columns),
        "createdTime": metadata.created_time,
        "configuration": dict(metadata.configuration),
    }


def comparable_protocol(protocol: Protocol) -> tuple[object, ...]:
    """A protocol action as values that compare equal for equal content: a missing list of features is an empty one."""
    return (
        protocol.min_reader_version,
        protocol.min_writer_version,
        sorted(protocol.reader_features or ()),
        sorted(protocol.writer_features or ()),
    )


def comparable_txns(
    recorded: tuple[Txn, ...], every: Mapping[str, Txn], live: Mapping[str, Txn]
) -> tuple[dict[str, Txn], dict[str, Txn]]:
    """The recorded transaction identifiers, and those of the state.

    The writer left out those that had expired by its clock. Ours is later: what has expired by now may be recorded or
    not, but not with another version.
    """
    written = {txn.app_id: txn for txn in recorded}
    computed = {app_id: txn for app_id, txn in every.items() if app_id in live or app_id in written}
    for app_id in written.keys() & computed.keys():
        if written[app_id].last_updated is None or computed[app_id].last_updated is None:
            computed[app_id] = replace(computed[app_id], last_updated=written[app_id].last_updated)
    return written, computed


def _parse_files(bodies: tuple[JsonObject, ...], path: str) -> pa.Table:
    actions = FileActions("add")
    try:
        for body in bodies:
            actions.append(body, 0, path)
        return actions.table()
    except ProtocolViolationError as e:
        raise CorruptLogError(
            f"Version checksum {path.rpartition('/')[2]} cannot be read", cause=e.cause or e.problem, path=path
        ) from None


_Files = dict[tuple[str, str | None], dict[str, object]]


def _comparable_files(files: pa.Table) -> _Files:
    """Rows by logical file. A row a file: `allFiles` is only written for small tables."""
    return {
        (path, row["dv_id"]): {
            **{name: row[name] for name in _FILE_COLUMNS},
            "partition_values": dict(row["partition_values"] or ()),
        }
        for path, row in zip(canonical_paths(FileTable(files).path).to_pylist(), files.to_pylist(), strict=True)
    }


def _without(files: _Files, others: _Files) -> _Files:
    return {key: row for key, row in files.items() if others.get(key) != row}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
