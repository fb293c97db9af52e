"""DESCRIBE and SHOW: what a table is, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string, type_sql
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.schema import (
    CURRENT_DEFAULT,
    GENERATION_EXPRESSION,
)
from delta_orch.protocol.table_properties import INTERNAL_PROPERTIES, OWNER
from delta_orch.protocol.type_text import declared_lengths, spell_declared_type
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, ArrayType, DataType, MapType, StructField, StructType
from delta_orch.redaction import kept, public, without_credentials
from delta_orch.statements.cursor import Cursor
from delta_orch.statements.rows import Statement
from delta_orch.statements.session import Session, TableName, table_name, table_or_path, unsupported
from delta_orch.table_snapshot import TableSnapshot

if TYPE_CHECKING:
    import pyarrow as pa


def describe(cursor: Cursor) -> Statement:
    """DESCRIBE HISTORY t [LIMIT n] | DESCRIBE DETAIL t | DESCRIBE [TABLE] [EXTENDED | FORMATTED] t [column]."""
    if not cursor.take("DESCRIBE"):
        cursor.expect("DESC")
    if cursor.take("HISTORY"):
        name = table_or_path(cursor)
        limit = cursor.integer() if cursor.take("LIMIT") else None
        cursor.end()
        return _description("DESCRIBE HISTORY", name, lambda table: _history(table, limit))
    if cursor.take("DETAIL"):
        name = table_or_path(cursor)
        cursor.end()
        return _description("DESCRIBE DETAIL", name, _detail)
    cursor.take("TABLE")
    extended = cursor.take("EXTENDED") or cursor.take("FORMATTED")
    name = table_name(cursor)
    column = None if cursor.token.kind == "end" else cursor.path()
    cursor.end()
    if column is not None:
        return _description("DESCRIBE", name, lambda table: _column(table, column))
    return _description("DESCRIBE", name, lambda table: _columns(table, extended))


def show(cursor: Cursor) -> Statement:
    """SHOW TBLPROPERTIES t [('key')] | SHOW COLUMNS IN t | SHOW PARTITIONS t | SHOW CREATE TABLE t."""
    cursor.expect("SHOW")
    if cursor.take("TBLPROPERTIES"):
        name = table_name(cursor)
        key = None
        if cursor.take("("):
            key = cursor.key()
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
    if cursor.take("CREATE", "TABLE"):
        name = table_name(cursor)
        cursor.end()
        return _description("SHOW CREATE TABLE", name, lambda table: _rows(["createtab_stmt"], [(_definition(table),)]))
    raise unsupported(f"SHOW {cursor.token.text[:60]}", "Write SHOW TBLPROPERTIES, COLUMNS, PARTITIONS or CREATE TABLE")


def _description(statement: str, name: TableName, tell: Callable[[DeltaTable], object]) -> Statement:
    def run(session: Session) -> object:
        session.refuse_options(statement)
        return tell(session.target(name))

    return run


def _shown(told: pa.Table) -> pa.Table:
    """What the log tells, whoever wrote it, without credentials."""
    import pyarrow as pa

    for index, field in enumerate(told.schema):
        if field.type == pa.string():
            texts = [None if text is None else without_credentials(text) for text in told.column(index).to_pylist()]
            told = told.set_column(index, field, pa.array(texts, pa.string()))
    return told


def _rows(names: list[str], rows: list[tuple[str | None, ...]]) -> object:
    import pyarrow as pa

    return _shown(pa.table({name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(names)}))


def _history(table: DeltaTable, limit: int | None) -> object:
    import orjson
    import pyarrow as pa

    def told(name: str, kind: type) -> list[Any]:
        return [found if type(found := entry.commit_info.get(name)) is kind else None for entry in entries]

    def texts(values: Iterable[object]) -> pa.Array:
        return pa.array([None if value is None else orjson.dumps(value).decode() for value in values], pa.string())

    entries = table.history(limit)
    # The columns of Delta on Spark in their order; what has parts is JSON.
    told_of_versions = pa.table(
        {
            "version": pa.array([entry.version for entry in entries], pa.int64()),
            "timestamp": pa.array([entry.timestamp_ms for entry in entries], pa.int64()).cast(
                pa.timestamp("ms", "UTC")
            ),
            "userId": pa.array(told("userId", str), pa.string()),
            "userName": pa.array(told("userName", str), pa.string()),
            "operation": pa.array([entry.operation for entry in entries], pa.string()),
            "operationParameters": texts(kept(entry.operation_parameters) for entry in entries),
            "job": texts(told("job", dict)),
            "notebook": texts(told("notebook", dict)),
            "clusterId": pa.array(told("clusterId", str), pa.string()),
            "readVersion": pa.array(told("readVersion", int), pa.int64()),
            "isolationLevel": pa.array(told("isolationLevel", str), pa.string()),
            "isBlindAppend": pa.array(told("isBlindAppend", bool), pa.bool_()),
            "operationMetrics": texts(entry.operation_metrics for entry in entries),
            "userMetadata": pa.array([kept(entry.user_metadata) for entry in entries], pa.string()),
            "engineInfo": pa.array([entry.engine_info for entry in entries], pa.string()),
        }
    )
    return _shown(told_of_versions)


def _detail(table: DeltaTable) -> object:
    import pyarrow as pa

    snapshot = table.snapshot()
    files = snapshot.files(["path", "size"])
    metadata, protocol = snapshot.metadata, snapshot.protocol
    clustering = [".".join(path) for path in snapshot.clustering_columns or ()]
    moment = pa.timestamp("ms", "UTC")
    details = pa.table(
        {
            "format": ["delta"],
            "id": [metadata.id],
            "name": pa.array([metadata.name], pa.string()),
            "description": pa.array([metadata.description], pa.string()),
            "location": [table.uri],
            "createdAt": pa.array([metadata.created_time], pa.int64()).cast(moment),
            "lastModified": pa.array([snapshot.timestamp_ms], pa.int64()).cast(moment),
            "version": pa.array([snapshot.version], pa.int64()),
            "partitionColumns": pa.array([list(snapshot.partition_columns)], pa.list_(pa.string())),
            "clusteringColumns": pa.array([clustering], pa.list_(pa.string())),
            "numFiles": pa.array([files.num_rows], pa.int64()),
            "sizeInBytes": pa.array([FileTable(files).size_bytes], pa.int64()),
            "properties": pa.array(
                [list(public(dict(metadata.configuration)).items())], pa.map_(pa.string(), pa.string())
            ),
            "minReaderVersion": pa.array([protocol.min_reader_version], pa.int32()),
            "minWriterVersion": pa.array([protocol.min_writer_version], pa.int32()),
            "tableFeatures": pa.array([sorted(snapshot.features)], pa.list_(pa.string())),
        }
    )
    return _shown(details)


def _columns(table: DeltaTable, extended: bool) -> object:
    snapshot = table.snapshot()
    found: list[tuple[str | None, ...]] = [
        (
            field.name,
            spell_declared_type(field.data_type, ()),
            None if (c := field.metadata.get("comment")) is None else str(c),
        )
        for field in snapshot.schema
    ]
    if extended:
        metadata = snapshot.metadata
        texts = {
            "Name": metadata.name,
            "Comment": metadata.description,
            "Location": table.uri,
            "Provider": "delta",
            "Partition Columns": ", ".join(map(quote_identifier, snapshot.partition_columns)),
            "Clustering Columns": ", ".join(
                ".".join(map(quote_identifier, c)) for c in snapshot.clustering_columns or ()
            ),
            "Table Properties": _property_text(_all_properties(snapshot)),
        }
        found += [("", "", ""), ("# Detailed Table Information", "", "")]
        found += [(name, text, "") for name, text in texts.items() if text]
    return _rows(["col_name", "data_type", "comment"], found)


def _column(table: DeltaTable, path: list[str]) -> object:
    if len(path) > 1:
        raise unsupported("DESCRIBE of a field inside a column", "Name the whole column")
    schema = table.snapshot().schema
    field = schema.find(path[0])
    if field is None:
        raise ColumnNotFoundError(
            f"There is no column {path[0][:200]!r}", remedy=f"Columns: {', '.join(schema.names[:20])}"
        )
    comment = field.metadata.get("comment")
    told = {
        "col_name": field.name,
        "data_type": spell_declared_type(field.data_type, ()),
        "comment": None if comment is None else str(comment),
    }
    return _rows(["info_name", "info_value"], list(told.items()))


def _property_text(configuration: dict[str, str]) -> str:
    return ", ".join(
        f"{quote_string(key)} = {quote_string(value)}" for key, value in sorted(public(configuration).items())
    )


def properties_of_definition(snapshot: TableSnapshot) -> dict[str, str]:
    """Those of a table that is made like this one: without what records what this one has done, and whose it is."""
    left = {OWNER, *INTERNAL_PROPERTIES}
    return {key: value for key, value in snapshot.metadata.configuration.items() if key.lower() not in left}


def _definition(table: DeltaTable) -> str:
    """A CREATE TABLE that `sql` reads. Raises UnsupportedExpressionError for columns that it has no words for."""
    snapshot = table.snapshot()
    details = {column.path: column for column in snapshot.columns}
    columns = []
    for field in snapshot.schema:
        metadata = field.metadata
        declared = metadata.get(CHAR_VARCHAR_TYPE)
        lengths = {} if declared is None else {one.place: str(one).upper() for one in declared_lengths(str(declared))}
        parts = [quote_identifier(field.name), _type_text(field.data_type, (), lengths)]
        if (identity := details[(field.name,)].identity) is not None:
            always = "BY DEFAULT" if identity.allow_explicit_insert else "ALWAYS"
            parts.append(f"GENERATED {always} AS IDENTITY (START WITH {identity.start} INCREMENT BY {identity.step})")
        if GENERATION_EXPRESSION in metadata:
            parts.append(f"GENERATED ALWAYS AS ({metadata[GENERATION_EXPRESSION]})")
        if not field.nullable:
            parts.append("NOT NULL")
        if CURRENT_DEFAULT in metadata:
            parts.append(f"DEFAULT {metadata[CURRENT_DEFAULT]}")
        if "comment" in metadata:
            parts.append(f"COMMENT {quote_string(str(metadata['comment']))}")
        columns.append("  " + " ".join(parts))
    clustering = snapshot.clustering_columns or ()
    described = snapshot.metadata.description
    properties = properties_of_definition(snapshot)
    clauses = [
        f"PARTITIONED BY ({', '.join(map(quote_identifier, snapshot.partition_columns))})"
        * bool(snapshot.partition_columns),
        f"CLUSTER BY ({', '.join('.'.join(map(quote_identifier, path)) for path in clustering)})" * bool(clustering),
        f"COMMENT {quote_string(described)}" if described else "",
        f"TBLPROPERTIES ({_property_text(properties)})" if properties else "",
    ]
    listed = ",\n".join(columns)
    lines = [f"CREATE TABLE delta.{quote_identifier(table.uri)} (\n{listed})", "USING delta", *filter(None, clauses)]
    return "\n".join(lines)


def _type_text(data_type: DataType, place: tuple[str, ...], lengths: Mapping[tuple[str, ...], str]) -> str:
    """A type with all that is said of its fields. `lengths`: of texts with a declared one, by their place."""
    match data_type:
        case ArrayType(element):
            return f"ARRAY<{_type_text(element, (*place, 'element'), lengths)}>"
        case MapType(key, value):
            texts = (_type_text(part, (*place, name), lengths) for name, part in (("key", key), ("value", value)))
            return f"MAP<{', '.join(texts)}>"
        case StructType(fields):
            return f"STRUCT<{', '.join(_field_text(field, place, lengths) for field in fields)}>"
    return lengths.get(place) or type_sql(data_type)


def _field_text(field: StructField, place: tuple[str, ...], lengths: Mapping[tuple[str, ...], str]) -> str:
    text = f"{quote_identifier(field.name)}: {_type_text(field.data_type, (*place, field.name), lengths)}"
    comment = field.metadata.get("comment")
    if isinstance(comment, str) and "\\" in comment:
        raise unsupported(f"SHOW CREATE TABLE of the comment of {field.name[:100]}, with a backslash,")
    quoted = "" if comment is None else " COMMENT '" + str(comment).replace("'", "''") + "'"
    return f"{text}{'' if field.nullable else ' NOT NULL'}{quoted}"


def _all_properties(snapshot: TableSnapshot) -> dict[str, str]:
    """The table's properties, and its protocol as properties, as Delta on Spark has them."""
    protocol = snapshot.protocol
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    return {
        **snapshot.metadata.configuration,
        "delta.minReaderVersion": str(protocol.min_reader_version),
        "delta.minWriterVersion": str(protocol.min_writer_version),
        **{f"delta.feature.{feature}": "supported" for feature in sorted(features)},
    }


def _properties(table: DeltaTable, key: str | None) -> object:
    found: dict[str, str] = public(_all_properties(table.snapshot()))
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
