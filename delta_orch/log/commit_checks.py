"""What must hold before a commit is tried. Nothing has been written when one of these raises."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from delta_orch.errors import (
    AppendOnlyError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidRequestError,
    StorageError,
    TableExistsError,
)
from delta_orch.log.conflict import ISOLATION_LEVELS
from delta_orch.log.staged_actions import StagedActions
from delta_orch.log.table_state import TableState

if TYPE_CHECKING:
    from delta_orch.log.table_log import TableLog


def ensure_isolation_level(level: str | None) -> None:
    """Raise InvalidRequestError unless it is one, or None."""
    if level is not None and level not in ISOLATION_LEVELS:
        raise InvalidRequestError(f"Unknown isolation level {level!r}", remedy=f"Use {' or '.join(ISOLATION_LEVELS)}")


def ensure_may_remove(staged: StagedActions, base: TableState | None) -> None:
    """Raise AppendOnlyError where the table keeps its rows (PROTOCOL, "Append-only Tables"), InvalidRequestError where
    there is no table yet."""
    if base is None and staged.num_removed:
        raise InvalidRequestError("A transaction that creates a table has no files to remove")
    if staged.removes_data and base is not None and base.properties.append_only:
        raise AppendOnlyError(
            "The table is append-only: no row may be removed or replaced",
            cause="Its property delta.appendOnly is true",
            remedy="Append instead, or set the property to false first",
        )


def ensure_next_version_is_new(log: TableLog, base: TableState | None) -> None:
    """A free name proves nothing where commits were cleaned up: a version of the past must not be written again.

    Costs nothing unless the version started from is older than the log is kept, or a table is created.

    Raises:
        TableExistsError: A table is to be created where one is whose first commits are gone.
        ConflictError: The commits after `base` are gone.
    """
    if base is None:
        # In this order: a table that another writer creates in between has its version 0.
        if log.exists() and not log.has_version(0):
            raise TableExistsError(
                f"There is a table at {log.store.uri} already", remedy="Open it and start from its snapshot"
            )
        return
    age_ms = time.time_ns() // 1_000_000 - base.timestamp_ms
    if age_ms <= base.properties.log_retention_ms or log.has_version(base.version):
        return
    latest = log.latest_version()
    if latest > base.version:
        raise ConflictError(
            f"Version {base.version}, from which this change starts, is long past",
            cause="Commits after it have been cleaned up, so nobody can tell what it conflicts with",
            remedy="Run the operation again: it will start from the newest version",
            winning_version=latest,
        )


def outcome_unknown(uri: str, version: int, txn_id: str, error: StorageError) -> CommitOutcomeUnknownError:
    """The error for a commit that may have happened."""
    return CommitOutcomeUnknownError(
        f"It is unknown whether version {version} of {uri} was committed",
        cause=str(error),
        remedy=f"Look whether commitInfo.txnId of that version is {txn_id} before writing again; "
        "with transaction identifiers (`txn`) running again is safe as it is",
        version=version,
        txn_id=txn_id,
    )
