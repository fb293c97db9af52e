"""The upkeep of tables, and an op that undoes what a unit or a run wrote.

One asset a table measures its health, and does what that asks for: compaction, purge, checkpoint, vacuum, log cleanup.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import dagster as dg
from pydantic import Field

from delta_orch.arguments import checked
from delta_orch.dagster.incremental import INCREMENTAL, Source, place_of
from delta_orch.dagster.io_manager import DeltaLakeIOManager
from delta_orch.dagster.metadata import Metadata, data_version
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, read_run, retry_conflicts
from delta_orch.dagster.settings import plain_metadata
from delta_orch.dagster.values import parse_key, shares_folder
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError, MaintenanceNotAllowedError
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
HOURLY = dg.AutomationCondition.on_cron("0 * * * *")

Work = Callable[[DeltaTable, TableSnapshot, str, bool], Metadata]
"""Table, measured version, user metadata of the commit, dry run → metadata; `changed`: whether it did anything."""
Deps = Sequence[dg.AssetsDefinition | dg.AssetKey | str]


class MaintenanceConfig(dg.Config):
    """The config of a run of a maintenance asset, in the launchpad or in `run_config`.

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
    """One asset for each table, `…/{name}`, that is observed instead of materialized. "Materialize all",
    `AssetSelection.all()` and a selection as text (`"group:maintenance"`) leave it out. A job names it:
    `AssetSelection.assets(*maintenance)`.

    A run measures the health of the table: numbers that the UI plots over time. Where the policy sees a need, it
    compacts (and clusters a clustered table), purges rows that are marked as deleted, writes a checkpoint, vacuums and
    cleans up the log, in that order; `delta/done` lists what it did. If another commit conflicts with a compaction or a
    purge, the step is tried again. Vacuum first reports what it will delete, then deletes it. The log of a table with
    `delta.enableExpiredLogCleanup` false is left alone. What the catalog of a table does itself is left to it, and
    listed in `delta/left_to_catalog`. With `dry_run: true` in the run's config, it only reports. A
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
        automation_condition: When a table is checked.

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
        steps = _steps(
            policy or MaintenancePolicy(), target_file_size_bytes, vacuum_retention_hours, vacuum_dry_run_only, readers
        )
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
        made: dg.AssetsDefinition = make(_observe(resource, key, steps))
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


def _observe(
    resource: DeltaTableResource, key: dg.AssetKey, steps: Mapping[str, tuple[Callable[[TableHealth], bool], Work]]
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
        due: list[str] = []
        done: list[str] = []
        left: list[str] = []
        details: Metadata = {}
        for name, (is_due, work) in steps.items():
            if not is_due(health):
                continue
            due.append(name)
            try:
                with retry_conflicts(DEFAULT_CONFLICT_RETRIES):
                    details |= work(table, snapshot, run, config.dry_run)
            except MaintenanceNotAllowedError:
                left.append(name)
                continue
            if details.pop("changed") and not config.dry_run:
                done.append(name)
                # What it left behind may be due now. An advanced snapshot knows no newer checkpoint.
                table = resource.table()
                snapshot = table.snapshot()
                health = read_table_health(snapshot, log=table.log)
        context.log.info("Due: %s. Done: %s.", ", ".join(due) or "nothing", ", ".join(done) or "nothing")
        if left:
            details["delta/left_to_catalog"] = ", ".join(left)
            context.log.info("The catalog of the table does this itself: %s.", ", ".join(left))
        newest = table.snapshot()
        yield dg.ObserveResult(
            asset_key=key,
            metadata={
                "delta/done": ", ".join(done) or "none",
                "delta/due": ", ".join(due) or "none",
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
    policy: MaintenancePolicy,
    target_file_size_bytes: int | None,
    retention_hours: float | None,
    dry_run_only: bool,
    consumers: Sequence[DeltaTableResource],
) -> dict[str, tuple[Callable[[TableHealth], bool], Work]]:
    """The steps in their order: when each is due, and what it does."""

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
        expired = table.vacuum(hours, dry_run=True)
        metadata = {"changed": not (dry or dry_run_only or expired.num_files == 0), **_vacuumed("found", expired)}
        if metadata["changed"]:
            metadata |= _vacuumed("deleted", table.vacuum(hours, user_metadata=run))
        return metadata

    def clean_up(table: DeltaTable, snapshot: TableSnapshot, run: str, dry: bool) -> Metadata:
        cut_off = log_cut_off_for(table, _existing(consumers))
        expired = clean_up_log(table.log, snapshot, dry_run=dry, cut_off=cut_off)
        what = "found" if dry else "deleted"
        return {
            "changed": bool(expired.paths),
            f"delta/log_cleanup/{what}_files": len(expired.paths),
            f"delta/log_cleanup/{what}_bytes": expired.size_bytes,
        }

    return {
        "compaction": (policy.needs_optimize, compact),
        "purge": (policy.needs_purge, purge),
        "checkpoint": (policy.needs_checkpoint, checkpoint),
        "vacuum": (policy.needs_vacuum, vacuum),
        "log_cleanup": (policy.needs_log_cleanup, clean_up),
    }


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


@checked
def with_delta_maintenance(defs: dg.Definitions, **arguments: Any) -> dg.Definitions:
    """Definitions, and beside them the maintenance of every Delta table that their assets write.

    ```python
    defs = with_delta_maintenance(dg.Definitions(assets=[flights, silver], resources={"io_manager": io_manager}))
    ```

    The tables are those that a `DeltaLakeIOManager`, a `@delta_asset` or a `@delta_multi_asset` writes. A table that
    several assets write is maintained once, under the key of the first asset. Vacuum keeps the files that incremental
    assets of the definitions still have to read. Observed tables are not maintained: others write them. Locations in
    environment variables are read here.

    Args:
        defs: The definitions whose assets write tables.
        arguments: As of `build_delta_maintenance_assets`, except `tables`, `deps` and `consumers`. By default
            `automation_condition` measures every hour; None leaves it to you.

    Raises:
        InvalidRequestError: There is no table, or two of them lie in each other.
    """
    tables = tables_of(defs)
    if not tables:
        raise InvalidRequestError(
            "No asset of these definitions writes a Delta table", remedy="Use build_delta_maintenance_assets"
        )
    assets = build_delta_maintenance_assets(
        {name: table.resource for name, table in tables.items()},
        deps={name: table.written_by for name, table in tables.items()},
        consumers={name: table.read_by for name, table in tables.items()},
        **{"automation_condition": HOURLY, **arguments},
    )
    return dg.Definitions.merge(defs, dg.Definitions(assets=assets))


@dataclass(slots=True)
class WrittenTable:
    """A table of a code location: who writes it, and the tables that incremental assets fill from it."""

    resource: DeltaTableResource
    written_by: list[dg.AssetKey] = field(default_factory=list)
    read_by: list[DeltaTableResource] = field(default_factory=list)


def tables_of(defs: dg.Definitions) -> dict[str, WrittenTable]:
    """The key of the first asset that writes it, as text → table."""
    tables: dict[str, WrittenTable] = {}
    by_place: dict[str, str] = {}
    graph = defs.resolve_asset_graph()
    readers: list[tuple[str, DeltaTableResource]] = []
    for key in sorted(graph.materializable_asset_keys):
        asset = graph.get(key).assets_def
        resource = _resource_of(key, asset, defs)
        if resource is None:
            continue
        name = by_place.setdefault(place_of(resource), key.to_user_string())
        tables.setdefault(name, WrittenTable(resource)).written_by.append(key)
        if asset.node_def in INCREMENTAL:
            sources = (_resolved(source, defs) for source in INCREMENTAL[asset.node_def].sources.values())
            readers += [(place_of(source), resource) for source in sources if source is not None]
    for place, reader in readers:
        if place in by_place:
            tables[by_place[place]].read_by.append(reader)
    return tables


def _resolved(table: Source, defs: dg.Definitions) -> DeltaTableResource | None:
    resource = (defs.resources or {}).get(table) if isinstance(table, str) else table
    return resource if isinstance(resource, DeltaTableResource) else None


def _resource_of(key: dg.AssetKey, asset: dg.AssetsDefinition, defs: dg.Definitions) -> DeltaTableResource | None:
    output_name = asset.get_output_name_for_asset_key(key)
    if asset.node_def in INCREMENTAL:
        return _resolved(INCREMENTAL[asset.node_def].written[output_name], defs)
    output, _ = asset.node_def.resolve_output_to_origin(output_name, None)
    manager = (defs.resources or {}).get(asset.get_io_manager_key_for_asset_key(key))
    # An asset without a value is not the IO manager's.
    if not isinstance(manager, DeltaLakeIOManager) or output.dagster_type.is_nothing:
        return None
    uri = manager.table_of(key, plain_metadata(asset.metadata_by_key.get(key))).uri
    return DeltaTableResource(table_uri=uri, storage_options=manager.storage_options)


class UndoConfig(dg.Config):
    """The units to take back: one of `unit` and `run`.

    Attributes:
        unit: A unit of `table.units()`.
        run: The id of a run: all units that it wrote last.
        dry_run: Count the rows and leave them.
    """

    unit: str | None = Field(default=None, description="A unit of table.units().")
    run: str | None = Field(default=None, description="The id of a run: all units that it wrote last.")
    dry_run: bool = Field(default=False, description="Count the rows and leave them.")


@checked
def build_delta_undo_op(
    table: DeltaTableResource | str, *, name: str = "delta_undo", **op_arguments: Any
) -> dg.OpDefinition:
    """An op that removes exactly the rows that a unit or a run wrote (`DeltaTable.undo`).

    ```python
    @dg.job
    def undo_flights():
        build_delta_undo_op(flights)()
    ```

    Its config names `unit` or `run`, and with `dry_run: true` it only counts. Dagster goes on to show the partitions as
    materialized.

    Args:
        table: A resource, or the key of one.
        name: Of the op.
        op_arguments: As `dg.op` takes them.

    Raises:
        InvalidRequestError: When it runs: there is no such unit, or not exactly one of `unit` and `run` is given.
        RedoNotPossibleError: When it runs: the rows cannot be told from others. The table is as before.
    """
    keys = {table} if isinstance(table, str) else set[str]()

    def undo(context: dg.OpExecutionContext, config: UndoConfig) -> None:
        resource = getattr(context.resources, table) if isinstance(table, str) else table
        if not isinstance(resource, DeltaTableResource):
            raise InvalidRequestError(
                f"The resource {table!r} is not a DeltaTableResource", cause=f"It is a {type(resource).__name__}"
            )
        about = read_run(context).user_metadata("")
        result = resource.table().undo(unit=config.unit, run=config.run, dry_run=config.dry_run, user_metadata=about)
        verb = "Would remove" if config.dry_run else "Removed"
        context.log.info("%s %s rows of %s", verb, f"{result.rows_removed:,}", ", ".join(result.units))
        context.add_output_metadata(
            {
                "delta/units": dg.JsonMetadataValue(list(result.units)),
                "delta/rows_removed": result.rows_removed,
                **({} if config.dry_run else {"delta/version": result.version}),
            }
        )

    make: Callable[..., dg.OpDefinition] = dg.op(
        name=name, required_resource_keys={*keys, *op_arguments.pop("required_resource_keys", ())}, **op_arguments
    )
    return make(undo)
