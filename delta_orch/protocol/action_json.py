"""The JSON of actions, in both directions: the only place that knows how the log spells them (PROTOCOL, "Actions")."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.protocol.actions import (
    Action,
    Add,
    AddCdcFile,
    CheckpointMetadata,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Format,
    JsonObject,
    JsonValue,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
)
from delta_orch.protocol.checkpoint_schema import ADD_FIELDS, REMOVE_FIELDS

_METADATA_KEYS = frozenset(
    {"id", "name", "description", "format", "schemaString", "partitionColumns", "configuration", "createdTime"}
)
_PROTOCOL_KEYS = frozenset({"minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"})
_SPELLED = {**ADD_FIELDS, **REMOVE_FIELDS}
_FILE_KEYS = frozenset(_SPELLED.values())
_TRACKED = ("stats", "tags", "deletion_vector", "base_row_id", "default_row_commit_version")
_ORDER: Mapping[type, tuple[str, ...]] = {
    Add: (
        "path", "partition_values", "size", "modification_time", "data_change", *_TRACKED, "clustering_provider",
    ),
    Remove: (
        "path", "deletion_timestamp", "data_change", "extended_file_metadata", "partition_values", "size", *_TRACKED,
    ),
    AddCdcFile: ("path", "partition_values", "size", "data_change", "tags"),
}  # fmt: skip
"""The fields of file actions, in the order in which they are written."""


def parse_action(obj: JsonObject) -> Action | None:
    """One parsed line of a commit as an action.

    Unknown actions give None: "clients must ignore such unrecognized fields" (PROTOCOL, "Protocol Evolution"). Values
    that are null where the protocol wants none count as absent.

    Raises:
        ProtocolViolationError: A known action lacks what the protocol requires, or has it in the wrong type.
    """
    for name, parse in _PARSERS.items():
        body = obj.get(name)
        if body is not None:
            try:
                return parse(body)
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                cause = f"{e} is missing" if isinstance(e, KeyError) else str(e)
                raise ProtocolViolationError(
                    f"a {name} action of the log is malformed", cause=cause, action=name
                ) from None
    return None


def parse_metadata(o: JsonObject) -> Metadata:
    fmt = o.get("format") or {}
    return Metadata(
        id=as_string(o["id"]),
        schema_string=as_string(o.get("schemaString") or ""),
        partition_columns=_strings(o.get("partitionColumns") or []),
        configuration={k: _property(v) for k, v in (o.get("configuration") or {}).items() if v is not None},
        name=o.get("name"),
        description=o.get("description"),
        format=Format(fmt.get("provider") or "parquet", dict(fmt.get("options") or {})),
        created_time=_optional_int(o.get("createdTime")),
        extra=_rest(o, _METADATA_KEYS),
    )


def parse_protocol(o: JsonObject) -> Protocol:
    reader, writer = o.get("readerFeatures"), o.get("writerFeatures")
    return Protocol(
        _int(o["minReaderVersion"]),
        _int(o["minWriterVersion"]),
        None if reader is None else _strings(reader),
        None if writer is None else _strings(writer),
        _rest(o, _PROTOCOL_KEYS),
    )


def parse_txn(o: JsonObject) -> Txn:
    return Txn(as_string(o["appId"]), _int(o["version"]), _optional_int(o.get("lastUpdated")))


def parse_domain_metadata(o: JsonObject) -> DomainMetadata:
    return DomainMetadata(
        as_string(o["domain"]), as_string(o.get("configuration") or ""), bool(o.get("removed", False))
    )


def parse_deletion_vector(o: JsonObject | None) -> DeletionVectorDescriptor | None:
    if o is None:
        return None
    return DeletionVectorDescriptor(
        as_string(o["storageType"]),
        as_string(o["pathOrInlineDv"]),
        _int(o["sizeInBytes"]),
        _int(o["cardinality"]),
        _optional_int(o.get("offset")),
    )


def _parse_add(o: JsonObject) -> Add:
    return Add(
        path=as_string(o["path"]),
        partition_values=o.get("partitionValues") or {},
        size=_int(o["size"]),
        modification_time=_int(o.get("modificationTime", 0)),
        data_change=bool(o.get("dataChange", True)),
        stats=o.get("stats"),
        tags=o.get("tags"),
        deletion_vector=parse_deletion_vector(o.get("deletionVector")),
        base_row_id=_optional_int(o.get("baseRowId")),
        default_row_commit_version=_optional_int(o.get("defaultRowCommitVersion")),
        clustering_provider=o.get("clusteringProvider"),
        extra=_rest(o, _FILE_KEYS),
    )


def _parse_remove(o: JsonObject) -> Remove:
    return Remove(
        path=as_string(o["path"]),
        data_change=bool(o.get("dataChange", True)),
        deletion_timestamp=_optional_int(o.get("deletionTimestamp")),
        extended_file_metadata=o.get("extendedFileMetadata"),
        partition_values=o.get("partitionValues"),
        size=_optional_int(o.get("size")),
        stats=o.get("stats"),
        tags=o.get("tags"),
        deletion_vector=parse_deletion_vector(o.get("deletionVector")),
        base_row_id=_optional_int(o.get("baseRowId")),
        default_row_commit_version=_optional_int(o.get("defaultRowCommitVersion")),
        extra=_rest(o, _FILE_KEYS),
    )


def _parse_cdc(o: JsonObject) -> AddCdcFile:
    return AddCdcFile(
        path=as_string(o["path"]),
        partition_values=o.get("partitionValues") or {},
        size=_int(o.get("size", 0)),
        data_change=bool(o.get("dataChange", False)),
        tags=o.get("tags"),
        extra=_rest(o, _FILE_KEYS),
    )


def _parse_sidecar(o: JsonObject) -> Sidecar:
    return Sidecar(as_string(o["path"]), _int(o["sizeInBytes"]), _int(o["modificationTime"]), o.get("tags"))


_PARSERS: Mapping[str, Callable[[JsonObject], Action]] = {
    "add": _parse_add,
    "remove": _parse_remove,
    "txn": parse_txn,
    "metaData": parse_metadata,
    "protocol": parse_protocol,
    "domainMetadata": parse_domain_metadata,
    "cdc": _parse_cdc,
    "commitInfo": lambda o: CommitInfo(dict(o)),
    "checkpointMetadata": lambda o: CheckpointMetadata(_int(o["version"]), o.get("tags")),
    "sidecar": _parse_sidecar,
}


def serialize_action(action: Action) -> bytes:
    """One line of a commit, without the line break. Optional fields that are None are left out.

    Raises:
        InvalidRequestError: A string is not valid Unicode (half of a surrogate pair).
    """
    match action:
        case Metadata():
            body = metadata_to_json(action)
        case Protocol():
            body = protocol_to_json(action)
        case Txn():
            body = _present(appId=action.app_id, version=action.version, lastUpdated=action.last_updated)
        case DomainMetadata():
            body = {"domain": action.domain, "configuration": action.configuration, "removed": action.removed}
        case CommitInfo():
            body = dict(action.values)
        case Add() | Remove() | AddCdcFile():
            body = _file_to_json(action)
        case CheckpointMetadata():
            body = _present(version=action.version, tags=action.tags)
        case Sidecar():
            body = {
                "path": action.path,
                "sizeInBytes": action.size_in_bytes,
                "modificationTime": action.modification_time,
                **_present(tags=action.tags),
            }
    try:
        return orjson.dumps({_NAMES[type(action)]: body})
    except TypeError as e:
        raise InvalidRequestError(
            f"The action {_NAMES[type(action)]} cannot be written as JSON",
            cause=str(e),
            remedy="Remove characters that are not valid Unicode",
        ) from None


_NAMES: Mapping[type, str] = {
    Metadata: "metaData",
    Protocol: "protocol",
    Txn: "txn",
    DomainMetadata: "domainMetadata",
    CommitInfo: "commitInfo",
    Add: "add",
    Remove: "remove",
    AddCdcFile: "cdc",
    CheckpointMetadata: "checkpointMetadata",
    Sidecar: "sidecar",
}


def metadata_to_json(m: Metadata) -> dict[str, JsonValue]:
    return {
        "id": m.id,
        **_present(name=m.name, description=m.description),
        "format": {"provider": m.format.provider, "options": dict(m.format.options)},
        "schemaString": m.schema_string,
        "partitionColumns": list(m.partition_columns),
        **_present(createdTime=m.created_time),
        "configuration": dict(m.configuration),
        **m.extra,
    }


def protocol_to_json(p: Protocol) -> dict[str, JsonValue]:
    return {
        "minReaderVersion": p.min_reader_version,
        "minWriterVersion": p.min_writer_version,
        **_present(
            readerFeatures=None if p.reader_features is None else list(p.reader_features),
            writerFeatures=None if p.writer_features is None else list(p.writer_features),
        ),
        **p.extra,
    }


def deletion_vector_to_json(dv: DeletionVectorDescriptor) -> dict[str, JsonValue]:
    return {
        "storageType": dv.storage_type,
        "pathOrInlineDv": dv.path_or_inline_dv,
        **_present(offset=dv.offset),
        "sizeInBytes": dv.size_in_bytes,
        "cardinality": dv.cardinality,
    }


def _file_to_json(action: Add | Remove | AddCdcFile) -> dict[str, JsonValue]:
    values = {_SPELLED[name]: getattr(action, name) for name in _ORDER[type(action)]}
    return {**_present(**values), **action.extra}


def _present(**fields: object) -> dict[str, JsonValue]:
    return {key: _to_json(value) for key, value in fields.items() if value is not None}


def _to_json(value: object) -> JsonValue:
    if isinstance(value, DeletionVectorDescriptor):
        return deletion_vector_to_json(value)
    return dict(value) if isinstance(value, Mapping) else value


def _rest(o: JsonObject, known: frozenset[str]) -> dict[str, JsonValue]:
    return {} if o.keys() <= known else {k: v for k, v in o.items() if k not in known}


def as_string(v: object) -> str:
    """The value, if it is a string. Raises TypeError."""
    if not isinstance(v, str):
        raise TypeError(f"expected a string, found {v!r}")
    return v


def _strings(v: object) -> tuple[str, ...]:
    if not isinstance(v, list | tuple):
        raise TypeError(f"expected a list, found {v!r}")
    return tuple(as_string(item) for item in v)


def _property(v: object) -> str:
    # Some writers leave numbers and booleans as they are.
    return orjson.dumps(v).decode() if isinstance(v, bool | int | float) else as_string(v)


def _int(v: object) -> int:
    if isinstance(v, int) and not isinstance(v, bool):
        return v
    if isinstance(v, str) or (isinstance(v, float) and v.is_integer()):
        return int(v)
    raise TypeError(f"expected an integer, found {v!r}")


def _optional_int(v: object) -> int | None:
    return None if v is None else _int(v)
