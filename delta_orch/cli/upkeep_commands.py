"""Commands that look after a table and its log: `optimize`, `vacuum`, `checkpoint`, `compact-log`, `checksum`,
`cleanup-log`. Rows do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from delta_orch.cli.arguments import (
    DRY_RUN,
    ENGINE,
    ISOLATION,
    Commands,
    Target,
    UsageError,
    argument,
    flag,
    open_engine,
)
from delta_orch.cli.output import print_json, print_line, report_commit, text_of_bytes, working

if TYPE_CHECKING:
    from delta_orch.log.write.commit_result import CommitResult

COMMANDS = Commands()

_COMPACTION = ("skipped", "start_version", "end_version", "path", "size_bytes")
_CHECKSUM = ("version", "written", "path", "num_files", "size_bytes")


@COMMANDS.add(
    argument("--where", metavar="SQL", help="Only partitions for which this is true."),
    argument("--target-file-size", metavar="SIZE", help="Such as 128mb. Default: the table's."),
    ENGINE,
    ISOLATION,
    DRY_RUN,
)
def optimize(
    at: Target, where: str | None, target_file_size: str | None, engine: str, isolation: str | None, dry_run: bool
) -> None:
    """Merge small files, partition by partition, and leave deleted rows behind. Rows do not change."""
    table = at.table()
    size = None if target_file_size is None else _size_bytes(target_file_size)
    with working("Merging small files"):
        result = table.optimize(where, size, engine=open_engine(engine), isolation_level=isolation, dry_run=dry_run)
    done = "" if result.skipped else _merged_text(result)
    report_commit(result, done=done, nothing="Nothing to merge", as_json=at.json)


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
        raise UsageError(f"Invalid value for --target-file-size: {e}") from None


@COMMANDS.add(
    flag("--dry-run", "List what would be deleted, and delete nothing."),
    argument("--retention-hours", type=float, metavar="H", help="Keep files younger than this."),
    flag("--force", "Allow a retention below the table's. Nobody may be using the table."),
)
def vacuum(at: Target, dry_run: bool, retention_hours: float | None, force: bool) -> None:
    """Delete files that no version within the retention needs."""
    table = at.table()
    with working("Looking for files nobody needs" if dry_run else "Deleting files nobody needs"):
        result = table.vacuum(retention_hours, dry_run, enforce_retention=not force)
    if at.json:
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


@COMMANDS.add(
    flag("--v2", "A V2 checkpoint, whatever the table's policy."),
    flag("--classic", "A classic checkpoint, one Parquet file."),
    argument("--v2-format", choices=("json", "parquet"), default="json", help="Of the top file of a V2 checkpoint."),
)
def checkpoint(at: Target, v2: bool, classic: bool, v2_format: Literal["json", "parquet"]) -> None:
    """Write a checkpoint of the newest version."""
    if v2 and classic:
        raise UsageError("--v2 and --classic exclude each other")
    with working("Writing a checkpoint"):
        version = at.table().checkpoint("v2" if v2 else "classic" if classic else None, v2_format)
    if at.json:
        print_json({"version": version})
    else:
        print_line(f"Checkpoint of version {version} written")


@COMMANDS.add(
    argument("--from", dest="start", type=int, metavar="N", help="First commit. Default: after the last checkpoint."),
    argument("--to", dest="end", type=int, metavar="N", help="Last commit. Default: the newest."),
)
def compact_log(at: Target, start: int | None, end: int | None) -> None:
    """Reconcile commits into one file beside them, which readers may take instead."""
    with working("Compacting the log"):
        result = at.table().compact_log(start, end)
    if at.json:
        print_json({name: getattr(result, name) for name in _COMPACTION})
    elif result.skipped or result.size_bytes is None:
        print_line("Nothing to compact")
    else:
        print_line(
            f"Commits {result.start_version} to {result.end_version} compacted ({text_of_bytes(result.size_bytes)})"
        )


@COMMANDS.add(argument("--version", type=int, metavar="N", help="Which version. Default: the newest."))
def checksum(at: Target, version: int | None) -> None:
    """Write the checksum of a version, or verify the one it has."""
    with working("Computing the checksum"):
        result = at.table().write_checksum(version)
    if at.json:
        print_json({name: getattr(result, name) for name in _CHECKSUM})
    else:
        what = "written" if result.written else "agrees with the log"
        content = f"{result.num_files:,} files, {text_of_bytes(result.size_bytes)}"
        print_line(f"Checksum of version {result.version} {what}: {content}")


@COMMANDS.add(flag("--dry-run", "List what would be removed, and remove nothing."))
def cleanup_log(at: Target, dry_run: bool) -> None:
    """Remove the expired part of the log. Versions in it cannot be read afterwards."""
    from datetime import UTC, datetime

    with working("Looking for expired log files" if dry_run else "Removing expired log files"):
        result = at.table().cleanup_log(dry_run)
    if at.json:
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
