"""The upkeep of tables: one asset a table measures its health, and does what that asks for: compaction, purge,
checkpoint, vacuum and cleanup of the log."""

# No postponed annotations in this file: Dagster reads them as they are.

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.metadata import Metadata, data_version
from delta_orch.dagster.output_place import parse_key, shares_folder
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, read_run, retry_conflicts
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.log.upkeep.log_cleanup import clean_up_log
from delta_orch.log.write.commit_options import CommitResult
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

Work = Callable[[DeltaTable, TableSnapshot, str, bool], Metadata]
"""Table, the version that was measured, the run's words for the commit, and whether to report only. What was done; an
empty mapping where nothing was."""
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
) -> list[dg.AssetsDefinition]:
    """One asset a table, `…/{name}`, that is observed instead of materialized: "Materialize all" leaves it out, as does
    `AssetSelection.all()`. A job names it: `AssetSelection.assets(*maintenance)`.

    A run measures the health of the table: numbers that the UI plots over time. Where the policy sees a need, it
    compacts (and clusters a clustered table), purges rows that are marked as deleted, writes a checkpoint, vacuums and
    cleans up the log, in that order; `delta/done` lists what it did. If another commit conflicts with a compaction or a
    purge, the step is tried again. Vacuum first reports what it will delete, then deletes it. The log of a table with
    `delta.enableExpiredLogCleanup` false is left alone. With `dry_run: true` in the run's config, it only reports. A
    table that does not exist yet needs no maintenance.

    Args:
        tables: Name → table. A name becomes a part of asset keys, or with slashes several.
        policy: When maintenance is due; by default `MaintenancePolicy()`.
        target_file_size_bytes: Of compaction; by default the table's.
        vacuum_retention_hours: By default `delta.deletedFileRetentionDuration`; never shorter than that.
        vacuum_dry_run_only: Report only.
        deps: Name → the asset(s) that write the table.
        consumers: Name → the tables that incremental steps fill from the table: vacuum and cleanup keep what they
            still have to read. A table that does not exist yet needs no old files.
        key_prefix: Of the asset keys.
        group_name: Of the assets.
        pool: A concurrency pool, so that maintenance does not crowd out the pipeline; None for none.
        automation_condition: When a table is looked at.

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
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)
    assets: list[dg.AssetsDefinition] = []
    for name, resource in tables.items():
        key = dg.AssetKey([*prefix, *parse_key(name).path])
        readers = (consumers or {}).get(name, ())
        steps = _steps(target_file_size_bytes, vacuum_retention_hours, vacuum_dry_run_only, readers)
        spec = dg.AssetSpec(
            key,
            deps=_as_list((deps or {}).get(name)),
            group_name=group_name,
            kinds={"deltalake"},
            description="Measures files, rows marked as deleted, log and removed files, and tidies up where it is due.",
            automation_condition=automation_condition,
        )
        with warnings.catch_warnings():
            # Dagster marks it as beta; who calls this builder has chosen it.
            warnings.filterwarnings("ignore", message="Function `multi_observable_source_asset`")
            make: Any = dg.multi_observable_source_asset(specs=[spec], name="__".join(key.path))
        made: dg.AssetsDefinition = make(_observe(resource, key, _due(policy or MaintenancePolicy()), steps))
        # The decorator takes none.
        made.op._pool = pool
        assets.append(made)
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


def _due(policy: MaintenancePolicy) -> dict[str, Callable[[TableHealth], bool]]:
    """The steps, in their order, and when they are due."""
    return {
        "compaction": policy.needs_optimize,
        "purge": policy.needs_purge,
        "checkpoint": policy.needs_checkpoint,
        "vacuum": policy.needs_vacuum,
        "log_cleanup": policy.needs_log_cleanup,
    }


def _observe(
    resource: DeltaTableResource,
    key: dg.AssetKey,
    due: Mapping[str, Callable[[TableHealth], bool]],
    steps: Mapping[str, Work],
) -> Callable[..., Iterator[dg.ObserveResult]]:
    def maintain(context: dg.AssetExecutionContext, config: MaintenanceConfig) -> Iterator[dg.ObserveResult]:
        table = resource.table()
        snapshot = snapshot_or_none(table)
        if snapshot is None:
            yield dg.ObserveResult(asset_key=key, metadata={"delta/due": "none", "delta/note": "there is no table yet"})
            return
        run = read_run(context).user_metadata(key.to_user_string())
        health = read_table_health(snapshot, log=table.log)
        numbers = {f"delta/health/{name}": value for name, value in health.as_metadata().items()}
        found: list[str] = []
        done: list[str] = []
        details: Metadata = {}
        for name, is_due in due.items():
            if not is_due(health):
                continue
            found.append(name)
            with retry_conflicts(DEFAULT_CONFLICT_RETRIES):
                details |= steps[name](table, snapshot, run, config.dry_run)
            if details.pop("changed") and not config.dry_run:
                done.append(name)
                # What it left behind may be due now. An advanced snapshot knows no newer checkpoint.
                table = resource.table()
                snapshot = table.snapshot()
                health = read_table_health(snapshot, log=table.log)
        context.log.info("Due: %s. Done: %s.", ", ".join(found) or "nothing", ", ".join(done) or "nothing")
        newest = table.snapshot()
        yield dg.ObserveResult(
            asset_key=key,
            metadata={
                "delta/done": ", ".join(done) or "none",
                "delta/due": ", ".join(found) or "none",
                **numbers,
                **details,
                "delta/version": newest.version,
            },
            data_version=data_version(newest),
        )

    # Dagster looks at the annotations themselves, not at their text.
    maintain.__annotations__ = {"context": dg.AssetExecutionContext, "config": MaintenanceConfig}
    return maintain


def _existing(consumers: Sequence[DeltaTableResource]) -> list[DeltaTable]:
    return [table for consumer in consumers if (table := consumer.table()).exists()]


def _steps(
    target_file_size_bytes: int | None,
    retention_hours: float | None,
    dry_run_only: bool,
    consumers: Sequence[DeltaTableResource],
) -> dict[str, Work]:
    def compact(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        result = None if dry else table.optimize(target_file_size_bytes=target_file_size_bytes, user_metadata=run)
        return _rewritten("compaction", result)

    def purge(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        return _rewritten("purge", None if dry else table.purge(user_metadata=run))

    def checkpoint(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        return {"changed": not dry, **({} if dry else {"delta/checkpoint/version": table.checkpoint()})}

    def vacuum(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        readers = _existing(consumers)
        hours = retention_hours_for(table, readers, retention_hours) if readers else retention_hours
        found = table.vacuum(hours, dry_run=True)
        metadata = {"changed": not (dry or dry_run_only or found.num_files == 0), **_vacuumed("found", found)}
        if metadata["changed"]:
            metadata |= _vacuumed("deleted", table.vacuum(hours, user_metadata=run))
        return metadata

    def clean_up(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        cut_off = log_cut_off_for(table, _existing(consumers))
        found = clean_up_log(table.log, snapshot, dry_run=dry, cut_off=cut_off)
        what = "found" if dry else "deleted"
        return {
            "changed": bool(found.paths),
            f"delta/log_cleanup/{what}_files": len(found.paths),
            f"delta/log_cleanup/{what}_bytes": found.size_bytes,
        }

    return {
        "compaction": compact, "purge": purge, "checkpoint": checkpoint, "vacuum": vacuum, "log_cleanup": clean_up
    }  # fmt: skip


def _rewritten(step: str, result: CommitResult | None) -> Metadata:
    if result is None or result.skipped:
        return {"changed": False}
    return {"changed": True, f"delta/{step}/metrics": dg.JsonMetadataValue(dict(result.operation_metrics))}


def _vacuumed(what: str, result: VacuumResult) -> Metadata:
    return {
        f"delta/vacuum/{what}_files": result.num_files,
        f"delta/vacuum/{what}_bytes": result.size_bytes,
        "delta/vacuum/retention_hours": result.retention_ms / 3_600_000,
    }


def _as_list(deps: dg.AssetsDefinition | dg.AssetKey | str | Deps | None) -> Deps:
    if deps is None:
        return []
    return [deps] if isinstance(deps, dg.AssetsDefinition | dg.AssetKey | str) else list(deps)
