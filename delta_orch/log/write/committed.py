"""A commit that stands, as its writer knows it: what upkeep after the commit works from."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.log.read.table_state import TableState
from delta_orch.log.write.staged_actions import StagedActions
from delta_orch.protocol.actions import Metadata, Protocol, Txn
from delta_orch.protocol.table_properties import TableProperties


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit of this process.

    Attributes:
        version: Its version.
        actions: As they were written.
        txns: Its transaction identifiers.
        txn_id: `commitInfo.txnId`.
        in_commit_timestamp_ms: None where the table has none.
        before: The state it was made on, that of `version` - 1; None where it created the table.
        protocol, metadata, properties: After it.
    """

    version: int
    actions: StagedActions
    txns: tuple[Txn, ...]
    txn_id: str
    in_commit_timestamp_ms: int | None
    before: TableState | None
    protocol: Protocol
    metadata: Metadata
    properties: TableProperties
