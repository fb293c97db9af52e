"""Options that several commands share, and how they become a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from delta_orch.table import DeltaTable, TableSnapshot

Uri = Annotated[str, typer.Argument(metavar="URI", help="The table's location: a path or a URI.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", "-o", metavar="KEY=VALUE", help="An option of the store; may be repeated."),
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", help="The version to read; by default the newest.")
]
AsOf = Annotated[
    str | None, typer.Option("--timestamp", metavar="TIME", help="Read the version current at this time (ISO 8601).")
]


def open_table(uri: str, storage_option: list[str] | None) -> DeltaTable:
    """The table of the command line.

    Raises:
        InvalidRequestError: A storage option is no KEY=VALUE.
    """
    from delta_orch.table import DeltaTable

    options = {}
    for text in storage_option or ():
        key, separator, value = text.partition("=")
        if not (key and separator):
            # The value may be a secret: it is not repeated.
            raise InvalidRequestError("A --storage-option is no KEY=VALUE", remedy="Write --storage-option key=value")
        options[key] = value
    return DeltaTable(uri, options or None)


def open_snapshot(
    uri: str, storage_option: list[str] | None, version: int | None = None, timestamp: str | None = None
) -> TableSnapshot:
    """The snapshot of the command line."""
    return open_table(uri, storage_option).snapshot(version=version, timestamp=timestamp)
