"""DESCRIBE and SHOW: what a table is, as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.type_text import spell_declared_type
from delta_orch.redaction import kept, public, without_credentials
from delta_orch.statements.cursor import TableName
from delta_orch.statements.session import Session

_TEXTS = pa.list_(pa.string())
_MOMENT = pa.timestamp("ms", "UTC")
_HISTORY = pa.schema([
    ("version", pa.int64()), ("timestamp", _MOMENT), ("userId", pa.string()), ("userName", pa.string()),
    ("operation", pa.string()), ("operationParameters", pa.string()), ("job", pa.string()), ("notebook", pa.string()),
    ("clusterId", pa.string()), ("readVersion", pa.int64()), ("isolationLevel", pa.string()),
    ("isBlindAppend", pa.bool_()), ("operationMetrics", pa.string()), ("userMetadata", pa.string()),
    ("engineInfo", pa.string()),
])  # fmt: skip
_DETAIL = pa.schema([
    ("format", pa.string()), ("id", pa.string()), ("name", pa.string()), ("description", pa.string()),
    ("location", pa.string()), ("createdAt", _MOMENT), ("lastModified", _MOMENT), ("version", pa.int64()),
    ("partitionColumns", _TEXTS), ("clusteringColumns", _TEXTS), ("numFiles", pa.int64()), ("sizeInBytes", pa.int64()),
    ("properties", pa.map_(pa.string(), pa.string())), ("minReaderVersion", pa.int32()),
    ("minWriterVersion", pa.int32()), ("tableFeatures", _TEXTS),
])  # fmt: skip
_COLUMNS = pa.schema([("col_name", pa.string()), ("data_type", pa.string()), ("comment", pa.string())])
_PROPERTIES = pa.schema([("key", pa.string()), ("value", pa.string())])


def history(session: Session, table: TableName, limit: int | None) -> pa.Table:
    """The commits, in the columns of Delta on Spark; what has parts is JSON."""
    rows = []
    for entry in session.target(table).history(limit):

        def of_info(name: str, kind: type, info: Mapping[str, object] = entry.commit_info) -> Any:
            return info.get(name) if type(info.get(name)) is kind else None

        rows.append(
            {
                "version": entry.version,
                "timestamp": entry.timestamp_ms,
                **{name: of_info(name, str) for name in ("userId", "userName", "clusterId", "isolationLevel")},
                "operation": entry.operation,
                "operationParameters": _json(kept(entry.operation_parameters)),
                **{name: _json(of_info(name, dict)) for name in ("job", "notebook")},
                "readVersion": of_info("readVersion", int),
                "isBlindAppend": of_info("isBlindAppend", bool),
                "operationMetrics": _json(entry.operation_metrics),
                "userMetadata": kept(entry.user_metadata),
                "engineInfo": entry.engine_info,
            }
        )
    return _public(rows, _HISTORY)


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def detail(session: Session, table: TableName) -> pa.Table:
    """One row about the newest version."""
    target = session.target(table)
    snapshot = target.snapshot()
    files, metadata, protocol = snapshot.files(["path", "size"]), snapshot.metadata, snapshot.protocol
    row = {
        "format": "delta",
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "location": target.uri,
        "createdAt": metadata.created_time,
        "lastModified": snapshot.timestamp_ms,
        "version": snapshot.version,
        "partitionColumns": list(snapshot.partition_columns),
        "clusteringColumns": [".".join(path) for path in snapshot.clustering_columns or ()],
        "numFiles": files.num_rows,
        "sizeInBytes": FileTable(files).size_bytes,
        "properties": list(public(dict(metadata.configuration)).items()),
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "tableFeatures": sorted(snapshot.features),
    }
    return _public([row], _DETAIL)


def columns(session: Session, table: TableName) -> pa.Table:
    """A row for each column: its name, its type and its comment."""
    rows = [
        {
            "col_name": field.name,
            "data_type": spell_declared_type(field.data_type, ()),
            "comment": None if (comment := field.metadata.get("comment")) is None else str(comment),
        }
        for field in session.target(table).snapshot().schema.fields
    ]
    return _public(rows, _COLUMNS)


def properties(session: Session, table: TableName) -> pa.Table:
    """The table's properties, and its protocol as properties, as Delta on Spark has them."""
    snapshot = session.target(table).snapshot()
    protocol = snapshot.protocol
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    values: dict[str, str] = public(
        {
            **snapshot.metadata.configuration,
            "delta.minReaderVersion": str(protocol.min_reader_version),
            "delta.minWriterVersion": str(protocol.min_writer_version),
            **{f"delta.feature.{feature}": "supported" for feature in features},
        }
    )
    return _public([{"key": key, "value": values[key]} for key in sorted(values)], _PROPERTIES)


def partitions(session: Session, table: TableName) -> pa.Table:
    """The values of the partition columns, each combination once. Raises InvalidRequestError for no partitions."""
    snapshot = session.target(table).snapshot()
    names = list(snapshot.partition_columns)
    if not names:
        raise InvalidRequestError("The table has no partition columns")
    rows = snapshot.scan(columns=names).to_arrow().group_by(names).aggregate([])
    return rows.sort_by([(name, "ascending") for name in names])


def _public(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """What the log says, whoever wrote it, without credentials."""
    shown = [
        {name: without_credentials(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]
    return pa.Table.from_pylist(shown, schema)
