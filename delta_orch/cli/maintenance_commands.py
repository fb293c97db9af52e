"""Commands that look after a table: `optimize`, `vacuum`; `log_commands` has those for its log."""

from __future__ import annotations

from typing import Annotated

import typer

from delta_orch.cli.arguments import Json, StorageOption, Uri, open_table
from delta_orch.cli.output import print_json, print_line, text_of_bytes, working


def optimize(
    uri: Uri,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only partitions for which this is true.")
    ] = None,
    target_file_size: Annotated[
        str | None, typer.Option("--target-file-size", metavar="SIZE", help="Such as 128mb; by default the table's.")
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Merge small files, partition by partition. Rows do not change."""
    table = open_table(uri, storage_option)
    size = None if target_file_size is None else _size_bytes(target_file_size)
    with working("Merging small files"):
        result = table.optimize(where, size)
    metrics = dict(result.operation_metrics or {})
    if json:
        print_json({"version": result.version, "skipped": result.skipped, "operation_metrics": metrics})
    elif result.skipped:
        print_line("Nothing to merge")
    else:
        print_line(
            f"Version {result.version}: {metrics['numRemovedFiles']} files "
            f"({text_of_bytes(int(metrics['numRemovedBytes']))}) became {metrics['numAddedFiles']} "
            f"({text_of_bytes(int(metrics['numAddedBytes']))})"
        )


def _size_bytes(text: str) -> int:
    from delta_orch.protocol.table_properties import parse_size_bytes

    try:
        return parse_size_bytes(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--target-file-size") from None


def vacuum(
    uri: Uri,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    retention_hours: Annotated[
        float | None, typer.Option("--retention-hours", metavar="H", help="Keep files younger than this.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a retention below the table's. Nobody may be using the table.")
    ] = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Delete files that no version within the retention needs."""
    table = open_table(uri, storage_option)
    with working("Looking for files nobody needs" if dry_run else "Deleting files nobody needs"):
        result = table.vacuum(retention_hours, dry_run, enforce_retention=not force)
    if json:
        print_json(
            {
                "dry_run": result.dry_run,
                "num_files": result.num_files,
                "size_bytes": result.size_bytes,
                "retention_ms": result.retention_ms,
                "paths": list(result.paths),
            }
        )
        return
    if dry_run:
        for path in result.paths:
            print_line(path)
    verb = "would be deleted" if dry_run else "deleted"
    print_line(f"{result.num_files:,} files ({text_of_bytes(result.size_bytes)}) {verb}")
