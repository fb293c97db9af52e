"""The health of tables, and what it asks for: compaction, purge, checkpoint, vacuum and cleanup of the log. Each is an
asset of its own."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.metadata import Materialized, Metadata, data_version
from delta_orch.dagster.output_place import parse_key, shares_folder
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, read_run, retry_conflicts
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.log.upkeep.log_cleanup import clean_up_log
from delta_orch.pipeline.maintenance import (
    MaintenancePolicy,
    TableHealth,
    log_cut_off_for,
    read_table_health,
    retention_hours_for,
)
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.verbs.vacuum import VacuumResult

DEFAULT_POOL = "delta_maintenance"
LOG_CLEANUP = "log_cleanup"

Job = Callable[[DeltaTable, TableSnapshot, str, bool], Metadata]
"""Table, the version that was measured, the run's words for the commit, and whether to report only."""
Deps = Sequence[dg.AssetsDefinition | dg.AssetKey | str]


class MaintenanceConfig(dg.Config):
    """What a single run of a maintenance asset is asked for, in the launchpad or in `run_config`.

    Attributes:
        dry_run: Report what is due, and what vacuum and cleanup would delete; change nothing.
    """

    dry_run: bool = False


@checked
def build_delta_maintenance_assets(
    tables: Mapping[str, DeltaTableResource],
    *,
    policy: MaintenancePolicy | None = None,
    target_file_size_bytes: int | None = None,
    vacuum_retention_hours: float | None = None,
    vacuum_dry_run_only: bool = False,
    deps: Mapping[str, dg.AssetsDefinition | dg.AssetKey | str | Deps] | None = None,
    consumers: Mapping[str, Sequence[DeltaTableResource]] | None = None,
    key_prefix: str | Sequence[str] = "maintenance",
    group_name: str | None = "maintenance",
    pool: str | None = DEFAULT_POOL,
    automation_condition: dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> list[dg.AssetsDefinition]:
    """Six assets a table: `…/{name}/health`, then `…/compaction`, `…/purge`, `…/checkpoint`, `…/vacuum` and
    `…/log_cleanup`.

    `health` measures: its metadata are numbers that the UI plots over time, and its checks `needs_compaction`,
    `needs_purge` and so on warn where the policy sees a need. The other assets measure the health again.
    If nothing is due, they change nothing, and their metadata says so. Compaction clusters a clustered table; files
    that are clustered already stay. If another commit conflicts with a compaction or a purge, the step fails with a
    retryable error, and the table does not change. Vacuum first reports what it will delete, then deletes it. The log
    of a table with `delta.enableExpiredLogCleanup` false is left alone. With `dry_run: true` in the run's config, the
    assets only report. A table that does not exist yet needs no maintenance.

    Args:
        tables: Name → table. A name becomes a part of asset keys, or with slashes several.
        policy: When maintenance is due; by default `MaintenancePolicy()`.
        target_file_size_bytes: Of compaction; by default the table's.
        vacuum_retention_hours: By default `delta.deletedFileRetentionDuration`; never shorter than that.
        vacuum_dry_run_only: Report only.
        deps: Name → the asset(s) that write the table, so that maintenance runs after them.
        consumers: Name → the tables that incremental steps fill from the table: vacuum and cleanup keep what they
            still have to read. A table that does not exist yet needs no old files.
        key_prefix: Of the asset keys.
        group_name: Of the assets.
        pool: A concurrency pool, so that maintenance does not crowd out the pipeline; None for none.
        automation_condition: When `health` is measured. If it is given, each of the other assets runs automatically
            when a measurement finds it due.
        retry_policy: By default three retries of retryable errors, and none of others.

    Raises:
        InvalidRequestError: `deps` or `consumers` names a table that is not in `tables`, a name has an empty part, two
            tables share a folder, or a size or a retention is too small.
    """
    if unknown := sorted({*(deps or {}), *(consumers or {})} - set(tables)):
        raise InvalidRequestError(
            f"deps or consumers names {', '.join(unknown)}, which is not one of the tables",
            remedy=f"The tables are {', '.join(tables)}",
        )
    if (target_file_size_bytes is not None and target_file_size_bytes < 1) or (vacuum_retention_hours or 0) < 0:
        raise InvalidRequestError(
            "target_file_size_bytes or vacuum_retention_hours is too small",
            cause=f"They are {target_file_size_bytes} and {vacuum_retention_hours}",
            remedy="Pass at least 1 byte, and 0 or more hours; or None for what the table says",
        )
    _ensure_separate(tables)
    chosen = policy or MaintenancePolicy()
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)
    assets: list[dg.AssetsDefinition] = []
    for name, resource in tables.items():
        upstream = _as_list((deps or {}).get(name))
        place = [*prefix, *parse_key(name).path]
        health = _health_asset(
            resource, dg.AssetKey([*place, "health"]), chosen, upstream, group_name, automation_condition
        )
        assets.append(health)
        upstream = [health.key]
        readers = (consumers or {}).get(name, ())
        jobs = _jobs(target_file_size_bytes, vacuum_retention_hours, vacuum_dry_run_only, readers)
        for step, is_due in _needs(chosen).items():
            key = dg.AssetKey([*place, step])
            condition = None if automation_condition is None else _found_due(health.key, step)
            asset = dg.asset(
                key=key,
                deps=upstream,
                group_name=group_name,
                pool=pool,
                kinds={"deltalake"},
                description=_DESCRIPTIONS[step],
                automation_condition=condition,
                retry_policy=retry_policy,
            )(_compute(resource, key, is_due, jobs[step], DEFAULT_CONFLICT_RETRIES if retry_policy is None else 0))
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


def _health_asset(
    resource: DeltaTableResource,
    key: dg.AssetKey,
    policy: MaintenancePolicy,
    deps: Deps,
    group_name: str | None,
    automation_condition: dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey] | None,
) -> dg.AssetsDefinition:
    needs = _needs(policy)

    def measure() -> Materialized:
        table = resource.table()
        snapshot = snapshot_or_none(table)
        if snapshot is None:
            nothing = [dg.AssetCheckResult(passed=True, check_name=f"needs_{step}") for step in needs]
            return dg.MaterializeResult(metadata=_NO_TABLE, check_results=nothing)
        health = read_table_health(snapshot, log=table.log)
        return dg.MaterializeResult(
            metadata=_health_metadata(health),
            data_version=data_version(snapshot),
            check_results=[
                dg.AssetCheckResult(
                    passed=not is_due(health), check_name=f"needs_{step}", severity=dg.AssetCheckSeverity.WARN
                )
                for step, is_due in needs.items()
            ],
        )

    measure.__annotations__ = {"return": dg.MaterializeResult}
    make: Callable[..., dg.AssetsDefinition] = dg.asset(
        key=key,
        deps=deps,
        group_name=group_name,
        kinds={"deltalake"},
        description="Measures files, rows marked as deleted, log and removed files. No row is read.",
        automation_condition=automation_condition,
        check_specs=[
            dg.AssetCheckSpec(f"needs_{step}", asset=key, description=f"No {_WORDS[step]} is due.", blocking=True)
            for step in needs
        ],
    )
    return make(measure)


def _found_due(health: dg.AssetKey, step: str) -> dg.AutomationCondition[dg.AssetKey]:
    """A new measurement has found that a step is due."""
    check = dg.AssetSelection.checks(dg.AssetCheckKey(health, f"needs_{step}"))
    # Without `blocking_only`, `allow` takes the other checks out of Dagster's own graph (1.13.27). They only warn, so
    # none of them blocks anything.
    failed = dg.AutomationCondition.any_checks_match(dg.AutomationCondition.check_failed(), blocking_only=True)
    failed = failed.allow(check)
    found = dg.AutomationCondition.newly_updated() & failed
    return dg.AutomationCondition.asset_matches(health, found).with_label(f"{step} is due")


_NO_TABLE: Metadata = {"delta/skipped": True, "delta/skip_reason": "there is no table yet"}


def _health_metadata(health: TableHealth) -> Metadata:
    return {f"delta/health/{name}": value for name, value in health.as_metadata().items()}


_DESCRIPTIONS = {
    "compaction": "Merges small files, and clusters clustered tables. No row changes.",
    "purge": "Rewrites files without the rows that deletion vectors mark. Readers see the same rows.",
    "checkpoint": "Writes a checkpoint, so that readers replay fewer commits.",
    "vacuum": "Deletes files that no version within the retention needs.",
    LOG_CLEANUP: "Deletes the part of the log that is older than its retention.",
}
_WORDS = {step: step.replace(LOG_CLEANUP, "cleanup of the log") for step in _DESCRIPTIONS}


def _needs(policy: MaintenancePolicy) -> dict[str, Callable[[TableHealth], bool]]:
    """The steps, in their order, and when they are due."""
    return {
        "compaction": policy.needs_optimize,
        "purge": policy.needs_purge,
        "checkpoint": policy.needs_checkpoint,
        "vacuum": policy.needs_vacuum,
        LOG_CLEANUP: policy.needs_log_cleanup,
    }


def _existing(consumers: Sequence[DeltaTableResource]) -> list[DeltaTable]:
    return [table for consumer in consumers if (table := consumer.table()).exists()]


def _jobs(
    target_file_size_bytes: int | None,
    retention_hours: float | None,
    dry_run_only: bool,
    consumers: Sequence[DeltaTableResource],
) -> dict[str, Job]:
    def compact(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        if dry:
            return {"delta/skipped": True}
        result = table.optimize(target_file_size_bytes=target_file_size_bytes, user_metadata=run)
        return {
            "delta/skipped": result.skipped,
            "delta/num_files_before": snapshot.num_files,
            "delta/num_files": table.snapshot().num_files,
            "delta/operation_metrics": dg.JsonMetadataValue(dict(result.operation_metrics)),
        }

    def purge(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        if dry:
            return {"delta/skipped": True}
        result = table.purge(user_metadata=run)
        return {
            "delta/skipped": result.skipped,
            "delta/operation_metrics": dg.JsonMetadataValue(dict(result.operation_metrics)),
        }

    def checkpoint(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        if dry:
            return {"delta/skipped": True}
        return {"delta/skipped": False, "delta/checkpoint_version": table.checkpoint()}

    def vacuum(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        readers = _existing(consumers)
        hours = retention_hours_for(table, readers, retention_hours) if readers else retention_hours
        found = table.vacuum(hours, dry_run=True)
        metadata = {"delta/skipped": dry or dry_run_only or found.num_files == 0, **_vacuum_metadata("found", found)}
        if not metadata["delta/skipped"]:
            metadata |= _vacuum_metadata("deleted", table.vacuum(hours, user_metadata=run))
        return metadata

    def clean_up(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        cut_off = log_cut_off_for(table, _existing(consumers))
        found = clean_up_log(table.log, snapshot, dry_run=dry, cut_off=cut_off)
        what = "found" if dry else "deleted"
        return {
            "delta/skipped": dry or not found.paths,
            f"delta/log_cleanup_{what}_files": len(found.paths),
            f"delta/log_cleanup_{what}_bytes": found.size_bytes,
        }

    return {
        "compaction": compact, "purge": purge, "checkpoint": checkpoint, "vacuum": vacuum, LOG_CLEANUP: clean_up
    }  # fmt: skip


def _vacuum_metadata(what: str, result: VacuumResult) -> Metadata:
    return {
        f"delta/vacuum_{what}_files": result.num_files,
        f"delta/vacuum_{what}_bytes": result.size_bytes,
        "delta/vacuum_retention_hours": result.retention_ms / 3_600_000,
    }


def _compute(
    resource: DeltaTableResource, key: dg.AssetKey, is_due: Callable[[TableHealth], bool], job: Job, max_retries: int
) -> Callable[..., Materialized]:
    def maintain(context: dg.AssetExecutionContext, config: MaintenanceConfig) -> Materialized:
        table = resource.table()
        snapshot = snapshot_or_none(table)
        if snapshot is None:
            return dg.MaterializeResult(metadata=_NO_TABLE)
        health = read_table_health(snapshot, log=table.log if key.path[-1] == LOG_CLEANUP else None)
        metadata: Metadata = {**_health_metadata(health), "delta/is_due": is_due(health)}
        if is_due(health):
            run = read_run(context).user_metadata(key.to_user_string())
            metadata |= job(table, snapshot, run, config.dry_run)
            if config.dry_run:
                metadata["delta/skip_reason"] = "the run is a dry one"
        else:
            metadata |= {"delta/skipped": True, "delta/skip_reason": "the policy sees no need"}
        newest = table.snapshot()
        return dg.MaterializeResult(
            metadata={**metadata, "delta/version": newest.version}, data_version=data_version(newest)
        )

    # Dagster looks at the annotations themselves, not at their text.
    maintain.__annotations__ = {
        "context": dg.AssetExecutionContext,
        "config": MaintenanceConfig,
        "return": dg.MaterializeResult,
    }
    return retry_conflicts(max_retries)(maintain)


def _as_list(deps: dg.AssetsDefinition | dg.AssetKey | str | Deps | None) -> Deps:
    if deps is None:
        return []
    return [deps] if isinstance(deps, dg.AssetsDefinition | dg.AssetKey | str) else list(deps)
