"""Commands on rows: `show`, `read`, `explain` and `changes` read, `sql` runs a statement, `ingest` loads files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
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
    one_line,
    output_file,
    text_of_bytes,
    text_of_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.protocol.types import DataType, StructField
    from delta_orch.verbs.ingest import IngestResult

_LONGEST_TEXT = 200

Cell = Any
"""A value of Arrow's `to_pylist`, or its form in JSON."""
Row = dict[str, Cell]


@command(
    value("-n --limit", "N", "Default: 20.", click.IntRange(min=0), default=20),
    cli.VERSION, cli.TIMESTAMP, cli.COLUMNS, cli.WHERE, cli.ENGINE,
)  # fmt: skip
def show(
    table: DeltaTable, limit: int, columns: list[str] | None, where: str | None, engine: str, **moment: Any
) -> Answer:
    """Show some rows of a table, in no particular order."""
    state = table.snapshot(**moment)
    scan, reads = state.scan(columns, where), open_engine(engine)
    fields = scan.schema.fields
    rows = _first_rows(reads.to_reader(scan.to_relation(reads)), limit + 1)
    shown, has_more = rows[:limit], len(rows) > limit
    report = {
        "version": state.version,
        "columns": [{**_described(field), "nullable": field.nullable} for field in fields],
        "rows": _json_rows(fields, shown),
        "has_more": has_more,
    }
    end = f"{len(shown)} rows of version {state.version}" + (", and more" if has_more else "")
    return Answer(report, lambda: _text(fields, shown, end, of_table=True), of_table=True)


@command(cli.OUTPUT, cli.FORCE, cli.VERSION, cli.TIMESTAMP, cli.COLUMNS, cli.WHERE, cli.ENGINE)
def read(
    table: DeltaTable,
    output: Path,
    force: bool,
    columns: list[str] | None,
    where: str | None,
    engine: str,
    **moment: Any,
) -> Answer:
    """Write a table's rows to one Parquet file, streamed. The file appears complete or not at all."""
    state = table.snapshot(**moment)
    num_rows = _write_parquet(state.scan(columns, where), engine, output, force)
    report = {"output": str(output), "num_rows": num_rows, "version": state.version}
    return Answer(report, f"{num_rows:,} rows of version {state.version} in {output}")


@command(cli.WHERE, cli.VERSION, cli.TIMESTAMP)
def explain(table: DeltaTable, where: str | None, **moment: Any) -> Answer:
    """Say how many files a scan reads, and which part of the predicate leaves out how many."""
    plan = table.snapshot(**moment).scan(where=where).explain()
    return Answer(plan.to_dict(), str(plan))


@command(
    cli.OUTPUT, cli.FORCE,
    value("--from starting_version", "N", "The first version.", int),
    value("--to ending_version", "N", "The last version. Default: the newest.", int),
    value("--from-timestamp starting_timestamp", "TIME", "Versions since this time (ISO 8601)."),
    value("--to-timestamp ending_timestamp", "TIME", "Versions until this time (ISO 8601)."),
    switch("--allow-out-of-range", "No error if the range ends after the newest version."),
    click.option(
        "--require-change-data-feed/--no-require-change-data-feed", default=None,
        help="Refuse versions written without the feed. Default: if the table has a feed.",
    ),
    value("--schema-version", "N", "Columns as of this version. Default: the last one.", int),
    cli.ENGINE,
)  # fmt: skip
def changes(table: DeltaTable, output: Path, force: bool, engine: str, **versions: Any) -> Answer:
    """Write the rows that a range of versions inserted, updated and deleted to one Parquet file."""
    feed = table.changes(**versions)
    num_rows = _write_parquet(feed, engine, output, force)
    first, last = feed.starting_version, feed.ending_version
    report = {"output": str(output), "num_rows": num_rows, "starting_version": first, "ending_version": last}
    return Answer(report, f"{num_rows:,} rows of versions {first} to {last} in {output}")


def _first_rows(reader: pa.RecordBatchReader, count: int) -> list[Row]:
    from delta_orch.protocol.arrow_building import python_rows

    rows: list[Row] = []
    for batch in reader:
        if len(rows) >= count:
            break
        rows += python_rows(batch.slice(0, count - len(rows)))
    return rows


def _write_parquet(rows: Any, engine: str, path: Path, force: bool) -> int:
    """Write the rows of a scan or a change feed to `path`. Returns their number. Raises as `output_file`."""
    import pyarrow.parquet as pq

    reads, num_rows = open_engine(engine), 0
    reader = reads.to_reader(rows.to_relation(reads))
    with output_file(path, force) as sink, pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


@command(
    cli.pairs("--table tables", "NAME=URI", "A table by a name of its own."),
    cli.ENGINE,
    cli.DRY_RUN,
    first=click.argument("statement"),
)
def sql(statement: str, engine: str, dry_run: bool, **places: Any) -> Answer:
    """Run one statement of SQL, for example "SELECT * FROM delta.`/data/t` LIMIT 5"."""
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.statements.run import sql as run
    from delta_orch.verbs.vacuum import VacuumResult

    reads = open_engine(engine)
    options: dict[str, Any] = {"dry_run": True} if dry_run else {}
    result = run(statement, engine=reads, **places, **options)
    if not isinstance(result, CommitResult | pa.Table) and reads.accepts(result):
        result = reads.to_arrow(reads.relation(result))
    if isinstance(result, CommitResult):
        return _answer_of_change(result)
    if isinstance(result, pa.Table):
        describes = re.match(r"\s*(?:DESC|SHOW)", statement, re.IGNORECASE) is not None
        return _answer_of_rows(result, of_table=not describes)
    return answer_of_vacuum(result) if isinstance(result, VacuumResult) else Answer(result, str(result))


def _answer_of_change(result: CommitResult) -> Answer:
    counts = {name: int(count) for name, count in result.operation_metrics.items() if "Rows" in name}
    text = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return answer_of_commit(result, f"Version {result.version}: {text or 'committed'}", "Nothing to change", text)


def _answer_of_rows(result: pa.Table, *, of_table: bool) -> Answer:
    from delta_orch.protocol.arrow_building import python_rows, schema_from_arrow

    table = _with_types_of_tables(result)
    fields, rows = schema_from_arrow(table.schema).fields, python_rows(table)
    return Answer(
        lambda: {"columns": [_described(field) for field in fields], "rows": _json_rows(fields, rows)},
        lambda: _text(fields, rows, f"{table.num_rows} rows", of_table=of_table),
        of_table,
    )


def _with_types_of_tables(rows: pa.Table) -> pa.Table:
    """The columns of an answer under a name each. Columns of a type that no table has become text."""
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


def _described(field: StructField) -> dict[str, object]:
    return {"name": field.name, "type": str(field.data_type)}


def json_rows(rows: pa.Table) -> list[Row]:
    """The rows of a table whose types a Delta table can have, for JSON; see `json_value`."""
    from delta_orch.protocol.arrow_building import python_rows, schema_from_arrow

    return _json_rows(schema_from_arrow(rows.schema).fields, python_rows(rows))


def _json_rows(fields: Sequence[StructField], rows: Sequence[Row]) -> list[Row]:
    return [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in rows]


def _text(fields: Sequence[StructField], rows: Sequence[Row], end: str, *, of_table: bool) -> str:
    header = [f"{one_line(f.name)}\n{one_line(str(f.data_type))}" for f in fields]
    cells = [[_text_value(row[f.name], f.data_type) for f in fields] for row in rows]
    return text_of_rows(header, cells, end, of_table=of_table)


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


_FORMATS = ["json", "csv", "parquet", "avro", "orc", "text", "binary"]
_ACTIONS = {
    "fail": "A row that breaks it fails the load.",
    "quarantine": "A row that breaks it goes to the table URI_quarantine.",
    "drop": "A row that breaks it is left out.",
    "warn": "A row that breaks it is counted.",
}
SOURCE_STORAGE_OPTION = "--source-storage-option"


@command(
    click.argument("source"),
    click.option("--format", type=click.Choice(_FORMATS), required=True, help="What the files are."),
    value("--pattern", "GLOB", "Which files, by their path. Default: **/*.", default="**/*"),
    cli.pairs(
        "--format-option options", "KEY=VALUE",
        "An option of the format, such as delimiter=;. The value is JSON or text.",
    ),
    choice("--schema-mode", ("fail", "merge", "rescue"), "What becomes of values that do not fit."),
    choice("--on-error", ("fail", "quarantine"), "What becomes of a file that cannot be read."),
    choice(
        "--on-changed", ("error", "replace", "ignore"), "What becomes of a file that has changed since it was loaded."
    ),
    value("--compression", "NAME", "gzip, zstd or none. Default: by the name of the file."),
    value("--encoding", "NAME", "Default: UTF-8."),
    switch("--source-file", "Add a column with the path of the file of each row."),
    value("--settle-seconds", "N", "Leave files that changed in the last N seconds.", float, default=0.0),
    choice("--order", ("name", "modification_time"), "The order in which files are loaded."),
    switch("--names-ascend", "No file arrives with a lesser path: list what comes behind."),
    value("--max-files", "N", "Files of one commit. Default: 10000.", int, default=10_000),
    value("--max-bytes", "N", "Bytes of one commit.", int),
    *(
        value(f"--expect-{action}", "SQL", f"A rule for each row, in Spark SQL. {text} Repeatable.", multiple=True)
        for action, text in _ACTIONS.items()
    ),
    value("--max-commits", "N", "Default: until no file is new.", int),
    cli.columns("--partition-by", "A,B", "Of a table that is created."),
    cli.pairs(
        SOURCE_STORAGE_OPTION, "KEY=VALUE", "An option of the source's store. Default: those of the table."
    ),
    cli.ENGINE,
    first=cli.URI,
)  # fmt: skip
def ingest(
    uri: str,
    source: str,
    storage_options: dict[str, str] | None,
    source_storage_option: dict[str, str],
    options: dict[str, str],
    max_commits: int | None,
    partition_by: Sequence[str] | None,
    engine: str,
    **settings: Any,
) -> Answer:
    """Load the files below SOURCE that the table has not loaded yet, each once. The first files create the table."""
    from delta_orch.arrival.file_source import FileSource
    from delta_orch.delta_table import DeltaTable

    rules: dict[str, dict[str, str]] = {}
    for action in _ACTIONS:
        for rule in settings.pop(f"expect_{action}"):
            if rule in rules:
                raise click.UsageError(f"The rule {rule!r} stands there twice")
            rules[rule] = {"rule": rule, "action": action}
    files = FileSource(
        source,
        options={name: _json_or_text(text) for name, text in options.items()},
        storage_options=source_storage_option or storage_options,
        **settings,
    )
    table = DeltaTable(uri, storage_options)
    result = table.ingest(
        files, engine=open_engine(engine), max_commits=max_commits, expect=rules, partition_by=partition_by
    )
    report = {
        **attributes(result, "version commits num_files size_bytes num_rows"),
        "set_aside": result.set_aside.to_pylist(),
        **attributes(result.expected, "num_dropped num_quarantined"),
        "broken_rules": result.expected.counts,
    }
    return Answer(report, _text_of_ingest(result))


def _json_or_text(text: str) -> object:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _text_of_ingest(result: IngestResult) -> str:
    if not result.commits:
        return "No new files"
    size = text_of_bytes(result.size_bytes)
    done = f"Version {result.version}: {result.num_files:,} files ({size}) with {result.num_rows:,} rows are loaded"
    broken = [
        f"{rule.num_broken:,} rows break {rule.name!r} ({rule.action})"
        for rule in result.expected.results
        if rule.num_broken
    ]
    set_aside = [f"Set aside {file['path']}: {file['error']}" for file in result.set_aside.to_pylist()]
    return "\n".join([done, *broken, *set_aside])
