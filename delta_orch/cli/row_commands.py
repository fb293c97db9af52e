"""Commands that read rows: `read`, `changes`, `show`, and `explain`, which says what reading would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delta_orch.cli.arguments import (
    AsOf,
    Columns,
    EngineName,
    Json,
    StorageOption,
    Uri,
    Version,
    Where,
    open_engine,
    open_snapshot,
    open_table,
    parse_columns,
)
from delta_orch.cli.output import print_json, print_line, print_rows

if TYPE_CHECKING:
    import pyarrow as pa

Output = Annotated[
    Path, typer.Option("--output", metavar="FILE.parquet", help="Where to write the rows, as one Parquet file.")
]


def read(
    uri: Uri,
    output: Output,
    version: Version = None,
    timestamp: AsOf = None,
    columns: Columns = None,
    where: Where = None,
    engine: EngineName = "local",
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write a table's rows to one Parquet file, streamed. The file appears complete or not at all."""
    state = open_snapshot(uri, storage_option, version, timestamp)
    scan = state.scan(parse_columns(columns), where)
    reads = open_engine(engine)
    num_rows = _export(reads.to_reader(scan.to_relation(reads)), output)
    _report_export(json, output, num_rows, {"version": state.version})


def changes(
    uri: Uri,
    output: Output,
    starting_version: Annotated[int | None, typer.Option("--from", metavar="A", help="The first version.")] = None,
    ending_version: Annotated[
        int | None, typer.Option("--to", metavar="B", help="The last version; by default the newest.")
    ] = None,
    starting_timestamp: Annotated[
        str | None, typer.Option("--from-timestamp", metavar="TIME", help="Versions since this time (ISO 8601).")
    ] = None,
    ending_timestamp: Annotated[
        str | None, typer.Option("--to-timestamp", metavar="TIME", help="Versions until this time (ISO 8601).")
    ] = None,
    allow_out_of_range: Annotated[
        bool, typer.Option("--allow-out-of-range", help="No error where the range goes beyond the newest version.")
    ] = False,
    require_change_data_feed: Annotated[
        bool | None,
        typer.Option(
            "--require-change-data-feed/--no-require-change-data-feed",
            help="Refuse versions written while the feed was off; by default where the table has a feed.",
        ),
    ] = None,
    schema_version: Annotated[
        int | None,
        typer.Option("--schema-version", metavar="N", help="Columns as of this version; by default of the last one."),
    ] = None,
    engine: EngineName = "local",
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write the rows that a range of versions inserted, updated and deleted to one Parquet file."""
    feed = open_table(uri, storage_option).changes(
        starting_version=starting_version,
        ending_version=ending_version,
        starting_timestamp=starting_timestamp,
        ending_timestamp=ending_timestamp,
        allow_out_of_range=allow_out_of_range,
        require_change_data_feed=require_change_data_feed,
        schema_version=schema_version,
    )
    reads = open_engine(engine)
    num_rows = _export(reads.to_reader(feed.to_relation(reads)), output)
    _report_export(
        json, output, num_rows, {"starting_version": feed.starting_version, "ending_version": feed.ending_version}
    )


def show(
    uri: Uri,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="At most that many rows.")] = 20,
    version: Version = None,
    timestamp: AsOf = None,
    columns: Columns = None,
    where: Where = None,
    engine: EngineName = "local",
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Show some rows of a table, in no particular order."""
    from delta_orch.cli.cells import json_value, text_value

    state = open_snapshot(uri, storage_option, version, timestamp)
    scan = state.scan(parse_columns(columns), where)
    fields = scan.schema.fields
    reads = open_engine(engine)
    rows = _first_rows(reads.to_reader(scan.to_relation(reads)), limit + 1)
    shown, has_more = rows[:limit], len(rows) > limit
    if json:
        print_json(
            {
                "version": state.version,
                "columns": [{"name": f.name, "type": str(f.data_type), "nullable": f.nullable} for f in fields],
                "rows": [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in shown],
                "has_more": has_more,
            }
        )
        return
    header = [f"{f.name}\n{f.data_type}" for f in fields]
    print_rows(header, [[text_value(row[f.name], f.data_type) for f in fields] for row in shown])
    print_line(f"{len(shown)} rows of version {state.version}" + (", and more" if has_more else ""))


def explain(
    uri: Uri,
    where: Where = None,
    version: Version = None,
    timestamp: AsOf = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Say how many files a scan reads, and which part of the predicate leaves out how many."""
    told = open_snapshot(uri, storage_option, version, timestamp).scan(where=where).explain()
    if json:
        print_json(told.to_dict())
    else:
        print_line(str(told))


def _first_rows(reader: pa.RecordBatchReader, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in reader:
        if len(rows) >= count:
            break
        rows += batch.slice(0, count - len(rows)).to_pylist()
    return rows


def _export(reader: pa.RecordBatchReader, output: Path) -> int:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from delta_orch.engines.parquet_export import export_parquet

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} rows"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        return export_parquet(reader, output, lambda rows: progress.advance(task, rows))


def _report_export(as_json: bool, output: Path, num_rows: int, versions: dict[str, int]) -> None:
    if as_json:
        print_json({"output": str(output), "num_rows": num_rows, **versions})
    else:
        of = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in versions.items())
        print_line(f"{num_rows:,} rows ({of}) in {output}")
