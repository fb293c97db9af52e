"""Opens the store of a table from a location or from a name in a catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_orch.storage.open import open_store

if TYPE_CHECKING:
    from delta_orch.storage.base import LogStore


def open_table_store(
    table_uri: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> LogStore:
    """Return the store of a table. Nothing is read or written.

    Args:
        table_uri: A location (see `storage.open.open_store`), or `uc://catalog.schema.table`.
        storage_options: Options of the store. For a table in a catalog, they may also set the address of the catalog
            (see `catalog.settings`).

    Raises:
        InvalidRequestError: The name does not have three parts, or the address of the catalog is not set.
        Other errors: As `open_store`.
    """
    if not isinstance(table_uri, str) or table_uri[:5].lower() != "uc://":
        return open_store(table_uri, storage_options)
    from delta_orch.catalog.names import parse_table_name
    from delta_orch.catalog.settings import split_settings
    from delta_orch.catalog.store import CatalogStore

    name = parse_table_name(table_uri)
    return CatalogStore(name, *split_settings(storage_options))
