"""Changes of the table as a whole: properties and texts, protocol, CHECK constraints, clustering columns, and
features that leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.expressions.checked import check_expression
from delta_orch.expressions.parse import ensure_no_column_in_double_quotes
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import is_not_true
from delta_orch.protocol.action_json import body_to_json
from delta_orch.protocol.schema_edit import ColumnPath, Path, quote_path, resolve_path
from delta_orch.protocol.table_properties import (
    CONSTRAINT_PREFIX,
    ensure_no_credential,
    ensure_removable,
    ensure_settable,
    find_property,
    with_properties_set,
)
from delta_orch.protocol.types import StructType, fields_of
from delta_orch.table.clustering import (
    CLUSTERING_DOMAIN,
    ensure_can_cluster,
    ensure_not_partitioned,
    logical_path,
    logical_paths,
    physical_columns,
    serialize_clustering,
)
from delta_orch.table.column_definitions import constraints_of
from delta_orch.table.column_mapping import without_column_mapping
from delta_orch.table.protocol_upgrade import (
    KEPT,
    PROTECTED_BEFORE,
    REMOVALS,
    Removal,
    dependents_of,
    is_protocol_request,
    requested_features,
    requested_versions,
    resolve_feature,
    upgraded_versions,
    with_dependencies,
    with_features,
    without_features,
)
from delta_orch.table.row_tracking import ROW_TRACKING_DOMAIN
from delta_orch.table.type_widening import without_type_changes
from delta_orch.verbs.alter.draft import Draft, RowProof
from delta_orch.verbs.alter.preparation import holds_versions_before


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Set properties. `delta.feature.<name>`, `delta.minReaderVersion` and `delta.minWriterVersion` ask for a protocol
    and are not kept."""

    properties: Mapping[str, str]
    operation = "SET TBLPROPERTIES"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidPropertyError, UnsupportedFeatureError, InvalidRequestError."""
        asked = ensure_settable(self.properties, on_new_table=False)
        kept = {key: value for key, value in asked.items() if not is_protocol_request(key)}
        configuration = with_properties_set(draft.configuration, kept)
        protocol = upgraded_versions(draft.table.protocol, *requested_versions(asked))
        table = draft.table.after(protocol, None).with_properties(configuration)
        return replace(draft, table=table, features=draft.features | requested_features(asked))

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"properties": orjson.dumps(ensure_settable(self.properties, on_new_table=False)).decode()}


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """Remove properties, so that their defaults hold again."""

    keys: tuple[str, ...]
    if_exists: bool = False
    operation = "UNSET TBLPROPERTIES"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidPropertyError."""
        ensure_removable(self.keys)
        configuration = dict(draft.configuration)
        for key in self.keys:
            if is_protocol_request(key):
                raise InvalidPropertyError(
                    f"{key} is not a property that can be removed", remedy="Use drop_feature(name)", property=key
                )
            found = find_property(configuration, key)
            if found is not None:
                del configuration[found]
            elif not self.if_exists:
                raise InvalidPropertyError(
                    f"The table has no property {key!r}",
                    remedy="Pass if_exists=True where that does not matter",
                    property=key,
                )
        return draft.with_configuration(configuration)

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"properties": orjson.dumps(self.keys).decode(), "ifExists": self.if_exists}


@dataclass(frozen=True, slots=True)
class SetTableTexts:
    """The table's name or description; the empty text removes it, None leaves it."""

    name: str | None = None
    description: str | None = None
    operation = "UPDATE TABLE METADATA"

    def apply(self, draft: Draft) -> Draft:
        metadata = draft.table.metadata
        ensure_no_credential(self.name, "name of the table")
        ensure_no_credential(self.description, "description of the table")
        if self.name is not None:
            metadata = replace(metadata, name=self.name or None)
        if self.description is not None:
            metadata = replace(metadata, description=self.description or None)
        return replace(draft, table=draft.table.after(None, metadata))

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        given = {"name": self.name, "description": self.description}
        return {"metadata_update": orjson.dumps({k: v for k, v in given.items() if v is not None}).decode()}


@dataclass(frozen=True, slots=True)
class AddFeatures:
    """Support for table features, and for those they need."""

    names: tuple[str, ...]
    operation = "UPGRADE PROTOCOL"

    def apply(self, draft: Draft) -> Draft:
        """Raises UnsupportedFeatureError for names nobody here knows, InvalidRequestError for none."""
        if not self.names:
            raise InvalidRequestError("No table feature is named", remedy="Name at least one feature")
        names = {resolve_feature(name).name for name in self.names}
        return replace(draft, features=draft.features | with_dependencies(names))

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"newProtocol": orjson.dumps(body_to_json(after.table.protocol)).decode()}


@dataclass(frozen=True, slots=True)
class UpgradeProtocol:
    """Versions of at least these; never lower ones than the table has."""

    min_reader_version: int | None = None
    min_writer_version: int | None = None
    operation = "UPGRADE PROTOCOL"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError."""
        protocol = upgraded_versions(draft.table.protocol, self.min_reader_version, self.min_writer_version)
        return replace(draft, table=draft.table.after(protocol, None))

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"newProtocol": orjson.dumps(body_to_json(after.table.protocol)).decode()}


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """A predicate that must be true for every row, old and new; null is a violation."""

    name: str
    expression: str
    operation = "ADD CONSTRAINT"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, InvalidExpressionError, ColumnNotFoundError."""
        if not self.name.strip():
            raise InvalidRequestError("A constraint needs a name", remedy="Pass one, such as 'positive_amount'")
        if _find_constraint(draft, self.name) is not None:
            raise InvalidRequestError(
                f"There is a constraint {self.name!r} already",
                remedy="Take another name, or drop that one first",
                constraint=self.name,
            )
        ensure_no_credential(self.expression, f"constraint {self.name}")
        ensure_no_column_in_double_quotes(self.expression, draft.schema)
        checked = check_expression(self.expression, f"CHECK constraint {self.name}", columns=draft.schema.names)
        condition = resolve_predicate(checked.sql, draft.schema)
        key = f"{CONSTRAINT_PREFIX}{self.name.lower()}"
        proof = RowProof(f"CHECK constraint {self.name}", self.expression, is_not_true(condition))
        return draft.with_configuration({**draft.configuration, key: self.expression}).with_proof(proof)

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"name": self.name, "expr": self.expression}


@dataclass(frozen=True, slots=True)
class DropConstraint:
    name: str
    if_exists: bool = False
    operation = "DROP CONSTRAINT"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError."""
        key = _find_constraint(draft, self.name)
        if key is None:
            if self.if_exists:
                return draft
            known = ", ".join(sorted(constraints_of(draft.configuration))) or "none"
            raise InvalidRequestError(
                f"There is no constraint {self.name!r}",
                cause=f"The table's constraints: {known}",
                remedy="Pass if_exists=True where that does not matter",
                constraint=self.name,
            )
        return draft.with_configuration({k: v for k, v in draft.configuration.items() if k != key})

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        key = _find_constraint(before, self.name)
        if key is None:
            return {"name": self.name, "existed": False}
        return {"name": self.name, "expr": before.configuration[key], "existed": True}


def _find_constraint(draft: Draft, name: str) -> str | None:
    wanted = f"{CONSTRAINT_PREFIX}{name}".lower()
    return next((key for key in draft.configuration if key.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """Cluster by these columns from now on; by none, the table stays as it lies."""

    columns: Sequence[ColumnPath]
    operation = "CLUSTER BY"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        paths = [resolve_path(draft.schema, column) for column in self.columns]
        columns = physical_columns(draft.schema, paths)
        if not columns and draft.clustering is None:
            ensure_not_partitioned(draft.table)
            return draft
        ensure_can_cluster(draft.table, columns)
        return replace(
            draft,
            clustering=columns,
            features=draft.features | {"clustering"},
            domains={**draft.domains, CLUSTERING_DOMAIN: serialize_clustering(columns)},
            relies_on_files=draft.relies_on_files or bool(columns),
        )

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {
            "oldClusteringColumns": _listed(before, before.clustering),
            "newClusteringColumns": _listed(after, after.clustering),
        }


def _listed(draft: Draft, columns: Sequence[Path] | None) -> str:
    return ",".join(quote_path(logical_path(draft.schema, path) or path) for path in columns or ())


_ONLY_WITH_MAPPING = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True, slots=True)
class DropFeature:
    """A feature that nothing uses any more; see `table.protocol_upgrade` for what must be gone first.

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
                f"The feature {name} cannot be dropped", cause=KEPT.get(name, "It has no way out"), features=[name]
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
