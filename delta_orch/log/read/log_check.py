"""What is wrong with a log, whether or not it keeps a version from being read: gaps, checkpoints that are damaged or
incomplete, a hint that leads nowhere, log compactions that cannot stand for their commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from delta_orch.errors import (
    CorruptLogError,
    DeltaError,
    FileMissingInStoreError,
    IncompleteCheckpointError,
    LogGapError,
    StorageError,
)
from delta_orch.log.files.listing import CheckpointFiles, LogListing
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.compactions import read_compaction
from delta_orch.log.read.segment import LogSegment
from delta_orch.protocol.last_checkpoint import parse_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, commit_path
from delta_orch.storage.base import LogStore

_PARTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

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
    from delta_orch.log.read.agreement import ensure_checkpoint_agrees, ensure_compaction_agrees

    used = () if in_use is None else (in_use.checkpoint, *in_use.compactions)
    yield from _check_gaps(listing)
    for incomplete in (c for found in listing.incomplete_checkpoints.values() for c in found):
        yield _incomplete(incomplete)
    for checkpoint in (c for found in listing.checkpoints.values() for c in found):
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
        # One that is gone is told of by reading it.
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
            yield Problem(
                "warning",
                LogGapError.code,
                f"{missing} missing from the log. Versions that need one cannot be read, nor can changes across them.",
                commit_path(before + 1),
                before + 1,
            )


def _incomplete(checkpoint: CheckpointFiles) -> Problem:
    files = checkpoint.files
    names = ", ".join(f.path.rpartition("/")[2] for f in files[:_PARTS_SHOWN]) + (
        ", …" if len(files) > _PARTS_SHOWN else ""
    )
    what = "is empty" if checkpoint.size_bytes == 0 else f"lacks parts: only {names} there"
    return Problem(
        "warning",
        IncompleteCheckpointError.code,
        f"A checkpoint of version {checkpoint.version} {what}. Readers pass over it.",
        files[0].path,
        checkpoint.version,
    )


def _check_hint(store: LogStore, listing: LogListing) -> Iterator[Problem]:
    try:
        hint = parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH))
    except FileMissingInStoreError:
        return
    except (CorruptLogError, StorageError) as e:
        yield Problem("warning", e.code, f"{e} Readers list the whole log instead.", LAST_CHECKPOINT_PATH)
        return
    if hint.version not in listing.checkpoints:
        yield Problem(
            "warning",
            IncompleteCheckpointError.code,
            f"_last_checkpoint names version {hint.version}, which has no complete checkpoint. "
            "Readers list the whole log instead.",
            LAST_CHECKPOINT_PATH,
            hint.version,
        )
