"""Where the catalog is and who asks: storage options, or the environment.

An option has the name of its environment variable, in either case. All other options are those of the tables' store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError
from delta_orch.storage.log_redaction import hide_in_logs

_URI = "UNITY_CATALOG_URI"
_TOKEN = "UNITY_CATALOG_TOKEN"
_HOST = "DATABRICKS_HOST"
_HOST_TOKEN = "DATABRICKS_TOKEN"
_CLIENT_ID = ("UNITY_CATALOG_CLIENT_ID", "DATABRICKS_CLIENT_ID")
_CLIENT_SECRET = ("UNITY_CATALOG_CLIENT_SECRET", "DATABRICKS_CLIENT_SECRET")
_TOKEN_URI = "UNITY_CATALOG_OAUTH_URI"
VARIABLES = (_URI, _TOKEN, _TOKEN_URI, *_CLIENT_ID, *_CLIENT_SECRET, _HOST, _HOST_TOKEN)
"""Every setting of the catalog."""

_API = "/api/2.1/unity-catalog"


@dataclass(frozen=True, slots=True, repr=False)
class CatalogSettings:
    """A catalog, and the credentials for it.

    Attributes:
        uri: The root of its API, without a trailing slash.
        token: A bearer token; None where OAuth gives one, or the catalog asks for none.
        token_uri, client_id, client_secret: Of OAuth for machines (`client_credentials`).
    """

    uri: str
    token: str | None = None
    token_uri: str | None = None
    client_id: str | None = None
    client_secret: str | None = None

    def __repr__(self) -> str:
        return f"CatalogSettings({self.uri!r})"


def is_configured(options: Mapping[str, object] | None) -> bool:
    """Whether something says where the catalog is."""
    given = {str(name).upper() for name, value in (options or {}).items() if value is not None}
    return any(name in given or os.environ.get(name) for name in (_URI, _HOST))


def split_settings(options: Mapping[str, object] | None) -> tuple[CatalogSettings, dict[str, object]]:
    """The settings of the catalog, and the options that are left for the tables' store.

    Raises:
        InvalidRequestError: Nothing says where the catalog is, or its address is none.
    """
    given, rest = {}, {}
    for name, value in (options or {}).items():
        upper = str(name).upper()
        if upper not in VARIABLES:
            rest[name] = value
        elif value is not None:
            given[upper] = str(value)

    def setting(*names: str) -> str | None:
        # Options of any of the names go before the environment.
        return next((found for source in (given, os.environ) for name in names if (found := source.get(name))), None)

    uri = setting(_URI)
    host = setting(_HOST)
    if uri is None and host is None:
        raise InvalidRequestError(
            "Nothing says where the catalog is",
            cause=f"Neither the storage option {_URI.lower()} nor the environment variable {_URI} is set",
            remedy=f'Pass storage_options={{"{_URI.lower()}": "https://…", "{_TOKEN.lower()}": "…"}}, or set them',
        )
    place = str(uri or host).rstrip("/")
    if "://" not in place:
        place = f"https://{place}"
    if not place.lower().startswith(("http://", "https://")) or "@" in place or "?" in place:
        raise InvalidRequestError(
            "The address of the catalog is not an http: or https: address without credentials",
            remedy="Write it as https://host, and credentials as other options",
        )
    client_id, client_secret = setting(*_CLIENT_ID), setting(*_CLIENT_SECRET)
    token = setting(_TOKEN, _HOST_TOKEN)
    token_uri = setting(_TOKEN_URI) or (f"{place}/oidc/v1/token" if client_id else None)
    hide_in_logs(value for value in (token, client_secret) if value)
    return CatalogSettings(
        place if place.endswith(_API) else place + _API,
        token,
        *((token_uri, client_id, client_secret) if token is None and client_id and client_secret else ()),
    ), rest
