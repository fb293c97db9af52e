"""DESCRIBE and SHOW: what a table is, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.type_text import spell_declared_type
from delta_orch.redaction import kept, public, without_credentials
from delta_orch.statements.cursor import TableName
from delta_orch.statements.session import Session

_MOMENT = pa.timestamp("ms", "UTC")


def history(session: Session, table: TableName, limit: int | None) -> pa.Table:
    """The commits, in the columns of Delta on Spark; what has parts is JSON."""
    entries = session.target(table).history(limit)

    def of_info(name: str, kind: type) -> list[object]:
        values = (entry.commit_info.get(name) for entry in entries)
        return [value if type(value) is kind else None for value in values]

    def as_json(values: Iterable[object]) -> list[str | None]:
        return [None if value is None else orjson.dumps(value).decode() for value in values]

    timestamps = pa.array([entry.timestamp_ms for entry in entries], pa.int64()).cast(_MOMENT)
    return _public(
        pa.table(
            {
                "version": pa.array([entry.version for entry in entries], pa.int64()),
                "timestamp": timestamps,
                "userId": pa.array(of_info("userId", str), pa.string()),
                "userName": pa.array(of_info("userName", str), pa.string()),
                "operation": pa.array([entry.operation for entry in entries], pa.string()),
                "operationParameters": pa.array(as_json(kept(e.operation_parameters) for e in entries), pa.string()),
                "job": pa.array(as_json(of_info("job", dict)), pa.string()),
                "notebook": pa.array(as_json(of_info("notebook", dict)), pa.string()),
                "clusterId": pa.array(of_info("clusterId", str), pa.string()),
                "readVersion": pa.array(of_info("readVersion", int), pa.int64()),
                "isolationLevel": pa.array(of_info("isolationLevel", str), pa.string()),
                "isBlindAppend": pa.array(of_info("isBlindAppend", bool), pa.bool_()),
                "operationMetrics": pa.array(as_json(e.operation_metrics for e in entries), pa.string()),
                "userMetadata": pa.array([kept(entry.user_metadata) for entry in entries], pa.string()),
                "engineInfo": pa.array([entry.engine_info for entry in entries], pa.string()),
            }
        )
    )


def detail(session: Session, table: TableName) -> pa.Table:
    """One row about the newest version."""
    target = session.target(table)
    snapshot = target.snapshot()
    files, metadata, protocol = snapshot.files(["path", "size"]), snapshot.metadata, snapshot.protocol
    clustering = [".".join(path) for path in snapshot.clustering_columns or ()]
    properties = list(public(dict(metadata.configuration)).items())
    texts = pa.list_(pa.string())
    return _public(
        pa.table(
            {
                "format": ["delta"],
                "id": [metadata.id],
                "name": pa.array([metadata.name], pa.string()),
                "description": pa.array([metadata.description], pa.string()),
                "location": [target.uri],
                "createdAt": pa.array([metadata.created_time], pa.int64()).cast(_MOMENT),
                "lastModified": pa.array([snapshot.timestamp_ms], pa.int64()).cast(_MOMENT),
                "version": pa.array([snapshot.version], pa.int64()),
                "partitionColumns": pa.array([list(snapshot.partition_columns)], texts),
                "clusteringColumns": pa.array([clustering], texts),
                "numFiles": pa.array([files.num_rows], pa.int64()),
                "sizeInBytes": pa.array([FileTable(files).size_bytes], pa.int64()),
                "properties": pa.array([properties], pa.map_(pa.string(), pa.string())),
                "minReaderVersion": pa.array([protocol.min_reader_version], pa.int32()),
                "minWriterVersion": pa.array([protocol.min_writer_version], pa.int32()),
                "tableFeatures": pa.array([sorted(snapshot.features)], texts),
            }
        )
    )


def columns(session: Session, table: TableName) -> pa.Table:
    """A row for each column: its name, its type and its comment."""
    fields = session.target(table).snapshot().schema.fields
    comments = [field.metadata.get("comment") for field in fields]
    return _public(
        pa.table(
            {
                "col_name": pa.array([field.name for field in fields], pa.string()),
                "data_type": pa.array([spell_declared_type(field.data_type, ()) for field in fields], pa.string()),
                "comment": pa.array([None if text is None else str(text) for text in comments], pa.string()),
            }
        )
    )


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
    keys = sorted(values)
    return _public(
        pa.table({"key": pa.array(keys, pa.string()), "value": pa.array([values[key] for key in keys], pa.string())})
    )


def partitions(session: Session, table: TableName) -> pa.Table:
    """The values of the partition columns, each combination once. Raises InvalidRequestError for no partitions."""
    snapshot = session.target(table).snapshot()
    names = list(snapshot.partition_columns)
    if not names:
        raise InvalidRequestError("The table has no partition columns")
    rows = snapshot.scan(columns=names).to_arrow().group_by(names).aggregate([])
    return rows.sort_by([(name, "ascending") for name in names])


def _public(rows: pa.Table) -> pa.Table:
    """What the log says, whoever wrote it, without credentials."""
    for index, field in enumerate(rows.schema):
        if field.type == pa.string():
            texts = [None if text is None else without_credentials(text) for text in rows.column(index).to_pylist()]
            rows = rows.set_column(index, field, pa.array(texts, pa.string()))
    return rows
