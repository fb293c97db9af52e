"""The table that rows are written into: as it stands, or as the first write will create it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from delta_orch.engines.base import RowCheck, StatisticsPolicy, WriteSpec
from delta_orch.errors import AppendOnlyError, InvalidRequestError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.schema_edit import Path, resolve_path
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import StructType
from delta_orch.storage.base import LogStore
from delta_orch.table.clustering import (
    CLUSTERING_DOMAIN,
    ensure_can_cluster,
    logical_paths,
    physical_columns,
    serialize_clustering,
)
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.property_rules import ensure_settable
from delta_orch.table.protocol_upgrade import is_protocol_request, protocol_for_new_table
from delta_orch.table.schema_evolution import as_first_defined
from delta_orch.table.table_rules import settle, with_dependent_properties
from delta_orch.writing.request import TableDefinition


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """What a write must know of its table.

    Attributes:
        clustering: Physical paths of the columns it is clustered by; None where it is not.
    """

    store: LogStore
    table: TableConfiguration
    clustering: tuple[Path, ...] | None = None

    @property
    def schema(self) -> StructType:
        return self.table.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self.table.partition_columns

    @property
    def properties(self) -> TableProperties:
        return self.table.properties

    def write_spec(self, checks: Sequence[RowCheck] = ()) -> WriteSpec:
        """How rows become this table's data files. `delta.targetFileSize` decides their size where it is set."""
        return WriteSpec(
            store=self.store,
            schema=self.schema,
            partition_columns=self.partition_columns,
            checks=tuple(checks),
            statistics=StatisticsPolicy(
                self.properties.data_skipping_num_indexed_cols,
                self.properties.data_skipping_stats_columns,
                also=logical_paths(self.schema, self.clustering) if self.clustering else (),
                says_tight=self.table.supports("deletionVectors"),
            ),
            target_file_size_bytes=self.properties.target_file_size_bytes,
            compression=self.properties.compression_codec,
            optimize_write=self.properties.optimize_write,
            column_mapping=self.table.column_mapping,
            keep_partition_columns=_keeps_partition_columns(self.table),
            random_prefix_length=(
                self.properties.random_prefix_length if self.properties.randomize_file_prefixes else None
            ),
            data_page_version="2.0" if self.properties.parquet_format_version.startswith("2.") else "1.0",
            shred_variants=self.table.enables("variantShredding"),
        )

    def stage_creation(self, transaction: Transaction) -> None:
        """Stage what creates the table, in the transaction that does."""
        transaction.update_protocol(self.table.protocol)
        transaction.update_metadata(self.table.metadata)
        if self.clustering is not None:
            transaction.set_domain_metadata(CLUSTERING_DOMAIN, serialize_clustering(self.clustering))

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
        InvalidPropertyError: A table property has a value that is none of its kind.
        InvalidRequestError: `definition.partition_by` is not how the table is partitioned.
    """
    table = snapshot.configuration.for_writing()
    table.properties.ensure_valid()
    ensure_partitioning_agrees(definition, table.schema, table.partition_columns)
    return WriteTarget(snapshot.store, table, snapshot.clustering)


def new_target(store: LogStore, schema: StructType, definition: TableDefinition) -> WriteTarget:
    """A table that does not exist yet.

    Raises:
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError, InvalidRequestError: The definition or the
            schema cannot be a table's.
        UnsupportedFeatureError: It would need a feature this release does not write.
    """
    configuration = with_dependent_properties(ensure_settable(definition.properties, on_new_table=True))
    schema = as_first_defined(schema)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=serialize_schema(schema),
        partition_columns=resolve_column_names(definition.partition_by or (), schema, "partition_by"),
        configuration={key: value for key, value in configuration.items() if not is_protocol_request(key)},
        name=definition.name,
        description=definition.description,
        created_time=time.time_ns() // 1_000_000,
    )
    asked = TableConfiguration(protocol_for_new_table(schema, configuration), metadata)
    table = settle(None, asked, {"clustering"} if definition.cluster_by else ())
    clustering = None
    if definition.cluster_by:
        clustering = physical_columns(
            table.schema, [resolve_path(table.schema, column) for column in definition.cluster_by]
        )
        ensure_can_cluster(table, clustering)
    return WriteTarget(store, table, clustering)


def _keeps_partition_columns(table: TableConfiguration) -> bool:
    """Whether new files hold the partition columns, too (PROTOCOL, "Writer Requirements for IcebergCompatV1" and
    "…V2": both require it; the feature `materializePartitionColumns` and a property ask for nothing else)."""
    return (
        table.supports("materializePartitionColumns")
        or table.properties.write_partition_columns_to_parquet
        or any(table.enables(f"icebergCompatV{version}") for version in (1, 2, 3))
    )


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
