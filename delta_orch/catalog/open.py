"""From what a user calls a table to its store: a place, or a name in a catalog."""

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
    """The store of a table. Touches nothing.

    Args:
        table_uri: A location, see `storage.open.open_store`, or `uc://catalog.schema.table`.
        storage_options: Of a table in a catalog also where that is, see `catalog.settings`.

    Raises:
        InvalidRequestError: The name has not three parts, or nothing says where the catalog is.
        Otherwise as `open_store`.
    """
    if not isinstance(table_uri, str) or table_uri[:5].lower() != "uc://":
        return open_store(table_uri, storage_options)
    from delta_orch.catalog.names import parse_table_name
    from delta_orch.catalog.settings import split_settings
    from delta_orch.catalog.store import CatalogStore

    name = parse_table_name(table_uri)
    return CatalogStore(name, *split_settings(storage_options))
