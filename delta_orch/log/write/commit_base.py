"""The version that a commit follows, and what of the commit depends on it.

Most commits are the same bytes whatever their version. Three kinds are not, and are fitted to each version they are
tried as: those of tables with in-commit timestamps (each later than the one before), those of tables with row tracking
(ids are counted on from commit to commit), and the removal of metadata domains (which repeats what it removes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts
from delta_orch.log.write.staged_actions import StagedActions
from delta_orch.protocol.actions import DomainMetadata
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import (
    ROW_TRACKING_DOMAIN,
    parse_high_water_mark,
    serialize_high_water_mark,
)

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot


_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
_ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
_LARGEST = (1 << 63) - 2


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
            UnsupportedFeatureError, UnsupportedVersionError: This release can no longer write to the table.
        """
        return replace(
            self,
            version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            table=self.table.after(commit.protocol, commit.metadata).for_writing(),
            domains={**self.domains, **{domain.domain: domain for domain in commit.domain_metadata}},
        )


def depends_on_version(staged: StagedActions, result: TableConfiguration) -> bool:
    """Whether `fit_to_version` gives something else for another version.

    Args:
        result: The table as it is after the commit.
    """
    return (
        result.enables("inCommitTimestamp")
        or (bool(staged.num_added) and result.assigns_row_ids)
        or any(domain.removed for domain in staged.domain_metadata.values())
    )


def fit_to_version(
    staged: StagedActions, base: CommitBase | None, result: TableConfiguration, *, version: int, now_ms: int
) -> tuple[StagedActions, int | None]:
    """The actions as they must be in `version`.

    Args:
        base: The version before it; None where the commit creates the table.
        result: The table as it is after the commit.
        now_ms: When the commit is tried.

    Returns: The actions, and the in-commit timestamp or None.

    Raises:
        InvalidRequestError: A file lacks its number of records, on a table that tracks rows.
        ProtocolViolationError: The row ids of the table are used up, or the table does not say which are.
    """
    fitted = _with_pre_images(staged, base) if staged.domain_metadata else staged
    if staged.num_added and result.assigns_row_ids:
        fitted = _with_row_ids(fitted, base, version)
    if not result.enables("inCommitTimestamp"):
        return fitted, None
    timestamp_ms = now_ms if base is None else max(now_ms, base.timestamp_ms + 1)
    return _with_enablement(fitted, base, version, timestamp_ms), timestamp_ms


def _with_row_ids(staged: StagedActions, base: CommitBase | None, version: int) -> StagedActions:
    before = parse_high_water_mark(None if base is None else base.domain_configuration(ROW_TRACKING_DOMAIN))
    raised = staged.domain_metadata.get(ROW_TRACKING_DOMAIN)
    if raised is not None and not raised.removed:
        # Files with their own ids (from a restore or a clone) raise the mark above these ids.
        before = max(before, parse_high_water_mark(raised.configuration))
    adds, after = assign_row_ids(staged.adds, before, version)
    if after == before:
        return replace(staged, adds=adds)
    mark = DomainMetadata(ROW_TRACKING_DOMAIN, serialize_high_water_mark(after))
    return replace(staged, adds=adds, domain_metadata={**staged.domain_metadata, ROW_TRACKING_DOMAIN: mark})


def _with_enablement(staged: StagedActions, base: CommitBase | None, version: int, timestamp_ms: int) -> StagedActions:
    """Note since when commits carry their time, in the commit that begins with it."""
    if base is None or staged.metadata is None:
        return staged
    if base.table.enables("inCommitTimestamp"):
        return staged
    since = {_ENABLEMENT_VERSION: str(version), _ENABLEMENT_TIMESTAMP: str(timestamp_ms)}
    metadata = replace(staged.metadata, configuration={**staged.metadata.configuration, **since})
    return replace(staged, metadata=metadata)


def _with_pre_images(staged: StagedActions, base: CommitBase | None) -> StagedActions:
    """PROTOCOL, "Domain Metadata": a removal keeps an accurate image of what it removes."""
    if not any(domain.removed for domain in staged.domain_metadata.values()):
        return staged
    fitted = {}
    for name, domain in staged.domain_metadata.items():
        before = None if base is None else base.domain_configuration(name)
        fitted[name] = replace(domain, configuration=before) if domain.removed and before is not None else domain
    return replace(staged, domain_metadata=fitted)


def assign_row_ids(adds: Sequence[pa.Table], high_water_mark: int, version: int) -> tuple[list[pa.Table], int]:
    """Give every file a base row id and the version its rows are from; files that have theirs (added again with another
    deletion vector, say) keep them.

    Args:
        adds: Columns of `file_columns.ADD_SCHEMA`.
        high_water_mark: The highest id given out before this commit, -1 for none.
        version: The version the commit becomes.

    Returns: The files, and the highest id given out now.

    Raises:
        InvalidRequestError: A file without an id does not say how many records it has.
        ProtocolViolationError: There are no more ids.
    """
    assigned = []
    for files in adds:
        with_ids, high_water_mark = _assign(files, high_water_mark, version)
        assigned.append(with_ids)
    return assigned, high_water_mark


def _assign(files: pa.Table, mark: int, version: int) -> tuple[pa.Table, int]:
    base_ids = _column(files, "base_row_id")
    is_new = pc.is_null(base_ids)
    if pc.any(is_new).as_py():
        counts = pc.if_else(is_new, record_counts(files), 0)
        if counts.null_count:
            raise InvalidRequestError(
                "A new file does not say how many records it has",
                cause="The table tracks rows: their ids are counted on from file to file",
                remedy="Give numRecords in the statistics of every file",
                path=pc.filter(FileTable(files).path, pc.is_null(counts))[0].as_py(),
            )
        total = pc.sum(counts).as_py()
        if mark + total > _LARGEST:
            raise ProtocolViolationError("The row ids of the table are used up", cause=f"The last one given is {mark}")
        ends = pc.cumulative_sum(counts)
        fresh = pc.add(pc.subtract(ends, counts), mark + 1)
        base_ids = pc.if_else(is_new, fresh, base_ids)
        mark += total
    versions = pc.coalesce(_column(files, "default_row_commit_version"), version)
    return _with(_with(files, "base_row_id", base_ids), "default_row_commit_version", versions), mark


def _column(files: pa.Table, name: str) -> pa.Array:
    if name not in files.column_names:
        return pa.nulls(files.num_rows, pa.int64())
    return one_chunk(files.column(name))


def _with(files: pa.Table, name: str, values: pa.Array) -> pa.Table:
    index = files.schema.get_field_index(name)
    if index < 0:
        return files.append_column(ADD_SCHEMA.field(name), values)
    return files.set_column(index, ADD_SCHEMA.field(name), values)
