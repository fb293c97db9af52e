"""From the files of a segment to its reconciled tail, with log compactions in place of commits where they can be
trusted (PROTOCOL, "Log Compaction Files").

A compaction never decides anything: whatever is odd about one, the commits it stands for are read instead.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa

from delta_orch.errors import CorruptLogError, StorageError
from delta_orch.log.files.commit_reader import LogActions, LogFile, parse_log_files, read_commits
from delta_orch.log.files.listing import CompactionFile
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.replay import Tail, file_keys
from delta_orch.log.read.segment import LogSegment
from delta_orch.protocol.actions import DomainMetadata
from delta_orch.protocol.data_path import canonical_paths
from delta_orch.storage.base import LogStore

_LOGGER = logging.getLogger(__name__)


def replay_segment(store: LogStore, segment: LogSegment, checkpoint: Checkpoint | None) -> Tail:
    """The reconciled state of everything in a segment that is JSON: its commits, and a V2 checkpoint's own file.

    Raises:
        CorruptLogError: A commit is damaged or gone; the error names the file.
    """
    tail = Tail()
    if checkpoint is not None and checkpoint.json_actions is not None:
        tail = tail.fold(checkpoint.json_actions)
    for compaction, versions in segment.runs():
        actions = None if compaction is None else _read_trusted(store, compaction, tail, checkpoint)
        if actions is None:
            actions = parse_log_files(read_commits(store, segment.commits_of(versions), versions))
        tail = tail.fold(actions)
    return tail


def read_compaction(store: LogStore, compaction: CompactionFile) -> LogActions:
    """The actions of a compaction.

    Raises:
        CorruptLogError: It is not JSON, or speaks of one thing twice: then its writer did not reconcile its actions,
            and as lines of one file have no order, the state after them is unknown.
        StorageError: It cannot be read.
    """
    path = compaction.file.path
    actions = parse_log_files([LogFile(path, compaction.end_version, store.read_bytes(path))])
    if actions.num_superseded or _names_a_file_twice(actions):
        raise CorruptLogError(
            f"Log compaction {path.rpartition('/')[2]} is not reconciled",
            cause="It names something more than once, which leaves open what happened to it last",
            remedy="Delete the file: the commits say the same",
            path=path,
        )
    # Of which commit a commitInfo in here would be is not known.
    return replace(actions, commit_info=None)


def _names_a_file_twice(actions: LogActions) -> bool:
    adds, removes = actions.adds, actions.removes
    paths = [*canonical_paths(adds["path"]).chunks, *canonical_paths(removes["path"]).chunks]
    vectors = [*adds["dv_id"].chunks, *removes["dv_id"].chunks]
    keys = file_keys(pa.chunked_array(paths, pa.string()), pa.chunked_array(vectors, pa.string()))
    return len(keys.unique()) < len(keys)


def _read_trusted(
    store: LogStore, compaction: CompactionFile, before: Tail, checkpoint: Checkpoint | None
) -> LogActions | None:
    try:
        actions = read_compaction(store, compaction)
    except (CorruptLogError, StorageError) as e:
        _LOGGER.warning("Reading the commits instead of a log compaction of %s: %s", store.uri, e)
        return None
    forgotten = _forgotten_domains(before, actions, checkpoint)
    if forgotten:
        _LOGGER.info(
            "Reading the commits instead of %s: it does not tell whether the domains %s were removed",
            compaction.file.path, forgotten,
        )  # fmt: skip
        return None
    return actions


def _forgotten_domains(before: Tail, actions: LogActions, checkpoint: Checkpoint | None) -> list[str]:
    """Domains that are there before a compaction and that it does not mention.

    They may be untouched, or removed: some writers leave removed domains out of compactions, and so let older metadata
    come back to life.
    """
    domains: dict[str, DomainMetadata] = {}
    protocol = before.protocol
    if checkpoint is not None:
        protocol = protocol or checkpoint.protocol_and_metadata[0]
        # Without the feature there are none, and the checkpoint need not be read for them.
        if any(p is not None and "domainMetadata" in (p.writer_features or ()) for p in (protocol, actions.protocol)):
            domains.update(checkpoint.domain_metadata)
    domains.update(before.domain_metadata)
    return sorted(name for name, d in domains.items() if not d.removed and name not in actions.domain_metadata)
