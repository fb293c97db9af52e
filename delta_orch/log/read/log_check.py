"""Finds faults of a log, including those that keep no version from being read: gaps, damaged or incomplete checkpoints,
a checkpoint hint that leads nowhere, log compactions that differ from their commits.

And whether checkpoints, compactions and version checksums say what the commits say: reading takes some of it on trust,
what it costs to hold a whole state against another one, `fsck` alone pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import pyarrow as pa

from delta_orch.errors import (
    CorruptLogError,
    DeltaError,
    FileMissingInStoreError,
    IncompleteCheckpointError,
    LogGapError,
    StorageError,
    VersionNotFoundError,
)
from delta_orch.log.files.commit_reader import LogActions, parse_log_files, read_commits
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.listing import CheckpointFiles, CompactionFile, LogListing
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.checksum_file import comparable_metadata, comparable_protocol
from delta_orch.log.read.compactions import read_compaction
from delta_orch.log.read.reconcile import file_keys, reconcile_files
from delta_orch.log.read.segment import LogSegment, plan_segment
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import replay_segment
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.last_checkpoint import parse_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, canonical_paths, commit_path
from delta_orch.storage.base import LogStore

_PARTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault.

    Attributes:
        severity: `error` where the version in question, or its rows, cannot be read right; `warning` for the rest.
        code: As of the error that reading it raises (`errors.py`).
        message: What, why and what to do about it.
        path: The file it is about: of the log relative to the table's root, of the data as the log spells it.
        version: The version it is about.
    """

    severity: Literal["error", "warning"]
    code: str
    message: str
    path: str | None = None
    version: int | None = None


def problem_of(error: DeltaError, severity: Literal["error", "warning"]) -> Problem:
    """An error as a problem."""
    path, version = error.context.get("path"), error.context.get("version")
    if isinstance(error, LogGapError) and path is None:
        version = error.context["missing_version"]
        path = commit_path(version)
    return Problem(severity, error.code, str(error), path, version)


def check_log(
    store: LogStore, listing: LogListing, in_use: LogSegment | None, *, deep: bool = False
) -> Iterator[Problem]:
    """Everything about a log but the content of its commits.

    Args:
        listing: The whole log.
        in_use: What the version in question is read from.
        deep: Also hold each checkpoint against the commits before it.
    """
    used = () if in_use is None else (in_use.checkpoint, *in_use.compactions)
    yield from _check_gaps(listing)
    for incomplete in (
        c for incomplete_checkpoints in listing.incomplete_checkpoints.values() for c in incomplete_checkpoints
    ):
        yield _incomplete(incomplete)
    for checkpoint in (c for incomplete_checkpoints in listing.checkpoints.values() for c in incomplete_checkpoints):
        severity: Literal["error", "warning"] = "error" if checkpoint in used else "warning"
        try:
            ensure_complete(Checkpoint(store, checkpoint))
            ensure_checkpoint_agrees(store, listing, checkpoint, with_commits=deep)
        except (CorruptLogError, StorageError) as e:
            yield problem_of(e, severity)
    yield from _check_hint(store, listing)
    for compaction in listing.compactions:
        try:
            read_compaction(store, compaction)
        except (CorruptLogError, StorageError) as e:
            yield problem_of(e, "warning")
            continue
        try:
            ensure_compaction_agrees(store, listing, compaction)
        except (CorruptLogError, StorageError) as e:
            # Readers believe it where nothing tells them better.
            yield problem_of(e, "error" if compaction in used else "warning")


def ensure_complete(checkpoint: Checkpoint) -> None:
    """Open every file of a checkpoint, sidecars included.

    Raises:
        CorruptLogError: One is damaged or gone, has another size than the checkpoint says, or protocol or metadata is
            missing.
        StorageError: One cannot be read.
    """
    version, path = checkpoint.version, checkpoint.files.files[0].path
    for name, action in zip(("protocol", "metaData"), checkpoint.protocol_and_metadata, strict=True):
        if action is None:
            raise CorruptLogError(
                f"Checkpoint {path.rpartition('/')[2]} has no {name} action",
                remedy="Delete the checkpoint if the commits before it are still there",
                path=path,
                version=version,
            )
    _ = checkpoint.txns, checkpoint.domain_metadata
    for sidecar, part in zip(checkpoint.sidecars, checkpoint.sidecar_parts, strict=True):
        meta = checkpoint.store.head(part.path)
        # Reading reports a part that is gone.
        if meta is not None and meta.size != sidecar.size_in_bytes:
            raise CorruptLogError(
                f"Sidecar {part.path} of the checkpoint of version {version} has {meta.size} bytes",
                cause=f"The checkpoint says {sidecar.size_in_bytes}",
                path=part.path,
                version=version,
            )
    for part in checkpoint.file_parts:
        _ = part.metadata


def _check_gaps(listing: LogListing) -> Iterator[Problem]:
    for before, after in pairwise(sorted(listing.commits)):
        if after - before > 1:
            missing = f"Commit {before + 1} is" if after - before == 2 else f"Commits {before + 1} to {after - 1} are"
            error = LogGapError(
                f"{missing} missing from the log",
                cause="Versions that need one cannot be read, nor can changes across them",
                path=commit_path(before + 1),
                version=before + 1,
            )
            yield problem_of(error, "warning")


def _incomplete(checkpoint: CheckpointFiles) -> Problem:
    files = checkpoint.files
    names = ", ".join(f.path.rpartition("/")[2] for f in files[:_PARTS_SHOWN]) + (
        ", …" if len(files) > _PARTS_SHOWN else ""
    )
    what = "is empty" if checkpoint.size_bytes == 0 else f"lacks parts: only {names} there"
    error = IncompleteCheckpointError(
        f"A checkpoint of version {checkpoint.version} {what}",
        cause="Readers pass over it",
        path=files[0].path,
        version=checkpoint.version,
    )
    return problem_of(error, "warning")


def _check_hint(store: LogStore, listing: LogListing) -> Iterator[Problem]:
    try:
        hint = parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH))
    except FileMissingInStoreError:
        return
    except (CorruptLogError, StorageError) as e:
        problem = problem_of(e, "warning")
        message = f"{problem.message}\nReaders list the whole log instead."
        yield replace(problem, message=message, path=LAST_CHECKPOINT_PATH, version=None)
        return
    if hint.version not in listing.checkpoints:
        error = IncompleteCheckpointError(
            f"_last_checkpoint names version {hint.version}, which has no complete checkpoint",
            cause="Readers list the whole log instead",
            path=LAST_CHECKPOINT_PATH,
            version=hint.version,
        )
        yield problem_of(error, "warning")


_SHOWN = 200
_FILE_COLUMNS = ("path", "dv_id", "size")


def ensure_compaction_agrees(store: LogStore, listing: LogListing, compaction: CompactionFile) -> None:
    """Compare a log compaction with its commits, if all of them exist.

    Raises:
        CorruptLogError: They disagree, or a file cannot be parsed.
        StorageError: One cannot be read.
    """
    actions = read_compaction(store, compaction)
    versions = range(compaction.start_version, compaction.end_version + 1)
    files = [listing.commits[version] for version in versions if version in listing.commits]
    if len(files) < len(versions):
        return
    commits = parse_log_files(read_commits(store, files, versions))
    if differences := ", ".join(_differences_of_actions(commits, actions)):
        raise CorruptLogError(
            f"Log compaction {compaction.file.path.rpartition('/')[2]} contradicts its commits",
            cause=f"It differs in {differences}",
            remedy="Delete the file: readers take the commits",
            path=compaction.file.path,
        )


def _differences_of_actions(commits: LogActions, compacted: LogActions) -> Iterator[str]:
    yield from _differing_definitions(commits, compacted)
    if {t.app_id: t.version for t in commits.txns.values()} != {t.app_id: t.version for t in compacted.txns.values()}:
        yield "transaction identifiers"
    of_commits, of_checkpoint = (
        {d.domain: d.configuration for d in actions.domain_metadata.values() if not d.removed}
        for actions in (commits, compacted)
    )
    if of_commits != of_checkpoint:
        yield "metadata domains"
    before, after = reconcile_files(None, [commits]), reconcile_files(None, [compacted])
    yield from _differing_files(_sizes(before.adds), _sizes(after.adds))
    gone = _keys(before.tombstones)
    # A compaction may omit files that were added and removed within its range.
    lost = gone - set(after.touched.keys.to_pylist()) - _keys(commits.adds)
    if wrong := lost | (_keys(after.tombstones) - gone):
        yield f"the removal of {_named(wrong)}"


def ensure_checkpoint_agrees(
    store: LogStore, listing: LogListing, files: CheckpointFiles, *, with_commits: bool
) -> None:
    """Compare a checkpoint with its version checksum. With `with_commits`, compare it with the commits before it as
    well, if all of them exist.

    Raises:
        CorruptLogError: They disagree, or a file is damaged.
        StorageError: One cannot be read.
    """
    version = files.version
    dated_by = listing.commits.get(version, files.files[0])
    checkpoint = _load(store, LogSegment(version, files, (), dated_by, ()))
    if files.has_checksum:
        checkpoint.validate()
    if not with_commits:
        return
    older = {v: checkpoints for v, checkpoints in listing.checkpoints.items() if v < version}
    rest = listing._replace(checkpoints=older, compactions=())
    if rest.latest_version is None:
        return
    try:
        segment = plan_segment(rest, version)
    except (LogGapError, VersionNotFoundError):
        return
    commits = _load(store, segment)
    if differences := ", ".join(_differences_of_states(commits, checkpoint)):
        raise CorruptLogError(
            f"The checkpoint of version {version} contradicts the commits before it",
            cause=f"It differs in {differences}",
            remedy="Delete the checkpoint while the commits are there",
            path=files.files[0].path,
            version=version,
        )


def _load(store: LogStore, segment: LogSegment) -> Snapshot:
    checkpoint = None if segment.checkpoint is None else Checkpoint(store, segment.checkpoint)
    return Snapshot(store, segment, checkpoint, replay_segment(store, segment, checkpoint))


def _differences_of_states(commits: Snapshot, checkpoint: Snapshot) -> Iterator[str]:
    yield from _differing_definitions(commits, checkpoint)
    of_commits, of_checkpoint = (
        {app_id: txn.version for app_id, txn in s.every_txn.items()} for s in (commits, checkpoint)
    )
    # A checkpoint may omit expired identifiers.
    if any(of_commits.get(app_id) != of_checkpoint.get(app_id) for app_id in {*of_checkpoint, *commits.txn_actions}):
        yield "transaction identifiers"
    if dict(commits.domain_metadata) != dict(checkpoint.domain_metadata):
        yield "metadata domains"
    if _digest(commits) == _digest(checkpoint):
        return
    before, after = commits.files(_FILE_COLUMNS), checkpoint.files(_FILE_COLUMNS)
    yield from _differing_files(_sizes(before), _sizes(after))
    if after.num_rows > len(_sizes(after)):
        yield "files that it names twice"


def _digest(snapshot: Snapshot) -> int:
    """Of the files and their sizes, in any order; a piece of a checkpoint at a time is in memory."""
    pieces = snapshot.iter_files(_FILE_COLUMNS)
    return sum(sum(map(hash, zip(_key_list(p), FileTable(p).size.to_pylist(), strict=True))) for p in pieces)


def _differing_definitions(one: LogActions | Snapshot, other: LogActions | Snapshot) -> Iterator[str]:
    def protocol(said: Protocol | None) -> object:
        return None if said is None else comparable_protocol(said)

    def metadata(said: Metadata | None) -> object:
        return None if said is None else comparable_metadata(said)

    if protocol(one.protocol) != protocol(other.protocol):
        yield "the protocol"
    if metadata(one.metadata) != metadata(other.metadata):
        yield "the metadata"


def _differing_files(of_commits: Mapping[str, int], of_checkpoint: Mapping[str, int]) -> Iterator[str]:
    for what, keys in (
        ("files that it lacks", of_commits.keys() - of_checkpoint.keys()),
        ("files that it adds", of_checkpoint.keys() - of_commits.keys()),
        (
            "the sizes of",
            {key for key in of_commits.keys() & of_checkpoint.keys() if of_commits[key] != of_checkpoint[key]},
        ),
    ):
        if keys:
            yield f"{what}: {_named(keys)}"


def _sizes(files: pa.Table) -> dict[str, int]:
    return dict(zip(_key_list(files), FileTable(files).size.to_pylist(), strict=True))


def _keys(files: pa.Table) -> set[str]:
    return set(_key_list(files))


def _key_list(files: pa.Table) -> list[str]:
    keys: list[str] = file_keys(canonical_paths(FileTable(files).path), FileTable(files).dv_id).to_pylist()
    return keys


def _named(keys: set[str]) -> str:
    return f"{len(keys)} ({min(keys).rstrip(chr(0)):.{_SHOWN}})"
