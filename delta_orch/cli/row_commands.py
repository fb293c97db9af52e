"""Commands that read rows: `show`, `read`, `changes`, and `explain`, which says what reading would take."""

from __future__ import annotations

import math
import uuid
from argparse import BooleanOptionalAction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_orch.cli import arguments as take
from delta_orch.cli.arguments import Commands, Target, open_engine, parse_columns
from delta_orch.cli.output import attributes, one_line, print_json, print_line, print_rows, show_progress
from delta_orch.errors import DeltaError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.protocol.types import DataType


COMMANDS = Commands()

_LONGEST_TEXT = 200
_OUTPUT = take.argument("--output", "FILE.parquet", "The Parquet file to write the rows to.", type=Path, required=True)

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
        print_json(
            {
                "version": state.version,
                "columns": [{"name": f.name, "type": str(f.data_type), "nullable": f.nullable} for f in fields],
                "rows": [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in shown],
                "has_more": has_more,
            },
            of_table=True,
        )
        return
    header = [f"{one_line(f.name)}\n{one_line(str(f.data_type))}" for f in fields]
    print_rows(header, [[text_value(row[f.name], f.data_type) for f in fields] for row in shown], of_table=True)
    print_line(f"{len(shown)} rows of version {state.version}" + (", and more" if has_more else ""))


@COMMANDS.add(_OUTPUT, *take.VERSION, take.COLUMNS, take.WHERE, take.ENGINE)
def read(
    at: Target,
    output: Path,
    columns: str | None,
    where: str | None,
    engine: str,
) -> None:
    """Write a table's rows to one Parquet file, streamed. The file appears complete or not at all."""
    state = at.snapshot()
    scan = state.scan(parse_columns(columns), where)
    reads = open_engine(engine)
    _export(at, reads.to_reader(scan.to_relation(reads)), output, {"version": state.version})


@COMMANDS.add(take.WHERE, *take.VERSION)
def explain(at: Target, where: str | None) -> None:
    """Say how many files a scan reads, and which part of the predicate leaves out how many."""
    told = at.snapshot().scan(where=where).explain()
    if at.json:
        print_json(told.to_dict())
    else:
        print_line(str(told))


@COMMANDS.add(
    _OUTPUT,
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
def changes(at: Target, output: Path, engine: str, **choice: Any) -> None:
    """Write the rows that a range of versions inserted, updated and deleted to one Parquet file."""
    feed = at.table().changes(**choice)
    reads = open_engine(engine)
    _export(at, reads.to_reader(feed.to_relation(reads)), output, attributes(feed, "starting_version ending_version"))


def _first_rows(reader: pa.RecordBatchReader, count: int) -> list[Row]:
    rows: list[Row] = []
    for batch in reader:
        if len(rows) >= count:
            break
        rows += batch.slice(0, count - len(rows)).to_pylist()
    return rows


def _export(at: Target, reader: pa.RecordBatchReader, output: Path, versions: dict[str, object]) -> None:
    try:
        num_rows = _write_parquet(reader, output)
    finally:
        show_progress("")
    if at.json:
        print_json({"output": str(output), "num_rows": num_rows, **versions})
    else:
        of = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in versions.items())
        print_line(f"{num_rows:,} rows ({of}) in {output}")


def _write_parquet(reader: pa.RecordBatchReader, path: Path) -> int:
    """Write a stream to `path`, which appears complete or not at all; a file that is there is replaced.

    Returns: The number of rows.

    Raises:
        StorageError: The file cannot be written, for example because the disk is full. `path` is as before.
    """
    import pyarrow.parquet as pq

    from delta_orch.storage.base import storage_error

    if not path.parent.is_dir():
        raise StorageError(
            f"Cannot write {path}",
            cause=f"There is no directory {path.parent}",
            remedy="Create it first",
            path=str(path),
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    num_rows = 0
    try:
        with temporary.open("xb") as sink, pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                num_rows += batch.num_rows
                show_progress(f"{num_rows:,} rows")
        temporary.replace(path)
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", str(path)) from e
    finally:
        temporary.unlink(missing_ok=True)
    return num_rows


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
        case datetime(), _:
            return value.isoformat()
        case ((bool() | int() | float() | str()), _):
            return value
    return str(value)


def _json_map(items: list[tuple[Cell, Cell]]) -> Cell:
    if all(isinstance(key, str) for key, _ in items):
        return dict(items)
    return [{"key": key, "value": value} for key, value in items]


def text_value(value: Cell, data_type: DataType) -> str:
    """A value in one line, cut off where it is long."""
    import orjson

    if value is None:
        return "null"
    plain = json_value(value, data_type)
    text = plain if isinstance(plain, str) else orjson.dumps(plain).decode()
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
