"""Changes of the table as a whole: properties, name, description, protocol, CHECK constraints, clustering columns, and
dropped features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

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
from delta_orch.verbs.alter.draft import Change, Draft, RowProof
from delta_orch.verbs.alter.preparation import holds_versions_before


def set_properties(properties: Mapping[str, str]) -> Change:
    """Set properties. `delta.feature.<name>`, `delta.minReaderVersion` and `delta.minWriterVersion` change the protocol
    and are not stored. Raises InvalidPropertyError, UnsupportedFeatureError, InvalidRequestError."""

    def apply(draft: Draft) -> Draft:
        settable = ensure_settable(properties, on_new_table=False)
        kept = {key: value for key, value in settable.items() if not is_protocol_request(key)}
        configuration = with_properties_set(draft.configuration, kept)
        protocol = upgraded_versions(draft.table.protocol, *requested_versions(settable))
        table = draft.table.after(protocol, None).with_properties(configuration)
        return replace(draft, table=table, features=draft.features | requested_features(settable))

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        return {"properties": orjson.dumps(ensure_settable(properties, on_new_table=False)).decode()}

    return Change("SET TBLPROPERTIES", apply, parameters)


def unset_properties(keys: Sequence[str], if_exists: bool) -> Change:
    """Remove properties, so that their defaults apply again. Raises InvalidPropertyError."""

    def apply(draft: Draft) -> Draft:
        ensure_removable(keys)
        configuration = dict(draft.configuration)
        for key in keys:
            if is_protocol_request(key):
                raise InvalidPropertyError(
                    f"{key} is part of the protocol and cannot be unset",
                    remedy="Drop the feature: drop_feature(name)",
                    property=key,
                )
            stored = find_property(configuration, key)
            if stored is not None:
                del configuration[stored]
            elif not if_exists:
                raise InvalidPropertyError(
                    f"The table has no property {key!r}",
                    remedy="Check the spelling, or pass if_exists=True (in SQL: IF EXISTS)",
                    property=key,
                )
        return draft.with_configuration(configuration)

    recorded_parameters = {"properties": orjson.dumps(keys).decode(), "ifExists": if_exists}
    return Change("UNSET TBLPROPERTIES", apply, lambda before, after: {**recorded_parameters})


def set_table_text(key: Literal["name", "description"], text: str) -> Change:
    """Set the table's name or description. An empty text removes it."""

    def apply(draft: Draft) -> Draft:
        ensure_no_credential(text, f"{key} of the table")
        metadata = draft.table.metadata
        new_metadata = (
            replace(metadata, name=text or None) if key == "name" else replace(metadata, description=text or None)
        )
        return replace(draft, table=draft.table.after(None, new_metadata))

    recorded_parameters = {"metadata_update": orjson.dumps({key: text}).decode()}
    return Change("UPDATE TABLE METADATA", apply, lambda before, after: {**recorded_parameters})


def add_features(names: Sequence[str]) -> Change:
    """Add table features and the features that they need. Raises UnsupportedFeatureError if a name is unknown,
    InvalidRequestError if there is no name."""

    def apply(draft: Draft) -> Draft:
        if not names:
            raise InvalidRequestError(
                "The list of table features is empty", remedy="Pass at least one feature, such as 'deletionVectors'"
            )
        feature_names = {resolve_feature(name).name for name in names}
        return replace(draft, features=draft.features | with_dependencies(feature_names))

    return Change("UPGRADE PROTOCOL", apply, _new_protocol)


def _new_protocol(before: Draft, after: Draft) -> dict[str, object]:
    return {"newProtocol": orjson.dumps(body_to_json(after.table.protocol)).decode()}


def upgrade_protocol(min_reader_version: int | None, min_writer_version: int | None) -> Change:
    """Raise the protocol to at least these versions. It is never lowered. Raises InvalidRequestError."""

    def apply(draft: Draft) -> Draft:
        protocol = upgraded_versions(draft.table.protocol, min_reader_version, min_writer_version)
        return replace(draft, table=draft.table.after(protocol, None))

    return Change("UPGRADE PROTOCOL", apply, _new_protocol)


def add_constraint(name: str, expression: str) -> Change:
    """Add a predicate that must be true for every row, old and new. Null is a violation. Raises InvalidRequestError,
    InvalidExpressionError, ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        if not name.strip():
            raise InvalidRequestError(
                "The name of the constraint is empty", remedy="Pass a name, such as 'positive_amount'"
            )
        if _find_constraint(draft, name) is not None:
            raise InvalidRequestError(
                f"There is a constraint {name!r} already",
                remedy="Choose another name, or drop the existing constraint first",
                constraint=name,
            )
        ensure_no_credential(expression, f"constraint {name}")
        ensure_no_column_in_double_quotes(expression, draft.schema)
        checked = check_expression(expression, f"CHECK constraint {name}", columns=draft.schema.names)
        condition = resolve_predicate(checked.sql, draft.schema)
        proof = RowProof(f"CHECK constraint {name}", expression, is_not_true(condition))
        configuration = {**draft.configuration, f"{CONSTRAINT_PREFIX}{name.lower()}": expression}
        return draft.with_configuration(configuration).with_proof(proof)

    return Change("ADD CONSTRAINT", apply, lambda before, after: {"name": name, "expr": expression})


def drop_constraint(name: str, if_exists: bool) -> Change:
    """Remove a CHECK constraint. Raises InvalidRequestError."""

    def apply(draft: Draft) -> Draft:
        key = _find_constraint(draft, name)
        if key is None:
            if if_exists:
                return draft
            constraint_names = ", ".join(sorted(constraints_of(draft.configuration))) or "none"
            raise InvalidRequestError(
                f"There is no constraint {name!r}",
                cause=f"The table's constraints: {constraint_names}",
                remedy="Check the spelling, or pass if_exists=True (in SQL: IF EXISTS)",
                constraint=name,
            )
        return draft.with_configuration({k: v for k, v in draft.configuration.items() if k != key})

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        key = _find_constraint(before, name)
        if key is None:
            return {"name": name, "existed": False}
        return {"name": name, "expr": before.configuration[key], "existed": True}

    return Change("DROP CONSTRAINT", apply, parameters)


def _find_constraint(draft: Draft, name: str) -> str | None:
    property_key = f"{CONSTRAINT_PREFIX}{name}".lower()
    return next((key for key in draft.configuration if key.lower() == property_key), None)


def cluster_by(named: Sequence[ColumnPath]) -> Change:
    """Cluster new files by these columns. Without columns, clustering ends and the files stay. Raises
    InvalidRequestError, ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        columns = physical_columns(draft.schema, [resolve_path(draft.schema, column) for column in named])
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

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        return {
            "oldClusteringColumns": _listed(before, before.clustering),
            "newClusteringColumns": _listed(after, after.clustering),
        }

    return Change("CLUSTER BY", apply, parameters)


def _listed(draft: Draft, columns: Sequence[Path] | None) -> str:
    return ",".join(quote_path(logical_path(draft.schema, path) or path) for path in columns or ())


_ONLY_WITH_MAPPING = frozenset(" ,;{}()\n\t=")


def drop_feature(feature_name: str, truncate_history: bool) -> Change:
    """Drop a feature that nothing uses any more. `table.protocol_upgrade` lists what must be removed first.

    With `truncate_history`, older versions with traces of the feature are cleaned up first, and `checkpointProtection`
    is not needed.

    Raises UnsupportedFeatureError, InvalidRequestError.
    """

    def apply(draft: Draft) -> Draft:
        name = resolve_feature(feature_name).name
        supported = draft.table.features
        if name not in supported:
            raise InvalidRequestError(
                f"The table does not support the feature {name}",
                remedy=f"Choose a feature that it supports: {', '.join(sorted(supported))}",
                features=[name],
            )
        removal = REMOVALS.get(name)
        if removal is None:
            raise UnsupportedFeatureError(
                f"The feature {name} cannot be dropped",
                cause=KEPT.get(name, "The protocol defines no way to remove this feature"),
                features=[name],
            )
        blockers = list(_blockers(draft, name, removal, truncate_history))
        if blockers:
            raise InvalidRequestError(
                f"The feature {name} is still in use", remedy="; ".join(blockers), features=[name], blockers=blockers
            )
        if not truncate_history:
            return _without(draft, name, removal)
        if not removal.history_needs_it and name != "checkpointProtection":
            raise InvalidRequestError(
                f"truncate_history has no effect for the feature {name}",
                cause="Every client can read the older versions without this feature",
                remedy=f"Call drop_feature({name!r}) without truncate_history",
                features=[name],
            )
        return replace(_without(draft, name, removal, is_protected=False), truncates=draft.truncates | {name})

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        return {"featureName": resolve_feature(feature_name).name, "truncateHistory": truncate_history}

    return Change("DROP FEATURE", apply, parameters)


def _blockers(draft: Draft, name: str, removal: Removal, truncates: bool) -> Iterator[str]:
    blocker = removal.blocker(draft.table)
    if blocker is not None:
        yield blocker
    dependents = [d for d in dependents_of(draft.table.protocol, name) if d != name]
    if dependents:
        yield f"drop {', '.join(dependents)} first, because it depends on this feature"
    yield from _evidence(draft, name, truncates)


def _evidence(draft: Draft, name: str, truncates: bool) -> Iterator[str]:
    """Yield what the user must remove first: clustering, metadata domains, column names, protected versions."""
    snapshot = draft.snapshot
    match name:
        case "clustering" if draft.clustering:
            yield "end clustering first: cluster_by()"
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
        # The commit of this change is the first version without the feature. Older versions need a client that supports
        # it.
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
    """Remove the traces of the feature outside schema and properties."""
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
                # The metadata domain names columns by their names in files.
                clustering = logical_paths(draft.schema, draft.clustering)
                domains[CLUSTERING_DOMAIN] = serialize_clustering(clustering)
                return replace(draft, clustering=clustering, domains=domains)
    return draft
