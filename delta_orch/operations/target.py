"""The table that rows are written into: as it stands, or as the first write will create it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from delta_orch.engines.base import RowCheck, StatisticsPolicy, WriteSpec
from delta_orch.errors import AppendOnlyError, InvalidRequestError
from delta_orch.features.protocol_upgrade import is_protocol_request, protocol_for_new_table
from delta_orch.features.registry import ensure_writable
from delta_orch.log.snapshot import Snapshot
from delta_orch.operations.request import TableDefinition, resolve_column_names
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.schema_check import ensure_valid_table_schema
from delta_orch.protocol.table_properties import TableProperties, ensure_valid_properties
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructField, StructType
from delta_orch.storage.base import LogStore


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """What a write must know of its table."""

    store: LogStore
    schema: StructType
    partition_columns: tuple[str, ...]
    properties: TableProperties
    protocol: Protocol
    metadata: Metadata

    def write_spec(self, checks: Sequence[RowCheck] = ()) -> WriteSpec:
        """How rows become this table's data files. `delta.targetFileSize` decides their size where it is set."""
        return WriteSpec(
            store=self.store,
            schema=self.schema,
            partition_columns=self.partition_columns,
            checks=tuple(checks),
            statistics=StatisticsPolicy(
                self.properties.data_skipping_num_indexed_cols, self.properties.data_skipping_stats_columns
            ),
            target_file_size_bytes=self.properties.target_file_size_bytes,
            compression=self.properties.compression_codec,
            optimize_write=self.properties.optimize_write,
        )

    def ensure_rows_may_leave(self) -> None:
        """Raise AppendOnlyError where the table keeps every row (PROTOCOL, "Append-only Tables")."""
        if self.properties.append_only:
            raise AppendOnlyError(
                "The table is append-only: no row may be removed or replaced",
                cause="The table property delta.appendOnly is true",
                remedy="Append instead, or set the property to false first",
            )


def existing_target(snapshot: Snapshot, definition: TableDefinition) -> WriteTarget:
    """The table of a snapshot.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to it.
        InvalidRequestError: `definition.partition_by` is not how the table is partitioned.
    """
    ensure_writable(snapshot.protocol, snapshot.metadata)
    ensure_partitioning_agrees(definition, snapshot.schema, snapshot.partition_columns)
    return WriteTarget(
        snapshot.store,
        snapshot.schema,
        snapshot.partition_columns,
        snapshot.properties,
        snapshot.protocol,
        snapshot.metadata,
    )


def new_target(store: LogStore, schema: StructType, definition: TableDefinition) -> WriteTarget:
    """A table that does not exist yet.

    Raises:
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError, InvalidRequestError: The definition or the
            schema cannot be a table's.
        UnsupportedFeatureError: It would need a feature this release does not write.
    """
    configuration = ensure_valid_properties(definition.properties)
    partition_columns = resolve_column_names(definition.partition_by or (), schema, "partition_by")
    ensure_valid_table_schema(schema, partition_columns)
    protocol = protocol_for_new_table(schema, configuration)
    stored = {key: value for key, value in configuration.items() if not is_protocol_request(key)}
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=serialize_schema(schema),
        partition_columns=partition_columns,
        configuration=stored,
        name=definition.name,
        description=definition.description,
        created_time=time.time_ns() // 1_000_000,
    )
    ensure_writable(protocol, metadata)
    return WriteTarget(store, schema, partition_columns, TableProperties.parse(stored), protocol, metadata)


def ensure_partitioning_agrees(
    definition: TableDefinition, schema: StructType, partition_columns: tuple[str, ...]
) -> None:
    """Raise InvalidRequestError where the caller asks for another partitioning than the table has."""
    if definition.partition_by is None:
        return
    asked = resolve_column_names(definition.partition_by, schema, "partition_by")
    if asked != partition_columns:
        raise InvalidRequestError(
            f"partition_by asks for {_listed(asked)}, but the table is partitioned by {_listed(partition_columns)}",
            remedy="Leave partition_by out, or name the table's own partition columns in their order",
            partition_by=list(asked),
            partition_columns=list(partition_columns),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no column"


def as_created_from_data(schema: StructType) -> StructType:
    """The schema of a table whose first rows have this one: every column may be null, and nothing is inherited that
    only means something in the table the rows came from (column mapping, generation, defaults)."""
    return StructType(tuple(_loosen_field(f) for f in schema))


_DEFAULTS = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")


def _loosen_field(field: StructField) -> StructField:
    kept = {key: value for key, value in field.metadata.items() if not key.startswith(("delta.", *_DEFAULTS))}
    return replace(field, data_type=_loosen(field.data_type), nullable=True, metadata=kept)


def _loosen(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return as_created_from_data(data_type)
        case ArrayType(element_type):
            return ArrayType(_loosen(element_type), True)
        case MapType(key_type, value_type):
            return MapType(_loosen(key_type), _loosen(value_type), True)
    return data_type
