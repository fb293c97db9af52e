"""Where the table of an output is, and which key a text is."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from delta_orch.dagster.settings import AssetSettings
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.paths import LOG_DIRECTORY

Place = tuple[str, ...]
"""The folders of a table below the root."""


def table_place(context: dg.InputContext | dg.OutputContext | None, settings: AssetSettings) -> Place:
    """The folders of a table below the root.

    Raises:
        InvalidRequestError: A part could lead out of the root, or into the log of a table.
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
        if part in ("", ".", "..", LOG_DIRECTORY) or "/" in part or "\\" in part:
            raise InvalidRequestError(
                f"{part!r} cannot be the name of a folder",
                cause="Parts of the asset key, or the metadata 'schema' and 'table', become folders of the table",
                remedy="Use another name",
            )
    return place


def asset_place(key: dg.AssetKey, schema: str | None) -> Place:
    """The folders of an asset's table: those of its key, or `schema` and the last part of the key."""
    return (*((schema,) if schema else tuple(key.path[:-1])), key.path[-1])


def parse_key(text: str) -> dg.AssetKey:
    """The asset key whose parts are separated by slashes.

    Raises:
        InvalidRequestError: A part of it is empty.
    """
    parts = text.split("/")
    if not all(part.strip() for part in parts):
        raise InvalidRequestError(
            f"The asset key {text!r} has an empty part", remedy="Write names, with a slash between two: lake/events"
        )
    return dg.AssetKey(parts)


def _place_of_output(context: dg.InputContext | dg.OutputContext, settings: AssetSettings) -> list[str]:
    """The folders of an op's output. Two jobs, ops or mapped steps never share one."""
    assert isinstance(context, dg.OutputContext)
    # The step `load[key]` is the op `load`, mapped; an op that maps others has a key for each output.
    node, _, step_key = context.step_key.partition("[")
    keys = (step_key.rstrip("]"), context.mapping_key)
    place = (settings.table,) if settings.table else (context.job_name, node, context.name)
    return [part for part in (*place, *keys) if part]


def output_parts(context: dg.OutputContext) -> tuple[str, ...]:
    """The name of an output in commits: an asset's key, or job, step, output and mapping key."""
    if context.has_asset_key:
        return tuple(context.asset_key.path)
    parts = (context.job_name, context.step_key, context.name, context.mapping_key)
    return tuple(part for part in parts if part)


def shares_folder(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one path is the other or lies in it."""
    shorter = min(len(one), len(other))
    return tuple(one[:shorter]) == tuple(other[:shorter])
