"""Commands that look after a table: `optimize`, `vacuum`; `log_commands` has those for its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delta_orch.cli.arguments import EngineName, Json, StorageOption, Uri, open_engine, open_table
from delta_orch.cli.commits import DryRun, Isolation, report_commit
from delta_orch.cli.output import print_json, print_line, text_of_bytes, working

if TYPE_CHECKING:
    from delta_orch.log.write.commit_result import CommitResult


def optimize(
    uri: Uri,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only partitions for which this is true.")
    ] = None,
    target_file_size: Annotated[
        str | None, typer.Option("--target-file-size", metavar="SIZE", help="Such as 128mb; by default the table's.")
    ] = None,
    engine: EngineName = "local",
    isolation: Isolation = None,
    dry_run: DryRun = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Merge small files, partition by partition, and leave deleted rows behind. Rows do not change."""
    table = open_table(uri, storage_option)
    size = None if target_file_size is None else _size_bytes(target_file_size)
    with working("Merging small files"):
        result = table.optimize(where, size, engine=open_engine(engine), isolation_level=isolation, dry_run=dry_run)
    done = "" if result.skipped else _merged_text(result)
    report_commit(result, done=done, nothing="Nothing to merge", as_json=json)


def _merged_text(result: CommitResult) -> str:
    metrics = result.operation_metrics
    before, after = (text_of_bytes(int(metrics[name])) for name in ("numRemovedBytes", "numAddedBytes"))
    return (
        f"Version {result.version}: {metrics['numRemovedFiles']} files ({before}) "
        f"became {metrics['numAddedFiles']} ({after})"
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
