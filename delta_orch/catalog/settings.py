"""Reads the address of the catalog and the credentials from storage options or from the environment.

An option has the name of its environment variable, in upper or lower case. All other options belong to the tables'
store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError

_PLACES = ("UNITY_CATALOG_URI", "DATABRICKS_HOST")
_TOKENS = ("UNITY_CATALOG_TOKEN", "DATABRICKS_TOKEN")
_CLIENT_IDS = ("UNITY_CATALOG_CLIENT_ID", "DATABRICKS_CLIENT_ID")
_CLIENT_SECRETS = ("UNITY_CATALOG_CLIENT_SECRET", "DATABRICKS_CLIENT_SECRET")
_TOKEN_URI = "UNITY_CATALOG_OAUTH_URI"
VARIABLES = (*_PLACES, *_TOKENS, *_CLIENT_IDS, *_CLIENT_SECRETS, _TOKEN_URI)
"""The settings of the catalog. Settings of one vendor belong together, so that no token is sent to another server."""

_API = "/api/2.1/unity-catalog"


@dataclass(frozen=True, slots=True, repr=False)
class CatalogSettings:
    """A catalog, and the credentials for it.

    Attributes:
        uri: The root of its API, without a trailing slash.
        token: A bearer token. None if OAuth provides it, or if the catalog needs no token.
        token_uri, client_id, client_secret: The settings of OAuth for machines (`client_credentials`).
    """

    uri: str
    token: str | None = None
    token_uri: str | None = None
    client_id: str | None = None
    client_secret: str | None = None

    def __repr__(self) -> str:
        return f"CatalogSettings({self.uri!r})"


def is_configured(options: Mapping[str, object] | None) -> bool:
    """Whether the address of the catalog is set."""
    return _place(_given(options)[0]) is not None


def split_settings(options: Mapping[str, object] | None) -> tuple[CatalogSettings, dict[str, object]]:
    """Return the settings of the catalog, and the remaining options for the tables' store.

    Raises:
        InvalidRequestError: The address of the catalog is not set, or invalid.
    """
    given, rest = _given(options)
    address = _place(given)
    if address is None:
        raise InvalidRequestError(
            "The address of the catalog is not set",
            cause=f"Neither the storage option {_PLACES[0].lower()} nor the environment variable {_PLACES[0]} is set",
            remedy=f'Pass storage_options={{"{_PLACES[0].lower()}": "https://…", "{_TOKENS[0].lower()}": "…"}}',
        )
    place, vendor = address
    if "://" not in place:
        place = f"https://{place}"
    if not place.lower().startswith(("http://", "https://")) or "@" in place or "?" in place:
        raise InvalidRequestError(
            "The address of the catalog is not an http: or https: address without credentials",
            remedy="Write the address as https://host, and pass credentials as other options",
        )

    def setting(name: str) -> str | None:
        return given.get(name) or os.environ.get(name)

    uri = place if place.endswith(_API) else place + _API
    if (token := setting(_TOKENS[vendor])) is not None:
        return CatalogSettings(uri, token), rest
    client_id, client_secret = setting(_CLIENT_IDS[vendor]), setting(_CLIENT_SECRETS[vendor])
    if not client_id or not client_secret:
        return CatalogSettings(uri), rest
    token_uri = (setting(_TOKEN_URI) if vendor == 0 else None) or f"{place.removesuffix(_API)}/oidc/v1/token"
    return CatalogSettings(uri, None, token_uri, client_id, client_secret), rest


def _given(options: Mapping[str, object] | None) -> tuple[dict[str, str], dict[str, object]]:
    """Split the options into those of the catalog, by the names of their variables, and the others."""
    given, rest = {}, {}
    for name, value in (options or {}).items():
        if (upper := str(name).upper()) not in VARIABLES:
            rest[name] = value
        elif value is not None:
            given[upper] = str(value)
    return given, rest


def _place(given: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address, and the vendor of its settings. Options have precedence over the environment."""
    for source in (given, os.environ):
        for vendor, name in enumerate(_PLACES):
            if source.get(name):
                return source[name].rstrip("/"), vendor
    return None
