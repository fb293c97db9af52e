"""Commands that look after a table and its log, of which only `repair` changes rows: `optimize`, `vacuum`, `repair`,
`checkpoint`, `compact-log`, `checksum`, `cleanup-log`; and those that take it as a whole: `restore`, `clone`,
`convert`, `purge`."""

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


@COMMANDS.add(
    take.argument("--version", "N", "The version to go back to.", type=int),
    take.argument("--timestamp", "TIME", "Go back to the version that was current at this time (ISO 8601)."),
    take.flag("--ignore-missing-files", "Restore even where files of that version are gone."),
    *take.COMMIT,
)
def restore(at: Target, ignore_missing_files: bool, **commit: Unpack[CommitOptions]) -> None:
    """Make the table what it was at an older version. That is a new version; none is taken back."""
    if (at.version is None) == (at.timestamp is None):
        raise UsageError("Give --version or --timestamp")
    with out.working("Restoring"):
        result = at.table().restore(at.version, at.timestamp, ignore_missing_files=ignore_missing_files, **commit)
    metrics = result.operation_metrics
    done = (
        f"Version {result.version}: {metrics.get('numRestoredFiles')} files restored, "
        f"{metrics.get('numRemovedFiles')} removed"
    )
    out.report_commit(result, done=done, nothing="Nothing to restore", as_json=at.json)


@COMMANDS.add(
    take.argument("--unit", "NAME", "A unit, as `delta-orch units` names it."),
    take.argument("--run", "ID", "All units that this run wrote last."),
    take.DRY_RUN,
)
def undo(at: Target, unit: str | None, run: str | None, dry_run: bool) -> None:
    """Remove exactly the rows that a unit of work, or a run, wrote. What they replaced does not come back."""
    with out.working("Looking for the rows"):
        result = at.table().undo(unit=unit, run=run, dry_run=dry_run)
    if at.json:
        known = out.attributes(result, "units rows_removed")
        out.print_json({**known, "version": None if dry_run else result.version})
        return
    for name in result.units:
        out.print_name(name)
    done = "would leave" if dry_run else f"left, in version {result.version}"
    out.print_line(f"{result.rows_removed:,} rows of {len(result.units):,} units {done}")


@COMMANDS.add(
    take.argument("target", "TARGET", "The location of the clone."),
    take.flag("--deep", "Copy the files. Default: name the files of the source."),
    take.argument("--version", "N", "The version to clone. Default: the newest.", type=int),
    take.argument("--timestamp", "TIME", "Clone the version that was current at this time (ISO 8601)."),
    take.flag("--replace", "Let a table at the target become the clone."),
    take.argument("--property", "KEY=VALUE", "A table property of the clone, repeatable.", action="append", default=[]),
    take.DRY_RUN,
)
def clone(at: Target, target: str, deep: bool, replace: bool, property: list[str], dry_run: bool) -> None:
    """Make a version of the table a table of its own. Storage options count for both locations."""
    properties = take.pairs(property, "KEY=VALUE", option="--property")
    with out.working("Copying files" if deep else "Cloning"):
        result = at.table().clone(
            target,
            not deep,
            at.version,
            at.timestamp,
            replace,
            properties,
            storage_options=at.options(),
            dry_run=dry_run,
        )
    metrics = result.operation_metrics
    done = f"Version {result.version} of {target}: {metrics.get('sourceNumOfFiles')} files"
    out.report_commit(result, done=done, nothing="Nothing to clone", as_json=at.json)


@COMMANDS.add(
    take.argument(
        "--partition", "NAME:TYPE", "A column that directories stand for, repeatable.", action="append", default=[]
    ),
    take.DRY_RUN,
)
def convert(at: Target, partition: list[str], dry_run: bool) -> None:
    """Make the Parquet files of a directory a table, in place."""
    from delta_orch.delta_table import DeltaTable

    columns = take.pairs(partition, "NAME:TYPE", option="--partition")
    with out.working("Reading footers"):
        result = DeltaTable.convert(at.uri, columns or None, storage_options=at.options(), dry_run=dry_run)
    done = f"Version {result.version}: {result.operation_metrics.get('numConvertedFiles')} files"
    out.report_commit(result, done=done, nothing="It is a table already", as_json=at.json)


@COMMANDS.add(
    take.argument("--where", "SQL", "Only partitions for which this is true."),
    take.ENGINE,
    *take.COMMIT,
)
def purge(at: Target, where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Rewrite files that hold deleted rows or dropped columns. Rows do not change."""
    table = at.table()
    with out.working("Rewriting files"):
        result = table.purge(where, engine=take.open_engine(engine), **commit)
    done = "" if result.skipped else _merged_text(result)
    out.report_commit(result, done=done, nothing="Nothing to purge", as_json=at.json)
