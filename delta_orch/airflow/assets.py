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


def delta_table_asset(name: str, table_uri: object, *, group: str = "asset", extra: Extra | None = None) -> Asset:
    """A table as an asset. Use one name for one table: Airflow drops watchers of a second name on the same URI.

    Args:
        name: The asset's name.
        table_uri: Absolute: a URI, a path starting with `/`, a `Path` or an `ObjectStoragePath`.
        group: The asset's group.
        extra: Metadata of the asset; no credentials.

    Raises:
        InvalidRequestError: The location is relative, or no location.
    """
    from airflow.sdk import Asset

    return Asset(name=name, uri=asset_uri_of_table(table_uri), group=group, extra=extra or {})


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
