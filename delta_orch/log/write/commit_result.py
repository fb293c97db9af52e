"""How a transaction ended, and what it would have committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delta_orch.log.files.txn import TxnId

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.write.commit_base import CommitBase
    from delta_orch.log.write.staged_actions import StagedActions
    from delta_orch.protocol.actions import Action, Txn
    from delta_orch.table.configuration import TableConfiguration


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that stands, as its writer knows it: what upkeep after the commit works from.

    Attributes:
        actions: As they were written.
        txns: Its transaction identifiers.
        txn_id: `commitInfo.txnId`.
        operation: `commitInfo.operation`.
        in_commit_timestamp_ms: None where the table has none.
        before: The version it follows; None where it created the table.
        table: The table after it.
    """

    version: int
    actions: StagedActions
    txns: tuple[Txn, ...]
    txn_id: str
    operation: str
    in_commit_timestamp_ms: int | None
    before: CommitBase | None
    table: TableConfiguration


@dataclass(frozen=True, slots=True)
class CommitPreview:
    """A commit that was made ready and not written.

    Attributes:
        version: The version it would have become without other commits.
        content: Its bytes, one action a line.
        adds: Files it would add, columns of `file_columns.ADD_SCHEMA`. They do not exist: what was written to learn
            about them (sizes, statistics, violated constraints) was outside the table and is deleted.
        removes: Files it would remove, columns of `file_columns.ADD_SCHEMA` as far as they are known.
    """

    version: int
    content: bytes = field(repr=False)
    adds: tuple[pa.Table, ...] = field(repr=False, compare=False)
    removes: tuple[pa.Table, ...] = field(repr=False, compare=False)

    def actions(self) -> list[Action]:
        """Every action, as an object each; for thousands of files take `adds` and `removes`."""
        import orjson

        from delta_orch.protocol.action_json import parse_action

        parsed = (parse_action(orjson.loads(line)) for line in self.content.splitlines())
        return [action for action in parsed if action is not None]


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
        staged: Of a staged write, which has committed nothing: the reference for `DeltaTable.staged`. None otherwise.
        measured: What the work took, under names that `commitInfo` does not have: files looked at, files opened.
    """

    version: int
    skipped: bool
    skipped_txns: tuple[TxnId, ...] = ()
    operation_metrics: Mapping[str, int | str] = field(default_factory=dict)
    attempts: int = 0
    rebased_versions: tuple[int, ...] = ()
    timestamp_ms: int = 0
    preview: CommitPreview | None = None
    staged: str | None = None
    measured: Mapping[str, int] = field(default_factory=dict)

    @property
    def metrics(self) -> Mapping[str, int | str]:
        """All figures of the operation: `operation_metrics`, and what was `measured` beside them."""
        return {**self.operation_metrics, **self.measured}
