"""Makes the requests `createTable` and `updateTable` for a commit.

Everything is derived from the bytes of the commit, so that the catalog and the log cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from delta_orch.catalog.entry import StagingTable, TableEntry
from delta_orch.catalog.names import TableName
from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.actions import JsonObject, Metadata

_SHARED_DOMAINS = {"delta.clustering": "clusteringColumns", "delta.rowTracking": "rowIdHighWaterMark"}
"""The metadata domains that the API supports, and the only field of each."""

_DERIVED = frozenset(
    {"delta.minReaderVersion", "delta.minWriterVersion", "delta.clusteringColumns",
     "delta.rowTracking.rowIdHighWaterMark", "delta.lastUpdateVersion", "delta.lastCommitTimestamp"}
)  # fmt: skip
_HYPHENATED = {
    "elementType": "element-type",
    "containsNull": "contains-null",
    "keyType": "key-type",
    "valueType": "value-type",
    "valueContainsNull": "value-contains-null",
}


def in_commit_timestamp_ms(commit: bytes) -> int:
    """Return the time of a commit of a catalog-managed table.

    Raises:
        ProtocolViolationError: The commit has no time, or no `txnId` (PROTOCOL, "Writer Requirements for
            Catalog-managed Tables").
    """
    info = next(_bodies(commit, "commitInfo"), {})
    if not isinstance(info.get("inCommitTimestamp"), int) or not info.get("txnId"):
        raise ProtocolViolationError(
            "The commit has no inCommitTimestamp or no txnId",
            cause="The catalog manages the commits of this table, and they need both",
            remedy="Set delta.enableInCommitTimestamps=true",
        )
    return int(info["inCommitTimestamp"])


def creation_body(name: TableName, staging: StagingTable, commit: bytes) -> dict[str, Any]:
    """Return the body of `createTable` for the first commit of a table."""
    metadata, protocol = next(_bodies(commit, "metaData")), next(_bodies(commit, "protocol"))
    domains, _ = _domains(commit)
    body: dict[str, Any] = {
        "name": name.table,
        "table-type": "MANAGED",
        "location": staging.location,
        "columns": _columns(metadata),
        "partition-columns": metadata.get("partitionColumns") or [],
        "properties": metadata.get("configuration") or {},
        "protocol": _protocol(protocol),
        "last-commit-timestamp-ms": in_commit_timestamp_ms(commit),
    }
    if metadata.get("description"):
        body["comment"] = metadata["description"]
    return {**body, "domain-metadata": domains} if domains else body


def commit_body(
    entry: TableEntry, version: int, file_name: str, size: int, modified_ms: int, commit: bytes, before: Metadata
) -> dict[str, Any]:
    """Return the body of `updateTable` that proposes a staged commit, with every change of the table's definition.

    Args:
        before: The metadata of the previous version.
    """
    updates = [*_definition_updates(commit, before)]
    requirements = [{"type": "assert-table-uuid", "uuid": entry.table_uuid}]
    if any(update["action"] not in ("set-domain-metadata", "set-protocol") for update in updates) and entry.etag:
        # No other writer may change the definition between the read version and this commit.
        requirements.append({"type": "assert-etag", "etag": entry.etag})
    added = {
        "version": version,
        "timestamp": in_commit_timestamp_ms(commit),
        "file-name": file_name,
        "file-size": size,
        "file-modification-timestamp": modified_ms,
    }
    return {"requirements": requirements, "updates": [*updates, {"action": "add-commit", "commit": added}]}


def published_body(entry: TableEntry, version: int) -> dict[str, Any]:
    """Return the body of `updateTable` that reports every commit up to a version as published."""
    return {
        "requirements": [{"type": "assert-table-uuid", "uuid": entry.table_uuid}],
        "updates": [published_update(version)],
    }


def published_update(version: int) -> dict[str, Any]:
    """Return the update that reports every commit up to a version as published."""
    return {"action": "set-latest-backfilled-version", "latest-published-version": version}


def metrics_body(entry: TableEntry, figures: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the body of `reportMetrics`. Unknown figures are left out."""
    return {
        "table-id": entry.table_uuid,
        "report": {"commit-report": {key: value for key, value in figures.items() if value is not None}},
    }


def _definition_updates(commit: bytes, before: Metadata) -> Iterator[dict[str, Any]]:
    for protocol in _bodies(commit, "protocol"):
        yield {"action": "set-protocol", "protocol": _protocol(protocol)}
    for metadata in _bodies(commit, "metaData"):
        if metadata["schemaString"] != before.schema_string:
            yield {"action": "set-columns", "columns": _columns(metadata)}
        partition_columns = list(metadata.get("partitionColumns") or ())
        if partition_columns != list(before.partition_columns):
            yield {"action": "set-partition-columns", "partition-columns": partition_columns}
        configuration = metadata.get("configuration") or {}
        changed = {key: value for key, value in configuration.items() if before.configuration.get(key) != value}
        if changed := {key: value for key, value in changed.items() if not _is_derived(key)}:
            yield {"action": "set-properties", "updates": changed}
        # Properties that only the catalog has are not in the log, and must not be removed.
        if removed := [key for key in before.configuration if key not in configuration and not _is_derived(key)]:
            yield {"action": "remove-properties", "removals": removed}
        if (comment := metadata.get("description") or "") != (before.description or ""):
            yield {"action": "set-table-comment", "comment": comment}
    changed_domains, removed_domains = _domains(commit)
    if changed_domains:
        yield {"action": "set-domain-metadata", "updates": changed_domains}
    if removed_domains:
        yield {"action": "remove-domain-metadata", "domains": removed_domains}


def _is_derived(key: str) -> bool:
    return key in _DERIVED or key.startswith("delta.feature.")


def _domains(commit: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the domains of the API that a commit sets, and the domains that it removes."""
    domain_bodies = [body for body in _bodies(commit, "domainMetadata") if body["domain"] in _SHARED_DOMAINS]
    changed = {}
    for body in domain_bodies:
        if not body.get("removed"):
            field = _SHARED_DOMAINS[body["domain"]]
            changed[body["domain"]] = {field: orjson.loads(body["configuration"])[field]}
    return changed, [body["domain"] for body in domain_bodies if body.get("removed")]


def _protocol(protocol: JsonObject) -> dict[str, Any]:
    return {
        "min-reader-version": protocol["minReaderVersion"],
        "min-writer-version": protocol["minWriterVersion"],
        "reader-features": protocol.get("readerFeatures") or [],
        "writer-features": protocol.get("writerFeatures") or [],
    }


def _columns(metadata: JsonObject) -> Any:
    return _hyphenated(orjson.loads(metadata["schemaString"]))


def _hyphenated(data_type: Any) -> Any:
    """Return a type of the log in the spelling of the API. The metadata of fields does not change."""
    if not isinstance(data_type, dict):
        return data_type
    if data_type.get("type") == "struct":
        fields = [{**field, "type": _hyphenated(field["type"])} for field in data_type["fields"]]
        return {**data_type, "fields": fields}
    return {_HYPHENATED.get(key, key): _hyphenated(value) for key, value in data_type.items()}


def _bodies(commit: bytes, action: str) -> Iterator[JsonObject]:
    """Return the actions of a kind. Only their lines are parsed, because JSON has no line break inside."""
    start = b'{"' + action.encode() + b'":'
    at = 0 if commit.startswith(start) else commit.find(b"\n" + start) + 1
    while at or commit.startswith(start):
        end = commit.find(b"\n", at)
        yield orjson.loads(commit[at : len(commit) if end < 0 else end])[action]
        at = commit.find(b"\n" + start, at) + 1
        if not at:
            return
