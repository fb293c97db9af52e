"""How the fields of file actions are spelled in commits and checkpoints, and which leaves of a checkpoint hold them
(PROTOCOL, "Checkpoint Schema").

The names on the left are the columns of `log.files.file_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHARED_FIELDS = {
    "path": "path",
    "partition_values": "partitionValues",
    "size": "size",
    "data_change": "dataChange",
    "stats": "stats",
    "tags": "tags",
    "deletion_vector": "deletionVector",
    "base_row_id": "baseRowId",
    "default_row_commit_version": "defaultRowCommitVersion",
}

ADD_FIELDS: Mapping[str, str] = {
    **_SHARED_FIELDS,
    "modification_time": "modificationTime",
    "clustering_provider": "clusteringProvider",
}

REMOVE_FIELDS: Mapping[str, str] = {
    **_SHARED_FIELDS,
    "deletion_timestamp": "deletionTimestamp",
    "extended_file_metadata": "extendedFileMetadata",
}

CDC_FIELDS: Mapping[str, str] = {
    name: _SHARED_FIELDS[name] for name in ("path", "partition_values", "size", "data_change", "tags")
}

DELETION_VECTOR_FIELDS: Mapping[str, str] = {
    "storage_type": "storageType",
    "path_or_inline_dv": "pathOrInlineDv",
    "offset": "offset",
    "size_in_bytes": "sizeInBytes",
    "cardinality": "cardinality",
}

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


def is_below(leaf: str, column: str) -> bool:
    """Whether the Parquet leaf (`add.partitionValues.key_value.key`) belongs to the column (`add.partitionValues`)."""
    return leaf == column or leaf.startswith(column + ".")
