"""`delta://` asset URIs: one canonical name for a table among Airflow's assets.

`delta://{scheme}/{rest}` stands for the table `{scheme}://{rest}`: `delta://s3/lake/flights` for `s3://lake/flights`,
`delta://file/data/flights` for `/data/flights`. The scheme sits where a URI has its host, so that Airflow's
normalisation (which drops fragments, sorts queries and cuts trailing slashes) leaves the table's address intact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from pydantic import JsonValue

    Extra = dict[str, JsonValue]

ASSET_SCHEME = "delta"


def delta_table_asset(name: str, table_uri: str, *, group: str = "asset", extra: Extra | None = None) -> Asset:
    """A table as an asset. Use one name for one table: Airflow drops watchers of a second name on the same URI.

    Args:
        name: The asset's name.
        table_uri: Absolute: a URI, or a path starting with `/`.
        group: The asset's group.
        extra: Metadata of the asset; no credentials.
    """
    from airflow.sdk import Asset

    return Asset(name=name, uri=asset_uri_of_table(table_uri), group=group, extra=extra or {})


def asset_uri_of_table(table_uri: str) -> str:
    """`/data/t` → `delta://file/data/t`, `s3://lake/t` → `delta://s3/lake/t`."""
    if table_uri.startswith("/"):
        return f"{ASSET_SCHEME}://file{table_uri.rstrip('/')}"
    parts = urlsplit(table_uri)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise InvalidRequestError(
            f"{table_uri!r} is not an absolute table URI",
            cause="An asset is known to all DAGs, so its address cannot depend on a connection or a working directory",
            remedy="Pass a URI with a scheme, or a path starting with /",
        )
    # A user part with a password is a credential; without one it is a name, as the container in `abfss://c@account`.
    host = parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    rest = f"/{host}{parts.path}" if host else f"/{parts.path.lstrip('/')}"
    return f"{ASSET_SCHEME}://{parts.scheme}{rest.rstrip('/')}"


def is_asset_uri(uri: str) -> bool:
    return uri.startswith(f"{ASSET_SCHEME}://")


def table_uri_of_asset(asset_uri: str) -> str:
    """The inverse of `asset_uri_of_table`."""
    parts = sanitize_uri(urlsplit(asset_uri))
    if parts.netloc == "file":
        return parts.path
    return f"{parts.netloc}://{parts.path.lstrip('/')}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's hook for the scheme: `delta:///data/t` becomes `delta://file/data/t`.

    Raises:
        InvalidRequestError: The URI names no table.
    """
    if not uri.path.strip("/"):
        raise InvalidRequestError(
            f"{uri.geturl()!r} names no table", remedy="Write delta://{scheme}/{path}, e.g. delta://s3/lake/flights"
        )
    return uri._replace(netloc=uri.netloc or "file", path=uri.path.rstrip("/"))


def create_asset(*, table_uri: str, extra: Extra | None = None) -> Asset:
    """Airflow's factory for lineage: an asset named by its URI."""
    from airflow.sdk import Asset

    return Asset(uri=asset_uri_of_table(table_uri), extra=extra or {})
