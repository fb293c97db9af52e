"""The part of a table that decides whether and how a commit may be made, followed from version to version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from delta_orch.errors import MetadataChangedError, ProtocolViolationError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.partition_columns import partition_names
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import StructType
from delta_orch.table.column_mapping_ids import without_column_mapping
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot


@dataclass(frozen=True)
class TableState:
    """Protocol and metadata as of a version; -1 and time 0 for a table that is yet to be created.

    Attributes:
        timestamp_ms: When the version was committed: its in-commit timestamp, where the table has them.
        snapshot: Where the metadata domains were found that `domains` does not hold.
        domains: Metadata domains that commits after `snapshot` have set or removed.
    """

    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata
    snapshot: Snapshot | None = field(default=None, repr=False, compare=False)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> TableState:
        return cls(snapshot.version, snapshot.recorded_timestamp_ms, snapshot.protocol, snapshot.metadata, snapshot)

    @classmethod
    def of_first_commit(cls, commit: Commit) -> TableState:
        """The state that version 0 creates. Raises ProtocolViolationError where it creates none."""
        if commit.protocol is None or commit.metadata is None:
            raise ProtocolViolationError(
                "The first commit of the table has no protocol or no metaData action",
                cause='A table is unreadable until it has both (PROTOCOL, "Change Metadata", "Protocol Evolution")',
                remedy="Restore the commit from a backup, or create the table elsewhere",
                version=commit.version,
            )
        domains = {domain.domain: domain for domain in commit.domain_metadata}
        return cls(commit.version, commit.timestamp_ms, commit.protocol, commit.metadata, domains=domains)

    @cached_property
    def schema(self) -> StructType:
        return parse_schema(self.metadata.schema_string)

    @cached_property
    def properties(self) -> TableProperties:
        return TableProperties.parse(self.metadata.configuration)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return partition_names(self.schema, self.metadata.partition_columns)

    def domain_configuration(self, domain: str) -> str | None:
        """The configuration of a metadata domain, None where it is not set. Only asking reads it from a checkpoint."""
        if (changed := self.domains.get(domain)) is not None:
            return None if changed.removed else changed.configuration
        return None if self.snapshot is None else self.snapshot.domain_metadata.get(domain)

    def after(self, commit: Commit) -> TableState:
        """The state once `commit` has been applied."""
        return replace(
            self,
            version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            protocol=commit.protocol or self.protocol,
            metadata=commit.metadata or self.metadata,
            domains={**self.domains, **{domain.domain: domain for domain in commit.domain_metadata}},
        )


PHYSICAL_NAMES = "physical names of columns"


def ensure_joinable(wanted: TableState, created: TableState) -> None:
    """Of two writers that create a table the second joins it, if both meant the same table.

    Raises:
        MetadataChangedError: Schema, partitioning or properties differ, or nothing but the names that each writer has
            made up for the columns in files: then `context["differences"]` is `[PHYSICAL_NAMES]`. Nothing was written;
            running again finds an existing table and treats it as such.
    """
    logical = [without_column_mapping(state.schema) for state in (wanted, created)]
    differences = [
        what
        for what, same in (
            ("schema", logical[0] == logical[1]),
            (PHYSICAL_NAMES, logical[0] != logical[1] or wanted.schema == created.schema),
            ("partitioning", wanted.partition_columns == created.partition_columns),
            ("properties", _chosen(wanted.metadata) == _chosen(created.metadata)),
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


def _chosen(metadata: Metadata) -> dict[str, str]:
    """The properties without those that each writer makes up anew."""
    made_up = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)
    return {key: value for key, value in metadata.configuration.items() if key not in made_up}
