"""Changes of the table as a whole: properties and texts, protocol, CHECK constraints, clustering columns, and
features that leave."""

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
    """Set properties. `delta.feature.<name>`, `delta.minReaderVersion` and `delta.minWriterVersion` ask for a protocol
    and are not kept. Raises InvalidPropertyError, UnsupportedFeatureError, InvalidRequestError."""

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
                    f"{key} is not a property that can be removed", remedy="Drop the feature", property=key
                )
            stored = find_property(configuration, key)
            if stored is not None:
                del configuration[stored]
            elif not if_exists:
                raise InvalidPropertyError(
                    f"The table has no property {key!r}",
                    remedy="Where that does not matter, pass if_exists=True, in SQL IF EXISTS",
                    property=key,
                )
        return draft.with_configuration(configuration)

    recorded_parameters = {"properties": orjson.dumps(keys).decode(), "ifExists": if_exists}
    return Change("UNSET TBLPROPERTIES", apply, lambda before, after: {**recorded_parameters})


def set_table_text(key: Literal["name", "description"], text: str) -> Change:
    """The table's name or description; the empty text removes it."""

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
    """Support for table features, and for those they need. Raises UnsupportedFeatureError for names nobody here knows,
    InvalidRequestError for none."""

    def apply(draft: Draft) -> Draft:
        if not names:
            raise InvalidRequestError("No table feature is named", remedy="Name at least one feature")
        feature_names = {resolve_feature(name).name for name in names}
        return replace(draft, features=draft.features | with_dependencies(feature_names))

    return Change("UPGRADE PROTOCOL", apply, _new_protocol)


def _new_protocol(before: Draft, after: Draft) -> dict[str, object]:
    return {"newProtocol": orjson.dumps(body_to_json(after.table.protocol)).decode()}


def upgrade_protocol(min_reader_version: int | None, min_writer_version: int | None) -> Change:
    """Versions of at least these; never lower ones than the table has. Raises InvalidRequestError."""

    def apply(draft: Draft) -> Draft:
        protocol = upgraded_versions(draft.table.protocol, min_reader_version, min_writer_version)
        return replace(draft, table=draft.table.after(protocol, None))

    return Change("UPGRADE PROTOCOL", apply, _new_protocol)


def add_constraint(name: str, expression: str) -> Change:
    """A predicate that must be true for every row, old and new; null is a violation. Raises InvalidRequestError,
    InvalidExpressionError, ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        if not name.strip():
            raise InvalidRequestError("A constraint needs a name", remedy="Pass one, such as 'positive_amount'")
        if _find_constraint(draft, name) is not None:
            raise InvalidRequestError(
                f"There is a constraint {name!r} already",
                remedy="Take another name, or drop that one first",
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
    """Raises InvalidRequestError."""

    def apply(draft: Draft) -> Draft:
        key = _find_constraint(draft, name)
        if key is None:
            if if_exists:
                return draft
            constraint_names = ", ".join(sorted(constraints_of(draft.configuration))) or "none"
            raise InvalidRequestError(
                f"There is no constraint {name!r}",
                cause=f"The table's constraints: {constraint_names}",
                remedy="Where that does not matter, pass if_exists=True, in SQL IF EXISTS",
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
    """A feature that nothing uses any more; see `table.protocol_upgrade` for what must be gone first.

    With `truncate_history` nothing takes its place: older versions that hold traces of it are cleaned up before.

    Raises UnsupportedFeatureError, InvalidRequestError.
    """

    def apply(draft: Draft) -> Draft:
        name = resolve_feature(feature_name).name
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
        blockers = list(_blockers(draft, name, removal, truncate_history))
        if blockers:
            raise InvalidRequestError(
                f"The feature {name} is still in use", remedy="; ".join(blockers), features=[name], blockers=blockers
            )
        if not truncate_history:
            return _without(draft, name, removal)
        if not removal.history_needs_it and name != "checkpointProtection":
            raise InvalidRequestError(
                f"Dropping {name} has nothing to do with the history",
                cause="Older versions hold nothing that only its readers understand",
                remedy="Leave truncate_history out",
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
        yield f"drop {', '.join(dependents)} first, which cannot be without it"
    yield from _evidence(draft, name, truncates)


def _evidence(draft: Draft, name: str, truncates: bool) -> Iterator[str]:
    """The facts about the table's files, domains and column names that the checks need."""
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
    """The traces of the feature outside schema and properties."""
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
