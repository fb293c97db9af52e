"""Commands that read rows: `show`, `read`, `changes`, and `explain`, which says what reading would take; those that
change rows: `delete`, `update`, `merge`; and `sql`, which runs one statement."""

from __future__ import annotations

import math
import os
import re
import uuid
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from delta_orch.cli import arguments as take
from delta_orch.cli import output as out
from delta_orch.cli.arguments import Commands, Target, UsageError, open_engine, parse_columns
from delta_orch.errors import DeltaError, InvalidRequestError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.protocol.types import DataType, StructField

COMMANDS = Commands()

_LONGEST_TEXT = 200
_OUTPUT = take.argument("--output", "FILE.parquet", "The Parquet file to write the rows to.", type=Path, required=True)
_FORCE = take.flag("--force", "Replace the output file if it exists.")
_CHANGED = take.argument("--where", "SQL", "The rows, in Spark SQL. Default: all.")

Cell = Any
"""A value of Arrow's `to_pylist`, or what stands for it in JSON."""
Row = dict[str, Cell]


@COMMANDS.add(
    take.argument("--limit -n", "N", "At most that many rows. Default: 20.", type=take.count, default=20),
    *take.VERSION,
    take.COLUMNS,
    take.WHERE,
    take.ENGINE,
)
def show(
    at: Target,
    limit: int,
    columns: str | None,
    where: str | None,
    engine: str,
) -> None:
    """Show some rows of a table, in no particular order."""
    state = at.snapshot()
    scan = state.scan(parse_columns(columns), where)
    fields = scan.schema.fields
    reads = open_engine(engine)
    rows = _first_rows(reads.to_reader(scan.to_relation(reads)), limit + 1)
    shown, has_more = rows[:limit], len(rows) > limit
    if at.json:
        out.print_json(
            {
                "version": state.version,
                "columns": [{"name": f.name, "type": str(f.data_type), "nullable": f.nullable} for f in fields],
                "rows": _json_rows(fields, shown),
                "has_more": has_more,
            },
            of_table=True,
        )
        return
    _print_rows(fields, shown, of_table=True)
    out.print_line(f"{len(shown)} rows of version {state.version}" + (", and more" if has_more else ""))


@COMMANDS.add(_OUTPUT, _FORCE, *take.VERSION, take.COLUMNS, take.WHERE, take.ENGINE)
def read(
    at: Target,
    output: Path,
    force: bool,
    columns: str | None,
    where: str | None,
    engine: str,
) -> None:
    """Write a table's rows to one Parquet file, streamed. The file appears complete or not at all."""
    state = at.snapshot()
    scan = state.scan(parse_columns(columns), where)
    reads = open_engine(engine)
    _export(at, reads.to_reader(scan.to_relation(reads)), output, force, {"version": state.version})


@COMMANDS.add(take.WHERE, *take.VERSION)
def explain(at: Target, where: str | None) -> None:
    """Say how many files a scan reads, and which part of the predicate leaves out how many."""
    told = at.snapshot().scan(where=where).explain()
    if at.json:
        out.print_json(told.to_dict())
    else:
        out.print_line(str(told))


@COMMANDS.add(
    _OUTPUT,
    _FORCE,
    take.argument("--from", "A", "The first version.", dest="starting_version", type=int),
    take.argument("--to", "B", "The last version. Default: the newest.", dest="ending_version", type=int),
    take.argument("--from-timestamp", "TIME", "Versions since this time (ISO 8601).", dest="starting_timestamp"),
    take.argument("--to-timestamp", "TIME", "Versions until this time (ISO 8601).", dest="ending_timestamp"),
    take.flag("--allow-out-of-range", "No error where the range goes beyond the newest version."),
    take.argument(
        "--require-change-data-feed",
        help="Refuse versions written without the feed. Default: if the table has a feed.",
        action=BooleanOptionalAction,
    ),
    take.argument("--schema-version", "N", "Columns as of this version. Default: of the last one.", type=int),
    take.ENGINE,
)
def changes(at: Target, output: Path, force: bool, engine: str, **choice: Any) -> None:
    """Write the rows that a range of versions inserted, updated and deleted to one Parquet file."""
    feed = at.table().changes(**choice)
    reads = open_engine(engine)
    versions = out.attributes(feed, "starting_version ending_version")
    _export(at, reads.to_reader(feed.to_relation(reads)), output, force, versions)


def _first_rows(reader: pa.RecordBatchReader, count: int) -> list[Row]:
    from delta_orch.protocol.arrow_building import python_rows

    rows: list[Row] = []
    for batch in reader:
        if len(rows) >= count:
            break
        rows += python_rows(batch.slice(0, count - len(rows)))
    return rows


def _export(at: Target, reader: pa.RecordBatchReader, output: Path, force: bool, versions: dict[str, object]) -> None:
    try:
        num_rows = _write_parquet(reader, output, force)
    finally:
        out.show_progress("")
    if at.json:
        out.print_json({"output": str(output), "num_rows": num_rows, **versions})
    else:
        of = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in versions.items())
        out.print_line(f"{num_rows:,} rows ({of}) in {output}")


def _write_parquet(reader: pa.RecordBatchReader, path: Path, force: bool) -> int:
    """Write a stream to `path`, which appears complete or not at all.

    Args:
        force: Replace a file that is there.

    Returns: The number of rows.

    Raises:
        InvalidRequestError: There is a file, and `force` is not set; or `path` lies in a table's directory.
        StorageError: The file cannot be written, for example because the disk is full.
        In all cases `path` is as before.
    """
    import pyarrow.parquet as pq

    from delta_orch.storage.base import storage_error

    _ensure_free(path, force)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    num_rows = 0
    try:
        with temporary.open("xb") as sink, pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                num_rows += batch.num_rows
                out.show_progress(f"{num_rows:,} rows")
        _ensure_free(path, force)
        temporary.replace(path)
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", str(path)) from e
    finally:
        temporary.unlink(missing_ok=True)
    return num_rows


def _ensure_free(path: Path, force: bool) -> None:
    """Raises as `_write_parquet`."""
    from delta_orch.protocol.paths import LOG_DIRECTORY, parse_log_path

    if not path.parent.is_dir() or path.is_dir():
        raise StorageError(
            f"Cannot write {path}",
            cause="It is a directory" if path.is_dir() else f"There is no directory {path.parent}",
            remedy="Name a file in a directory that exists",
            path=str(path),
        )
    # Through links and `..`. A log may be a link itself: its files are known by their names.
    directory = path.parent.resolve()
    tables = [above for above in (directory, *directory.parents) if (above / LOG_DIRECTORY).exists()]
    if tables or parse_log_path(path.name) is not None:
        raise InvalidRequestError(
            f"The output {path} would lie in a table",
            cause=f"{tables[0]} is a table" if tables else "It would be taken for a file of a log",
            remedy="Write to a file outside of tables",
            path=str(path),
        )
    if not force and os.path.lexists(path):
        raise InvalidRequestError(
            f"The output {path} exists",
            cause="Only --force replaces a file",
            remedy="Add --force, or write to another file",
            path=str(path),
        )


def _json_rows(fields: Sequence[StructField], rows: Sequence[Row]) -> list[Row]:
    return [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in rows]


def _print_rows(fields: Sequence[StructField], rows: Sequence[Row], *, of_table: bool) -> None:
    header = [f"{out.one_line(f.name)}\n{out.one_line(str(f.data_type))}" for f in fields]
    out.print_rows(header, [[_text_value(row[f.name], f.data_type) for f in fields] for row in rows], of_table=of_table)


def json_value(value: Cell, data_type: DataType) -> Cell:
    """A value of Arrow's `to_pylist` as JSON knows it.

    Binary is base64, decimals are text, NaN and the infinities are the text Spark reads; a map is an object where its
    keys are text, otherwise a list of objects with `key` and `value`; a variant is the JSON it stands for, its numbers
    with all their digits.

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
            return _json_map([(json_value(k, key_type), json_value(v, value_type)) for k, v in value])
        case bytes(), _:
            return b64encode(value).decode()
        case float(), _ if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case ((datetime() | FarMoment()), _):
            return value.isoformat()
        case ((bool() | int() | float() | str()), _):
            return value
    return str(value)


def _json_map(items: list[tuple[Cell, Cell]]) -> Cell:
    if all(isinstance(key, str) for key, _ in items):
        return dict(items)
    return [{"key": key, "value": value} for key, value in items]


def _text_value(value: Cell, data_type: DataType) -> str:
    """A value in one line, cut off where it is long."""
    import orjson

    if value is None:
        return "null"
    plain = json_value(value, data_type)
    text = plain if isinstance(plain, str) else orjson.dumps(plain).decode()
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


@COMMANDS.add(_CHANGED, take.ENGINE, *take.COMMIT)
def delete(at: Target, where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Delete the rows for which a predicate is true."""
    table = at.table()
    with out.working("Deleting rows"):
        result = table.delete(where, engine=open_engine(engine), **commit)
    _report(at, result)


@COMMANDS.add(
    take.argument(
        "--set", "COLUMN=SQL", "A column's new value, repeatable.", action="append", dest="assigned", required=True
    ),
    _CHANGED,
    take.ENGINE,
    *take.COMMIT,
)
def update(at: Target, assigned: list[str], where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Give columns other values in the rows for which a predicate is true."""
    from delta_orch.protocol.schema_edit import quote_path
    from delta_orch.statements.rows import parse_assignments

    values: dict[str, str] = {}
    for text in assigned:
        for column, value in parse_assignments(text).items():
            if (name := quote_path(column.path)) in values:
                raise UsageError(f"--set assigns {'.'.join(column.path)} twice")
            values[name] = value
    table = at.table()
    with out.working("Updating rows"):
        result = table.update(values, where, engine=open_engine(engine), **commit)
    _report(at, result)


@COMMANDS.add(
    take.argument("source", "SOURCE", "A Delta table's location, or a Parquet file's path ending in .parquet."),
    take.argument("--on", "SQL", "When a target row and a source row belong together: target.id = source.id"),
    take.argument("--keys", "A,B", "Columns that are equal instead; nulls are equal to each other."),
    take.argument(
        "--when",
        "CLAUSE",
        "As in MERGE, repeatable: 'MATCHED AND source.gone THEN DELETE'. Default: update and insert all columns.",
        action="append",
        default=[],
    ),
    take.ENGINE,
    *take.COMMIT,
)
def merge(
    at: Target,
    source: str,
    on: str | None,
    keys: str | None,
    when: list[str],
    engine: str,
    **commit: Unpack[CommitOptions],
) -> None:
    """Update, delete and insert rows by those of another table or a Parquet file."""
    from delta_orch.statements.rows import parse_merge_clause
    from delta_orch.verbs.merge.upsert import key_condition

    names = parse_columns(keys)
    if (on is None) == (names is None):
        raise UsageError("merge takes either --on or --keys")
    condition = on if on is not None else key_condition(names or [])
    clauses = [parse_merge_clause(text) for text in when or ["MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *"]]
    table = at.table()
    assert condition is not None
    builder = table.merge(_source(at, source), condition, engine=open_engine(engine), **commit)
    for clause in clauses:
        builder = clause(builder)
    with out.working("Merging rows"):
        result = builder.execute()
    _report(at, result)


def _source(at: Target, location: str) -> object:
    from dataclasses import replace

    if not location.endswith(".parquet"):
        return replace(at, uri=location).table()
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        return ds.dataset(location, format="parquet")
    except (OSError, pa.ArrowException) as e:
        raise InvalidRequestError(
            f"The source {location} cannot be read", cause=str(e).splitlines()[0], remedy="Give a Parquet file"
        ) from e


def _report(at: Target, result: CommitResult, nothing: str = "No row to change") -> None:
    counted = {name: int(value) for name, value in result.operation_metrics.items() if "Rows" in name}
    told = ", ".join(f"{name} {count:,}" for name, count in counted.items() if count)
    out.report_commit(result, done=f"Version {result.version}: {told}", nothing=nothing, as_json=at.json)
    if result.preview is not None and told and not at.json:
        out.print_line(told)


@COMMANDS.add(
    take.argument("--table", "NAME=URI", "A table by a name of its own, repeatable.", action="append", default=[]),
    take.ENGINE,
    take.DRY_RUN,
    first=take.argument("uri", "STATEMENT", "One statement of SQL; a table is delta.`path` or a --table."),
)
def sql(at: Target, table: list[str], engine: str, dry_run: bool) -> None:
    """Run one statement of SQL: see docs/sql.md."""
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.statements.run import sql as run
    from delta_orch.verbs.vacuum import VacuumResult

    tables = take.pairs(table, "NAME=URI", option="--table")
    reads = open_engine(engine)
    with out.working("Running the statement"):
        options: CommitOptions = {"dry_run": True} if dry_run else {}
        result = run(at.uri, engine=reads, tables=tables, storage_options=at.options(), **options)
        if not isinstance(result, CommitResult | pa.Table) and reads.accepts(result):
            result = reads.to_arrow(reads.relation(result))
    if isinstance(result, CommitResult):
        _report(at, result, "Nothing to change")
    elif isinstance(result, pa.Table):
        _print_table(at, result)
    elif isinstance(result, VacuumResult):
        out.report_vacuum(result, as_json=at.json)
    elif at.json:
        out.print_json(result)
    else:
        out.print_line(str(result))


def _shown(rows: pa.Table) -> pa.Table:
    """The columns of an answer under a name each, those that have a type of no table as text."""
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


def _print_table(at: Target, rows: pa.Table) -> None:
    from delta_orch.protocol.arrow_building import python_rows, schema_from_arrow

    of_table = re.match(r"\s*(?:DESC|SHOW)", at.uri, re.IGNORECASE) is None
    rows = _shown(rows)
    fields = schema_from_arrow(rows.schema).fields
    found = python_rows(rows)
    if at.json:
        out.print_json(
            {
                "columns": [{"name": f.name, "type": str(f.data_type)} for f in fields],
                "rows": _json_rows(fields, found),
            },
            of_table=of_table,
        )
        return
    _print_rows(fields, found, of_table=of_table)
    out.print_line(f"{len(found)} rows")
