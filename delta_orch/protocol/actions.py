"""The actions of the transaction log as values (PROTOCOL, "Actions").

One object here is one line of a commit. Lists of files are never lists of these objects: they are Arrow tables with the
columns of `log.files.file_columns`. `extra` holds fields this release does not know, so that rewriting an action keeps
them. The JSON spelling is only in `action_json.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonValue = Any
"""A value of parsed JSON: None, bool, int, float, str, a list or a dict."""

JsonObject = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Format:
    """PROTOCOL, "Format Specification": of the data files."""

    provider: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Metadata:
    """PROTOCOL, "Change Metadata". `created_time` in milliseconds since the epoch, None where left out."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict, hash=False)
    name: str | None = None
    description: str | None = None
    format: Format = field(default_factory=Format)
    created_time: int | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Protocol:
    """PROTOCOL, "Protocol Evolution". Feature lists are None for protocol versions without them."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class DeletionVectorDescriptor:
    """PROTOCOL, "Deletion Vectors". `storage_type` is `u` (relative, unique), `i` (inline) or `p` (absolute path)."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def unique_id(self) -> str:
        base = f"{self.storage_type}{self.path_or_inline_dv}"
        return base if self.offset is None else f"{base}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Add:
    """PROTOCOL, "Add File and Remove File". `path` is URI-encoded; `modification_time` in milliseconds."""

    path: str
    partition_values: Mapping[str, str | None] = field(hash=False)
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: Mapping[str, str | None] | None = field(default=None, hash=False)
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Remove:
    """PROTOCOL, "Add File and Remove File". `deletion_timestamp` in milliseconds since the epoch."""

    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    extended_file_metadata: bool | None = None
    partition_values: Mapping[str, str | None] | None = field(default=None, hash=False)
    size: int | None = None
    stats: str | None = None
    tags: Mapping[str, str | None] | None = field(default=None, hash=False)
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class AddCdcFile:
    """PROTOCOL, "Add CDC File". `path` is URI-encoded."""

    path: str
    partition_values: Mapping[str, str | None] = field(hash=False)
    size: int
    data_change: bool = False
    tags: Mapping[str, str | None] | None = field(default=None, hash=False)
    extra: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Txn:
    """PROTOCOL, "Transaction Identifiers". `last_updated` in milliseconds."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """PROTOCOL, "Domain Metadata". `removed` makes it a tombstone."""

    domain: str
    configuration: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """PROTOCOL, "Commit Provenance Information": free-form JSON, kept as parsed."""

    values: JsonObject = field(hash=False)


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """PROTOCOL, "Checkpoint Metadata": of a V2 checkpoint. `version` is the one that it is of."""

    version: int
    tags: Mapping[str, str] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """PROTOCOL, "Sidecar File Information". `modification_time` in milliseconds."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Mapping[str, str] | None = field(default=None, hash=False)


Action = (
    Metadata | Protocol | Add | Remove | AddCdcFile | Txn | DomainMetadata | CommitInfo | CheckpointMetadata | Sidecar
)
