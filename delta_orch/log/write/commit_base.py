"""The version that a commit follows, as far as it decides whether and how the commit may be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_orch.errors import MetadataChangedError, ProtocolViolationError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.protocol.actions import DomainMetadata
from delta_orch.table.column_mapping_ids import without_column_mapping
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class CommitBase:
    """A version that this release can write after: a snapshot's, or one that another writer has committed since.

    Attributes:
        timestamp_ms: When the version was committed: its in-commit timestamp, where the table has them.
        table: Its configuration, checked for writing.
        snapshot: Where the metadata domains were found that `domains` does not hold.
        domains: Metadata domains that commits after `snapshot` have set or removed.
    """

    version: int
    timestamp_ms: int
    table: TableConfiguration
    snapshot: Snapshot | None = field(default=None, repr=False, compare=False)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> CommitBase:
        """Raises UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table."""
        return cls(snapshot.version, snapshot.recorded_timestamp_ms, snapshot.configuration.for_writing(), snapshot)

    @classmethod
    def of_first_commit(cls, commit: Commit) -> CommitBase:
        """The state that version 0 creates.

        Raises:
            ProtocolViolationError: It creates none.
            UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        """
        if commit.protocol is None or commit.metadata is None:
            raise ProtocolViolationError(
                "The first commit of the table has no protocol or no metaData action",
                cause='A table is unreadable until it has both (PROTOCOL, "Change Metadata", "Protocol Evolution")',
                remedy="Restore the commit from a backup, or create the table elsewhere",
                version=commit.version,
            )
        table = TableConfiguration(commit.protocol, commit.metadata)
        domains = {domain.domain: domain for domain in commit.domain_metadata}
        return cls(commit.version, commit.timestamp_ms, table, domains=domains)

    def domain_configuration(self, domain: str) -> str | None:
        """The configuration of a metadata domain, None where it is not set. Only asking reads it from a checkpoint."""
        if (changed := self.domains.get(domain)) is not None:
            return None if changed.removed else changed.configuration
        return None if self.snapshot is None else self.snapshot.domain_metadata.get(domain)

    def after(self, commit: Commit) -> CommitBase:
        """The version that `commit` makes of this one.

        Raises:
            UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table any more.
        """
        return replace(
            self,
            version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            table=self.table.after(commit.protocol, commit.metadata).for_writing(),
            domains={**self.domains, **{domain.domain: domain for domain in commit.domain_metadata}},
        )


PHYSICAL_NAMES = "physical names of columns"


def ensure_joinable(wanted: TableConfiguration, created: CommitBase) -> None:
    """Of two writers that create a table the second joins it, if both meant the same table.

    Raises:
        MetadataChangedError: Schema, partitioning or properties differ, or nothing but the names that each writer has
            made up for the columns in files: then `context["differences"]` is `[PHYSICAL_NAMES]`. Nothing was written;
            running again finds an existing table and treats it as such.
    """
    found = created.table
    logical = [without_column_mapping(table.schema) for table in (wanted, found)]
    differences = [
        what
        for what, same in (
            ("schema", logical[0] == logical[1]),
            (PHYSICAL_NAMES, logical[0] != logical[1] or wanted.schema == found.schema),
            ("partitioning", wanted.partition_columns == found.partition_columns),
            ("properties", _chosen(wanted) == _chosen(found)),
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


def _chosen(table: TableConfiguration) -> dict[str, str]:
    """The properties without those that each writer makes up anew."""
    made_up = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)
    return {key: value for key, value in table.configuration.items() if key not in made_up}
