"""Logs without data: tables whose files are only named, for tests of everything below the engines."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pyarrow as pa

from delta_orch.log.files.arrow_building import bool_array, int64_array, string_array, string_map_array
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.files.txn import TxnId
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep import after_commit
from delta_orch.log.write.commit_result import CommitResult
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from delta_orch.storage.base import LogStore
from delta_orch.table.protocol_upgrade import is_protocol_request, protocol_for_new_table

DAY_SCHEMA = StructType((StructField("day", STRING), StructField("id", LONG)))
"""Partitioned by `day` unless told otherwise."""

WITH_DOMAINS = {"delta.feature.domainMetadata": "supported"}
"""Properties of a table that may have metadata domains."""

_NUMBERS = itertools.count()


def new_metadata(
    schema: StructType = DAY_SCHEMA,
    partition_columns: Sequence[str] = ("day",),
    properties: Mapping[str, str] | None = None,
) -> Metadata:
    """Metadata of a table to be created."""
    return Metadata(
        id=str(uuid.uuid4()),
        schema_string=serialize_schema(schema),
        partition_columns=tuple(partition_columns),
        configuration=dict(properties or {}),
        created_time=0,
    )


def kept_log(store: LogStore, snapshot_class: type[Snapshot] = Snapshot) -> TableLog:
    """A table's log with upkeep after commits, as `DeltaTable` has it."""
    return TableLog(store, snapshot_class, after_commit)


def begin_creation(log: TableLog, metadata: Metadata | None = None, *, txns: Sequence[TxnId] = ()) -> Transaction:
    """A transaction that creates a table, not committed yet."""
    metadata = metadata or new_metadata()
    transaction = Transaction(log, None, operation="CREATE TABLE", txn=txns)
    transaction.update_protocol(protocol_for_new_table(DAY_SCHEMA, metadata.configuration))
    kept = {key: value for key, value in metadata.configuration.items() if not is_protocol_request(key)}
    transaction.update_metadata(replace(metadata, configuration=kept))
    return transaction


def create_table(log: TableLog, *days: str, properties: Mapping[str, str] | None = None) -> Snapshot:
    """A table partitioned by `day`, with one file for each day named. `delta.feature.…` in `properties` asks for a
    feature."""
    transaction = begin_creation(log, new_metadata(properties=properties))
    transaction.add_files(day_files(*days))
    transaction.commit()
    return log.snapshot()


def day_files(*days: str, ids: tuple[int, int] | None = (0, 9), data_change: bool = True) -> pa.Table:
    """One new file a day, columns of `ADD_SCHEMA`; `ids` are the bounds of column `id`, None for no statistics."""
    stats = None
    if ids is not None:
        low, high = ids
        counts = {"numRecords": 10, "nullCount": {"id": 0}}
        stats = orjson.dumps({**counts, "minValues": {"id": low}, "maxValues": {"id": high}}).decode()
    rows = len(days)
    columns: dict[str, pa.Array] = {
        "path": string_array([f"day={day}/part-{next(_NUMBERS)}-{uuid.uuid4()}.parquet" for day in days]),
        "partition_values": string_map_array([{"day": day} for day in days]),
        "size": int64_array([100] * rows),
        "modification_time": int64_array([1] * rows),
        "data_change": bool_array([data_change] * rows),
        "stats": string_array([stats] * rows),
    }
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in ADD_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)


def append_days(log: TableLog, snapshot: Snapshot, *days: str, txns: Sequence[TxnId] = ()) -> CommitResult:
    """Append one file a day."""
    transaction = Transaction(log, snapshot, operation="WRITE", txn=txns)
    transaction.add_files(day_files(*days))
    return transaction.commit()
