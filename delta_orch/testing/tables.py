"""Small tables for tests, and tables on a store of the test's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError, TableExistsError
from delta_orch.log.read.table_log import TableLog

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.storage.base import LogStore


def build_table(
    table_uri: str | PathLike[str],
    *commits: pa.Table,
    partition_by: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> DeltaTable:
    """Create a table, and append each of the Arrow tables in a commit of its own.

    Version 0 is empty and has the schema of the first Arrow table. Version n holds the first n that have rows.

    Args:
        table_uri: A path or a URI. `memory://name` keeps the table in this process.
        commits: The rows of each commit. At least one. A table without rows makes no version.

    Raises:
        InvalidRequestError: No rows are given. Nothing was written.
        TableExistsError: A table exists already. It is unchanged.
        SchemaMismatchError, InvalidPropertyError, UnsupportedFeatureError: The table cannot be created or written as
            requested. The commits before the failed one remain.
    """
    if not commits:
        raise InvalidRequestError("No rows are given", remedy="Pass at least one Arrow table, which may be empty")
    table = DeltaTable(table_uri, storage_options)
    created = table.create(commits[0].schema, partition_by=partition_by, properties=properties)
    if created.skipped:
        raise TableExistsError(f"{table.uri} is a table already", remedy="Build the table at another location")
    for rows in commits:
        table.append(rows)
    return table


def open_table(store: LogStore) -> DeltaTable:
    """Open the table at the root of a store, for example of a `FailingStore`.

    All reads and writes of the log go through `store`. Data files go through `store.data_filesystem()`.
    """
    # The store replaces this URI, because a test's store may have an unknown scheme.
    table = DeltaTable("memory://replaced")
    table.store, table.log = store, TableLog(store, TableSnapshot, table.log.observer)
    return table
