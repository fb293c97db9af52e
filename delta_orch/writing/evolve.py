"""Schema evolution: the table a write goes into, as that write will leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.protocol.types import StructType
from delta_orch.table.clustering import ensure_can_cluster
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.schema_evolution import SchemaMode, merge_schemas, overwritten_schema
from delta_orch.table.table_rules import settle
from delta_orch.writing.target import WriteTarget


def evolve_target(
    target: WriteTarget,
    source_schema: StructType,
    schema_mode: SchemaMode | None,
    partition_by: Sequence[str] | None = None,
) -> WriteTarget:
    """The target with the schema, metadata and protocol that it will have once rows of this schema are in it.

    Args:
        schema_mode: None leaves the target as it is: rows must fit. `MERGE` adds columns, and widens types where the
            table allows it. `OVERWRITE` takes the source's columns; only for writes that replace every row.
        partition_by: With `OVERWRITE`, another partitioning; None keeps the table's.

    Returns: `target` itself where nothing changes; otherwise the verb must stage `metadata` and `protocol`.

    Raises:
        SchemaMismatchError: Types that cannot be merged, all named; or a schema no table can have.
        ColumnNotFoundError: A partition column that the new schema does not have.
        InvalidRequestError: A rule of the protocol forbids the change.
        UnsupportedFeatureError: It needs a table feature this release does not write.
    """
    if schema_mode is None:
        return target
    before = target.table
    if schema_mode is SchemaMode.MERGE:
        schema = merge_schemas(before.schema, source_schema, may_widen=before.properties.enable_type_widening)
        wanted = before.with_schema(schema)
    else:
        wanted = _overwritten(before, source_schema, partition_by)
    settled = settle(before, wanted)
    if settled is before:
        return target
    ensure_can_cluster(settled, target.clustering or ())
    return replace(target, table=settled)


def _overwritten(
    before: TableConfiguration, source_schema: StructType, partition_by: Sequence[str] | None
) -> TableConfiguration:
    schema = overwritten_schema(before.schema, source_schema)
    names = before.metadata.partition_columns if partition_by is None else partition_by
    columns = resolve_column_names(names, schema, "partition_by")
    if before.properties.is_iceberg_compatible:
        _ensure_same_partitioning(before, columns)
    return before.after(None, replace(before.metadata, partition_columns=columns)).with_schema(schema)


def _ensure_same_partitioning(before: TableConfiguration, columns: tuple[str, ...]) -> None:
    """PROTOCOL, "Writer Requirements for IcebergCompatV2": a partitioned table keeps the names of its partitioning."""
    known = before.metadata.partition_columns
    if known and known != columns:
        raise InvalidRequestError(
            f"The table is compatible with Iceberg and stays partitioned by {', '.join(known)}",
            remedy="Keep the partition columns, or set the property of Iceberg compatibility to false first",
            partition_columns=list(known),
        )
