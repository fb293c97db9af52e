"""Checks of assets when their definitions are loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import dagster as dg

AssetCheck = Callable[[dg.AssetsDefinition, dg.AssetKey], None]

_BINDING = "merge_resource_defs"
"""The function of Dagster that gives an asset its resources (1.12, 1.13). It asks each of them what it needs."""


def check_on_loading(resource: Any, check: AssetCheck) -> Any:
    """A resource's definition that checks the assets whose outputs it manages, as Dagster binds it to them:
    `Definitions.validate_loadable`, `dg check defs`, and the start of a code location fail where the check does.

    Dagster tells a resource nothing of the assets it is bound to, so they are looked up in the function that binds it.
    Where a release of Dagster has none of that name, the checks are made when the asset runs, before it writes.

    Args:
        resource: The definition.
        check: Is called with the asset and each of its keys, and raises what is wrong.
    """
    asked = resource.get_resource_requirements
    if "get_resource_requirements" in vars(resource):
        return resource

    def get_resource_requirements(source_key: str | None = None) -> Iterator[Any]:
        asset = _bound_asset(sys._getframe(1))
        if asset is not None:
            for key in asset.keys if asset.is_executable else ():
                if asset.get_io_manager_key_for_asset_key(key) == source_key:
                    check(asset, key)
        yield from asked(source_key)

    resource.get_resource_requirements = get_resource_requirements
    return resource


def _bound_asset(frame: FrameType | None) -> dg.AssetsDefinition | None:
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_name == _BINDING:
            asset = frame.f_locals.get("requires_resources")
            return asset if isinstance(asset, dg.AssetsDefinition) else None
        frame = frame.f_back
    return None
