"""Features that leave a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError
from delta_orch.features.activity import TableView
from delta_orch.features.clustering import CLUSTERING_DOMAIN
from delta_orch.features.feature_removal import (
    KEPT,
    PROTECTED_BEFORE,
    REMOVALS,
    Removal,
    dependents_of,
    without_features,
)
from delta_orch.features.property_rules import find_property
from delta_orch.features.protocol_upgrade import canonical_features, resolve_feature, with_features
from delta_orch.log.listing import list_log
from delta_orch.log.snapshot import Snapshot
from delta_orch.operations.alter.draft import Draft
from delta_orch.protocol.log_path import LogFileKind
from delta_orch.protocol.schema import serialize_schema


@dataclass(frozen=True, slots=True)
class DropFeature:
    """A feature that nothing uses any more; see `features.feature_removal` for what must be gone first."""

    name: str
    operation = "DROP FEATURE"

    def apply(self, draft: Draft) -> Draft:
        """Raises UnsupportedFeatureError, InvalidRequestError."""
        name = resolve_feature(self.name).name
        supported = canonical_features(draft.table.protocol)
        if name not in supported:
            raise InvalidRequestError(
                f"The table does not support the feature {name}",
                remedy=f"It supports {', '.join(sorted(supported))}",
                features=[name],
            )
        removal = REMOVALS.get(name)
        if removal is None:
            raise UnsupportedFeatureError(
                f"The feature {name} cannot be dropped", cause=KEPT.get(name, "it has no way out"), features=[name]
            )
        blockers = list(_blockers(draft, name, removal))
        if blockers:
            raise InvalidRequestError(
                f"The feature {name} is still in use", remedy="; ".join(blockers), features=[name], blockers=blockers
            )
        return _without(draft, name, removal)

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"featureName": resolve_feature(self.name).name, "truncateHistory": False}


def _blockers(draft: Draft, name: str, removal: Removal) -> Iterator[str]:
    metadata = replace(draft.table.metadata, schema_string=serialize_schema(draft.schema))
    found = removal.blocker(TableView(metadata))
    if found is not None:
        yield found
    dependents = [d for d in dependents_of(draft.table.protocol, name) if d != name]
    if dependents:
        yield f"drop {', '.join(dependents)} first, which cannot be without it"
    yield from _evidence(draft, name)


def _evidence(draft: Draft, name: str) -> Iterator[str]:
    """What the table's files and domains say."""
    snapshot = draft.snapshot
    match name:
        case "clustering" if draft.clustering:
            yield "cluster the table by nothing first: cluster_by()"
        case "domainMetadata":
            domains = {d: c for d, c in {**snapshot.domain_metadata, **draft.domains}.items() if c is not None}
            if domains:
                yield f"remove the metadata domains {', '.join(sorted(domains))} first"
        case "deletionVectors" if _holds_deletion_vectors(snapshot):
            yield "run optimize until no file has a deletion vector, and wait for the log of before to be cleaned up"
        case "v2Checkpoint" if _checkpoint_is_v2(snapshot):
            yield "set delta.checkpointPolicy to classic, and write a checkpoint"
        case "checkpointProtection":
            before = draft.table.properties.require_checkpoint_protection_before_version or 0
            listing = list_log(snapshot.store, 0, max(before - 1, 0))
            if before and (listing.commits or listing.checkpoints):
                yield f"wait until the log before version {before} has been cleaned up"


def _holds_deletion_vectors(snapshot: Snapshot) -> bool:
    tables = (snapshot.files(["dv_id"]), snapshot.tombstones(["dv_id"]))
    return any(bool(pc.any(pc.is_valid(table.column("dv_id"))).as_py()) for table in tables)


def _checkpoint_is_v2(snapshot: Snapshot) -> bool:
    checkpoint = snapshot.checkpoint
    if checkpoint is None:
        return False
    return checkpoint.files.kind is LogFileKind.CHECKPOINT_UUID or bool(checkpoint.sidecars)


def _without(draft: Draft, name: str, removal: Removal) -> Draft:
    configuration = dict(draft.configuration)
    for key in removal.forgets:
        configuration.pop(find_property(configuration, key) or key, None)
    protocol = without_features(draft.table.protocol, {name})
    domains = dict(draft.domains)
    if name == "clustering" and draft.clustering is not None:
        domains[CLUSTERING_DOMAIN] = None
        draft = replace(draft, clustering=None)
    relies_on_version = draft.relies_on_version
    if removal.history_needs_it:
        # This change will be the first version without it: what is before must not be read by those who lack it.
        configuration[PROTECTED_BEFORE] = str(draft.snapshot.version + 1)
        protocol = with_features(protocol, {"checkpointProtection"})
        relies_on_version = True
    table = replace(draft.table, protocol=protocol).with_configuration(configuration)
    features = draft.features - {name}
    return replace(
        draft,
        table=table,
        domains=domains,
        features=features,
        relies_on_files=draft.relies_on_files or removal.history_needs_it,
        relies_on_version=relies_on_version,
        needs_checkpoint=draft.needs_checkpoint or removal.history_needs_it,
    )
