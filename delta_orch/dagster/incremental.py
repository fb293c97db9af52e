"""Assets that process what is new in another table, and commit how far they got together with their rows."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Mapping
from typing import Any
from typing import Literal as OneOf

import dagster as dg

from delta_orch.dagster.conflicts import DEFAULT_CONFLICT_RETRIES, retry_conflicts
from delta_orch.dagster.identity import read_run_identity, user_metadata
from delta_orch.dagster.metadata import commit_metadata, data_version, table_metadata
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.log.write.transaction import CommitResult
from delta_orch.pipeline.first_write import ensure_table_for
from delta_orch.pipeline.incremental import Bootstrap, ChangeBatch, IncrementalReader, OnRecreated
from delta_orch.table.schema_evolution import parse_schema_mode

Write = OneOf["append", "dynamic", "overwrite", "touched_partitions"]
WRITES = ("append", "dynamic", "overwrite", "touched_partitions")

TableOrKey = DeltaTableResource | str

NOTHING_NEW = "nothing new in the source"


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
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """An asset whose function gets a `ChangeBatch` and returns rows, which are committed together with the cursor.

    ```python
    @delta_asset(incremental_from=bronze, table=silver, partition_by=["day"], deps=["flights"])
    def enriched(context, batch: ChangeBatch):
        return enrich(batch.scan().to_arrow())
    ```

    The cursor lives in the written table's log, so a run that is repeated after its commit finds nothing to do, and so
    does one that comes when the source has not changed: it materializes the version that is there, with
    `delta/skipped`, and commits nothing. With `max_versions` one run processes one batch.

    Args:
        incremental_from: The table to read: a resource, or the key of one.
        table: The table to write, as above. It is created by the first run.
        write: `append` adds the rows; `dynamic` replaces the partitions they lie in; `touched_partitions` replaces
            exactly the partitions of the batch, by columns of the same names, so that rows deleted from the source
            leave, too; `overwrite` replaces all.
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
    if write not in WRITES:
        raise InvalidRequestError(f"There is no write={write!r}", remedy=f"Use one of {', '.join(WRITES)}")
    if "partitions_def" in asset_arguments:
        raise InvalidRequestError(
            "An incremental asset has no partitions",
            cause="What it processes is told by its cursor",
            remedy="Leave partitions_def out",
        )
    mode = parse_schema_mode(schema_mode)
    keys = {key for key in (incremental_from, table) if isinstance(key, str)}

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        def compute(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
            source, target = _table(context, incremental_from), _table(context, table)
            reader = IncrementalReader(
                source,
                target,
                consumer=consumer,
                bootstrap=bootstrap,
                on_recreated=on_recreated,
                max_versions=max_versions,
            )
            batch = reader.next_batch()
            if batch is None:
                return _result(context, target, None, None)
            rows = function(context, batch)
            if rows is None:
                raise InvalidRequestError(
                    f"{context.asset_key.to_user_string()} returned None for a batch",
                    remedy="Return rows, which may be an empty table of the right columns",
                )
            extras: dict[str, Any] = {
                "txn": batch.txn,
                "partition_by": None if target.exists() else partition_by,
                "properties": table_properties,
                "engine": engine,
                "schema_mode": mode,
                "user_metadata": user_metadata(read_run_identity(context), context.asset_key.to_user_string()),
            }
            with retry_conflicts(conflict_retries):
                result = _write(target, rows, batch, write, extras)
            return _result(context, target, batch, result)

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
            f"The resource {table!r} is no DeltaTableResource", cause=f"It is a {type(resource).__name__}"
        )
    return resource.table()


def _write(target: DeltaTable, rows: Any, batch: ChangeBatch, write: Write, extras: dict[str, Any]) -> CommitResult:
    if write == "append":
        return target.append(rows, **extras)
    is_new = not target.exists()
    if is_new:
        ensure_table_for(
            target,
            rows,
            engine=extras["engine"],
            partition_by=extras["partition_by"],
            properties=extras["properties"],
        )
    if write == "dynamic":
        return target.overwrite(rows, partition_overwrite_mode="dynamic", **extras)
    if write == "overwrite" or is_new:
        return target.overwrite(rows, **extras)
    predicate = batch.partition_predicate()
    if predicate is None:
        raise InvalidRequestError(
            "write='touched_partitions' needs a partitioned source",
            remedy="Use 'append' or 'overwrite'",
            source=batch.source.uri,
        )
    return target.overwrite(rows, replace_where=predicate, **extras)


def _result(
    context: dg.AssetExecutionContext, target: DeltaTable, batch: ChangeBatch | None, result: CommitResult | None
) -> dg.MaterializeResult[Any]:
    if batch is None and not target.exists():
        return dg.MaterializeResult(metadata={"delta/skipped": True, "delta/skip_reason": NOTHING_NEW})
    snapshot = target.snapshot()
    if result is not None and not result.skipped and snapshot.version != result.version:
        snapshot = target.snapshot(version=result.version)
    metadata = table_metadata(snapshot, ".".join(context.asset_key.path))
    if result is None:
        metadata |= {"delta/skipped": True, "delta/skip_reason": NOTHING_NEW}
    else:
        metadata |= commit_metadata(result, snapshot.txns)
    if batch is not None:
        metadata |= _batch_metadata(batch)
    return dg.MaterializeResult(metadata=metadata, data_version=data_version(snapshot))


def _batch_metadata(batch: ChangeBatch) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "delta/source_ending_version": batch.ending_version,
        "delta/is_bootstrap": batch.is_bootstrap,
        "delta/touched_partitions": batch.partitions().num_rows,
    }
    if batch.starting_version is not None:
        metadata["delta/source_starting_version"] = batch.starting_version
    return metadata
