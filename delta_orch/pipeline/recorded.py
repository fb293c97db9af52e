"""Finding a commit again by what it recorded: an attempt that was cut off reports the commit it had made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """A commit as the log tells of it.

    Attributes:
        version: Its version; None where the log no longer holds it.
        operation_metrics: Of its `commitInfo`.
        commit_info: All of it.
    """

    version: int | None = None
    operation_metrics: Mapping[str, int | str] | None = None
    commit_info: Mapping[str, object] | None = None


def find_txn_commit(table: DeltaTable, app_id: str, version: int | None = None) -> RecordedCommit:
    """The newest commit that recorded an identifier. Reads the log from its newest commit backwards.

    Args:
        version: Exactly this version of it; None for whichever.

    Raises:
        DeltaError: The log cannot be read.
    """
    return _find(table, lambda commit: any(t.app_id == app_id and version in (None, t.version) for t in commit.txns))


def find_commit_after(
    table: DeltaTable,
    version: int,
    matches: Callable[[Mapping[str, object]], bool],
    *,
    app_id: str | None = None,
    since_ms: float = 0,
    also: Callable[[Commit], bool] | None = None,
) -> RecordedCommit | None:
    """The newest commit after `version` whose `commitInfo` matches, None without one.

    Args:
        app_id: Of those that record a transaction of this application.
        since_ms: Commits that say they are older are not looked at, nor those before them.
        also: Must hold of the whole commit, too.
    """

    def fits(commit: Commit) -> bool:
        recorded = app_id is None or any(txn.app_id == app_id for txn in commit.txns)
        return recorded and matches(commit.commit_info or {}) and (also is None or also(commit))

    found = _find(table, fits, after=version, since_ms=since_ms)
    return None if found.version is None else found


def _find(table: DeltaTable, matches: Callable[[Commit], bool], after: int = -1, since_ms: float = 0) -> RecordedCommit:
    for commit in table.log.newest_first(table.snapshot().version, after + 1):
        if is_older(commit, since_ms):
            break
        if matches(commit):
            info = commit.commit_info or {}
            metrics = info.get("operationMetrics")
            return RecordedCommit(commit.version, metrics if isinstance(metrics, Mapping) else {}, info)
    return RecordedCommit()


def is_older(commit: Commit, since_ms: float) -> bool:
    """Whether a commit says that it was made before a moment."""
    told = (commit.commit_info or {}).get("timestamp")
    return isinstance(told, int) and told < since_ms
