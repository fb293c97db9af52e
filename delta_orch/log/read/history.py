"""The provenance of commits, newest first (PROTOCOL, "Commit Provenance Information")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from delta_orch.errors import CorruptLogError
from delta_orch.log.files.commit_reader import LONGEST_LINE_BYTES, LogFile, in_commit_timestamp_ms, read_commits
from delta_orch.log.read.time_travel import adjusted_file_times
from delta_orch.protocol.actions import JsonObject, JsonValue
from delta_orch.storage.base import FileMeta, LogStore

# Some writers spell the actions that a line does not hold, too, as null.
_COMMIT_INFO = re.compile(rb'^[^\S\n]*\{(?:\s*"\w+"\s*:\s*null\s*,)*\s*"commitInfo"\s*:\s*[^n\s].*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One commit as its writer described it.

    Attributes:
        version: Its version.
        timestamp_ms: When it was committed, as time travel sees it: the in-commit timestamp where this commit and all
            later ones have one, else the file's time, at least a millisecond after that of the version before.
        file_time_ms: The modification time of the commit file, as it is.
        in_commit_timestamp_ms: None where the commit does not say.
        operation: None where the commit does not say.
        operation_parameters: Values as the writer spelled them, mostly text.
        operation_metrics: Values as the writer spelled them.
        user_metadata, engine_info: None where the commit does not say.
        commit_info: The whole `commitInfo` action; empty if the commit has none.
    """

    version: int
    timestamp_ms: int
    file_time_ms: int
    in_commit_timestamp_ms: int | None
    operation: str | None
    operation_parameters: JsonObject
    operation_metrics: JsonObject
    user_metadata: str | None
    engine_info: str | None
    commit_info: JsonObject


def read_history(store: LogStore, commits: Mapping[int, FileMeta], limit: int | None = None) -> list[HistoryEntry]:
    """The entries of commits, newest first. Of each commit only the `commitInfo` line is parsed.

    Args:
        commits: By version; all there are, as the time of one depends on the one before.
        limit: At most that many; None for all.

    Raises:
        CorruptLogError: That line is not JSON; the error names the file.
        LogGapError: A commit vanished after it was listed.
    """
    versions = sorted(commits, reverse=True)[:limit]
    times = adjusted_file_times(commits)
    entries, counts = [], True
    for file in read_commits(store, [commits[v] for v in versions], versions):
        entry = _entry(file, commits[file.version], times[file.version])
        # If a later commit has no timestamp, in-commit timestamps were disabled again.
        counts = counts and entry.in_commit_timestamp_ms is not None
        entries.append(replace(entry, timestamp_ms=entry.in_commit_timestamp_ms or 0) if counts else entry)
    return entries


def _entry(file: LogFile, meta: FileMeta, adjusted_ms: int) -> HistoryEntry:
    info = _commit_info(file)
    return HistoryEntry(
        version=file.version,
        timestamp_ms=adjusted_ms,
        file_time_ms=meta.modification_time_ms,
        in_commit_timestamp_ms=in_commit_timestamp_ms(info),
        operation=info.get("operation"),
        operation_parameters=_mapping(info.get("operationParameters")),
        operation_metrics=_mapping(info.get("operationMetrics")),
        user_metadata=info.get("userMetadata"),
        engine_info=info.get("engineInfo"),
        commit_info=info,
    )


def _commit_info(file: LogFile) -> JsonObject:
    line = _COMMIT_INFO.search(file.data)
    if line is None:
        return {}
    try:
        if line.end() - line.start() > LONGEST_LINE_BYTES:
            raise ValueError("it is too long")
        return _mapping(orjson.loads(line[0])["commitInfo"])
    except ValueError as e:
        raise CorruptLogError(
            f"Log file {file.path.rpartition('/')[2]} cannot be read",
            cause=f"Its commitInfo is not JSON: {e}",
            remedy="Restore the file from a backup",
            path=file.path,
            version=file.version,
        ) from None


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}
