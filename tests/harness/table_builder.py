"""Logs without data: tables whose files are only named, for tests of everything below the engines.

`begin` is the one door through which tests stage what no verb stages.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import orjson
import pyarrow as pa

from delta_orch import DeltaTable, TxnId
from delta_orch.delta_table import TableSnapshot
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.upkeep import checkpoint_writer
from delta_orch.log.upkeep.checkpoint_writer import CheckpointPolicy
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.arrow_building import bool_array, int64_array, string_array, string_map_array
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from delta_orch.table.protocol_upgrade import is_protocol_request, protocol_for_new_table
from delta_orch.testing import open_table
from tests.harness.results import CommitResult, Transaction

DAY_SCHEMA = StructType((StructField("day", STRING), StructField("id", LONG)))
"""Partitioned by `day` unless told otherwise."""

WITH_DOMAINS = {"delta.feature.domainMetadata": "supported"}
"""Properties of a table that may have metadata domains."""

FILE_SCHEMA = ADD_SCHEMA
"""The columns of files, as engines give them to the log and get them from it."""

_NUMBERS = itertools.count()


def file_table(*files: Mapping[str, Any]) -> pa.Table:
    """Files by their columns in `FILE_SCHEMA`. What is not given is null, but a size of 0 and no partition values.

    A deletion vector is a `DeletionVectorDescriptor`.
    """
    rows = [{"size": 0, "partition_values": {}, **file} for file in files]
    for row in rows:
        row["partition_values"] = list(row["partition_values"].items())
        if row.get("deletion_vector") is not None:
            row["deletion_vector"] = asdict(row["deletion_vector"])
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in FILE_SCHEMA]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


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


def begin(table: DeltaTable, snapshot: Snapshot | None, *, operation: str = "TEST", **options: Any) -> Transaction:
    """A transaction over a snapshot, None for a table to be created. The options are those of `Transaction`."""
    return Transaction(table.log, snapshot, operation=operation, **options)


def read_anew(table: DeltaTable) -> TableSnapshot:
    """The newest version as a new reader sees it: nothing that `table` read before is used."""
    return open_table(table.store).snapshot()


def write_checkpoint(
    table: DeltaTable,
    snapshot: Snapshot,
    policy: CheckpointPolicy | None = None,
    v2_format: Literal["json", "parquet"] = "json",
) -> None:
    """The checkpoint of a snapshot that need not be the newest, as `DeltaTable.checkpoint` writes it."""
    checkpoint_writer.write_checkpoint(table.log, snapshot, policy, v2_format)


def begin_creation(table: DeltaTable, metadata: Metadata | None = None, *, txns: Sequence[TxnId] = ()) -> Transaction:
    """A transaction that creates a table, not committed yet."""
    metadata = metadata or new_metadata()
    transaction = begin(table, None, operation="CREATE TABLE", txn=txns)
    transaction.update_protocol(protocol_for_new_table(DAY_SCHEMA, metadata.configuration))
    kept = {key: value for key, value in metadata.configuration.items() if not is_protocol_request(key)}
    transaction.update_metadata(replace(metadata, configuration=kept))
    return transaction


def create_table(table: DeltaTable, *days: str, properties: Mapping[str, str] | None = None) -> TableSnapshot:
    """A table partitioned by `day`, with one file for each day named. `delta.feature.…` in `properties` asks for a
    feature."""
    transaction = begin_creation(table, new_metadata(properties=properties))
    transaction.add_files(day_files(*days))
    transaction.commit()
    return read_anew(table)


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


def append_days(table: DeltaTable, snapshot: Snapshot, *days: str, txns: Sequence[TxnId] = ()) -> CommitResult:
    """Append one file a day."""
    transaction = begin(table, snapshot, operation="WRITE", txn=txns)
    transaction.add_files(day_files(*days))
    return transaction.commit()
