"""How a transaction ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delta_orch.log.files.txn import TxnId

if TYPE_CHECKING:
    from delta_orch.log.write.commit_base import CommitBase
    from delta_orch.log.write.commit_preview import CommitPreview
    from delta_orch.log.write.staged_actions import StagedActions
    from delta_orch.protocol.actions import Txn
    from delta_orch.table.configuration import TableConfiguration


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that stands, as its writer knows it: what upkeep after the commit works from.

    Attributes:
        actions: As they were written.
        txns: Its transaction identifiers.
        txn_id: `commitInfo.txnId`.
        in_commit_timestamp_ms: None where the table has none.
        before: The version it follows; None where it created the table.
        table: The table after it.
    """

    version: int
    actions: StagedActions
    txns: tuple[Txn, ...]
    txn_id: str
    in_commit_timestamp_ms: int | None
    before: CommitBase | None
    table: TableConfiguration


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What `Transaction.commit`, and every verb that commits, returns.

    Attributes:
        version: The version committed; where nothing was committed, the newest version looked at.
        skipped: Nothing was committed, because there was nothing left to do: the transaction identifiers are recorded
            already, or a table to be created exists already as wanted.
        skipped_txns: Identifiers that were recorded already; the files in their scope are not in the commit.
        operation_metrics: As written to `commitInfo`.
        attempts: How often the commit was tried; 0 where `skipped` was known before the first.
        rebased_versions: Versions of other writers that this commit was ordered after, ascending.
        timestamp_ms: When `version` was committed, milliseconds since the epoch, as recorded: of two commits of one
            moment, history gives the second a later time.
        preview: Of a dry run, which has committed nothing: what it would have. None otherwise.
    """

    version: int
    skipped: bool
    skipped_txns: tuple[TxnId, ...] = ()
    operation_metrics: Mapping[str, int | str] = field(default_factory=dict)
    attempts: int = 0
    rebased_versions: tuple[int, ...] = ()
    timestamp_ms: int = 0
    preview: CommitPreview | None = None
