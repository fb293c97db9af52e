"""Whether checkpoints and log compactions say what the commits say that they stand for, and the version checksums.

Reading takes some of it on trust: what it costs to hold a whole state against another one, `fsck` alone pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from delta_orch.errors import CorruptLogError, LogGapError, VersionNotFoundError
from delta_orch.log.files.commit_reader import LogActions, parse_log_files, read_commits
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.listing import CheckpointFiles, CompactionFile, LogListing
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.checksum_file import comparable_metadata, comparable_protocol
from delta_orch.log.read.compactions import read_compaction
from delta_orch.log.read.reconcile import file_keys, reconcile_files
from delta_orch.log.read.replay import replay_segment
from delta_orch.log.read.segment import LogSegment, plan_segment
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.paths import canonical_paths
from delta_orch.storage.base import LogStore

_SHOWN = 200
_FILE_COLUMNS = ("path", "dv_id", "size")


def ensure_compaction_agrees(store: LogStore, listing: LogListing, compaction: CompactionFile) -> None:
    """Hold a log compaction against its commits, where they are all there.

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
    told, said = (
        {d.domain: d.configuration for d in actions.domain_metadata.values() if not d.removed}
        for actions in (commits, compacted)
    )
    if told != said:
        yield "metadata domains"
    before, after = reconcile_files(None, [commits]), reconcile_files(None, [compacted])
    yield from _differing_files(_sizes(before.adds), _sizes(after.adds))
    gone = _keys(before.tombstones)
    # What was added and removed in between may be left out: nobody sees it.
    lost = gone - set(after.touched.keys.to_pylist()) - _keys(commits.adds)
    if wrong := lost | (_keys(after.tombstones) - gone):
        yield f"the removal of {_named(wrong)}"


def ensure_checkpoint_agrees(
    store: LogStore, listing: LogListing, files: CheckpointFiles, *, with_commits: bool
) -> None:
    """Hold a checkpoint against its version checksum; with `with_commits` also against the state that an older
    checkpoint, or none, and the commits behind it lead to, where they are all there.

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
    older = {v: found for v, found in listing.checkpoints.items() if v < version}
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
    told, said = ({app_id: txn.version for app_id, txn in s.every_txn.items()} for s in (commits, checkpoint))
    # One that has expired may be left out.
    if any(told.get(app_id) != said.get(app_id) for app_id in {*said, *commits.txn_actions}):
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


def _differing_files(told: Mapping[str, int], said: Mapping[str, int]) -> Iterator[str]:
    for what, keys in (
        ("files that it lacks", told.keys() - said.keys()),
        ("files that it adds", said.keys() - told.keys()),
        ("the sizes of", {key for key in told.keys() & said.keys() if told[key] != said[key]}),
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
