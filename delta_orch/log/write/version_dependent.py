"""What of a commit depends on the version it becomes, and on what the commits before it said.

Most commits are the same bytes whatever their version. Not so those of tables with in-commit timestamps (each later
than the one before) and with row tracking (ids are counted on from commit to commit), and the removal of metadata
domains (which repeats what it removes). They are fitted anew to each version they are tried as.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delta_orch.log.write.commit_base import CommitBase
from delta_orch.log.write.row_ids import assign_row_ids
from delta_orch.log.write.staged_actions import StagedActions
from delta_orch.protocol.actions import DomainMetadata
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import (
    ROW_TRACKING_DOMAIN,
    assigns_row_ids,
    parse_high_water_mark,
    serialize_high_water_mark,
)

_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
_ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


@dataclass(frozen=True, slots=True)
class FittedActions:
    """The actions of one attempt.

    Attributes:
        staged: As they are to be written.
        in_commit_timestamp_ms: For `commitInfo`; None where the table has none.
    """

    staged: StagedActions
    in_commit_timestamp_ms: int | None


def depends_on_version(staged: StagedActions, result: TableConfiguration) -> bool:
    """Whether `fit_to_version` gives something else for another version.

    Args:
        result: The table as it is after the commit.
    """
    return (
        result.enables("inCommitTimestamp")
        or (bool(staged.num_added) and assigns_row_ids(result))
        or any(domain.removed for domain in staged.domain_metadata.values())
    )


def fit_to_version(
    staged: StagedActions, base: CommitBase | None, result: TableConfiguration, *, version: int, now_ms: int
) -> FittedActions:
    """The actions as they must be in `version`.

    Args:
        base: The version before it; None where the commit creates the table.
        result: The table as it is after the commit.
        now_ms: When the commit is tried.

    Raises:
        InvalidRequestError: A file lacks its number of records, on a table that tracks rows.
        ProtocolViolationError: The row ids of the table are used up, or nobody can tell which are.
    """
    fitted = _with_pre_images(staged, base)
    if staged.num_added and assigns_row_ids(result):
        fitted = _with_row_ids(fitted, base, version)
    if not result.enables("inCommitTimestamp"):
        return FittedActions(fitted, None)
    timestamp_ms = now_ms if base is None else max(now_ms, base.timestamp_ms + 1)
    return FittedActions(_with_enablement(fitted, base, version, timestamp_ms), timestamp_ms)


def _with_row_ids(staged: StagedActions, base: CommitBase | None, version: int) -> StagedActions:
    before = parse_high_water_mark(None if base is None else base.domain_configuration(ROW_TRACKING_DOMAIN))
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
