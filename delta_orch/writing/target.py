"""The table that rows are written to: an existing table, a new table, or a table that the write changes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, cast

from delta_orch.engines.base import (
    DEFAULT_FILE_SIZE_BYTES,
    ComputedColumn,
    Engine,
    IdentityValues,
    LengthCheck,
    Measure,
    Relation,
    RowCheck,
    StatisticsPolicy,
    WriteSpec,
)
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError, TableExistsError
from delta_orch.expressions.column_names import ensure_sequence_of_names, resolve_column_names
from delta_orch.expressions.nodes import Column
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.commit_options import CommitOptions, ensure_options
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.schema_check import ensure_distinct_names
from delta_orch.protocol.schema_edit import Path, resolve_path
from delta_orch.protocol.table_properties import (
    ensure_no_credential,
    ensure_settable,
    property_texts,
    with_properties_set,
)
from delta_orch.protocol.types import DataType, StructType
from delta_orch.storage.base import LogStore
from delta_orch.table.column_mapping import MAX_COLUMN_ID, ColumnMappingMode
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.schema_evolution import SchemaMode, as_first_defined, merge_schemas, overwritten_schema
from delta_orch.table.type_widening import changed_types

if TYPE_CHECKING:
    import pyarrow as pa


class TableDefinition(TypedDict, total=False):
    """The definition of a table that this write creates. For an existing table, `partition_by` must agree, and the
    other settings are ignored. A write with `schema_mode="overwrite"` applies the definition to an existing table.
    Properties are added to its own, and other settings apply if they are not None.

    Attributes:
        partition_by: The names of the partition columns.
        cluster_by: Up to four columns. The table must not have partition columns.
        properties: Table properties, and `delta.feature.<name>`.
        name, description: The name and the description in the metadata.
    """

    partition_by: Sequence[str] | None
    cluster_by: Sequence[str] | None
    properties: Mapping[str, str] | None
    name: str | None
    description: str | None


class WriteOptions(TableDefinition, CommitOptions, total=False):
    """Keywords of the methods that create a table or write rows: `TableDefinition` and `CommitOptions`."""


def split_options(options: WriteOptions | CommitOptions) -> tuple[TableDefinition, CommitOptions]:
    """Split the options of a write into the definition of the table and the commit options.

    Raises:
        InvalidRequestError: An option is unknown, a string is passed instead of a sequence of column names, or the name
            or description is not a string.
        InvalidPropertyError: `properties` are not names with texts, or the name or description holds a credential.
    """
    ensure_options(options, WriteOptions)
    names = TableDefinition.__annotations__
    definition: dict[str, object] = {}
    commit: dict[str, object] = {}
    for name, value in options.items():
        (definition if name in names else commit)[name] = value
    if not definition:
        return {}, cast(CommitOptions, commit)
    parsed = cast(TableDefinition, definition)
    for name, columns in (("partition_by", parsed.get("partition_by")), ("cluster_by", parsed.get("cluster_by"))):
        if columns:
            ensure_sequence_of_names(columns, name)
    for name, text in (("name", parsed.get("name")), ("description", parsed.get("description"))):
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"The {name} of a table must be a string, not {text!r}")
        ensure_no_credential(text, f"{name} of the table")
    if parsed.get("properties") is not None:
        from delta_orch.table.protocol_upgrade import requested_features

        # The check also applies to an existing table, which keeps its own definition.
        properties = property_texts(parsed["properties"])
        requested_features(ensure_settable(properties, on_new_table=True))
        parsed["properties"] = properties
    return parsed, cast(CommitOptions, commit)


def no_definition(options: WriteOptions | CommitOptions) -> tuple[TableDefinition, CommitOptions]:
    """Check the options as `split_options` does, for a write that cannot create a table."""
    ensure_options(options, CommitOptions)
    return {}, cast(CommitOptions, {**options})


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The properties of a table that a write needs.

    Attributes:
        clustering: Physical paths of the clustering columns. None if the table is not clustered.
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

    def write_spec(self, checks: Sequence[RowCheck] = ()) -> WriteSpec:
        """Return how rows become data files of this table. `delta.targetFileSize` sets the size of files."""
        table, properties = self.table, self.table.properties
        return WriteSpec(
            store=self.store,
            schema=table.schema,
            partition_columns=table.partition_columns,
            checks=tuple(checks),
            statistics=StatisticsPolicy(
                properties.data_skipping_num_indexed_cols,
                properties.data_skipping_stats_columns,
                also=self._clustering_columns(),
                says_tight=table.supports("deletionVectors"),
            ),
            target_file_size_bytes=properties.target_file_size_bytes,
            compression=properties.compression_codec,
            optimize_write=properties.optimize_write,
            column_mapping=table.column_mapping,
            keep_partition_columns=_keeps_partition_columns(table),
            random_prefix_length=properties.random_prefix_length if properties.randomize_file_prefixes else None,
            page_checksums=properties.page_checksums,
            data_page_version="2.0" if properties.parquet_format_version.startswith("2.") else "1.0",
            shred_variants=table.enables("variantShredding"),
        )

    def clustering_of_writes(self) -> tuple[Path, ...]:
        """Return the columns by which new rows are ordered before they are written (`delta_orch.clusterOnWrite`)."""
        return self._clustering_columns() if self.table.properties.cluster_on_write else ()

    def _clustering_columns(self) -> tuple[Path, ...]:
        if not self.clustering:
            return ()
        from delta_orch.table.clustering import logical_paths

        return logical_paths(self.schema, self.clustering)

    def stage_metadata(self, transaction: Transaction, before: WriteTarget | None = None) -> None:
        """Stage the changes from `before` to this table in a transaction. None creates the table."""
        if before is None or self.table.protocol != before.table.protocol:
            transaction.update_protocol(self.table.protocol)
        if before is None or self.table.metadata != before.table.metadata:
            transaction.update_metadata(self.table.metadata)
        if self.clustering is not None and (before is None or self.clustering != before.clustering):
            from delta_orch.table.clustering import CLUSTERING_DOMAIN, serialize_clustering

            transaction.set_domain_metadata(CLUSTERING_DOMAIN, serialize_clustering(self.clustering))


def existing_target(snapshot: Snapshot, partition_by: Sequence[str] | None = None) -> WriteTarget:
    """Return the target for the table of a snapshot.

    Args:
        partition_by: The partitioning that the caller expects. None accepts any.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release cannot write to the table.
        InvalidPropertyError: A table property has an invalid value.
        InvalidRequestError: The table has another partitioning.
    """
    table = snapshot.configuration.for_writing()
    table.properties.ensure_valid()
    if partition_by is not None:
        column_names = resolve_column_names(partition_by, table.schema, "partition_by")
        if column_names != table.partition_columns:
            raise InvalidRequestError(
                f"partition_by asks for {_listed(column_names)}, "
                f"but the table is partitioned by {_listed(table.partition_columns)}",
                remedy="Leave partition_by out, or pass the table's own partition columns in their order",
                partition_by=list(column_names),
                partition_columns=list(table.partition_columns),
            )
    return WriteTarget(snapshot.store, table, snapshot.clustering)


def new_target(
    store: LogStore, schema: StructType, definition: TableDefinition, replaced: WriteTarget | None = None
) -> WriteTarget:
    """Return the target for a table that does not exist yet.

    Args:
        replaced: The table that it replaces in the same log. Column ids are not assigned twice.

    Raises:
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError, InvalidRequestError: The definition or the
            schema is invalid.
        UnsupportedFeatureError: The table would need a feature that this release does not support.
        TableExistsError: Another table contains the location, or lies below it.
    """
    from delta_orch.expressions.parse import ensure_no_column_in_double_quotes
    from delta_orch.table.column_definitions import generation_expression
    from delta_orch.table.iceberg import with_dependent_properties
    from delta_orch.table.protocol_upgrade import is_protocol_request, protocol_for_new_table, with_features
    from delta_orch.table.table_rules import requested_mapping, settle

    properties = ensure_settable(definition.get("properties") or {}, on_new_table=True)
    catalog_features: frozenset[str] = frozenset()
    if store.is_catalog_managed:
        from delta_orch.writing.catalog_definition import as_catalog_asks

        properties, catalog_features = as_catalog_asks(properties, store.definition_rules())
    configuration = with_dependent_properties(properties)
    schema = as_first_defined(schema)
    # This check comes before the write, because a log with two columns of the same name counts as damaged.
    ensure_distinct_names(schema)
    for field in schema:
        ensure_no_column_in_double_quotes(generation_expression(field) or "", schema)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=serialize_schema(schema),
        partition_columns=resolve_column_names(definition.get("partition_by") or (), schema, "partition_by"),
        configuration={key: value for key, value in configuration.items() if not is_protocol_request(key)},
        name=definition.get("name"),
        description=definition.get("description"),
        created_time=time.time_ns() // 1_000_000,
    )
    protocol = with_features(protocol_for_new_table(schema, configuration), catalog_features)
    requested = TableConfiguration(protocol, metadata)
    if replaced is not None and requested_mapping(requested) is not ColumnMappingMode.NONE:
        last_id = replaced.table.configuration.get(MAX_COLUMN_ID, "0")
        requested = requested.with_properties({**requested.configuration, MAX_COLUMN_ID: last_id})
    cluster_by = definition.get("cluster_by")
    table = settle(None, requested, {"clustering"} if cluster_by else ())
    clustering = _clustering_by(table, cluster_by) if cluster_by else None
    if replaced is None:
        ensure_alone(store, may_nest=table.properties.allow_nested_tables)
    return WriteTarget(store, table, clustering)


def ensure_alone(store: LogStore, *, may_nest: bool) -> None:
    """Refuse nested tables. A table owns every file below its root, so another client's vacuum of the outer table would
    delete the inner one.

    Args:
        may_nest: The table's `allow_nested_tables`. A second table inside the log of a table is refused even then.

    Raises:
        InvalidRequestError: The location is the log directory of a table, or lies in one.
        TableExistsError: A table contains the location, or lies below it.
    """
    if LOG_DIRECTORY in store.uri.split("/"):
        raise InvalidRequestError(
            f"Cannot create a table at {store.uri}",
            cause=f"The location is inside a directory {LOG_DIRECTORY}, which is reserved for the log of a table",
            remedy="Choose another location",
            uri=store.uri,
        )
    other = None if may_nest else store.other_table()
    if other is not None:
        raise TableExistsError(
            f"Cannot create a table at {store.uri}",
            cause=f"There is a table at {other}. One table would be inside the other, and vacuum could delete its "
            "files",
            remedy="Choose locations of which none contains another, or create it with the property "
            "delta_orch.allowNestedTables=true if no other client ever vacuums the outer table",
            uri=store.uri,
            other=other,
        )


def evolve_target(
    target: WriteTarget,
    source_schema: StructType,
    schema_mode: SchemaMode | None,
    definition: TableDefinition | None = None,
    *,
    may_cast: bool = False,
) -> WriteTarget:
    """Return the target with its schema, metadata and protocol after rows of this schema are written.

    Args:
        schema_mode: None does not change the target, so rows must fit. `MERGE` adds columns, and widens types if the
            table allows it. `OVERWRITE` uses the source's columns, only for writes that replace every row.
        definition: With `OVERWRITE`, the other changes of the definition.
        may_cast: As in `merge_schemas`.

    Returns: `target` itself if nothing changes. Otherwise the verb must stage the new target.

    Raises:
        InvalidPropertyError: A property cannot be set.
        SchemaMismatchError: Types cannot be merged (the error names all), or the schema is invalid.
        ColumnNotFoundError: The new schema lacks a partition column.
        InvalidRequestError: A rule of the protocol forbids the change.
        UnsupportedFeatureError: The change needs a table feature that this release does not support.
    """
    if schema_mode is None:
        return target
    from delta_orch.table.clustering import ensure_can_cluster
    from delta_orch.table.table_rules import ensure_may_widen, settle

    before = target.table
    if schema_mode is SchemaMode.OVERWRITE:
        return _overwritten(target, source_schema, definition or {})
    may_widen = before.properties.enable_type_widening
    schema = merge_schemas(before.schema, source_schema, may_widen=may_widen, may_cast=may_cast)
    if may_widen:
        for path, was, becomes in changed_types(before.schema, schema):
            ensure_may_widen(before, path, was, becomes)
    settled = settle(before, before.with_schema(schema))
    if settled is before:
        return target
    ensure_can_cluster(settled, target.clustering or ())
    return replace(target, table=settled)


def _overwritten(target: WriteTarget, source_schema: StructType, definition: TableDefinition) -> WriteTarget:
    from delta_orch.table.clustering import ensure_can_cluster
    from delta_orch.table.iceberg import ensure_same_partitioning
    from delta_orch.table.protocol_upgrade import (
        is_protocol_request,
        requested_features,
        requested_versions,
        upgraded_versions,
    )
    from delta_orch.table.table_rules import settle

    before = target.table
    schema = overwritten_schema(before.schema, source_schema)
    partition_by = definition.get("partition_by")
    names = before.metadata.partition_columns if partition_by is None else partition_by
    if partition_by is None and (lost := [name for name in names if schema.find(name) is None]):
        raise ColumnNotFoundError(
            f"The rows have no column {lost[0]!r}, by which the table is partitioned",
            remedy="Pass partition_by with the new partition columns, or [] for none",
            column=lost[0],
        )
    # The write replaces all rows, so constraints are checked as well.
    requested_properties = ensure_settable(definition.get("properties") or {}, on_new_table=True)
    kept = {key: value for key, value in requested_properties.items() if not is_protocol_request(key)}
    name, description = definition.get("name"), definition.get("description")
    metadata = replace(
        before.metadata,
        partition_columns=resolve_column_names(names, schema, "partition_by"),
        configuration=with_properties_set(before.configuration, kept),
        name=before.metadata.name if name is None else name or None,
        description=before.metadata.description if description is None else description or None,
    )
    requested_table = before.after(
        upgraded_versions(before.protocol, *requested_versions(requested_properties)), metadata
    ).with_schema(schema)
    cluster_by = definition.get("cluster_by")
    clusters = {"clustering"} if cluster_by else set()
    settled = settle(before, requested_table, requested_features(requested_properties) | clusters)
    ensure_same_partitioning(before, settled)
    clustering = target.clustering
    if cluster_by is not None and (cluster_by or clustering):
        clustering = _clustering_by(settled, cluster_by)
    ensure_can_cluster(settled, clustering or ())
    return replace(target, table=settled, clustering=clustering)


def _clustering_by(table: TableConfiguration, cluster_by: Sequence[str]) -> tuple[Path, ...]:
    from delta_orch.table.clustering import ensure_can_cluster, physical_columns

    clustering = physical_columns(table.schema, [resolve_path(table.schema, column) for column in cluster_by])
    ensure_can_cluster(table, clustering)
    return clustering


def _keeps_partition_columns(table: TableConfiguration) -> bool:
    """Whether new files contain the partition columns, because of the feature `materializePartitionColumns` or of a
    property."""
    if table.supports("materializePartitionColumns") or table.properties.write_partition_columns_to_parquet:
        return True
    if not table.properties.is_iceberg_compatible:
        return False
    from delta_orch.table.iceberg import holds_partition_columns

    return holds_partition_columns(table)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no column"


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows of one schema become rows of a table. See `WriteSpec` for the parts."""

    checks: tuple[RowCheck, ...] = ()
    lengths: tuple[LengthCheck, ...] = ()
    defaults: tuple[ComputedColumn, ...] = ()
    generated: tuple[ComputedColumn, ...] = ()
    identities: tuple[IdentityValues, ...] = ()

    def applied_to(self, spec: WriteSpec) -> WriteSpec:
        """Return the spec with these rules, in addition to its own checks."""
        if self == PLAIN:
            return spec
        policy = spec.statistics
        also = (*policy.also, *((values.name,) for values in self.identities))
        return replace(
            spec,
            checks=(*self.checks, *spec.checks),
            lengths=self.lengths,
            statistics=replace(policy, also=also),
            defaults=self.defaults,
            generated=self.generated,
            identities=self.identities,
        )


PLAIN = RowShape()
"""The shape of rows that are written unchanged."""


_MEASURED_ROWS = 1000
_ARROW_TO_PARQUET = 3
"""The approximate ratio of the size of rows in Arrow to their size in Parquet."""


def write_clustered(engine: Engine, rows: Relation, clustering: Sequence[Path], spec: WriteSpec) -> pa.Table:
    """Write rows in the order of a clustered table. Only clustering columns that the rows have count, because other
    columns are computed later.

    The rows are evaluated once, because ordering reads them several times. A sample determines the number of files.
    """
    schema = engine.schema(rows)
    columns = [Column(own) for path in clustering if (own := _own_path(schema, path))]
    if not columns:
        return engine.write(rows, spec)
    with engine.evaluated(rows) as kept:
        some = engine.to_arrow(kept, _MEASURED_ROWS)
        counted = engine.to_arrow(engine.aggregate(kept, (), [Measure("rows", "count")]))
        num_rows = counted["rows"][0].as_py()
        num_bytes = num_rows * some.nbytes // max(1, some.num_rows * _ARROW_TO_PARQUET)
        num_files = max(1, -(-num_bytes // (spec.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES)))
        ordered = engine.along_curve(kept, columns, "hilbert", num_rows=num_rows, num_files=num_files)
        return engine.write(ordered, replace(spec, keeps_order=True))


def _own_path(schema: StructType, path: Path) -> Path | None:
    """Return the name in the rows of a column of the table. None if the rows lack it."""
    spelled: list[str] = []
    current: DataType = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        if field is None:
            return None
        spelled.append(field.name)
        current = field.data_type
    return tuple(spelled)
