"""DESCRIBE and SHOW: what a table is, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.statements.cursor import Cursor
from delta_orch.statements.rows import Statement
from delta_orch.statements.session import Session, TableName, table_name, unsupported


def describe(cursor: Cursor) -> Statement:
    """DESCRIBE HISTORY t [LIMIT n] | DESCRIBE DETAIL t | DESCRIBE [TABLE] t."""
    if not cursor.take("DESCRIBE"):
        cursor.expect("DESC")
    if cursor.take("HISTORY"):
        name = table_name(cursor)
        limit = cursor.integer() if cursor.take("LIMIT") else None
        cursor.end()
        return _description("DESCRIBE HISTORY", name, lambda table: _history(table, limit))
    if cursor.take("DETAIL"):
        name = table_name(cursor)
        cursor.end()
        return _description("DESCRIBE DETAIL", name, _detail)
    cursor.take("TABLE")
    if cursor.at("EXTENDED") or cursor.at("FORMATTED"):
        raise unsupported(f"DESCRIBE {cursor.token.word}", "Write DESCRIBE DETAIL")
    name = table_name(cursor)
    cursor.end()
    return _description("DESCRIBE", name, _columns)


def show(cursor: Cursor) -> Statement:
    """SHOW TBLPROPERTIES t [('key')] | SHOW COLUMNS IN t | SHOW PARTITIONS t."""
    cursor.expect("SHOW")
    if cursor.take("TBLPROPERTIES"):
        name = table_name(cursor)
        key = None
        if cursor.take("("):
            key = cursor.string() if cursor.token.kind == "string" else ".".join(cursor.path())
            cursor.expect(")")
        cursor.end()
        return _description("SHOW TBLPROPERTIES", name, lambda table: _properties(table, key))
    if cursor.take("COLUMNS"):
        if not cursor.take("IN"):
            cursor.expect("FROM")
        name = table_name(cursor)
        cursor.end()
        return _description(
            "SHOW COLUMNS", name, lambda table: _rows(["col_name"], [(n,) for n in table.snapshot().schema.names])
        )
    if cursor.take("PARTITIONS"):
        name = table_name(cursor)
        cursor.end()
        return _description("SHOW PARTITIONS", name, _partitions)
    raise unsupported(f"SHOW {cursor.token.text[:60]}", "Write SHOW TBLPROPERTIES, COLUMNS or PARTITIONS")


def _description(statement: str, name: TableName, tell: Callable[[DeltaTable], object]) -> Statement:
    def run(session: Session) -> object:
        session.refuse_options(statement)
        return tell(session.target(name))

    return run


def _rows(names: list[str], rows: list[tuple[str | None, ...]]) -> object:
    import pyarrow as pa

    return pa.table({name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(names)})


def _history(table: DeltaTable, limit: int | None) -> object:
    import orjson
    import pyarrow as pa

    entries = table.history(limit)
    texts = {
        "operation": [entry.operation for entry in entries],
        "operationParameters": [orjson.dumps(entry.operation_parameters).decode() for entry in entries],
        "operationMetrics": [orjson.dumps(entry.operation_metrics).decode() for entry in entries],
        "userMetadata": [entry.user_metadata for entry in entries],
        "engineInfo": [entry.engine_info for entry in entries],
    }
    times = pa.array([entry.timestamp_ms for entry in entries], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return pa.table(
        {
            "version": pa.array([entry.version for entry in entries], pa.int64()),
            "timestamp": times,
            **{name: pa.array(values, pa.string()) for name, values in texts.items()},
        }
    )


def _detail(table: DeltaTable) -> object:
    import pyarrow as pa
    import pyarrow.compute as pc

    from delta_orch.log.files.file_columns import FileTable

    snapshot = table.snapshot()
    files = snapshot.files(["path", "size"])
    metadata, protocol = snapshot.metadata, snapshot.protocol
    return pa.table(
        {
            "format": ["delta"],
            "id": [metadata.id],
            "name": pa.array([metadata.name], pa.string()),
            "description": pa.array([metadata.description], pa.string()),
            "location": [table.uri],
            "version": pa.array([snapshot.version], pa.int64()),
            "partitionColumns": pa.array([list(snapshot.partition_columns)], pa.list_(pa.string())),
            "numFiles": pa.array([files.num_rows], pa.int64()),
            "sizeInBytes": pa.array([pc.sum(FileTable(files).size).as_py() or 0], pa.int64()),
            "properties": pa.array([list(metadata.configuration.items())], pa.map_(pa.string(), pa.string())),
            "minReaderVersion": pa.array([protocol.min_reader_version], pa.int32()),
            "minWriterVersion": pa.array([protocol.min_writer_version], pa.int32()),
        }
    )


def _columns(table: DeltaTable) -> object:
    return _rows(
        ["col_name", "data_type", "comment"],
        [
            (field.name, str(field.data_type), None if (c := field.metadata.get("comment")) is None else str(c))
            for field in table.snapshot().schema
        ],
    )


def _properties(table: DeltaTable, key: str | None) -> object:
    found = table.snapshot().metadata.configuration
    if key is not None and key not in found:
        raise InvalidRequestError(f"The table has no property {key[:200]!r}", property=key)
    rows: list[tuple[str | None, ...]] = [(k, v) for k, v in sorted(found.items()) if key is None or k == key]
    return _rows(["key", "value"], rows)


def _partitions(table: DeltaTable) -> object:
    snapshot = table.snapshot()
    names = snapshot.partition_columns
    if not names:
        raise InvalidRequestError("The table has no partition columns")
    return (
        snapshot.scan(columns=list(names))
        .to_arrow()
        .group_by(list(names))
        .aggregate([])
        .sort_by([(name, "ascending") for name in names])
    )
