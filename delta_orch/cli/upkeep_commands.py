"""Commands that look after a table and its log: `optimize`, `vacuum`, `checkpoint`, `compact-log`, `checksum`,
`cleanup-log`; and those that take a table as a whole: `undo`, `restore`, `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

import click

from delta_orch.cli import app as take
from delta_orch.cli import output as out
from delta_orch.cli.app import command, open_engine, table_command
from delta_orch.cli.output import text_of_bytes

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions


def _parse_size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    from delta_orch.protocol.table_properties import parse_size_bytes

    try:
        return None if text is None else parse_size_bytes(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


@table_command(
    take.PARTITIONS,
    click.option("--target-file-size", metavar="SIZE", callback=_parse_size, help="As 128mb. Default: the table's."),
    click.option(
        "--zorder-by", metavar="A,B.C", callback=take.parse_columns, help="Columns: near values come to share files."
    ),
    click.option("--full", is_flag=True, help="Cluster all files of a clustered table again."),
    take.ENGINE,
    take.ISOLATION,
    take.DRY_RUN,
)
def optimize(
    table: DeltaTable,
    where: str | None,
    target_file_size: int | None,
    zorder_by: list[str] | None,
    full: bool,
    engine: str,
    as_json: bool,
    **commit: Unpack[CommitOptions],
) -> None:
    """Merge small files, partition by partition, and leave deleted rows behind. Rows do not change."""
    result = table.optimize(
        where, target_file_size, zorder_by=zorder_by, full=full, engine=open_engine(engine), **commit
    )
    metrics = {"numRemovedBytes": 0, "numAddedBytes": 0, **result.operation_metrics}
    before, after = (text_of_bytes(int(metrics[name])) for name in ("numRemovedBytes", "numAddedBytes"))
    removed, added = (metrics.get(name) for name in ("numRemovedFiles", "numAddedFiles"))
    done = f"Version {result.version}: {removed} files ({before}) became {added} ({after})"
    out.report_commit(result, done=done, nothing="Nothing to merge", as_json=as_json)


@table_command(
    take.DRY_RUN,
    click.option("--retention-hours", type=float, metavar="H", help="Keep files younger than this."),
    click.option("--force", is_flag=True, help="Allow a retention below the table's. Nobody may be using the table."),
    click.option("--lite", is_flag=True, help="List nothing. Look only for files that the log says were removed."),
    click.option(
        "--keep-version", type=int, multiple=True, metavar="N", help="Keep this version readable. Repeatable."
    ),
)
def vacuum(
    table: DeltaTable,
    dry_run: bool,
    retention_hours: float | None,
    force: bool,
    lite: bool,
    keep_version: tuple[int, ...],
    as_json: bool,
) -> None:
    """Delete files that no version within the retention needs. A directory with a log of its own is left alone."""
    result = table.vacuum(
        retention_hours, dry_run, enforce_retention=not force, full=not lite, keep_versions=keep_version
    )
    out.report_vacuum(result, as_json=as_json)


@table_command(
    click.option("--v2", "policy", flag_value="v2", help="A V2 checkpoint. Default: the table's policy."),
    click.option("--classic", "policy", flag_value="classic", help="A classic checkpoint: one Parquet file."),
    click.option(
        "--v2-format", type=click.Choice(["json", "parquet"]), default="json", help="Of a V2 checkpoint's top file."
    ),
)
def checkpoint(
    table: DeltaTable, policy: Literal["classic", "v2"] | None, v2_format: Literal["json", "parquet"], as_json: bool
) -> None:
    """Write a checkpoint of the newest version."""
    version = table.checkpoint(policy, v2_format)
    out.answer({"version": version}, f"Checkpoint of version {version} written", as_json=as_json)


@table_command(
    click.option("--from", "start", type=int, metavar="N", help="First commit. Default: after the last checkpoint."),
    click.option("--to", "end", type=int, metavar="N", help="Last commit. Default: the newest."),
)
def compact_log(table: DeltaTable, start: int | None, end: int | None, as_json: bool) -> None:
    """Reconcile commits into one file beside them, which readers may read instead."""
    result = table.compact_log(start, end)
    size = text_of_bytes(result.size_bytes or 0)
    done = f"Commits {result.start_version} to {result.end_version} compacted ({size})"
    out.answer(result, "Nothing to compact" if result.skipped else done, as_json=as_json)


@table_command(take.VERSION)
def checksum(table: DeltaTable, version: int | None, as_json: bool) -> None:
    """Write the checksum of a version, or verify the one it has."""
    result = table.write_checksum(version)
    verb = "written" if result.written else "agrees with the log"
    content = f"{result.num_files:,} files, {text_of_bytes(result.size_bytes)}"
    out.answer(result, f"Checksum of version {result.version} {verb}: {content}", as_json=as_json)


@table_command(take.DRY_RUN)
def cleanup_log(table: DeltaTable, dry_run: bool, as_json: bool) -> None:
    """Remove the expired part of the log. Versions in it cannot be read afterwards."""
    result = table.cleanup_log(dry_run)
    if as_json:
        report = out.attributes(result, "dry_run cut_off_ms earliest_version size_bytes paths")
        out.print_json({**report, "num_files": len(result.paths)})
        return
    for path in result.paths if dry_run else ():
        out.print_name(path)
    verb = "would be removed" if dry_run else "removed"
    out.print_line(f"{len(result.paths):,} files ({text_of_bytes(result.size_bytes)}) {verb}")
    if result.earliest_version is not None:
        since = out.text_of_time(result.cut_off_ms)[:10]
        out.print_line(f"Version {result.earliest_version} and all later ones stay (cut off at {since})")


@table_command(
    click.option("--version", type=int, metavar="N", help="The version to go back to."),
    click.option("--timestamp", metavar="TIME", help="Go back to the version of this time (ISO 8601)."),
    click.option("--ignore-missing-files", is_flag=True, help="Restore even if files of that version are gone."),
    take.ISOLATION,
    take.DRY_RUN,
)
def restore(
    table: DeltaTable,
    version: int | None,
    timestamp: str | None,
    ignore_missing_files: bool,
    as_json: bool,
    **commit: Unpack[CommitOptions],
) -> None:
    """Make the table what it was at an older version. This is a new version; none is deleted."""
    if (version is None) == (timestamp is None):
        raise click.UsageError("Give --version or --timestamp")
    result = table.restore(version, timestamp, ignore_missing_files=ignore_missing_files, **commit)
    restored, removed = (result.operation_metrics.get(name) for name in ("numRestoredFiles", "numRemovedFiles"))
    done = f"Version {result.version}: {restored} files restored, {removed} removed"
    out.report_commit(result, done=done, nothing="Nothing to restore", as_json=as_json)


@table_command(
    click.option("--unit", metavar="NAME", help="A unit, as `delta-orch units` names it."),
    click.option("--run", metavar="ID", help="All units that this run wrote last."),
    take.DRY_RUN,
)
def undo(table: DeltaTable, unit: str | None, run: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove exactly the rows that a unit of work, or a run, wrote. Rows that they replaced do not come back."""
    result = table.undo(unit=unit, run=run, dry_run=dry_run)
    if as_json:
        report = out.attributes(result, "units rows_removed")
        out.print_json({**report, "version": None if dry_run else result.version})
        return
    for name in result.units:
        out.print_name(name)
    end = "would be removed" if dry_run else f"removed in version {result.version}"
    out.print_line(f"{result.rows_removed:,} rows of {len(result.units):,} units {end}")


@command(
    click.option(
        "--partition", "columns", multiple=True, metavar="NAME:TYPE", callback=take.parse_pairs,
        help="A column that directories stand for. Repeatable.",
    ),
    take.DRY_RUN,
)  # fmt: skip
def convert(uri: str, columns: dict[str, str], storage_options: dict[str, str], dry_run: bool, as_json: bool) -> None:
    """Make the Parquet files of a directory a table, in place."""
    from delta_orch.delta_table import DeltaTable

    result = DeltaTable.convert(uri, columns or None, storage_options=storage_options or None, dry_run=dry_run)
    done = f"Version {result.version}: {result.operation_metrics.get('numConvertedFiles')} files"
    out.report_commit(result, done=done, nothing="It is a table already", as_json=as_json)
