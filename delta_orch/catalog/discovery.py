"""Lists the content of a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from delta_orch.catalog.client import CatalogClient
from delta_orch.catalog.names import SCHEME, parse_below, parse_schema_name, quoted_part
from delta_orch.catalog.settings import split_settings


def list_below(uri: str, storage_options: Mapping[str, object] | None = None) -> Iterator[str]:
    """List the entries below a name: catalogs below `uc://`, schemas below `uc://catalog`, tables below
    `uc://catalog.schema`. Raises as `list_tables`."""
    parts = parse_below(uri)
    if len(parts) == 2:
        return list_tables(uri, storage_options)
    client = CatalogClient(split_settings(storage_options)[0])
    if not parts:
        return (SCHEME + quoted_part(name) for name in client.catalogs())
    return (f"{uri}.{quoted_part(name)}" for name in client.schemas(parts[0]))


def list_tables(schema_uri: str, storage_options: Mapping[str, object] | None = None) -> Iterator[str]:
    """List the Delta tables of a schema, as names that `DeltaTable` accepts.

    Args:
        schema_uri: `uc://catalog.schema`.

    Raises:
        InvalidRequestError: The name does not have two parts, or the address of the catalog is not set.
        CatalogError: The catalog cannot be reached, or refuses the request.
    """
    client, schema = CatalogClient(split_settings(storage_options)[0]), parse_schema_name(schema_uri)
    return (name.uri for name in client.tables(schema))
