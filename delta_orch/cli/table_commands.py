"""Commands that look at a table: `snapshot`, `files`, `history`, `txns`, `units`, `fsck`; and at many: `report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delta_orch.cli import app as take
from delta_orch.cli import output as out
from delta_orch.cli.app import command, table_command
from delta_orch.cli.output import text_of_bytes, text_of_time
from delta_orch.redaction import kept

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.table.column_details import ColumnDetails
    from delta_orch.verbs.fsck import FsckReport

_SHOWN_PROBLEMS = 50


@table_command(take.VERSION, take.TIMESTAMP)
def snapshot(table: DeltaTable, version: int | None, timestamp: str | None, as_json: bool) -> None:
    """Show one version of a table: schema, protocol, properties, size."""
    state = table.snapshot(version, timestamp)
    if as_json:
        out.print_json(_description(state))
        return
    out.print_fields(state.store.address, _summary(state))
    out.print_rows(
        ("column", "type", "nullable", ""),
        [
            (".".join(c.path), c.declared_type or c.data_type, "" if c.nullable else "NOT NULL", _column_notes(c))
            for c in state.columns
            if len(c.path) == 1 or _column_notes(c)
        ],
    )


def _description(state: TableSnapshot) -> dict[str, object]:
    """A snapshot for JSON, with the names of Python."""
    properties, protocol = state.properties, state.protocol
    features = {name: getattr(protocol, name) for name in ("reader_features", "writer_features")}
    return {
        "uri": state.store.address,
        **out.attributes(state, "version timestamp_ms"),
        "metadata": out.attributes(
            state.metadata, "id name description schema_string partition_columns configuration created_time"
        ),
        "protocol": {
            **out.attributes(protocol, "min_reader_version min_writer_version"),
            **{name: None if names is None else sorted(names) for name, names in features.items()},
        },
        "txns": dict(state.txns),
        **out.attributes(state, "domain_metadata features"),
        "columns": [_described_column(column) for column in state.columns],
        **out.attributes(state, "constraints clustering_columns"),
        "in_commit_timestamps": {
            "enabled": properties.enable_in_commit_timestamps,
            "enablement_version": properties.in_commit_timestamp_enablement_version,
            "enablement_timestamp_ms": properties.in_commit_timestamp_enablement_ms,
        },
        **out.attributes(state, "num_files size_bytes"),
    }


def _described_column(column: ColumnDetails) -> dict[str, object]:
    """A column for JSON, without the attributes that it does not have."""
    details = out.attributes(
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
    """What people want to know of a column beyond its type."""
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


def _summary(state: TableSnapshot) -> dict[str, object]:
    metadata, protocol = state.metadata, state.protocol
    return {
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


@table_command(take.VERSION, take.TIMESTAMP, take.WHERE, take.LIMIT)
def files(
    table: DeltaTable, version: int | None, timestamp: str | None, where: str | None, limit: int | None, as_json: bool
) -> None:
    """List the data files by path, with their statistics; with --where only those that a scan would read."""
    from delta_orch.cli.row_commands import json_rows

    state = table.snapshot(version, timestamp)
    rows = json_rows(state.list_files(where).sort_by("path").slice(0, limit))
    if as_json:
        out.print_json({"version": state.version, "files": rows})
        return
    names = ("path", "num_records", "num_deleted", "modification_time", "partition")
    out.print_rows(("size", *names), [(text_of_bytes(row["size"]), *(row.get(name) for name in names)) for row in rows])
    size = text_of_bytes(sum(row["size"] for row in rows))
    out.print_line(f"{len(rows):,} files of version {state.version}, {size}")


@table_command(take.LIMIT)
def history(table: DeltaTable, limit: int | None, as_json: bool) -> None:
    """List the commits the log still holds, newest first."""
    # What this package writes holds no secret. Other writers' parameters may.
    entries = [
        replace(e, operation_parameters=kept(e.operation_parameters), user_metadata=kept(e.user_metadata))
        for e in table.history(limit)
    ]
    if as_json:
        names = (
            "version timestamp_ms file_time_ms in_commit_timestamp_ms operation operation_parameters operation_metrics "
            "user_metadata engine_info"
        )
        out.print_json([out.attributes(entry, names) for entry in entries])
        return
    out.print_rows(
        ("version", "time", "operation", "parameters", "metrics"),
        [
            (e.version, text_of_time(e.timestamp_ms), e.operation, e.operation_parameters, e.operation_metrics)
            for e in entries
        ],
    )


@table_command(take.VERSION, take.TIMESTAMP)
def txns(table: DeltaTable, version: int | None, timestamp: str | None, as_json: bool) -> None:
    """List the application ids the table has recorded, with their last version."""
    actions = [action for _, action in sorted(table.snapshot(version, timestamp).txn_actions.items())]
    if as_json:
        out.print_json([{"app_id": t.app_id, "version": t.version, "last_updated_ms": t.last_updated} for t in actions])
        return
    out.print_rows(
        ("application id", "version", "last updated"),
        [(t.app_id, t.version, text_of_time(t.last_updated)) for t in actions],
    )


@table_command()
def units(table: DeltaTable, as_json: bool) -> None:
    """List the units of work that pipeline steps have recorded: run, version and rows of each."""
    rows = table.units().to_pylist()
    if as_json:
        out.print_json([{**row, "timestamp": row["timestamp"] and row["timestamp"].isoformat()} for row in rows])
        return
    names = ("unit", "run", "version", "rows")
    out.print_rows(names, [[row[name] for name in names] for row in rows])


@table_command(
    click.option("--check", is_flag=True, help="Look up every data file, and verify every deletion vector."),
    click.option("--deep", is_flag=True, help="Also read every data file, and compare statistics and checkpoints."),
    take.VERSION,
)
def fsck(table: DeltaTable, check: bool, deep: bool, version: int | None, as_json: bool) -> None:
    """Check that the log is whole and consistent. Ends with 1 if the version cannot be read correctly."""
    report = table.fsck(version, check_files=check, deep=deep)
    if as_json:
        out.print_json({"ok": report.ok, **out.attributes(report, " ".join(report.__slots__))})
    else:
        _print_report(report)
    if not report.ok:
        raise click.exceptions.Exit(1)


def _print_report(report: FsckReport) -> None:
    names = [name for name in report.__slots__ if name not in ("uri", "problems")]
    fields = {name.replace("_", " "): getattr(report, name) for name in names}
    out.print_fields(report.uri, {**fields, "result": "in order" if report.ok else "damaged"})
    if report.problems:
        shown = report.problems[:_SHOWN_PROBLEMS]
        for problem in shown:
            out.print_line(f"{problem.severity}[{problem.code}]: {problem.message}")
        if len(shown) < len(report.problems):
            out.print_line(f"… and {len(report.problems) - len(shown):,} more (all of them with --json)")


@command(
    click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="The HTML file to write."),
    take.FORCE,
    click.option(
        "--days",
        type=click.IntRange(min=1),
        default=7,
        metavar="N",
        help="How far back units and growth go. Default: 7.",
    ),
    first=click.argument("roots", nargs=-1, required=True),
)
def report(
    roots: tuple[str, ...], storage_options: dict[str, str], output: Path | None, force: bool, days: int, as_json: bool
) -> None:
    """Write a page on all tables below some locations: size, health, last write, units, lag of consumers.

    Ends with 1 if a table cannot be read. The page is written nevertheless, and shows why. On object stores, every
    object below a root is listed. Without --output, --json prints the same numbers.
    """
    from delta_orch.cli.report_page import lake_page
    from delta_orch.pipeline.maintenance import read_lake

    if output is None and not as_json:
        raise click.UsageError("Give --output or --json")
    if output is not None:
        out.ensure_free(output, force)
    lake = read_lake(roots, storage_options or None, days=days)
    if output is not None:
        with out.output_file(output, force) as sink:
            sink.write(lake_page(lake))
    unreadable = [table for table in lake.tables if table.error is not None]
    text = f"{len(lake.tables):,} tables in {output}"
    out.answer(lake, f"{text}, {len(unreadable):,} of them unreadable" if unreadable else text, as_json=as_json)
    if unreadable:
        raise click.exceptions.Exit(1)


@command()
def tables(uri: str, storage_options: dict[str, str], as_json: bool) -> None:
    """List the tables of a schema uc://catalog.schema, the schemas of uc://catalog, or the catalogs of uc://."""
    from delta_orch.catalog.discovery import list_below

    names = list(list_below(uri, storage_options or None))
    if as_json:
        out.print_json(names)
        return
    for name in names:
        out.print_name(name)
