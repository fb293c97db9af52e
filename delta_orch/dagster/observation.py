"""Tables that Dagster does not write: observed, and what is in them already made known."""

# No postponed annotations in this file: Dagster reads them as they are.

import warnings
from collections.abc import Callable, Mapping, Sequence

import dagster as dg

from delta_orch.dagster.metadata import Metadata, table_metadata
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.touched import ByDimension, TouchedPartitions
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError, VersionNotFoundError
from delta_orch.pipeline.tail import changes_data, live_partitions


def build_delta_observations(
    tables: Mapping[str, DeltaTableResource],
    *,
    key_prefix: str | Sequence[str] = (),
    group_name: str | None = None,
    automation_condition: dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey] | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[dg.SourceAsset]:
    """An observable source asset for each table.

    Its data version is `{table id}:{version}` of the last commit that changed data, so that compaction and properties
    make nothing downstream stale. A table that does not exist fails the observation.

    Args:
        tables: Name → table. A name becomes the last part of the asset's key.
        key_prefix: Of the asset keys.
        group_name: Of the assets.
        automation_condition: When to observe, for example `dg.AutomationCondition.on_cron("*/5 * * * *")`.
        tags: Of the assets.

    Raises:
        InvalidRequestError: There is no table.
    """
    if not tables:
        raise InvalidRequestError("No table is named", remedy="Map names to DeltaTableResource")
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)
    observations: list[dg.SourceAsset] = []
    for name, resource in tables.items():
        key = dg.AssetKey([*prefix, name])
        with warnings.catch_warnings():
            # Dagster marks it as beta; who calls this builder has chosen it.
            warnings.filterwarnings("ignore", message="Function `observable_source_asset`")
            define = dg.observable_source_asset(
                key=key,
                group_name=group_name,
                automation_condition=automation_condition,
                tags=tags,
                description="A Delta table that others write.",
            )
        observations.append(define(_observe(resource, ".".join(key.path))))
    return observations


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
    while version >= 0:
        try:
            if changes_data(table.log.read_commit(version)):
                return version
        except VersionNotFoundError:
            return min(version + 1, snapshot.version)
        version -= 1
    return 0


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
        partition_expr: As in the asset's metadata; by default the table's only partition column.
        partition_format: As in the asset's metadata.

    Returns: the keys, sorted. Values outside of the partitions are left out.

    Raises:
        TableNotFoundError: There is no table.
        InvalidRequestError: The table is not partitioned, or a value maps to no key. Nothing was reported.
    """
    snapshot = table.snapshot()
    partitions = live_partitions(snapshot)
    if not partitions.column_names:
        raise InvalidRequestError(
            f"The table at {snapshot.store.uri} is not partitioned, so its partitions are unknown",
            remedy="Report the materialization of the asset itself",
        )
    found = TouchedPartitions(partitions_def, partition_expr, partition_format).find(partitions, instance)
    if isinstance(partitions_def, dg.DynamicPartitionsDefinition) and partitions_def.name is not None:
        instance.add_dynamic_partitions(partitions_def.name, list(found.keys))
    if isinstance(asset, dg.AssetsDefinition):
        key = asset.key
    else:
        key = asset if isinstance(asset, dg.AssetKey) else dg.AssetKey(asset)
    about: Metadata = {"delta/version": snapshot.version, "delta/reported": True}
    for partition in found.keys:
        event = dg.AssetMaterialization(asset_key=key, partition=partition, metadata=about)
        instance.report_runless_asset_event(event)
    return tuple(str(partition) for partition in found.keys)
