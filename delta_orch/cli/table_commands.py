"""Commands on a table as a whole: its state, its log and its upkeep; and `report` and `tables`, on many tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delta_orch.cli import app as cli
from delta_orch.cli.app import choice, command, open_engine, switch, value
from delta_orch.cli.output import (
    Answer,
    answer_of_commit,
    answer_of_vacuum,
    attributes,
    ensure_free,
    output_file,
    text_of_bytes,
    text_of_fields,
    text_of_names,
    text_of_rows,
    text_of_time,
)
from delta_orch.redaction import kept

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.table.column_details import ColumnDetails
    from delta_orch.verbs.fsck import FsckReport

_SHOWN_PROBLEMS = 50


# State


@command(cli.VERSION, cli.TIMESTAMP)
def snapshot(table: DeltaTable, version: int | None, timestamp: str | None) -> Answer:
    """Show one version of a table: schema, protocol, properties, size."""
    state = table.snapshot(version, timestamp)
    return Answer(lambda: _description(state), lambda: _summary(state))


def _description(state: TableSnapshot) -> dict[str, object]:
    """A snapshot for JSON, with the names of Python."""
    properties, protocol = state.properties, state.protocol
    features = attributes(protocol, "reader_features writer_features")
    return {
        "uri": state.store.address,
        **attributes(state, "version timestamp_ms"),
        "metadata": attributes(
            state.metadata, "id name description schema_string partition_columns configuration created_time"
        ),
        "protocol": {**attributes(protocol, "min_reader_version min_writer_version"), **features},
        "txns": dict(state.txns),
        **attributes(state, "domain_metadata features"),
        "columns": [_described_column(column) for column in state.columns],
        **attributes(state, "constraints clustering_columns"),
        "in_commit_timestamps": {
            "enabled": properties.enable_in_commit_timestamps,
            "enablement_version": properties.in_commit_timestamp_enablement_version,
            "enablement_timestamp_ms": properties.in_commit_timestamp_enablement_ms,
        },
        **attributes(state, "num_files size_bytes"),
    }


def _described_column(column: ColumnDetails) -> dict[str, object]:
    """A column for JSON, without the attributes that it does not have."""
    details = attributes(
        column,
        "comment declared_type collations generation_expression identity default invariant physical_name field_id "
        "type_changes",
    )
    return {
        "path": column.path,
        "type": str(column.data_type),
        "nullable": column.nullable,
        **{name: value for name, value in details.items() if value not in (None, {}, ())},
    }


def _column_notes(column: ColumnDetails) -> str:
    """The properties of a column beyond its type, for people."""
    notes = []
    if column.generation_expression is not None:
        notes.append(f"GENERATED ALWAYS AS ({column.generation_expression})")
    if (identity := column.identity) is not None:
        kind = "BY DEFAULT" if identity.allow_explicit_insert else "ALWAYS"
        notes.append(f"GENERATED {kind} AS IDENTITY (START WITH {identity.start} INCREMENT BY {identity.step})")
    if column.default is not None:
        notes.append(f"DEFAULT {column.default}")
    if column.invariant is not None:
        notes.append(f"CHECK ({column.invariant})")
    notes += [f"COLLATE {collation} ({place})" for place, collation in column.collations.items()]
    notes += [f"was {change.from_type}" for change in column.type_changes]
    return "; ".join([*notes, *([column.comment] if column.comment else [])])


def _summary(state: TableSnapshot) -> str:
    metadata, protocol = state.metadata, state.protocol
    fields = {
        "version": state.version,
        "time": text_of_time(state.timestamp_ms),
        "name": metadata.name,
        "description": metadata.description,
        "id": metadata.id,
        "files": f"{state.num_files:,}",
        "size": text_of_bytes(state.size_bytes),
        "partitioned by": list(metadata.partition_columns),
        "protocol": f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}",
        "table features": sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())}),
        "properties": dict(metadata.configuration),
        "constraints": dict(state.constraints),
        "clustered by": [".".join(path) for path in state.clustering_columns or ()],
        "metadata domains": sorted(state.domain_metadata),
        "transaction ids": len(state.txns) or None,
    }
    columns = [
        (".".join(c.path), c.declared_type or c.data_type, "" if c.nullable else "NOT NULL", _column_notes(c))
        for c in state.columns
        if len(c.path) == 1 or _column_notes(c)
    ]
    rows = text_of_rows(("column", "type", "nullable", ""), columns)
    return f"{text_of_fields(state.store.address, fields)}\n{rows}"


@command(cli.VERSION, cli.TIMESTAMP, cli.WHERE, cli.LIMIT)
def files(table: DeltaTable, where: str | None, limit: int | None, **moment: Any) -> Answer:
    """List the data files by path, with their statistics; with --where only those that a scan would read."""
    from delta_orch.cli.row_commands import json_rows

    state = table.snapshot(**moment)
    rows = json_rows(state.list_files(where).sort_by("path").slice(0, limit))
    names = ("path", "num_records", "num_deleted", "modification_time", "partition")

    def text() -> str:
        size = text_of_bytes(sum(row["size"] for row in rows))
        cells = [(text_of_bytes(row["size"]), *(row.get(name) for name in names)) for row in rows]
        return text_of_rows(("size", *names), cells, f"{len(rows):,} files of version {state.version}, {size}")

    return Answer({"version": state.version, "files": rows}, text)


@command(cli.LIMIT)
def history(table: DeltaTable, limit: int | None) -> Answer:
    """List the commits the log still holds, newest first."""
    # What this package writes holds no secret. Other writers' parameters may.
    entries = [
        replace(e, operation_parameters=kept(e.operation_parameters), user_metadata=kept(e.user_metadata))
        for e in table.history(limit)
    ]
    names = (
        "version timestamp_ms file_time_ms in_commit_timestamp_ms operation operation_parameters operation_metrics "
        "user_metadata engine_info"
    )
    rows = [
        (e.version, text_of_time(e.timestamp_ms), e.operation, e.operation_parameters, e.operation_metrics)
        for e in entries
    ]
    return Answer(
        [attributes(entry, names) for entry in entries],
        lambda: text_of_rows(("version", "time", "operation", "parameters", "metrics"), rows),
    )


@command(cli.VERSION, cli.TIMESTAMP)
def txns(table: DeltaTable, version: int | None, timestamp: str | None) -> Answer:
    """List the application ids the table has recorded, with their last version."""
    actions = [action for _, action in sorted(table.snapshot(version, timestamp).txn_actions.items())]
    rows = [(t.app_id, t.version, text_of_time(t.last_updated)) for t in actions]
    return Answer(
        [{"app_id": t.app_id, "version": t.version, "last_updated_ms": t.last_updated} for t in actions],
        lambda: text_of_rows(("application id", "version", "last updated"), rows),
    )


@command()
def units(table: DeltaTable) -> Answer:
    """List the units of work that pipeline steps have recorded: run, version and rows of each."""
    rows, names = table.units().to_pylist(), ("unit", "run", "version", "rows")
    return Answer(
        lambda: [{**row, "timestamp": row["timestamp"] and row["timestamp"].isoformat()} for row in rows],
        lambda: text_of_rows(names, [[row[name] for name in names] for row in rows]),
    )


@command(
    switch("--check check_files", "Look up every data file, and verify every deletion vector."),
    switch("--deep", "Also read every data file, and compare statistics and checkpoints."),
    cli.VERSION,
)
def fsck(table: DeltaTable, **checks: Any) -> Answer:
    """Check that the log is whole and consistent. Ends with 1 if the version cannot be read correctly."""
    report = table.fsck(**checks)
    value = {"ok": report.ok, **attributes(report, " ".join(report.__slots__))}
    return Answer(value, lambda: _text_of_fsck(report), failed=not report.ok)


def _text_of_fsck(report: FsckReport) -> str:
    names = [name for name in report.__slots__ if name not in ("uri", "problems")]
    fields = {name.replace("_", " "): getattr(report, name) for name in names}
    shown = report.problems[:_SHOWN_PROBLEMS]
    lines = [text_of_fields(report.uri, {**fields, "result": "in order" if report.ok else "damaged"})]
    lines += [f"{problem.severity}[{problem.code}]: {problem.message}" for problem in shown]
    if len(shown) < len(report.problems):
        lines.append(f"… and {len(report.problems) - len(shown):,} more (all of them with --json)")
    return "\n".join(lines)


# Many tables


@command(
    cli.PAGE,
    cli.FORCE,
    value("--days", "N", "How far back units and growth go. Default: 7.", click.IntRange(min=1), default=7),
    first=click.argument("roots", nargs=-1, required=True),
)
def report(
    roots: tuple[str, ...], storage_options: dict[str, str] | None, output: Path | None, force: bool, days: int
) -> Answer:
    """Write a page on all tables below some locations: size, health, last write, units, lag of consumers.

    Ends with 1 if a table cannot be read. The page is written nevertheless, and shows why. On object stores, every
    object below a root is listed. Without --output, --json prints the same numbers.
    """
    from delta_orch.cli.report_page import lake_page
    from delta_orch.pipeline.maintenance import read_lake

    if output is None and not click.get_current_context().params["as_json"]:
        raise click.UsageError("Give --output or --json")
    if output is not None:
        ensure_free(output, force)
    lake = read_lake(roots, storage_options, days=days)
    if output is not None:
        with output_file(output, force) as sink:
            sink.write(lake_page(lake))
    unreadable = [table for table in lake.tables if table.error is not None]
    text = f"{len(lake.tables):,} tables in {output}"
    text += f", {len(unreadable):,} of them unreadable" if unreadable else ""
    return Answer(lake, text, failed=bool(unreadable))


@command(first=cli.URI)
def tables(uri: str, storage_options: dict[str, str] | None) -> Answer:
    """List the tables of a schema uc://catalog.schema, the schemas of uc://catalog, or the catalogs of uc://."""
    from delta_orch.catalog.discovery import list_below

    names = list(list_below(uri, storage_options))
    return Answer(names, lambda: text_of_names(names))


# Upkeep


def _parse_size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    from delta_orch.protocol.table_properties import parse_size_bytes

    try:
        return None if text is None else parse_size_bytes(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


@command(
    cli.PARTITIONS,
    value(
        "--target-file-size target_file_size_bytes", "SIZE", "As 128mb. Default: the table's.", callback=_parse_size
    ),
    cli.columns("--zorder-by", "A,B.C", "Columns: near values come to share files."),
    switch("--full", "Cluster all files of a clustered table again."),
    cli.ENGINE, cli.ISOLATION, cli.DRY_RUN,
)  # fmt: skip
def optimize(table: DeltaTable, engine: str, **settings: Any) -> Answer:
    """Merge small files, partition by partition, and leave deleted rows behind. Rows do not change."""
    result = table.optimize(engine=open_engine(engine), **settings)
    metrics = {"numRemovedBytes": 0, "numAddedBytes": 0, **result.operation_metrics}
    before, after = (text_of_bytes(int(metrics[name])) for name in ("numRemovedBytes", "numAddedBytes"))
    removed, added = (metrics.get(name) for name in ("numRemovedFiles", "numAddedFiles"))
    done = f"Version {result.version}: {removed} files ({before}) became {added} ({after})"
    return answer_of_commit(result, done, "Nothing to merge")


@command(
    cli.DRY_RUN,
    value("--retention-hours", "H", "Keep files younger than this.", float),
    switch("--force", "Allow a retention below the table's. Nobody may be using the table."),
    switch("--lite", "List nothing. Look only for files that the log says were removed."),
    value("--keep-version keep_versions", "N", "Keep this version readable. Repeatable.", int, multiple=True),
)
def vacuum(table: DeltaTable, force: bool, lite: bool, **settings: Any) -> Answer:
    """Delete files that no version within the retention needs. A directory with a log of its own is left alone."""
    return answer_of_vacuum(table.vacuum(enforce_retention=not force, full=not lite, **settings))


@command(
    click.option("--v2", "policy", flag_value="v2", help="A V2 checkpoint. Default: the table's policy."),
    click.option("--classic", "policy", flag_value="classic", help="A classic checkpoint: one Parquet file."),
    choice("--v2-format", ("json", "parquet"), "Of a V2 checkpoint's top file."),
)
def checkpoint(table: DeltaTable, policy: Any, v2_format: Any) -> Answer:
    """Write a checkpoint of the newest version."""
    version = table.checkpoint(policy, v2_format)
    return Answer({"version": version}, f"Checkpoint of version {version} written")


@command(
    value("--from start", "N", "First commit. Default: after the last checkpoint.", int),
    value("--to end", "N", "Last commit. Default: the newest.", int),
)
def compact_log(table: DeltaTable, start: int | None, end: int | None) -> Answer:
    """Reconcile commits into one file beside them, which readers may read instead."""
    result = table.compact_log(start, end)
    size = text_of_bytes(result.size_bytes or 0)
    done = f"Commits {result.start_version} to {result.end_version} compacted ({size})"
    return Answer(result, "Nothing to compact" if result.skipped else done)


@command(cli.VERSION)
def checksum(table: DeltaTable, version: int | None) -> Answer:
    """Write the checksum of a version, or verify the one it has."""
    result = table.write_checksum(version)
    verb = "written" if result.written else "agrees with the log"
    content = f"{result.num_files:,} files, {text_of_bytes(result.size_bytes)}"
    return Answer(result, f"Checksum of version {result.version} {verb}: {content}")


@command(cli.DRY_RUN)
def cleanup_log(table: DeltaTable, dry_run: bool) -> Answer:
    """Remove the expired part of the log. Versions in it cannot be read afterwards."""
    result = table.cleanup_log(dry_run)
    verb, names = ("would be removed", result.paths) if dry_run else ("removed", ())
    lines = [f"{len(result.paths):,} files ({text_of_bytes(result.size_bytes)}) {verb}"]
    if result.earliest_version is not None:
        since = text_of_time(result.cut_off_ms)[:10]
        lines.append(f"Version {result.earliest_version} and all later ones stay (cut off at {since})")
    report = attributes(result, "dry_run cut_off_ms earliest_version size_bytes paths")
    return Answer({**report, "num_files": len(result.paths)}, text_of_names(names, *lines))


@command(
    value("--version", "N", "The version to go back to.", int),
    value("--timestamp", "TIME", "Go back to the version of this time (ISO 8601)."),
    switch("--ignore-missing-files", "Restore even if files of that version are gone."),
    cli.ISOLATION,
    cli.DRY_RUN,
)
def restore(table: DeltaTable, version: int | None, timestamp: str | None, **settings: Any) -> Answer:
    """Make the table what it was at an older version. This is a new version; none is deleted."""
    if (version is None) == (timestamp is None):
        raise click.UsageError("Give --version or --timestamp")
    result = table.restore(version, timestamp, **settings)
    restored, removed = (result.operation_metrics.get(name) for name in ("numRestoredFiles", "numRemovedFiles"))
    done = f"Version {result.version}: {restored} files restored, {removed} removed"
    return answer_of_commit(result, done, "Nothing to restore")


@command(
    value("--unit", "NAME", "A unit, as `delta-orch units` names it."),
    value("--run", "ID", "All units that this run wrote last."),
    cli.DRY_RUN,
)
def undo(table: DeltaTable, unit: str | None, run: str | None, dry_run: bool) -> Answer:
    """Remove exactly the rows that a unit of work, or a run, wrote. Rows that they replaced do not come back."""
    result = table.undo(unit=unit, run=run, dry_run=dry_run)
    end = "would be removed" if dry_run else f"removed in version {result.version}"
    report = {**attributes(result, "units rows_removed"), "version": None if dry_run else result.version}
    text = text_of_names(result.units, f"{result.rows_removed:,} rows of {len(result.units):,} units {end}")
    return Answer(report, text)


@command(
    cli.pairs("--partition partitions", "NAME:TYPE", "A column that directories stand for."),
    cli.DRY_RUN,
    first=cli.URI,
)
def convert(uri: str, partitions: dict[str, str], **settings: Any) -> Answer:
    """Make the Parquet files of a directory a table, in place."""
    from delta_orch.delta_table import DeltaTable

    result = DeltaTable.convert(uri, partitions or None, **settings)
    done = f"Version {result.version}: {result.operation_metrics.get('numConvertedFiles')} files"
    return answer_of_commit(result, done, "It is a table already")
