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
from delta_orch.protocol.actions import Metadata, Protocol
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
from delta_orch.table.column_mapping import column_mapping_mode
from delta_orch.table.file_rules import keeps_partition_columns, may_shred_variants
from delta_orch.table.property_rules import ensure_settable
from delta_orch.table.protocol_upgrade import is_protocol_request, protocol_for_new_table
from delta_orch.table.registry import ensure_writable, supports
from delta_orch.table.schema_evolution import as_first_defined
from delta_orch.table.table_rules import TableDescription, settle, with_dependent_properties
from delta_orch.writing.clustering import read_clustering
from delta_orch.writing.request import TableDefinition


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """What a write must know of its table.

    Attributes:
        clustering: Physical paths of the columns it is clustered by; None where it is not.
    """

    store: LogStore
    schema: StructType
    partition_columns: tuple[str, ...]
    properties: TableProperties
    protocol: Protocol
    metadata: Metadata
    clustering: tuple[Path, ...] | None = None

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
                also=logical_paths(self.schema, self.clustering or ()),
                says_tight=supports(self.protocol, "deletionVectors"),
            ),
            target_file_size_bytes=self.properties.target_file_size_bytes,
            compression=self.properties.compression_codec,
            optimize_write=self.properties.optimize_write,
            column_mapping=column_mapping_mode(self.protocol, self.metadata),
            keep_partition_columns=keeps_partition_columns(self.protocol, self.properties),
            random_prefix_length=(
                self.properties.random_prefix_length if self.properties.randomize_file_prefixes else None
            ),
            data_page_version="2.0" if self.properties.parquet_format_version.startswith("2.") else "1.0",
            shred_variants=may_shred_variants(self.protocol, self.properties),
        )

    def stage_creation(self, transaction: Transaction) -> None:
        """Stage what creates the table, in the transaction that does."""
        transaction.update_protocol(self.protocol)
        transaction.update_metadata(self.metadata)
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
    ensure_writable(snapshot.protocol, snapshot.metadata)
    snapshot.properties.ensure_valid()
    ensure_partitioning_agrees(definition, snapshot.schema, snapshot.partition_columns)
    return WriteTarget(
        snapshot.store,
        snapshot.schema,
        snapshot.partition_columns,
        snapshot.properties,
        snapshot.protocol,
        snapshot.metadata,
        read_clustering(snapshot),
    )


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
        schema_string="",
        partition_columns=resolve_column_names(definition.partition_by or (), schema, "partition_by"),
        configuration={key: value for key, value in configuration.items() if not is_protocol_request(key)},
        name=definition.name,
        description=definition.description,
        created_time=time.time_ns() // 1_000_000,
    )
    asked = TableDescription(protocol_for_new_table(schema, configuration), metadata, schema)
    table = settle(None, asked, {"clustering"} if definition.cluster_by else ())
    partition_columns = table.metadata.partition_columns
    clustering = None
    if definition.cluster_by:
        paths = [resolve_path(table.schema, column) for column in definition.cluster_by]
        clustering = physical_columns(table.schema, paths)
        ensure_can_cluster(table.schema, partition_columns, table.properties, clustering)
    return WriteTarget(
        store, table.schema, partition_columns, table.properties, table.protocol, table.metadata, clustering
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
