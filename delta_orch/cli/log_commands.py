"""Commands that look after a table's log: `checkpoint`, `compact-log`, `checksum`, `cleanup-log`. Rows stay."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from delta_orch.cli.arguments import Json, StorageOption, Uri, open_table
from delta_orch.cli.output import print_json, print_line, text_of_bytes, working


class V2FileFormat(StrEnum):
    JSON = "json"
    PARQUET = "parquet"


def checkpoint(
    uri: Uri,
    v2: Annotated[bool, typer.Option("--v2", help="A V2 checkpoint, whatever the table's policy.")] = False,
    classic: Annotated[bool, typer.Option("--classic", help="A classic checkpoint, one Parquet file.")] = False,
    v2_format: Annotated[
        V2FileFormat, typer.Option("--v2-format", help="Of the file on top of a V2 checkpoint.")
    ] = V2FileFormat.JSON,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write a checkpoint of the newest version."""
    if v2 and classic:
        raise typer.BadParameter("--v2 and --classic exclude each other")
    with working("Writing a checkpoint"):
        policy = "v2" if v2 else "classic" if classic else None
        version = open_table(uri, storage_option).checkpoint(policy, v2_format.value)  # type: ignore[arg-type]
    if json:
        print_json({"version": version})
    else:
        print_line(f"Checkpoint of version {version} written")


def compact_log(
    uri: Uri,
    start: Annotated[
        int | None, typer.Option("--from", metavar="N", help="First commit; by default after the last checkpoint.")
    ] = None,
    end: Annotated[int | None, typer.Option("--to", metavar="N", help="Last commit; by default the newest.")] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Reconcile commits into one file beside them, which readers may take instead."""
    with working("Compacting the log"):
        result = open_table(uri, storage_option).compact_log(start, end)
    if json:
        print_json(
            {
                "skipped": result.skipped,
                "start_version": result.start_version,
                "end_version": result.end_version,
                "path": result.path,
                "size_bytes": result.size_bytes,
            }
        )
    elif result.skipped or result.size_bytes is None:
        print_line("Nothing to compact")
    else:
        print_line(
            f"Commits {result.start_version} to {result.end_version} compacted ({text_of_bytes(result.size_bytes)})"
        )


def checksum(
    uri: Uri,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Which one; by default the newest.")
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write the checksum of a version, or verify the one it has."""
    with working("Computing the checksum"):
        result = open_table(uri, storage_option).write_checksum(version)
    if json:
        print_json(
            {
                "version": result.version,
                "written": result.written,
                "path": result.path,
                "num_files": result.num_files,
                "size_bytes": result.size_bytes,
            }
        )
    else:
        what = "written" if result.written else "agrees with the log"
        content = f"{result.num_files:,} files, {text_of_bytes(result.size_bytes)}"
        print_line(f"Checksum of version {result.version} {what}: {content}")


def cleanup_log(
    uri: Uri,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")] = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove the part of the log that has expired: versions from before cannot be read afterwards."""
    with working("Looking for expired log files" if dry_run else "Removing expired log files"):
        result = open_table(uri, storage_option).cleanup_log(dry_run)
    if json:
        print_json(
            {
                "dry_run": result.dry_run,
                "cut_off_ms": result.cut_off_ms,
                "earliest_version": result.earliest_version,
                "num_files": len(result.paths),
                "size_bytes": result.size_bytes,
                "paths": list(result.paths),
            }
        )
        return
    if dry_run:
        for path in result.paths:
            print_line(path)
    verb = "would be removed" if dry_run else "removed"
    print_line(f"{len(result.paths):,} files ({text_of_bytes(result.size_bytes)}) {verb}")
    if result.earliest_version is not None:
        since = datetime.fromtimestamp(result.cut_off_ms / 1000, UTC).date()
        print_line(f"Version {result.earliest_version} and all later ones stay (cut off at {since})")
