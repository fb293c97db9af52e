"""In-commit timestamps: when commits carry their own time, and since when (PROTOCOL, "In-Commit Timestamps")."""

from __future__ import annotations

from dataclasses import replace

from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.table.registry import supports

ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


def are_in_commit_timestamps_enabled(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether each commit must carry its time."""
    if not supports(protocol, "inCommitTimestamp"):
        return False
    return TableProperties.parse(metadata.configuration).enable_in_commit_timestamps


def with_enablement(metadata: Metadata, version: int, timestamp_ms: int) -> Metadata:
    """The metadata of the commit that enables the feature on a table that has commits without it."""
    provenance = {ENABLEMENT_VERSION: str(version), ENABLEMENT_TIMESTAMP: str(timestamp_ms)}
    return replace(metadata, configuration={**metadata.configuration, **provenance})
