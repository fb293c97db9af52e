"""Commands that look after a table and its log: `optimize`, `vacuum`, `repair`, `checkpoint`, `compact-log`,
`checksum`, `cleanup-log`. Only `repair` changes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

from delta_orch.cli import arguments as take
from delta_orch.cli import output as out
from delta_orch.cli.arguments import Commands, Target, UsageError
from delta_orch.cli.output import text_of_bytes

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult

COMMANDS = Commands()


@COMMANDS.add(
    take.argument("--where", "SQL", "Only partitions for which this is true."),
    take.argument("--target-file-size", "SIZE", "Such as 128mb. Default: the table's."),
    take.argument("--zorder-by", "A,B.C", "Columns by whose values rows come to share files."),
    take.flag("--full", "Cluster all files of a clustered table again."),
    take.ENGINE,
    *take.COMMIT,
)
def optimize(
    at: Target,
    where: str | None,
    target_file_size: str | None,
    zorder_by: str | None,
    full: bool,
    engine: str,
    **commit: Unpack[CommitOptions],
) -> None:
    """Merge small files, partition by partition, and leave deleted rows behind. Rows do not change."""
    table = at.table()
    size = None if target_file_size is None else _size_bytes(target_file_size)
    with out.working("Merging small files"):
        result = table.optimize(
            where,
            size,
            zorder_by=take.parse_columns(zorder_by),
            full=full,
            engine=take.open_engine(engine),
            **commit,
        )
    done = "" if result.skipped else _merged_text(result)
    out.report_commit(result, done=done, nothing="Nothing to merge", as_json=at.json)


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
    take.flag("--dry-run", "List what would be deleted, and delete nothing."),
    take.argument("--retention-hours", "H", "Keep files younger than this.", type=float),
    take.flag("--force", "Allow a retention below the table's. Nobody may be using the table."),
    take.flag("--lite", "List nothing: look only for files that the log says were removed."),
    take.argument("--keep-version", "N", "A version to keep readable, repeatable.", type=int, action="append"),
)
def vacuum(
    at: Target, dry_run: bool, retention_hours: float | None, force: bool, lite: bool, keep_version: list[int] | None
) -> None:
    """Delete files that no version within the retention needs."""
    table = at.table()
    with out.working("Looking for files nobody needs" if dry_run else "Deleting files nobody needs"):
        result = table.vacuum(
            retention_hours, dry_run, enforce_retention=not force, full=not lite, keep_versions=keep_version or ()
        )
    out.report_vacuum(result, as_json=at.json)


@COMMANDS.add(take.DRY_RUN)
def repair(at: Target, dry_run: bool) -> None:
    """Remove data files that are gone from the table. Their rows are lost."""
    with out.working("Looking up data files"):
        result = at.table().repair(dry_run=dry_run)
    gone = result.operation_metrics.get("numMissingFiles", 0)
    if result.preview is not None and not at.json:
        from delta_orch.log.files.file_columns import FileTable

        for files in result.preview.removes:
            for path in FileTable(files).path.to_pylist():
                out.print_name(path)
    out.report_commit(
        result,
        done=f"Version {result.version}: {gone} files left the table",
        nothing="No file is gone",
        as_json=at.json,
    )


@COMMANDS.add(
    take.flag("--v2", "A V2 checkpoint, whatever the table's policy."),
    take.flag("--classic", "A classic checkpoint, one Parquet file."),
    take.argument("--v2-format", help="Of a V2 checkpoint's top file.", choices=("json", "parquet"), default="json"),
)
def checkpoint(at: Target, v2: bool, classic: bool, v2_format: Literal["json", "parquet"]) -> None:
    """Write a checkpoint of the newest version."""
    if v2 and classic:
        raise UsageError("--v2 and --classic exclude each other")
    with out.working("Writing a checkpoint"):
        version = at.table().checkpoint("v2" if v2 else "classic" if classic else None, v2_format)
    if at.json:
        out.print_json({"version": version})
    else:
        out.print_line(f"Checkpoint of version {version} written")


@COMMANDS.add(
    take.argument("--from", "N", "First commit. Default: after the last checkpoint.", dest="start", type=int),
    take.argument("--to", "N", "Last commit. Default: the newest.", dest="end", type=int),
)
def compact_log(at: Target, start: int | None, end: int | None) -> None:
    """Reconcile commits into one file beside them, which readers may take instead."""
    with out.working("Compacting the log"):
        result = at.table().compact_log(start, end)
    if at.json:
        out.print_json(result)
    elif result.skipped or result.size_bytes is None:
        out.print_line("Nothing to compact")
    else:
        out.print_line(
            f"Commits {result.start_version} to {result.end_version} compacted ({text_of_bytes(result.size_bytes)})"
        )


@COMMANDS.add(take.VERSION[0])
def checksum(at: Target) -> None:
    """Write the checksum of a version, or verify the one it has."""
    with out.working("Computing the checksum"):
        result = at.table().write_checksum(at.version)
    if at.json:
        out.print_json(result)
    else:
        what = "written" if result.written else "agrees with the log"
        content = f"{result.num_files:,} files, {text_of_bytes(result.size_bytes)}"
        out.print_line(f"Checksum of version {result.version} {what}: {content}")


@COMMANDS.add(take.flag("--dry-run", "List what would be removed, and remove nothing."))
def cleanup_log(at: Target, dry_run: bool) -> None:
    """Remove the expired part of the log. Versions in it cannot be read afterwards."""
    from datetime import UTC, datetime

    with out.working("Looking for expired log files" if dry_run else "Removing expired log files"):
        result = at.table().cleanup_log(dry_run)
    if at.json:
        known = out.attributes(result, "dry_run cut_off_ms earliest_version size_bytes paths")
        out.print_json({**known, "num_files": len(result.paths)})
        return
    if dry_run:
        for path in result.paths:
            out.print_name(path)
    verb = "would be removed" if dry_run else "removed"
    out.print_line(f"{len(result.paths):,} files ({text_of_bytes(result.size_bytes)}) {verb}")
    if result.earliest_version is not None:
        since = datetime.fromtimestamp(result.cut_off_ms / 1000, UTC).date()
        out.print_line(f"Version {result.earliest_version} and all later ones stay (cut off at {since})")
