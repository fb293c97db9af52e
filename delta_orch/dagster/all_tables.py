"""The Delta tables of a code location, and the maintenance of all of them in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.io_manager import DeltaLakeIOManager
from delta_orch.dagster.maintenance import build_delta_maintenance_assets
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.settings import plain_metadata
from delta_orch.errors import InvalidRequestError

HOURLY = dg.AutomationCondition.on_cron("0 * * * *")

TableOrKey = DeltaTableResource | str


@dataclass(frozen=True, slots=True)
class _Incremental:
    """What writes tables itself: output → table, the tables that all of them are filled from, by name, and what the
    cursors are called."""

    written: Mapping[str, TableOrKey]
    sources: Mapping[str, TableOrKey]
    consumer: str | None = None


_INCREMENTAL: WeakKeyDictionary[dg.NodeDefinition, _Incremental] = WeakKeyDictionary()
"""By the node, which all copies of an assets definition share."""


def remember_tables(
    asset: dg.AssetsDefinition,
    tables: Mapping[dg.AssetKey, TableOrKey],
    sources: Mapping[str, TableOrKey],
    consumer: str | None = None,
) -> None:
    """Note which tables an asset writes itself, and from which."""
    written = {name: tables[key] for name, key in asset.keys_by_output_name.items()}
    _INCREMENTAL[asset.node_def] = _Incremental(written, sources, consumer)


def ensure_own_cursors(context: dg.AssetExecutionContext, key: dg.AssetKey) -> None:
    """Check that no other asset of the code location goes by a cursor of this one. Of a run that was not launched from
    a code location the assets of its job are known.

    Raises:
        InvalidRequestError: One does. Each would be handed only what the other has not read.
    """
    # The graph of a job has no assets but those that it runs.
    is_launched = context.run.remote_job_origin is not None
    graph = context.repository_def.asset_graph if is_launched else context.job_def.asset_layer.asset_graph
    own = _cursors(graph.get(key).assets_def, key)
    for other in sorted(graph.materializable_asset_keys - {key}):
        asset = graph.get(other).assets_def
        if asset.node_def in _INCREMENTAL and own & _cursors(asset, other):
            raise InvalidRequestError(
                f"The assets {key.to_user_string()} and {other.to_user_string()} read one source into one table, and "
                "share its cursor",
                cause="Each would be handed only what the other has not read, so rows would be missing",
                remedy="Give each a cursor of its own: @delta_asset(consumer='…')",
            )


def _cursors(asset: dg.AssetsDefinition, key: dg.AssetKey) -> set[tuple[str | None, ...]]:
    """The cursors of an incremental asset: where they are, what they are called, and of which tables."""
    found = _INCREMENTAL[asset.node_def]
    table = _place_or_key(found.written[asset.get_output_name_for_asset_key(key)])
    return {(table, found.consumer, name, _place_or_key(source)) for name, source in found.sources.items()}


def _place_or_key(table: TableOrKey) -> str:
    return table if isinstance(table, str) else _place(table)


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
        arguments: As of `build_delta_maintenance_assets`, but for `tables`, `deps` and `consumers`. By default
            `automation_condition` measures every hour; None leaves it to you.

    Raises:
        InvalidRequestError: There is no table, or two of them lie in each other.
    """
    found = tables_of(defs)
    if not found:
        raise InvalidRequestError(
            "No asset of these definitions writes a Delta table", remedy="Use build_delta_maintenance_assets"
        )
    assets = build_delta_maintenance_assets(
        {name: table.resource for name, table in found.items()},
        deps={name: table.written_by for name, table in found.items()},
        consumers={name: table.read_by for name, table in found.items()},
        **{"automation_condition": HOURLY, **arguments},
    )
    return dg.Definitions.merge(defs, dg.Definitions(assets=assets))


@dataclass(slots=True)
class FoundTable:
    """A table of a code location: who writes it, and the tables that incremental assets fill from it."""

    resource: DeltaTableResource
    written_by: list[dg.AssetKey] = field(default_factory=list)
    read_by: list[DeltaTableResource] = field(default_factory=list)


def tables_of(defs: dg.Definitions) -> dict[str, FoundTable]:
    """The key of the first asset that writes it, as text → table."""
    found: dict[str, FoundTable] = {}
    by_place: dict[str, str] = {}
    graph = defs.resolve_asset_graph()
    readers: list[tuple[str, DeltaTableResource]] = []
    for key in sorted(graph.materializable_asset_keys):
        asset = graph.get(key).assets_def
        resource = _resource_of(key, asset, defs)
        if resource is None:
            continue
        name = by_place.setdefault(_place(resource), key.to_user_string())
        found.setdefault(name, FoundTable(resource)).written_by.append(key)
        if asset.node_def in _INCREMENTAL:
            sources = (_resolved(source, defs) for source in _INCREMENTAL[asset.node_def].sources.values())
            readers += [(_place(source), resource) for source in sources if source is not None]
    for place, reader in readers:
        if place in by_place:
            found[by_place[place]].read_by.append(reader)
    return found


def _place(resource: DeltaTableResource) -> str:
    return resource.table().uri.rstrip("/")


def _resolved(table: TableOrKey, defs: dg.Definitions) -> DeltaTableResource | None:
    resource = (defs.resources or {}).get(table) if isinstance(table, str) else table
    return resource if isinstance(resource, DeltaTableResource) else None


def _resource_of(key: dg.AssetKey, asset: dg.AssetsDefinition, defs: dg.Definitions) -> DeltaTableResource | None:
    output_name = asset.get_output_name_for_asset_key(key)
    if asset.node_def in _INCREMENTAL:
        return _resolved(_INCREMENTAL[asset.node_def].written[output_name], defs)
    output, _ = asset.node_def.resolve_output_to_origin(output_name, None)
    manager = (defs.resources or {}).get(asset.get_io_manager_key_for_asset_key(key))
    # An asset without a value is not the IO manager's.
    if not isinstance(manager, DeltaLakeIOManager) or output.dagster_type.is_nothing:
        return None
    uri = manager.table_of(key, plain_metadata(asset.metadata_by_key.get(key))).uri
    return DeltaTableResource(table_uri=uri, storage_options=manager.storage_options)
