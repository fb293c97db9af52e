"""Assets that process the changes of another table, and commit their cursor together with their rows."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Mapping
from typing import Any
from typing import Literal as OneOf

import dagster as dg

from delta_orch.dagster.metadata import Materialized, data_version, report_metadata
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, read_run, retry_conflicts
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental import Bootstrap, IncrementalReader, OnRecreated
from delta_orch.pipeline.step import Mode, Step, StepReport
from delta_orch.table.schema_evolution import parse_schema_mode

Write = OneOf["append", "dynamic", "overwrite", "touched_partitions"]
_MODES: dict[Write, Mode] = {
    "append": "append",
    "dynamic": "overwrite_partitions",
    "overwrite": "overwrite",
    "touched_partitions": "overwrite_touched",
}

TableOrKey = DeltaTableResource | str


def delta_asset(
    *,
    incremental_from: TableOrKey,
    table: TableOrKey,
    write: Write = "dynamic",
    consumer: str | None = None,
    bootstrap: Bootstrap = "snapshot",
    on_recreated: OnRecreated = "error",
    max_versions: int | None = None,
    partition_by: list[str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    schema_mode: str | None = None,
    engine: str = "auto",
    conflict_retries: int = DEFAULT_CONFLICT_RETRIES,
    kinds: set[str] | None = None,
    required_resource_keys: set[str] | None = None,
    **asset_arguments: Any,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """An asset whose function gets a `ChangeBatch` and returns rows, which are committed together with the cursor.

    ```python
    @delta_asset(incremental_from=bronze, table=silver, partition_by=["day"], deps=["flights"])
    def enriched(context, batch: ChangeBatch):
        return enrich(batch.scan().to_arrow())
    ```

    The cursor is in the log of the written table. A run that is repeated after its commit, or that finds an unchanged
    source, commits nothing and materializes the present version with `delta/skipped`. With `max_versions` one run
    processes one batch.

    Args:
        incremental_from: The table to read: a resource, or the key of one.
        table: The table to write, as above. It is created by the first run.
        write: `append` adds the rows; `dynamic` replaces the partitions they lie in; `touched_partitions` replaces
            exactly the partitions of the batch, by columns of the same names, which also removes rows that were
            deleted from the source; `overwrite` replaces all.
        consumer: See `IncrementalReader`, as `bootstrap`, `on_recreated` and `max_versions`.
        bootstrap: See `IncrementalReader`.
        on_recreated: See `IncrementalReader`.
        max_versions: See `IncrementalReader`.
        partition_by: Partition columns of the table when it is created.
        table_properties: Its properties.
        schema_mode: `merge` adds the columns that the table does not have; `overwrite`, with `write="overwrite"`, takes
            those of the rows.
        engine: `auto`, `spark` or `local`.
        conflict_retries: How often the step runs again when another writer's commit stood in the way.
        kinds: Beside `deltalake`.
        required_resource_keys: Beside those of the two tables.
        asset_arguments: As `dg.asset` takes them.

    Raises:
        InvalidRequestError: No such `write`, or the asset is partitioned: an incremental step has no partitions of its
            own.
    """
    if write not in _MODES:
        raise InvalidRequestError(f"write={write!r} does not exist", remedy=f"Use one of {', '.join(_MODES)}")
    if "partitions_def" in asset_arguments:
        raise InvalidRequestError(
            "An incremental asset has no partitions",
            cause="Its cursor decides what it processes",
            remedy="Leave partitions_def out",
        )
    mode = parse_schema_mode(schema_mode)
    keys = {key for key in (incremental_from, table) if isinstance(key, str)}

    def decorate(function: Callable[..., object]) -> dg.AssetsDefinition:
        def compute(context: dg.AssetExecutionContext) -> Materialized:
            source, target = _table(context, incremental_from), _table(context, table)
            name = context.asset_key.to_user_string()
            reader = IncrementalReader(
                source,
                target,
                consumer=consumer,
                bootstrap=bootstrap,
                on_recreated=on_recreated,
                max_versions=max_versions,
            )
            step = Step(
                name,
                target,
                _MODES[write],
                schema_mode=mode,
                engine=engine,
                options={
                    "partition_by": None if target.exists() else partition_by,
                    "properties": table_properties,
                    "user_metadata": read_run(context).user_metadata(name),
                },
            )
            with retry_conflicts(conflict_retries):
                report = step.process(reader, lambda batch: function(context, batch))
            return _materialized(context, report)

        compute.__name__ = function.__name__
        # Dagster looks at the annotations themselves, not at their text.
        compute.__annotations__ = {"context": dg.AssetExecutionContext, "return": dg.MaterializeResult}
        arguments = {"description": function.__doc__, **asset_arguments}
        asset: dg.AssetsDefinition = dg.asset(
            kinds={"deltalake", *(kinds or ())},
            required_resource_keys={*keys, *(required_resource_keys or ())},
            **arguments,
        )(compute)
        return asset

    return decorate


def _table(context: dg.AssetExecutionContext, table: TableOrKey) -> DeltaTable:
    resource = getattr(context.resources, table) if isinstance(table, str) else table
    if not isinstance(resource, DeltaTableResource):
        raise InvalidRequestError(
            f"The resource {table!r} is not a DeltaTableResource", cause=f"It is a {type(resource).__name__}"
        )
    return resource.table()


def _materialized(context: dg.AssetExecutionContext, report: StepReport) -> Materialized:
    if report.version is None:
        return dg.MaterializeResult(metadata={"delta/skipped": True, "delta/skip_reason": report.reason})
    snapshot = report.snapshot()
    metadata = report_metadata(report, snapshot, ".".join(context.asset_key.path))
    for batch in report.batches:
        metadata |= {
            "delta/source_ending_version": batch.ending_version,
            "delta/is_bootstrap": batch.is_bootstrap,
            "delta/touched_partitions": batch.partitions().num_rows,
        }
        if batch.starting_version is not None:
            metadata["delta/source_starting_version"] = batch.starting_version
    return dg.MaterializeResult(metadata=metadata, data_version=data_version(snapshot))
