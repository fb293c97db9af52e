"""DESCRIBE and SHOW: what a table is, as Arrow tables. Each is a mapping of columns to their types and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.history import HistoryEntry
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.type_text import spell_declared_type
from delta_orch.protocol.types import StructField
from delta_orch.redaction import kept, public, without_credentials
from delta_orch.statements.cursor import TableName
from delta_orch.statements.session import Session

_Columns = Mapping[str, tuple[pa.DataType, Callable[[Any], object]]]
"""The columns of a result: the type of each, and its value for an item, which is a row."""
_TEXT, _TEXTS, _LONG = pa.string(), pa.list_(pa.string()), pa.int64()
_MOMENT = pa.timestamp("ms", "UTC")


def _info(name: str, kind: type) -> Callable[[HistoryEntry], Any]:
    """A value of `commitInfo`. None if its writer gave it another type."""

    def value(entry: HistoryEntry) -> object:
        content = entry.commit_info.get(name)
        return content if type(content) is kind else None

    return value


def _info_as_json(name: str) -> Callable[[HistoryEntry], str | None]:
    return lambda entry: _json(_info(name, dict)(entry))


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


_HISTORY: _Columns = {
    "version": (_LONG, lambda entry: entry.version),
    "timestamp": (_MOMENT, lambda entry: entry.timestamp_ms),
    "userId": (_TEXT, _info("userId", str)),
    "userName": (_TEXT, _info("userName", str)),
    "operation": (_TEXT, lambda entry: entry.operation),
    "operationParameters": (_TEXT, lambda entry: _json(kept(entry.operation_parameters))),
    "job": (_TEXT, _info_as_json("job")),
    "notebook": (_TEXT, _info_as_json("notebook")),
    "clusterId": (_TEXT, _info("clusterId", str)),
    "readVersion": (_LONG, _info("readVersion", int)),
    "isolationLevel": (_TEXT, _info("isolationLevel", str)),
    "isBlindAppend": (pa.bool_(), _info("isBlindAppend", bool)),
    "operationMetrics": (_TEXT, lambda entry: _json(entry.operation_metrics)),
    "userMetadata": (_TEXT, lambda entry: kept(entry.user_metadata)),
    "engineInfo": (_TEXT, lambda entry: entry.engine_info),
}
_DETAIL: _Columns = {
    "format": (_TEXT, lambda snapshot: "delta"),
    "id": (_TEXT, lambda snapshot: snapshot.metadata.id),
    "name": (_TEXT, lambda snapshot: snapshot.metadata.name),
    "description": (_TEXT, lambda snapshot: snapshot.metadata.description),
    "location": (_TEXT, lambda snapshot: snapshot.store.address),
    "createdAt": (_MOMENT, lambda snapshot: snapshot.metadata.created_time),
    "lastModified": (_MOMENT, lambda snapshot: snapshot.timestamp_ms),
    "version": (_LONG, lambda snapshot: snapshot.version),
    "partitionColumns": (_TEXTS, lambda snapshot: list(snapshot.partition_columns)),
    "clusteringColumns": (_TEXTS, lambda snapshot: list(map(".".join, snapshot.clustering_columns or ()))),
    "numFiles": (_LONG, lambda snapshot: snapshot.num_files),
    "sizeInBytes": (_LONG, lambda snapshot: FileTable(snapshot.files(["size"])).size_bytes),
    "properties": (
        pa.map_(_TEXT, _TEXT), lambda snapshot: list(public(dict(snapshot.metadata.configuration)).items())
    ),
    "minReaderVersion": (pa.int32(), lambda snapshot: snapshot.protocol.min_reader_version),
    "minWriterVersion": (pa.int32(), lambda snapshot: snapshot.protocol.min_writer_version),
    "tableFeatures": (_TEXTS, lambda snapshot: sorted(snapshot.features)),
}  # fmt: skip
_COLUMNS: _Columns = {
    "col_name": (_TEXT, lambda field: field.name),
    "data_type": (_TEXT, lambda field: spell_declared_type(field.data_type, ())),
    "comment": (_TEXT, lambda field: None if (c := field.metadata.get("comment")) is None else str(c)),
}
_PROPERTIES: _Columns = {"key": (_TEXT, lambda pair: pair[0]), "value": (_TEXT, lambda pair: pair[1])}


def _table(columns: _Columns, items: Iterable[HistoryEntry | Snapshot | StructField | tuple[str, str]]) -> pa.Table:
    """A row for each item. Texts of the log, whoever wrote them, are without credentials."""

    def shown(value: object) -> object:
        return without_credentials(value) if isinstance(value, str) else value

    rows = [{name: shown(value(item)) for name, (_, value) in columns.items()} for item in items]
    return pa.Table.from_pylist(rows, pa.schema([(name, kind) for name, (kind, _) in columns.items()]))


def history(session: Session, table: TableName, limit: int | None) -> pa.Table:
    """The commits, in the columns of Delta on Spark; nested values are JSON."""
    return _table(_HISTORY, session.target(table).history(limit))


def detail(session: Session, table: TableName) -> pa.Table:
    """One row about the newest version."""
    return _table(_DETAIL, [session.target(table).snapshot()])


def columns(session: Session, table: TableName) -> pa.Table:
    """A row for each column: its name, its type and its comment."""
    return _table(_COLUMNS, session.target(table).snapshot().schema.fields)


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
    return _table(_PROPERTIES, sorted(values.items()))


def partitions(session: Session, table: TableName) -> pa.Table:
    """The values of the partition columns, each combination once. Raises InvalidRequestError for no partitions."""
    snapshot = session.target(table).snapshot()
    names = list(snapshot.partition_columns)
    if not names:
        raise InvalidRequestError("The table has no partition columns")
    rows = snapshot.scan(columns=names).to_arrow().group_by(names).aggregate([])
    return rows.sort_by([(name, "ascending") for name in names])
