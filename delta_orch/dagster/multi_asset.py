"""Several tables from one function: each is an asset with a cursor of its own."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.all_tables import remember_tables
from delta_orch.dagster.audits import audit_specs
from delta_orch.dagster.batch_function import BatchFunction, Returned
from delta_orch.dagster.incremental import (
    DeltaOut,
    EngineName,
    Sources,
    TableOrKey,
    definition_metadata,
    ensure_no_settings,
    ensure_sound,
    process,
    readers_of,
    step_of,
    table_of,
)
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.audit import as_audits
from delta_orch.pipeline.incremental import Bootstrap, ChangeBatch, OnRecreated


@checked
def delta_multi_asset(
    *,
    incremental_from: Sources,
    outs: Mapping[str, DeltaOut],
    bootstrap: Bootstrap = "snapshot",
    on_recreated: OnRecreated = "error",
    max_versions: int | None = None,
    engine: EngineName = "auto",
    conflict_retries: int = DEFAULT_CONFLICT_RETRIES,
    required_resource_keys: set[str] | None = None,
    **multi_asset_arguments: Any,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """Assets whose one function gets a `ChangeBatch` and returns rows for each table: a mapping by the names of `outs`.

    ```python
    @delta_multi_asset(incremental_from=bronze, outs={"orders": DeltaOut(orders), "refunds": DeltaOut(refunds)})
    def split(batch: ChangeBatch):
        rows = batch.scan().to_arrow()
        return {"orders": rows.filter(pc.field("amount") >= 0), "refunds": rows.filter(pc.field("amount") < 0)}
    ```

    Each table has its own cursor, committed with its rows. Tables that stand at the same place get their rows from one
    call. After a kill between two commits, the tables that are behind are processed, and the others left alone. After
    a failure, executing the step again writes all tables anew. Assets can be materialized one by one; the rows of the
    others are then thrown away.

    Args:
        incremental_from: As of `delta_asset`, as are the other arguments of the same names.
        outs: Name → table.
        multi_asset_arguments: As `dg.multi_asset` takes them.

    Raises:
        InvalidRequestError: As `delta_asset`; or two outputs share a table.
    """
    sources = incremental_from if isinstance(incremental_from, Mapping) else {"": incremental_from}
    if not outs:
        raise InvalidRequestError("outs names no table", remedy="Map names to DeltaOut")
    for name in ("specs", "outs", "deps", "can_subset", "check_specs"):
        if name in multi_asset_arguments:
            raise InvalidRequestError(
                f"delta_multi_asset takes no {name}", remedy="Describe each asset in its DeltaOut"
            )
    if len({_place_of(out.table) for out in outs.values()}) < len(outs):
        raise InvalidRequestError("Two outputs share a table", remedy="Give each a table of its own")
    for out in outs.values():
        ensure_no_settings(_of_spec(out, "metadata"))
        ensure_sound(sources, out, multi_asset_arguments, on_recreated, max_versions)
    keys = {name: dg.AssetKey.from_coercible(out.key or name) for name, out in outs.items()}
    audits = {name: as_audits(out.audit) for name, out in outs.items()}

    def decorate(function: Callable[..., object]) -> dg.AssetsDefinition:
        called = BatchFunction(function)

        def compute(context: dg.AssetExecutionContext, **arguments: object) -> Iterator[object]:
            is_refresh, taken = called.full_refresh(context, arguments)
            results: dict[object, tuple[Returned, Mapping[str, ChangeBatch]]] = {}
            given: dict[str, Returned] = {}

            def rows_of(name: str, batches: Mapping[str, ChangeBatch]) -> object:
                asked = batches
                place = tuple((n, b.starting_version, b.ending_version, bool(b.touched)) for n, b in batches.items())
                if place not in results:
                    # One call gives the rows of all tables, so the batch is what is exact for each of them.
                    for other, described in outs.items():
                        target = table_of(context, described.table)
                        step = step_of(described, target, readers, engine, name=keys[other].to_user_string())
                        batches = {n: step.guarded(batch) for n, batch in batches.items()}
                    results[place] = called(context, batches.get("", batches), taken), batches
                returned, handed = results[place]
                for n, batch in asked.items():
                    batch.read.update(handed[n].read)
                rows = returned.rows
                if not isinstance(rows, Mapping) or set(rows) != set(outs):
                    raise InvalidRequestError(
                        f"The function of a delta_multi_asset returned {type(rows).__name__}, not rows for each output",
                        cause=f"It has {sorted(rows) if isinstance(rows, Mapping) else 'no names'}",
                        remedy=f"Return a dict with {', '.join(outs)}; rows that are empty where there are none",
                    )
                given[name] = Returned(rows[name])
                return rows[name]

            for name, out in outs.items():
                if keys[name] not in context.selected_asset_keys:
                    continue
                target = table_of(context, out.table)
                readers = readers_of(context, sources, target, None, bootstrap, on_recreated, max_versions)
                step = step_of(out, target, readers, engine, audits[name])
                given[name] = Returned()
                yield from process(
                    context,
                    keys[name],
                    step,
                    readers,
                    partial(rows_of, name),
                    partial(given.__getitem__, name),
                    conflict_retries,
                    out,
                    is_refresh,
                )

        called.describe(compute, has_schema="config_schema" in multi_asset_arguments)
        compute.__annotations__.pop("return")
        resources = {key for key in (*sources.values(), *(out.table for out in outs.values())) if isinstance(key, str)}
        specs = [
            dg.AssetSpec(
                keys[name],
                skippable=True,
                **{
                    **(out.spec or {}),
                    "kinds": {"deltalake", *_of_spec(out, "kinds")},
                    "metadata": {
                        **definition_metadata(function, out.table),
                        **((out.spec or {}).get("metadata") or {}),
                    },
                },
            )
            for name, out in outs.items()
        ]
        made: dg.AssetsDefinition = dg.multi_asset(
            specs=specs,
            can_subset=True,
            check_specs=[spec for name in outs for spec in audit_specs(keys[name], audits[name])],
            required_resource_keys={*resources, *(required_resource_keys or ())},
            **{"name": function.__name__, **multi_asset_arguments},
        )(compute)
        remember_tables(made, {keys[name]: out.table for name, out in outs.items()}, sources)
        return made

    return decorate


def _place_of(table: TableOrKey) -> str:
    """A location, or the resource key or variable that names one."""
    uri = table if isinstance(table, str) else table.table_uri
    return f"${uri.env_var_name}" if isinstance(uri, dg.EnvVar) else uri


def _of_spec(out: DeltaOut, name: str) -> Any:
    return (out.spec or {}).get(name) or {}
