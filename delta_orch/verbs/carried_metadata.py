"""Metadata that one version or table takes over from another: what goes with it, and what is a fact of its own log."""

from __future__ import annotations

from collections.abc import Mapping

from delta_orch.protocol.actions import Protocol
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import with_features
from delta_orch.table.registry import canonical_features

_SINCE = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")


def united_protocol(kept: Protocol, taken: Protocol) -> Protocol:
    """`kept`, grown by what another protocol supports; never lowered. Both are of tables this release can write."""
    return with_features(kept, canonical_features(taken))


def with_own_commit_times(
    properties: Mapping[str, str], taken: TableConfiguration, own: TableConfiguration | None
) -> dict[str, str]:
    """Properties that are taken over, with what the log itself says of since when its commits carry their time.

    Args:
        taken: The table that the properties are of.
        own: The newest version of the table that gets them; None where it is new.
    """
    if own is not None and not (taken.enables("inCommitTimestamp") and own.enables("inCommitTimestamp")):
        return dict(properties)
    kept = {key: value for key, value in properties.items() if key not in _SINCE}
    now = {} if own is None else own.configuration
    return kept | {key: now[key] for key in _SINCE if key in now}
