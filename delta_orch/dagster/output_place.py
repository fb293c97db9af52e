"""Where the table of an output is, and that no two tables share a folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import dagster as dg

from delta_orch.dagster.run import is_in_run
from delta_orch.dagster.settings import AssetSettings, plain_metadata
from delta_orch.errors import InvalidRequestError

Place = tuple[str, ...]
"""The folders of a table below the root."""


def table_place(context: dg.InputContext | dg.OutputContext | None, settings: AssetSettings) -> Place:
    """The folders of a table below the root.

    Raises:
        InvalidRequestError: A part could lead out of the root.
    """
    if context is None:
        raise InvalidRequestError(
            "The input is neither an asset nor the output of another step",
            remedy="Load it from an asset, or read the table through a DeltaTableResource",
        )
    if context.has_asset_key:
        place = asset_place(context.asset_key, settings.schema)
    else:
        place = (*((settings.schema,) if settings.schema else ()), *_place_of_output(context, settings))
    for part in place:
        if part in ("", ".", "..") or "/" in part or "\\" in part:
            raise InvalidRequestError(
                f"{part!r} cannot be the name of a folder",
                cause="Parts of the asset key, or the metadata 'schema' and 'table', become folders of the table",
                remedy="Use another name",
            )
    return place


def asset_place(key: dg.AssetKey, schema: str | None) -> Place:
    """The folders of an asset's table: those of its key, or `schema` and the last part of the key."""
    return (*((schema,) if schema else tuple(key.path[:-1])), key.path[-1])


def _place_of_output(context: dg.InputContext | dg.OutputContext, settings: AssetSettings) -> list[str]:
    """The folders of an op's output. Two jobs, ops or mapped steps never share one."""
    assert isinstance(context, dg.OutputContext)
    # The step `load[key]` is the op `load`, mapped; an op that maps others has a key for each output.
    node, _, step_key = context.step_key.partition("[")
    keys = (step_key.rstrip("]"), context.mapping_key)
    place = (settings.table,) if settings.table else (context.job_name, node, context.name)
    return [part for part in (*place, *keys) if part]


def output_parts(context: dg.OutputContext) -> tuple[str, ...]:
    """What names an output in transaction ids: an asset's key, or job, step, output and mapping key."""
    if context.has_asset_key:
        return tuple(context.asset_key.path)
    parts = (context.job_name, context.step_key, context.name, context.mapping_key)
    return tuple(part for part in parts if part)


def ensure_own_folder(context: dg.OutputContext, place: Place) -> None:
    """Check the place of an asset against those of the other assets of the job that its IO manager keeps.

    Raises:
        InvalidRequestError: Another asset has the same folder, or one above or below it.
    """
    if not context.has_asset_key or not is_in_run(context):
        return
    places = _places_of_job(context.step_context.job_def)
    manager = next((name for name, keys in places.items() if context.asset_key in keys), None)
    for key, other in places.get(manager or "", {}).items():
        if key != context.asset_key and shares_folder(place, other):
            raise InvalidRequestError(
                f"The tables of {context.asset_key.to_user_string()} and {key.to_user_string()} share a folder",
                cause=f"They are {'/'.join(place)} and {'/'.join(other)}: cleanup of one could damage the other",
                remedy="Give one of them another key, or a folder of its own with the metadata 'schema'",
                assets=[context.asset_key.to_user_string(), key.to_user_string()],
            )


def shares_folder(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one path is the other or lies in it."""
    shorter = min(len(one), len(other))
    return tuple(one[:shorter]) == tuple(other[:shorter])


@lru_cache(maxsize=8)
def _places_of_job(job: dg.JobDefinition) -> dict[str, dict[dg.AssetKey, Place]]:
    """Key of an IO manager → the assets it keeps, with their places."""
    places: dict[str, dict[dg.AssetKey, Place]] = {}
    graph = job.asset_layer.asset_graph
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        definition = node.assets_def
        output, _ = definition.node_def.resolve_output_to_origin(definition.get_output_name_for_asset_key(key), None)
        if output.dagster_type.is_nothing:
            # An asset without a value writes its table itself.
            continue
        schema = plain_metadata(node.metadata).get("schema")
        place = asset_place(key, schema if isinstance(schema, str) else None)
        places.setdefault(output.io_manager_key, {})[key] = place
    return places
