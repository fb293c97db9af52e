"""Tables that Dagster does not write: observed, and what is in them already made known."""

# No postponed annotations in this file: Dagster reads them as they are.

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.metadata import Metadata, place_metadata, table_metadata
from delta_orch.dagster.partitions import ByDimension, TouchedPartitions, dynamic_keys
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.tail import NO_TABLE, TailCursor, changes_data, parse_cursor, poll


@checked
def build_delta_observations(
    tables: Mapping[str, DeltaTableResource],
    *,
    key_prefix: str | Sequence[str] = (),
    group_name: str | None = None,
    automation_condition: dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey] | None = None,
    tags: Mapping[str, str] | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    partition_expr: ByDimension = None,
    partition_format: ByDimension = None,
) -> list[dg.SourceAsset]:
    """An observable source asset for each table.

    Its data version is `{table id}:{version}` of the last commit that changed data, so that compaction and properties
    make nothing downstream stale. A table that does not exist fails the observation.

    With `partitions_def` each partition is observed on its own: its data version changes when a commit changed data in
    it. An observation goes on where the last one ended, and tells of the touched partitions alone; without news it
    tells of none. The first one, and the first one after the table was recreated, tell of all partitions that hold
    files. This includes partitions that Dagster does not know yet. Values outside of the partitions are passed over.

    Args:
        tables: Name → table. A name becomes the last part of the asset's key.
        partitions_def: The partitions of all tables.
        partition_expr: As in an asset's metadata; by default the table's only partition column.
        partition_format: As in an asset's metadata.
        key_prefix: Of the asset keys.
        group_name: Of the assets.
        automation_condition: When to observe, for example `dg.AutomationCondition.on_cron("*/5 * * * *")`.
        tags: Of the assets.

    Raises:
        InvalidRequestError: There is no table, or `partition_expr` does not name a column for every dimension.
    """
    has_mapping = partition_expr is not None or partition_format is not None
    if has_mapping and partitions_def is None:
        raise InvalidRequestError("partition_expr needs partitions_def", remedy="Pass it as well")
    mapping = None
    if partitions_def is not None:
        mapping = TouchedPartitions(partitions_def, partition_expr, partition_format)
    if not tables:
        raise InvalidRequestError("No table is named", remedy="Map names to DeltaTableResource")
    rows = {"partition_expr": partition_expr, "partition_format": partition_format}
    # An IO manager that loads it as an input looks at these.
    given_rows = {name: value for name, value in rows.items() if value is not None}
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)
    observations: list[dg.SourceAsset] = []
    for name, resource in tables.items():
        key = dg.AssetKey([*prefix, name])
        with warnings.catch_warnings():
            # Dagster marks it as beta; who calls this builder has chosen it.
            warnings.filterwarnings("ignore", message="Function `observable_source_asset`")
            define = dg.observable_source_asset(
                key=key,
                metadata={**place_metadata(resource), **given_rows},
                group_name=group_name,
                automation_condition=automation_condition,
                tags=tags,
                partitions_def=partitions_def,
                description="A Delta table that others write.",
            )
        if mapping is None:
            observations.append(define(_observe(resource, ".".join(key.path))))
        else:
            observations.append(define(_observe_partitions(resource, key, mapping)))
    return observations


def _observe_partitions(
    resource: DeltaTableResource, key: dg.AssetKey, mapping: TouchedPartitions
) -> Callable[[dg.OpExecutionContext], dg.DataVersionsByPartition]:
    def observe(context: dg.OpExecutionContext) -> dg.DataVersionsByPartition:
        table = resource.table()
        # What does not exist fails here; a poll finds nothing new in it.
        snapshot = table.snapshot()
        last = _last_observed(context.instance, key)
        gone: set[str] = set()
        if last == NO_TABLE:
            cursor, partitions = TailCursor(snapshot.metadata.id, snapshot.version), snapshot.partitions()
        else:
            batch = poll(table.log, last, verify=True, max_versions=None)
            if batch is None or not batch.data_changed:
                return _by_partition({})
            cursor, partitions = batch.cursor, batch.partitions
            if batch.recreated or batch.missed:
                # Nothing tells which of those that were there are empty now.
                gone = _observed_partitions(context.instance, key)
        if not partitions.column_names:
            raise _not_partitioned(snapshot)
        touched = mapping.find(partitions, context.instance)
        if touched.num_outside:
            context.log.warning("%d touched partitions lie outside of the asset's partitions", touched.num_outside)
        version = dg.DataVersion(str(cursor))
        keys = sorted({*map(str, touched.keys), *map(str, touched.later), *gone})
        return _by_partition(dict.fromkeys(keys, version))

    observe.__annotations__ = {"context": dg.OpExecutionContext, "return": dg.DataVersionsByPartition}
    return observe


def _by_partition(versions: Mapping[str, dg.DataVersion | str]) -> dg.DataVersionsByPartition:
    with warnings.catch_warnings():
        # Beta, as the observable source asset is.
        warnings.filterwarnings("ignore", message="Class `DataVersionsByPartition`")
        return dg.DataVersionsByPartition(dict(versions))


def _last_observed(instance: dg.DagsterInstance, key: dg.AssetKey) -> TailCursor:
    """Where the last observation of a partition ended: all of it has the same data version. Those of before
    the asset had partitions tell of none."""
    for record in _observations_of_partitions(instance, key):
        observed = record.event_log_entry.asset_observation
        version = None if observed is None else (observed.tags or {}).get("dagster/data_version")
        if version is not None:
            return parse_cursor(version)
    return NO_TABLE


def _observed_partitions(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """All partitions that were ever observed."""
    return {str(record.partition_key) for record in _observations_of_partitions(instance, key)}


def _observations_of_partitions(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[dg.EventLogRecord]:
    """The newest first."""
    page = instance.fetch_observations(key, limit=1)
    while True:
        yield from (record for record in page.records if record.partition_key is not None)
        if not page.has_more:
            return
        page = instance.fetch_observations(key, limit=1000, cursor=page.cursor)


def _not_partitioned(snapshot: TableSnapshot) -> InvalidRequestError:
    return InvalidRequestError(
        f"The table at {snapshot.store.uri} is not partitioned, so its partitions are unknown",
        remedy="Leave partitions_def out",
    )


def _observe(resource: DeltaTableResource, table_name: str) -> Callable[[], dg.ObserveResult]:
    def observe() -> dg.ObserveResult:
        table = resource.table()
        snapshot = table.snapshot()
        version = _last_data_version(table, snapshot)
        return dg.ObserveResult(
            data_version=dg.DataVersion(f"{snapshot.metadata.id}:{version}"),
            metadata={**table_metadata(snapshot, table_name), "delta/last_data_version": version},
        )

    observe.__annotations__ = {"return": dg.ObserveResult}
    return observe


def _last_data_version(table: DeltaTable, snapshot: TableSnapshot) -> int:
    """The last version that changed data. Where the log no longer holds it, the oldest one that it does."""
    version = snapshot.version
    for commit in table.log.newest_first(snapshot.version):
        version = commit.version
        if changes_data(commit):
            break
    return version


@checked
def report_existing_partitions(
    instance: dg.DagsterInstance,
    asset: dg.AssetsDefinition | dg.AssetKey | str | Sequence[str],
    table: DeltaTableResource,
    partitions_def: dg.PartitionsDefinition[str],
    *,
    partition_expr: ByDimension = None,
    partition_format: ByDimension = None,
) -> tuple[str, ...]:
    """Tell Dagster which partitions of an asset are in its table already, without a run.

    Every partition that holds files is reported as materialized, with the table's version in its metadata. Keys of
    dynamic partitions are added. Reporting twice is harmless.

    Args:
        instance: The `dg.DagsterInstance`.
        asset: The asset, or its key.
        table: Its table.
        partitions_def: Its partitions.
        partition_expr: As in the asset's metadata; by default the table's only partition column.
        partition_format: As in the asset's metadata.

    Returns: the keys, sorted. Values outside of the partitions are left out.

    Raises:
        TableNotFoundError: There is no table.
        InvalidRequestError: The table is not partitioned, or a value maps to no key. Nothing was reported.
    """
    snapshot = table.snapshot()
    partitions = snapshot.partitions()
    if not partitions.column_names:
        raise _not_partitioned(snapshot)
    touched = TouchedPartitions(partitions_def, partition_expr, partition_format).find(partitions, instance)
    for made, keys in dynamic_keys(partitions_def, touched.keys):
        instance.add_dynamic_partitions(str(made.name), keys)
    if isinstance(asset, dg.AssetsDefinition):
        key = asset.key
    else:
        key = asset if isinstance(asset, dg.AssetKey) else dg.AssetKey(asset)
    about: Metadata = {"delta/version": snapshot.version, "delta/reported": True}
    for partition in touched.keys:
        event = dg.AssetMaterialization(asset_key=key, partition=partition, metadata=about)
        instance.report_runless_asset_event(event)
    return tuple(str(partition) for partition in touched.keys)
