"""The last transaction identifier of one application, newest commit first (PROTOCOL, "Transaction Identifiers").

A table's state needs every commit since the last checkpoint, one identifier only those since it was recorded. Commits
are searched as bytes: only the lines that may hold the identifier are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from delta_orch.log.files.commit_reader import LogFile, parse_log_files, read_paths
from delta_orch.log.read.segment import read_last_checkpoint, resolve_segment
from delta_orch.protocol.actions import Txn
from delta_orch.protocol.paths import LOG_DIRECTORY, commit_path
from delta_orch.storage.base import LogStore

_TXN = b'"txn"'
_MOST_AT_ONCE = 256
_COMMIT_NAME_LENGTH = len("00000000000000000000.json")


def read_last_txn(store: LogStore, app_id: str) -> Txn | None:
    """The newest `txn` action of an application id, None where the log has none. Retention is not looked at.

    Raises:
        TableNotFoundError: There is no log.
        CorruptLogError: A file that had to be read is damaged or missing. A file that has no line to parse is not
            checked.
    """
    versions = _uncheckpointed(store)
    checkpoint = None
    if versions is None:
        segment = resolve_segment(store)
        versions = range(segment.first_commit, segment.version + 1)
        checkpoint = segment.checkpoint
    for file in _newest_first(store, versions):
        if (txn := _find(file, app_id)) is not None:
            return txn
    if checkpoint is None:
        return None
    from delta_orch.log.read.checkpoint_reader import Checkpoint

    return Checkpoint(store, checkpoint).txns.get(app_id)


def _uncheckpointed(store: LogStore) -> range | None:
    """The versions of a log of nothing but commits, from the names of its files alone; None for every other log."""
    if read_last_checkpoint(store) is not None:
        return None
    names = store.list_names(LOG_DIRECTORY)
    commits = [name for name in names if len(name) == _COMMIT_NAME_LENGTH and name.endswith(".json")]
    if not commits or any(".checkpoint." in name for name in names):
        return None
    first, last = commits[0][:-5], commits[-1][:-5]
    is_whole = first.strip("0") == "" and last.isdecimal() and int(last) == len(commits) - 1
    return range(len(commits)) if is_whole else None


def _newest_first(store: LogStore, versions: range) -> Iterator[LogFile]:
    stop, count = versions.stop, 1
    while stop > versions.start:
        start = max(versions.start, stop - count)
        batch: Sequence[int] = range(stop - 1, start - 1, -1)
        yield from read_paths(store, [commit_path(version) for version in batch], batch)
        stop, count = start, min(2 * count, _MOST_AT_ONCE)


def _find(file: LogFile, app_id: str) -> Txn | None:
    """The application's `txn` in a commit. A line with an escape may spell the application id in another way."""
    data, found = file.data, None
    position = data.find(_TXN)
    while position >= 0:
        end = data.find(b"\n", position)
        line = data[data.rfind(b"\n", 0, position) + 1 : len(data) if end < 0 else end]
        if b"\\" in line or orjson.dumps(app_id) in line:
            found = parse_log_files([LogFile(file.path, file.version, line)]).txns.get(app_id, found)
        position = -1 if end < 0 else data.find(_TXN, end)
    return found
