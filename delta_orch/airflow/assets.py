"""`delta://` asset URIs: one canonical name for a table among Airflow's assets.

`delta://{scheme}/{rest}` stands for the table `{scheme}://{rest}`: `delta://s3/lake/flights` for `s3://lake/flights`,
`delta://file/data/flights` for `/data/flights`. The scheme sits where a URI has its host, so that Airflow's
normalisation (which drops fragments, sorts queries and cuts trailing slashes) leaves the table's address intact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from delta_orch.airflow.locations import asset_uri_of_table, is_template, location_text, table_uri_of_asset
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from airflow.sdk.definitions.asset import AssetUriRef
    from pydantic import JsonValue

    Extra = dict[str, JsonValue]

WATCHED = "delta_orch_watched"
"""Of an asset's extra: the triggerer watches the table."""


def delta_table_asset(
    name: str,
    table_uri: object,
    *,
    group: str = "asset",
    extra: Extra | None = None,
    watch: bool = False,
    poll_interval: float = 60.0,
    delta_conn_id: str = "delta_default",
) -> Asset:
    """A table as an asset. Use one name for one table: Airflow drops watchers of a second name on the same URI.

    Args:
        name: The asset's name.
        table_uri: Absolute: a URI, a path starting with `/`, a `Path` or an `ObjectStoragePath`.
        group: The asset's group.
        extra: Metadata of the asset; no credentials.
        watch: Let the triggerer watch the table. Each commit that changes data is then an event of the asset, also
            those of other writers (`DeltaCommitTrigger`). Tasks that write the table should not have the asset in
            their `outlets` then, or each of their commits is reported twice.
        poll_interval: Seconds between looks at the table.
        delta_conn_id: The connection with the storage options, for the watcher.

    Raises:
        InvalidRequestError: The location is relative, or no location.
    """
    from airflow.sdk import Asset

    from delta_orch.airflow.arguments import ensure_switches

    ensure_switches(watch=watch)
    uri = asset_uri_of_table(table_uri)
    watchers = []
    if watch:
        from airflow.sdk import AssetWatcher

        from delta_orch.airflow.triggers import DeltaCommitTrigger

        trigger = DeltaCommitTrigger(table_uri_of_asset(uri), name, delta_conn_id, poll_interval)
        watchers.append(AssetWatcher(name=f"{name} commits", trigger=trigger))
        extra = {**(extra or {}), WATCHED: True}
    try:
        return Asset(name=name, uri=uri, group=group, extra=extra or {}, watchers=watchers)
    except ValueError as error:
        raise InvalidRequestError(f"Airflow takes no such asset: {error}") from error


def delta_catalog_assets(
    schema_uri: str, storage_options: Mapping[str, object] | None = None, *, group: str = "asset"
) -> dict[str, Asset]:
    """The tables of a schema of Unity Catalog as assets, by their names. The catalog is asked when the DAG file is
    parsed: give it a cache, or name the tables, if it is parsed often.

    Args:
        schema_uri: `uc://catalog.schema`. Each asset has the name `catalog.schema.table`.
        storage_options: Where the catalog is, unless the environment says so.
        group: The group of the assets.

    Raises:
        InvalidRequestError: The name has not two parts, or nothing says where the catalog is.
        CatalogError: It cannot be reached, or refuses.
    """
    from delta_orch.catalog.discovery import list_tables
    from delta_orch.catalog.names import parse_table_name

    names = {uri: parse_table_name(uri) for uri in list_tables(schema_uri, storage_options)}
    return {name.table: delta_table_asset(str(name), uri, group=group) for uri, name in names.items()}


def outlet_for(location: object) -> Asset | AssetUriRef | None:
    """What stands for a written table among the outlets: the asset that was given, else a reference by URI: a second
    name on one URI would take the first one's place. None for a watched asset, whose trigger tells of the commit, and
    where the location is known only when the task runs, or depends on a connection."""
    from airflow.sdk import Asset

    if isinstance(location, Asset):
        return None if location.watchers else location
    text = "" if is_template(location) else location_text(location)
    if is_template(text) or not (text.startswith("/") or "://" in text):
        return None
    return Asset.ref(uri=asset_uri_of_table(text))


def declared_asset(context: Context, table_uri: str) -> Asset | AssetUriRef | None:
    """The asset that a task tells of its commit to a table: one that a DAG has declared and no trigger watches."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    from delta_orch.airflow.versions import asset_extra

    reference = outlet_for(table_uri)
    try:
        extra = asset_extra(context, reference)
    except AirflowRuntimeError as error:
        if getattr(error.error.error, "name", "") != "ASSET_NOT_FOUND":
            raise
        return None
    return None if extra.get(WATCHED) else reference


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's hook for the scheme: `delta:///data/t` becomes `delta://file/data/t`.

    Airflow cuts a fragment before it asks, so a `#` cannot be refused here; a query can.

    Raises:
        InvalidRequestError: The URI names no table.
    """
    table_uri_of_asset(uri.geturl())
    return uri._replace(netloc=uri.netloc or "file", path=uri.path.rstrip("/"))


def create_asset(*, table_uri: str, extra: Extra | None = None) -> Asset:
    """Airflow's factory for lineage: an asset named by its URI."""
    from airflow.sdk import Asset

    return Asset(uri=asset_uri_of_table(table_uri), extra=extra or {})
