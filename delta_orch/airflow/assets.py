"""`delta://` asset URIs: one canonical name for a table among Airflow's assets.

`delta://{scheme}/{rest}` stands for the table `{scheme}://{rest}`: `delta://s3/lake/flights` for `s3://lake/flights`,
`delta://file/data/flights` for `/data/flights`. The scheme sits where a URI has its host, so that Airflow's
normalisation (which drops fragments, sorts queries and cuts trailing slashes) leaves the table's address intact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from delta_orch.airflow.locations import asset_uri_of_table, table_uri_of_asset

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from pydantic import JsonValue

    Extra = dict[str, JsonValue]

__all__ = ["asset_uri_of_table", "create_asset", "delta_table_asset", "sanitize_uri", "table_uri_of_asset"]


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
        watch: Have the triggerer watch the table: each commit that changes data, whoever makes it, is an event of the
            asset (`DeltaCommitTrigger`). Tasks that write the table should not name the asset among their outlets
            then, or each of their commits is told twice.
        poll_interval: Seconds between looks at the table.
        delta_conn_id: The connection with the storage options, for the watcher.

    Raises:
        InvalidRequestError: The location is relative, or no location.
    """
    from airflow.sdk import Asset

    uri = asset_uri_of_table(table_uri)
    watchers = []
    if watch:
        from airflow.sdk import AssetWatcher

        from delta_orch.airflow.commit_trigger import DeltaCommitTrigger

        trigger = DeltaCommitTrigger(table_uri_of_asset(uri), name, delta_conn_id, poll_interval)
        watchers.append(AssetWatcher(name=f"{name} commits", trigger=trigger))
    return Asset(name=name, uri=uri, group=group, extra=extra or {}, watchers=watchers)


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
