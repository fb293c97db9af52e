"""Compaction, checkpoint and vacuum of tables, each an asset of its own."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import dagster as dg

from delta_orch.dagster.metadata import Materialized, Metadata, data_version
from delta_orch.dagster.output_place import shares_folder
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import read_run
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.maintenance import MaintenancePolicy, TableHealth, read_table_health
from delta_orch.verbs.vacuum import VacuumResult

DEFAULT_POOL = "delta_maintenance"

Job = Callable[[DeltaTable, TableSnapshot, str], Metadata]
Deps = Sequence[dg.AssetsDefinition | dg.AssetKey | str]


def build_delta_maintenance_assets(
    tables: Mapping[str, DeltaTableResource],
    *,
    policy: MaintenancePolicy | None = None,
    target_file_size_bytes: int | None = None,
    vacuum_retention_hours: float | None = None,
    vacuum_dry_run_only: bool = False,
    deps: Mapping[str, dg.AssetsDefinition | dg.AssetKey | str | Deps] | None = None,
    key_prefix: str | Sequence[str] = "maintenance",
    group_name: str | None = "maintenance",
    pool: str | None = DEFAULT_POOL,
    automation_condition: dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> list[dg.AssetsDefinition]:
    """Three assets a table: `…/{name}/compaction`, then `…/checkpoint`, then `…/vacuum`.

    Each looks at the table's health first and does nothing (saying so in its metadata) where the policy sees no need.
    Compaction that a concurrent commit overtakes fails with a retryable error and leaves the table as it is. Vacuum
    first finds what it would delete, reports it, then deletes.

    Args:
        tables: Name → table. The names become parts of asset keys.
        policy: When maintenance is due; by default `MaintenancePolicy()`.
        target_file_size_bytes: Of compaction; by default the table's.
        vacuum_retention_hours: By default `delta.deletedFileRetentionDuration`; never shorter than that.
        vacuum_dry_run_only: Report only.
        deps: Name → the asset(s) that write the table, so that maintenance runs after them.
        key_prefix: Of the asset keys.
        group_name: Of the assets.
        pool: A concurrency pool, so that maintenance does not crowd out the pipeline; None for none.
        automation_condition: Of each first asset; the other two follow it eagerly where it is given.
        retry_policy: By default three retries.

    Raises:
        InvalidRequestError: `deps` names a table that is not in `tables`, or two tables share a folder.
    """
    if unknown := sorted(set(deps or {}) - set(tables)):
        raise InvalidRequestError(
            f"deps names {', '.join(unknown)}, which is not one of the tables",
            remedy=f"The tables are {', '.join(tables)}",
        )
    _ensure_separate(tables)
    chosen = policy or MaintenancePolicy()
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)
    assets: list[dg.AssetsDefinition] = []
    for name, resource in tables.items():
        upstream = _as_list((deps or {}).get(name))
        for step, (is_due, job) in _jobs(
            chosen, target_file_size_bytes, vacuum_retention_hours, vacuum_dry_run_only
        ).items():
            key = dg.AssetKey([*prefix, name, step])
            condition = automation_condition
            if condition is not None and step != "compaction":
                condition = dg.AutomationCondition.eager()
            asset = dg.asset(
                key=key,
                deps=upstream,
                group_name=group_name,
                pool=pool,
                kinds={"deltalake"},
                description=_DESCRIPTIONS[step],
                automation_condition=condition,
                retry_policy=retry_policy or dg.RetryPolicy(max_retries=3, delay=1),
            )(_compute(resource, key, is_due, job))
            assets.append(asset)
            upstream = [key]
    return assets


def _ensure_separate(tables: Mapping[str, DeltaTableResource]) -> None:
    """Check that no table is another one, or lies inside it. A location of the environment is not known yet."""
    places = {
        name: resource.table().uri.rstrip("/").split("/")
        for name, resource in tables.items()
        if not isinstance(resource.table_uri, dg.EnvVar)
    }
    for one, other in combinations(places, 2):
        if shares_folder(places[one], places[other]):
            raise InvalidRequestError(
                f"The tables {one} and {other} share a folder",
                cause="Cleanup of one table could delete files of the other",
                remedy="Give each a folder of its own",
            )


_DESCRIPTIONS = {
    "compaction": "Merges small files. No row changes.",
    "checkpoint": "Writes a checkpoint, so that readers replay fewer commits.",
    "vacuum": "Deletes files that no version within the retention needs.",
}


def _jobs(
    policy: MaintenancePolicy, target_file_size_bytes: int | None, retention_hours: float | None, dry_run_only: bool
) -> dict[str, tuple[Callable[[TableHealth], bool], Job]]:
    def compact(table: DeltaTable, snapshot: TableSnapshot, run: str) -> Metadata:
        result = table.optimize(target_file_size_bytes=target_file_size_bytes, user_metadata=run)
        return {
            "delta/skipped": result.skipped,
            "delta/num_files_before": snapshot.num_files,
            "delta/num_files": table.snapshot().num_files,
            "delta/operation_metrics": dg.JsonMetadataValue(dict(result.operation_metrics)),
        }

    def checkpoint(table: DeltaTable, snapshot: TableSnapshot, run: str) -> Metadata:
        return {"delta/skipped": False, "delta/checkpoint_version": table.checkpoint()}

    def vacuum(table: DeltaTable, snapshot: TableSnapshot, run: str) -> Metadata:
        found = table.vacuum(retention_hours, dry_run=True)
        metadata = {"delta/skipped": dry_run_only or found.num_files == 0, **_vacuum_metadata("found", found)}
        if not metadata["delta/skipped"]:
            metadata |= _vacuum_metadata("deleted", table.vacuum(retention_hours, user_metadata=run))
        return metadata

    return {
        "compaction": (policy.needs_optimize, compact),
        "checkpoint": (policy.needs_checkpoint, checkpoint),
        "vacuum": (policy.needs_vacuum, vacuum),
    }


def _vacuum_metadata(what: str, result: VacuumResult) -> Metadata:
    return {
        f"delta/vacuum_{what}_files": result.num_files,
        f"delta/vacuum_{what}_bytes": result.size_bytes,
        "delta/vacuum_retention_hours": result.retention_ms / 3_600_000,
    }


def _compute(
    resource: DeltaTableResource, key: dg.AssetKey, is_due: Callable[[TableHealth], bool], job: Job
) -> Callable[..., Materialized]:
    def maintain(context: dg.AssetExecutionContext) -> Materialized:
        table = resource.table()
        snapshot = table.snapshot()
        health = read_table_health(snapshot)
        metadata: Metadata = {f"delta/health/{name}": value for name, value in health.as_metadata().items()}
        if is_due(health):
            run = read_run(context).user_metadata(key.to_user_string())
            metadata |= job(table, snapshot, run)
        else:
            metadata |= {"delta/skipped": True, "delta/skip_reason": "the policy sees no need"}
        newest = table.snapshot()
        return dg.MaterializeResult(
            metadata={**metadata, "delta/version": newest.version}, data_version=data_version(newest)
        )

    # Dagster looks at the annotations themselves, not at their text.
    maintain.__annotations__ = {"context": dg.AssetExecutionContext, "return": dg.MaterializeResult}
    return maintain


def _as_list(deps: dg.AssetsDefinition | dg.AssetKey | str | Deps | None) -> Deps:
    if deps is None:
        return []
    return [deps] if isinstance(deps, dg.AssetsDefinition | dg.AssetKey | str) else list(deps)
