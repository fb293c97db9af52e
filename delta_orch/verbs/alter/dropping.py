"""Features that leave a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.types import StructType, fields_of
from delta_orch.table.clustering import CLUSTERING_DOMAIN, logical_paths, serialize_clustering
from delta_orch.table.column_mapping_ids import without_column_mapping
from delta_orch.table.feature_removal import (
    KEPT,
    PROTECTED_BEFORE,
    REMOVALS,
    Removal,
    dependents_of,
    without_features,
)
from delta_orch.table.property_rules import find_property
from delta_orch.table.protocol_upgrade import resolve_feature, with_features
from delta_orch.table.row_tracking import ROW_TRACKING_DOMAIN
from delta_orch.table.type_widening import without_type_changes
from delta_orch.verbs.alter.draft import Draft
from delta_orch.verbs.alter.preparation import holds_versions_before

_ONLY_WITH_MAPPING = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True, slots=True)
class DropFeature:
    """A feature that nothing uses any more; see `table.feature_removal` for what must be gone first.

    With `truncate_history` nothing takes its place: older versions that hold traces of it are cleaned up before.
    """

    name: str
    truncate_history: bool = False
    operation = "DROP FEATURE"

    def apply(self, draft: Draft) -> Draft:
        """Raises UnsupportedFeatureError, InvalidRequestError."""
        name = resolve_feature(self.name).name
        supported = draft.table.features
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
        blockers = list(_blockers(draft, name, removal, self.truncate_history))
        if blockers:
            raise InvalidRequestError(
                f"The feature {name} is still in use", remedy="; ".join(blockers), features=[name], blockers=blockers
            )
        if not self.truncate_history:
            return _without(draft, name, removal)
        if not removal.history_needs_it and name != "checkpointProtection":
            raise InvalidRequestError(
                f"Dropping {name} has nothing to do with the history",
                cause="Older versions hold nothing that only its readers understand",
                remedy="Leave truncate_history out",
                features=[name],
            )
        return replace(_without(draft, name, removal, is_protected=False), truncates=draft.truncates | {name})

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"featureName": resolve_feature(self.name).name, "truncateHistory": self.truncate_history}


def _blockers(draft: Draft, name: str, removal: Removal, truncates: bool) -> Iterator[str]:
    found = removal.blocker(draft.table)
    if found is not None:
        yield found
    dependents = [d for d in dependents_of(draft.table.protocol, name) if d != name]
    if dependents:
        yield f"drop {', '.join(dependents)} first, which cannot be without it"
    yield from _evidence(draft, name, truncates)


def _evidence(draft: Draft, name: str, truncates: bool) -> Iterator[str]:
    """What the table's files, its domains and the names of its columns say."""
    snapshot = draft.snapshot
    match name:
        case "clustering" if draft.clustering:
            yield "cluster the table by nothing first: cluster_by()"
        case "domainMetadata":
            domains = {d for d, c in draft.domains.items() if c is not None} | set(snapshot.domain_metadata)
            if domains:
                yield f"remove the metadata domains {', '.join(sorted(domains))} first, in a commit of its own"
        case "columnMapping":
            names = [field.name for field in fields_of(draft.schema) if set(field.name) & _ONLY_WITH_MAPPING]
            if names:
                yield (
                    f"rename {', '.join(repr(name) for name in names)} first: without column mapping, names hold none "
                    "of the characters ' ,;{}()\\n\\t='"
                )
        case "checkpointProtection" if not truncates:
            before = draft.table.properties.require_checkpoint_protection_before_version or 0
            if holds_versions_before(snapshot.store, before):
                yield (
                    f"wait until the log before version {before} has been cleaned up, or clean it up with it: "
                    "drop_feature('checkpointProtection', truncate_history=True)"
                )


def _without(draft: Draft, name: str, removal: Removal, *, is_protected: bool = True) -> Draft:
    configuration = dict(draft.configuration)
    for key in removal.forgets:
        configuration.pop(find_property(configuration, key) or key, None)
    protocol = without_features(draft.table.protocol, {name})
    relies_on_version = draft.relies_on_version
    if removal.history_needs_it and is_protected:
        # This change will be the first version without it: what is before must not be read by those who lack it.
        configuration[PROTECTED_BEFORE] = str(draft.snapshot.version + 1)
        protocol = with_features(protocol, {"checkpointProtection"})
        relies_on_version = True
    table = draft.table.after(protocol, None).with_properties(configuration)
    return replace(
        _without_traces(draft, name),
        table=table.with_schema(_schema_without(draft.schema, name)),
        features=draft.features - {name},
        relies_on_files=draft.relies_on_files or removal.history_needs_it,
        relies_on_version=relies_on_version or removal.history_needs_it,
        unwanted=draft.unwanted if removal.trait is None else draft.unwanted | {removal.trait},
        needs_checkpoint=draft.needs_checkpoint or removal.history_needs_it,
    )


def _schema_without(schema: StructType, name: str) -> StructType:
    if name == "columnMapping":
        return without_column_mapping(schema)
    return without_type_changes(schema) if name == "typeWidening" else schema


def _without_traces(draft: Draft, name: str) -> Draft:
    """What the feature has left outside the schema and the properties."""
    domains = dict(draft.domains)
    match name:
        case "clustering" if draft.clustering is not None:
            return replace(draft, clustering=None, domains={**domains, CLUSTERING_DOMAIN: None})
        case "rowTracking":
            return replace(draft, domains={**domains, ROW_TRACKING_DOMAIN: None})
        case "typeWidening":
            return replace(draft, widened_schema=draft.schema)
        case "columnMapping":
            draft = replace(draft, mapped_schema=draft.schema)
            if draft.clustering is not None:
                # The domain knows columns by what files call them.
                clustering = logical_paths(draft.schema, draft.clustering)
                domains[CLUSTERING_DOMAIN] = serialize_clustering(clustering)
                return replace(draft, clustering=clustering, domains=domains)
    return draft
