"""The part of a table that decides whether and how a commit may be made, followed from version to version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from delta_orch.errors import MetadataChangedError, ProtocolViolationError
from delta_orch.log.commit_reader import Commit
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    from delta_orch.log.snapshot import Snapshot


@dataclass(frozen=True)
class TableState:
    """Protocol and metadata as of a version; -1 and time 0 for a table that is yet to be created."""

    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> TableState:
        return cls(snapshot.version, snapshot.timestamp_ms, snapshot.protocol, snapshot.metadata)

    @classmethod
    def of_first_commit(cls, commit: Commit) -> TableState:
        """The state that version 0 creates. Raises ProtocolViolationError where it creates none."""
        if commit.protocol is None or commit.metadata is None:
            raise ProtocolViolationError(
                "The first commit of the table has no protocol or no metaData action", version=commit.version
            )
        return cls(commit.version, commit.timestamp_ms, commit.protocol, commit.metadata)

    @cached_property
    def schema(self) -> StructType:
        return parse_schema(self.metadata.schema_string)

    @cached_property
    def properties(self) -> TableProperties:
        return TableProperties.parse(self.metadata.configuration)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self.metadata.partition_columns

    def after(self, commit: Commit) -> TableState:
        """The state once `commit` has been applied."""
        return replace(
            self,
            version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            protocol=commit.protocol or self.protocol,
            metadata=commit.metadata or self.metadata,
        )


def ensure_joinable(wanted: TableState, created: TableState) -> None:
    """Of two writers that create a table the second joins it, if both meant the same table.

    Raises:
        MetadataChangedError: Schema, partitioning or properties differ. Nothing was written; running again finds an
            existing table and treats it as such.
    """
    differences = [
        what
        for what, same in (
            ("schema", wanted.schema == created.schema),
            ("partitioning", wanted.partition_columns == created.partition_columns),
            ("properties", dict(wanted.metadata.configuration) == dict(created.metadata.configuration)),
        )
        if not same
    ]
    if differences:
        raise MetadataChangedError(
            "Another writer has just created the table, and differently",
            cause=f"Not the same: {', '.join(differences)}",
            remedy="Run the operation again: it will find an existing table",
            winning_version=created.version,
            differences=differences,
        )
