"""What is in a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from delta_orch.catalog.client import CatalogClient
from delta_orch.catalog.names import SCHEME, parse_below, parse_schema_name, quoted_part
from delta_orch.catalog.settings import split_settings


def list_below(uri: str, storage_options: Mapping[str, object] | None = None) -> Iterator[str]:
    """What is below a name: `uc://` has catalogs, `uc://catalog` schemas, `uc://catalog.schema` tables. Raises as
    `list_tables`."""
    parts = parse_below(uri)
    if len(parts) == 2:
        return list_tables(uri, storage_options)
    client = CatalogClient(split_settings(storage_options)[0])
    if not parts:
        return (SCHEME + quoted_part(name) for name in client.catalogs())
    return (f"{uri}.{quoted_part(name)}" for name in client.schemas(parts[0]))


def list_tables(schema_uri: str, storage_options: Mapping[str, object] | None = None) -> Iterator[str]:
    """The Delta tables of a schema, as names that `DeltaTable` takes.

    Args:
        schema_uri: `uc://catalog.schema`.

    Raises:
        InvalidRequestError: The name has not two parts, or nothing says where the catalog is.
        CatalogError: It cannot be reached, or refuses.
    """
    client, schema = CatalogClient(split_settings(storage_options)[0]), parse_schema_name(schema_uri)
    return (name.uri for name in client.tables(schema))
