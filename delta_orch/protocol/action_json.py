"""The JSON of actions, in both directions, and how checkpoints spell their fields: the only place that knows how the
log spells them (PROTOCOL, "Actions", "Checkpoint Schema").

Each kind of action has one list of fields. It says how they are read and in which order they are written. In
`ADD_FIELDS` and its like, the names on the left are the columns of `log.files.file_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

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

DELETION_VECTOR_ID_FIELDS = ("storage_type", "path_or_inline_dv", "offset")
"""The fields that make up a deletion vector's unique id."""

STATS_PARSED = "stats_parsed"
PARTITION_VALUES_PARSED = "partitionValues_parsed"

PROBE_LEAF: Mapping[str, str] = {
    "add": "path",
    "remove": "path",
    "protocol": "minReaderVersion",
    "metaData": "id",
    "txn": "appId",
    "domainMetadata": "domain",
    "checkpointMetadata": "version",
    "sidecar": "path",
}
"""For each action the required leaf: it is null exactly in the rows that hold another action."""

CHECKPOINT_KEYS: Mapping[str, Mapping[str, str]] = {
    "add": {"path": "text", "partitionValues": "map"},
    "remove": {"path": "text"},
    "protocol": {"minReaderVersion": "integer", "minWriterVersion": "integer"},
    "metaData": {"id": "text", "schemaString": "text"},
    "txn": {"appId": "text", "version": "integer"},
    "domainMetadata": {"domain": "text", "configuration": "text"},
    "checkpointMetadata": {"version": "integer"},
    "sidecar": {"path": "text", "sizeInBytes": "integer"},
    "deletionVector": {
        "storageType": "text", "pathOrInlineDv": "text", "sizeInBytes": "integer", "cardinality": "integer"
    },
}  # fmt: skip
"""The required fields of each action and of a deletion vector. A checkpoint that has a column for it has columns for
these."""


def is_below(leaf: str, column: str) -> bool:
    """Whether the Parquet leaf (`add.partitionValues.key_value.key`) belongs to the column (`add.partitionValues`)."""
    return leaf == column or leaf.startswith(column + ".")


Body = TypeVar("Body", bound=Action)

_NAMES: Mapping[type[Action], str] = {
    Add: "add",
    Remove: "remove",
    Txn: "txn",
    Metadata: "metaData",
    Protocol: "protocol",
    DomainMetadata: "domainMetadata",
    AddCdcFile: "cdc",
    CommitInfo: "commitInfo",
    CheckpointMetadata: "checkpointMetadata",
    Sidecar: "sidecar",
}
ACTION_NAMES = tuple(_NAMES.values())
_SPELLED = {name.lower(): name for name in ACTION_NAMES}


def parse_action(obj: JsonObject) -> Action | None:
    """One parsed line of a commit as an action.

    Unknown actions give None: "clients must ignore such unrecognized fields" (PROTOCOL, "Protocol Evolution"). Values
    that are null where the protocol wants none count as absent.

    Raises:
        ProtocolViolationError: A known action lacks what the protocol requires, or has it in the wrong type, or its
            name in another case.
    """
    for kind, name in _NAMES.items():
        body = obj.get(name)
        if body is not None:
            try:
                return CommitInfo(dict(body)) if kind is CommitInfo else parse_body(kind, body)
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                cause = f"{e} is missing" if isinstance(e, KeyError) else str(e)
                raise ProtocolViolationError(
                    f"a {name} action of the log is malformed", cause=cause, action=name
                ) from None
    for key, body in obj.items():
        if body is not None and (spelled := _SPELLED.get(key.lower())) is not None:
            raise ProtocolViolationError(f"an action {key} of the log is not spelled {spelled}", action=spelled)
    return None


def parse_body(kind: type[Body], body: JsonObject) -> Body:
    """An action other than `CommitInfo`, of its JSON without its name.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It lacks what the protocol requires, or has it in the wrong
            type.
    """
    values: dict[str, JsonValue] = {
        attribute: parse(body[key] if is_required else body.get(key))
        for attribute, key, parse, is_required in _FIELDS[kind]
    }
    parser = _KNOWN.get(kind)
    if parser is not None and not body.keys() <= parser:
        values["extra"] = {key: value for key, value in body.items() if key not in parser}
    return kind(**values)


def plain_txn(body: object) -> Txn | None:
    """A `txn` of the usual types; None for `parse_body` to judge. There may be a million: no loop over fields."""
    if type(body) is not dict:
        return None
    app_id, version, updated = body.get("appId"), body.get("version"), body.get("lastUpdated")
    if type(app_id) is not str or type(version) is not int or not (updated is None or type(updated) is int):
        return None
    return Txn(app_id, version, updated) if max(abs(version), abs(updated or 0)) < 1 << 63 else None


def parse_deletion_vector(body: JsonObject | None) -> DeletionVectorDescriptor | None:
    """As `parse_body`; None for None. There may be one for each file: no loop over fields."""
    if body is None:
        return None
    return DeletionVectorDescriptor(
        as_string(body["storageType"]),
        as_string(body["pathOrInlineDv"]),
        _int(body["sizeInBytes"]),
        _int(body["cardinality"]),
        _optional_int(body.get("offset")),
    )


def serialize_action(action: Action) -> bytes:
    """One line of a commit, without the line break. Optional fields that are None are left out.

    Raises:
        InvalidRequestError: A string is not valid Unicode (half of a surrogate pair).
    """
    name = _NAMES[type(action)]
    try:
        return orjson.dumps({name: body_to_json(action)})
    except TypeError as e:
        raise InvalidRequestError(
            f"The action {name} cannot be written as JSON",
            cause=str(e),
            remedy="Remove characters that are not valid Unicode",
        ) from None


def body_to_json(action: Action | DeletionVectorDescriptor) -> dict[str, JsonValue]:
    """The JSON of an action without its name."""
    if isinstance(action, CommitInfo):
        return dict(action.values)
    body: dict[str, JsonValue] = {}
    for attribute, key, _, _ in _FIELDS[type(action)]:
        value = getattr(action, attribute)
        if value is not None:
            body[key] = _to_json(value)
    return {**body, **action.extra} if isinstance(action, _Extensible) else body


def _to_json(value: object) -> JsonValue:
    if isinstance(value, DeletionVectorDescriptor):
        return body_to_json(value)
    if isinstance(value, Format):
        return {"provider": value.provider, "options": dict(value.options)}
    return dict(value) if isinstance(value, Mapping) else value


def as_string(v: object) -> str:
    """The value, if it is a string. Raises TypeError."""
    if not isinstance(v, str):
        raise TypeError(f"expected a string, found {v!r}")
    return v


def _text(v: object) -> str:
    return as_string(v or "")


def _optional_string(v: object) -> str | None:
    return None if v is None else as_string(v)


def _strings(v: object) -> tuple[str, ...]:
    if not isinstance(v, list | tuple):
        raise TypeError(f"expected a list, found {v!r}")
    return tuple(as_string(item) for item in v)


def _optional_strings(v: object) -> tuple[str, ...] | None:
    return None if v is None else _strings(v)


def _configuration(v: JsonValue) -> dict[str, str]:
    # Some writers leave numbers and booleans as they are.
    return {
        key: orjson.dumps(value).decode() if isinstance(value, bool | int | float) else as_string(value)
        for key, value in (v or {}).items()
        if value is not None
    }


def _format(v: JsonValue) -> Format:
    fields = v or {}
    return Format(as_string(fields.get("provider") or "parquet"), _configuration(fields.get("options")))


def _int(v: object) -> int:
    if isinstance(v, bool) or not (isinstance(v, int | str) or (isinstance(v, float) and v.is_integer())):
        raise TypeError(f"expected an integer, found {v!r:.100}")
    number = int(v)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"expected an integer of 64 bits, found {v!r:.100}")
    return number


def _optional_int(v: object) -> int | None:
    return None if v is None else _int(v)


def _int_or_zero(v: object) -> int:
    return 0 if v is None else _int(v)


def _true_unless_said(v: object) -> bool:
    return v is None or bool(v)


def _as_it_is(v: JsonValue) -> JsonValue:
    return v


def _mapping(v: JsonValue) -> JsonValue:
    return v or {}


class _Field(NamedTuple):
    """How a field of an action is called in Python and in the log, and how its value is read, which may be None."""

    attribute: str
    key: str
    parse: Callable[[JsonValue], object] = _as_it_is
    is_required: bool = False


_STATISTICS = _Field("stats", "stats")
_TAGS = _Field("tags", "tags")
_PATH = _Field("path", "path", as_string, True)
_TRACKED = (
    _STATISTICS,
    _TAGS,
    _Field("deletion_vector", "deletionVector", parse_deletion_vector),
    _Field("base_row_id", "baseRowId", _optional_int),
    _Field("default_row_commit_version", "defaultRowCommitVersion", _optional_int),
)
_FIELDS: Mapping[type, tuple[_Field, ...]] = {
    Metadata: (
        _Field("id", "id", as_string, True),
        _Field("name", "name", _optional_string),
        _Field("description", "description", _optional_string),
        _Field("format", "format", _format),
        _Field("schema_string", "schemaString", _text),
        _Field("partition_columns", "partitionColumns", lambda v: _strings(v or [])),
        _Field("created_time", "createdTime", _optional_int),
        _Field("configuration", "configuration", _configuration),
    ),
    Protocol: (
        _Field("min_reader_version", "minReaderVersion", _int, True),
        _Field("min_writer_version", "minWriterVersion", _int, True),
        _Field("reader_features", "readerFeatures", _optional_strings),
        _Field("writer_features", "writerFeatures", _optional_strings),
    ),
    Txn: (
        _Field("app_id", "appId", as_string, True),
        _Field("version", "version", _int, True),
        _Field("last_updated", "lastUpdated", _optional_int),
    ),
    DomainMetadata: (
        _Field("domain", "domain", as_string, True),
        _Field("configuration", "configuration", _text),
        _Field("removed", "removed", bool),
    ),
    DeletionVectorDescriptor: (
        _Field("storage_type", "storageType"),
        _Field("path_or_inline_dv", "pathOrInlineDv"),
        _Field("offset", "offset"),
        _Field("size_in_bytes", "sizeInBytes"),
        _Field("cardinality", "cardinality"),
    ),
    Add: (
        _PATH,
        _Field("partition_values", "partitionValues", _mapping),
        _Field("size", "size", _int, True),
        _Field("modification_time", "modificationTime", _int_or_zero),
        _Field("data_change", "dataChange", _true_unless_said),
        *_TRACKED,
        _Field("clustering_provider", "clusteringProvider"),
    ),
    Remove: (
        _PATH,
        _Field("deletion_timestamp", "deletionTimestamp", _optional_int),
        _Field("data_change", "dataChange", _true_unless_said),
        _Field("extended_file_metadata", "extendedFileMetadata"),
        _Field("partition_values", "partitionValues"),
        _Field("size", "size", _optional_int),
        *_TRACKED,
    ),
    AddCdcFile: (
        _PATH,
        _Field("partition_values", "partitionValues", _mapping),
        _Field("size", "size", _int_or_zero),
        _Field("data_change", "dataChange", bool),
        _TAGS,
    ),
    CheckpointMetadata: (_Field("version", "version", _int, True), _TAGS),
    Sidecar: (
        _PATH,
        _Field("size_in_bytes", "sizeInBytes", _int, True),
        _Field("modification_time", "modificationTime", _int, True),
        _TAGS,
    ),
}
"""The fields of each kind, in the order in which they are written."""


def _spelling(kind: type) -> Mapping[str, str]:
    """The name of each attribute in the log."""
    return {field.attribute: field.key for field in _FIELDS[kind]}


ADD_FIELDS, REMOVE_FIELDS, CDC_FIELDS = map(_spelling, (Add, Remove, AddCdcFile))
DELETION_VECTOR_FIELDS = _spelling(DeletionVectorDescriptor)

_FILE_KEYS = frozenset({*ADD_FIELDS.values(), *REMOVE_FIELDS.values()})
_Extensible = Metadata | Protocol | Add | Remove | AddCdcFile
_KNOWN: Mapping[type, frozenset[str]] = {
    Metadata: frozenset(field.key for field in _FIELDS[Metadata]),
    Protocol: frozenset(field.key for field in _FIELDS[Protocol]),
    **dict.fromkeys((Add, Remove, AddCdcFile), _FILE_KEYS),
}
"""The keys that are no `extra`. A file action may carry, and loses, a field of the other kinds."""

CHECKPOINT_FIELDS: Mapping[str, Sequence[str]] = {
    "": tuple(PROBE_LEAF),
    **{name: tuple(field.key for field in _FIELDS[kind]) for kind, name in _NAMES.items() if name in PROBE_LEAF},
    "deletionVector": tuple(DELETION_VECTOR_FIELDS.values()),
}
"""The columns of a checkpoint that are read, by the column they lie in."""
