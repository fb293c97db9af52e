"""Commands that read rows: `show`, `read`, `changes`; `explain`, which says what reading would take; and `sql`, which
runs one statement."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delta_orch.cli import app as take
from delta_orch.cli import output as out
from delta_orch.cli.app import command, open_engine, table_command

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.protocol.types import DataType, StructField

_LONGEST_TEXT = 200

Cell = Any
"""A value of Arrow's `to_pylist`, or its form in JSON."""
Row = dict[str, Cell]


@table_command(
    click.option("-n", "--limit", type=click.IntRange(min=0), default=20, metavar="N", help="Default: 20."),
    take.VERSION,
    take.TIMESTAMP,
    take.COLUMNS,
    take.WHERE,
    take.ENGINE,
)
def show(
    table: DeltaTable,
    limit: int,
    columns: list[str] | None,
    where: str | None,
    engine: str,
    as_json: bool,
    **moment: Any,
) -> None:
    """Show some rows of a table, in no particular order."""
    state = table.snapshot(**moment)
    scan = state.scan(columns, where)
    fields = scan.schema.fields
    reads = open_engine(engine)
    rows = _first_rows(reads.to_reader(scan.to_relation(reads)), limit + 1)
    shown, has_more = rows[:limit], len(rows) > limit
    if as_json:
        report = {
            "version": state.version,
            "columns": [{"name": f.name, "type": str(f.data_type), "nullable": f.nullable} for f in fields],
            "rows": _json_rows(fields, shown),
            "has_more": has_more,
        }
        out.print_json(report, of_table=True)
        return
    _print_rows(fields, shown, of_table=True)
    out.print_line(f"{len(shown)} rows of version {state.version}" + (", and more" if has_more else ""))


@table_command(take.OUTPUT, take.FORCE, take.VERSION, take.TIMESTAMP, take.COLUMNS, take.WHERE, take.ENGINE)
def read(
    table: DeltaTable,
    output: Path,
    force: bool,
    columns: list[str] | None,
    where: str | None,
    engine: str,
    as_json: bool,
    **moment: Any,
) -> None:
    """Write a table's rows to one Parquet file, streamed. The file appears complete or not at all."""
    state = table.snapshot(**moment)
    scan = state.scan(columns, where)
    reads = open_engine(engine)
    num_rows = _write_parquet(reads.to_reader(scan.to_relation(reads)), output, force)
    report = {"output": str(output), "num_rows": num_rows, "version": state.version}
    out.answer(report, f"{num_rows:,} rows of version {state.version} in {output}", as_json=as_json)


@table_command(take.WHERE, take.VERSION, take.TIMESTAMP)
def explain(table: DeltaTable, where: str | None, as_json: bool, **moment: Any) -> None:
    """Say how many files a scan reads, and which part of the predicate leaves out how many."""
    plan = table.snapshot(**moment).scan(where=where).explain()
    out.answer(plan.to_dict(), str(plan), as_json=as_json)


@table_command(
    take.OUTPUT,
    take.FORCE,
    click.option("--from", "starting_version", type=int, metavar="N", help="The first version."),
    click.option("--to", "ending_version", type=int, metavar="N", help="The last version. Default: the newest."),
    click.option("--from-timestamp", "starting_timestamp", metavar="TIME", help="Versions since this time (ISO 8601)."),
    click.option("--to-timestamp", "ending_timestamp", metavar="TIME", help="Versions until this time (ISO 8601)."),
    click.option("--allow-out-of-range", is_flag=True, help="No error if the range ends after the newest version."),
    click.option(
        "--require-change-data-feed/--no-require-change-data-feed",
        default=None,
        help="Refuse versions written without the feed. Default: if the table has a feed.",
    ),
    click.option("--schema-version", type=int, metavar="N", help="Columns as of this version. Default: the last one."),
    take.ENGINE,
)
def changes(table: DeltaTable, output: Path, force: bool, engine: str, as_json: bool, **choice: Any) -> None:
    """Write the rows that a range of versions inserted, updated and deleted to one Parquet file."""
    feed = table.changes(**choice)
    reads = open_engine(engine)
    num_rows = _write_parquet(reads.to_reader(feed.to_relation(reads)), output, force)
    first, last = feed.starting_version, feed.ending_version
    report = {"output": str(output), "num_rows": num_rows, "starting_version": first, "ending_version": last}
    out.answer(report, f"{num_rows:,} rows of versions {first} to {last} in {output}", as_json=as_json)


def _first_rows(reader: pa.RecordBatchReader, count: int) -> list[Row]:
    from delta_orch.protocol.arrow_building import python_rows

    rows: list[Row] = []
    for batch in reader:
        if len(rows) >= count:
            break
        rows += python_rows(batch.slice(0, count - len(rows)))
    return rows


def _write_parquet(reader: pa.RecordBatchReader, path: Path, force: bool) -> int:
    """Write a stream to `path`. Returns the number of rows. Raises as `output_file`."""
    import pyarrow.parquet as pq

    num_rows = 0
    with out.output_file(path, force) as sink, pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


@command(
    click.option(
        "--table", "tables", multiple=True, metavar="NAME=URI", callback=take.parse_pairs,
        help="A table by a name of its own. Repeatable.",
    ),
    take.ENGINE,
    take.DRY_RUN,
    first=click.argument("statement"),
)  # fmt: skip
def sql(
    statement: str, storage_options: dict[str, str], tables: dict[str, str], engine: str, dry_run: bool, as_json: bool
) -> None:
    """Run one statement of SQL, for example "SELECT * FROM delta.`/data/t` LIMIT 5"."""
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.statements.run import sql as run
    from delta_orch.verbs.vacuum import VacuumResult

    reads = open_engine(engine)
    options: dict[str, Any] = {"dry_run": True} if dry_run else {}
    result = run(statement, engine=reads, tables=tables, storage_options=storage_options or None, **options)
    if not isinstance(result, CommitResult | pa.Table) and reads.accepts(result):
        result = reads.to_arrow(reads.relation(result))
    if isinstance(result, CommitResult):
        _report(result, as_json)
    elif isinstance(result, pa.Table):
        describes = re.match(r"\s*(?:DESC|SHOW)", statement, re.IGNORECASE) is not None
        _print_result(result, of_table=not describes, as_json=as_json)
    elif isinstance(result, VacuumResult):
        out.report_vacuum(result, as_json=as_json)
    else:
        out.answer(result, str(result), as_json=as_json)


def _report(result: CommitResult, as_json: bool) -> None:
    counts = {name: int(value) for name, value in result.operation_metrics.items() if "Rows" in name}
    text = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    done = f"Version {result.version}: {text or 'committed'}"
    out.report_commit(result, done=done, nothing="Nothing to change", as_json=as_json)
    if result.preview is not None and text and not as_json:
        out.print_line(text)


def _print_result(rows: pa.Table, *, of_table: bool, as_json: bool) -> None:
    from delta_orch.protocol.arrow_building import python_rows, schema_from_arrow

    rows = _shown(rows)
    fields = schema_from_arrow(rows.schema).fields
    if as_json:
        columns = [{"name": f.name, "type": str(f.data_type)} for f in fields]
        out.print_json({"columns": columns, "rows": _json_rows(fields, python_rows(rows))}, of_table=of_table)
        return
    _print_rows(fields, python_rows(rows), of_table=of_table)
    out.print_line(f"{rows.num_rows} rows")


def _shown(rows: pa.Table) -> pa.Table:
    """The columns of an answer under a name each; columns of a type that no table has, as text."""
    import pyarrow as pa

    from delta_orch.errors import SchemaMismatchError
    from delta_orch.expressions.column_names import free_name
    from delta_orch.protocol.arrow_building import schema_from_arrow

    columns: dict[str, pa.ChunkedArray] = {}
    for field, values in zip(rows.schema, rows.columns, strict=True):
        try:
            schema_from_arrow(pa.schema([field]))
        except SchemaMismatchError:
            values = pa.chunked_array([[None if v is None else str(v) for v in values.to_pylist()]], pa.string())
        columns[free_name(field.name, columns)] = values
    return pa.table(columns)


def json_rows(rows: pa.Table) -> list[Row]:
    """The rows of a table whose types a Delta table can have, for JSON; see `json_value`."""
    from delta_orch.protocol.arrow_building import python_rows, schema_from_arrow

    return _json_rows(schema_from_arrow(rows.schema).fields, python_rows(rows))


def _json_rows(fields: Sequence[StructField], rows: Sequence[Row]) -> list[Row]:
    return [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in rows]


def _print_rows(fields: Sequence[StructField], rows: Sequence[Row], *, of_table: bool) -> None:
    header = [f"{out.one_line(f.name)}\n{out.one_line(str(f.data_type))}" for f in fields]
    out.print_rows(header, [[_text_value(row[f.name], f.data_type) for f in fields] for row in rows], of_table=of_table)


def json_value(value: Cell, data_type: DataType) -> Cell:
    """A value of Arrow's `to_pylist` for JSON.

    Binary is base64, decimals are text, NaN and the infinities are the text that Spark reads. A map is an object if its
    keys are text, otherwise a list of objects with `key` and `value`. A variant is its JSON, with all digits of its
    numbers.

    Raises:
        InvalidVariantError: The bytes are not a variant.
    """
    from base64 import b64encode
    from datetime import datetime

    import orjson

    from delta_orch.protocol.epoch import FarMoment
    from delta_orch.protocol.types import ArrayType, MapType, PrimitiveType, StructType
    from delta_orch.protocol.variant.variant import Variant

    match value, data_type:
        case None, _:
            return None
        case dict(), PrimitiveType("variant"):
            return orjson.Fragment(Variant(value["metadata"], value["value"]).to_json())
        case dict(), StructType(fields):
            return {f.name: json_value(value.get(f.name), f.data_type) for f in fields}
        case list(), ArrayType(element_type):
            return [json_value(item, element_type) for item in value]
        case list(), MapType(key_type, value_type):
            items = [(json_value(k, key_type), json_value(v, value_type)) for k, v in value]
            if all(isinstance(key, str) for key, _ in items):
                return dict(items)
            return [{"key": key, "value": value} for key, value in items]
        case bytes(), _:
            return b64encode(value).decode()
        case float(), _ if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case ((datetime() | FarMoment()), _):
            return value.isoformat()
        case ((bool() | int() | float() | str()), _):
            return value
    return str(value)


def _text_value(value: Cell, data_type: DataType) -> str:
    """A value in one line, shortened if it is long."""
    import orjson

    if value is None:
        return "null"
    plain = json_value(value, data_type)
    text = plain if isinstance(plain, str) else orjson.dumps(plain).decode()
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
