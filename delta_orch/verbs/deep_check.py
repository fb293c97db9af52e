"""`fsck(deep=True)`: every page of every data file is read, and held against the statistics that the log has of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import StatisticsPolicy
from delta_orch.engines.footer_statistics import StatisticsColumn, statistics_columns
from delta_orch.engines.read_errors import reading
from delta_orch.engines.select import local_engine
from delta_orch.errors import CorruptDataError, DeltaError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.log_check import Problem, problem_of
from delta_orch.log.read.skipping.file_statistics import ColumnBounds, bound_type, read_bounds
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.schema import without_char
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import map_ahead
from delta_orch.table.column_mapping import physical_path

_BATCH_ROWS = 64 * 1024
_PREFIX_CHARS = 32
_WRONG_STATISTICS = (
    "Queries may leave the file out, and its rows with it. Rewrite the file: update one of its rows, or overwrite "
    "its partition with its own rows."
)


def check_rows(snapshot: Snapshot) -> Iterator[Problem]:
    """Read every data file: the footer, each page with its checksum where it has one, and the rows as a scan reads
    them. Of each column with statistics no row may lie outside of them.

    Raises:
        StorageError: The store does not answer.
    """
    in_files = StructType(tuple(f for f in snapshot.schema if f.name not in snapshot.partition_columns))
    columns = statistics_columns(in_files, StatisticsPolicy(-1))
    columns = tuple(column for column in columns if bound_type(column.data_type) is not None)
    files = snapshot.files((*SCAN_COLUMNS, "stats"))

    def check(row: int) -> list[Problem]:
        file = files.slice(row, 1)
        path = FileTable(file).path[0].as_py()
        try:
            num_rows = _read_pages(snapshot, path)
            return list(_check_statistics(snapshot, file.combine_chunks(), columns, num_rows))
        except DeltaError as e:
            found = problem_of(e, "error")
            return [Problem("error", found.code, found.message, path)]

    yield from chain.from_iterable(map_ahead(check, range(files.num_rows)))


def _read_pages(snapshot: Snapshot, path: str) -> int:
    """How many rows a file holds. Everything in it was decoded."""
    store = snapshot.store
    location = store.resolve(path)
    store.ensure_regular([location])
    with reading(location), store.data_filesystem()[0].open_input_file(location) as source:
        footer = read_footer(source)
        footer.ensure_sound_chunks()
        file = pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True)
        num_rows = sum(batch.num_rows for batch in file.iter_batches(_BATCH_ROWS)) if footer.metadata.num_columns else 0
        if footer.metadata.num_columns and num_rows != footer.metadata.num_rows:
            raise pa.ArrowInvalid(f"It holds {num_rows} rows, its footer says {footer.metadata.num_rows}")
        return int(footer.metadata.num_rows)


def _check_statistics(
    snapshot: Snapshot, file: pa.Table, columns: tuple[StatisticsColumn, ...], num_rows: int
) -> Iterator[Problem]:
    path, text = FileTable(file).path[0].as_py(), FileTable(file).stats[0].as_py()
    if text is None:
        return
    recorded = _number_of_records(text)
    if recorded is not None and recorded != num_rows:
        yield _wrong(path, f"The data file {path} has {num_rows} rows. Its statistics say {recorded}.")
    physical = {column.path: physical_path(snapshot.schema, column.path) for column in columns}
    bounds = read_bounds(FileTable(file).stats, {physical[column.path]: column.data_type for column in columns})
    told: set[tuple[str, ...]] = set()
    plan = scan_of_files(snapshot, file.select(SCAN_COLUMNS))
    # Statistics are of texts as they are stored.
    plan = replace(plan, schema=without_char(plan.schema))
    for batch in local_engine().scan(plan).to_reader():
        for column in columns:
            if column.path in told:
                continue
            what = _outside(_leaf(batch, column.path), bounds[physical[column.path]])
            if what is not None:
                told.add(column.path)
                name = ".".join(column.path)
                yield _wrong(path, f"The data file {path} has {what} in {name}. Its statistics say otherwise.")


def _number_of_records(text: str) -> int | None:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    found = parsed.get("numRecords") if isinstance(parsed, dict) else None
    return found if isinstance(found, int) else None


def _leaf(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column = batch.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _outside(values: pa.Array, bounds: ColumnBounds) -> str | None:
    """What of the values the statistics of their file rule out."""
    if values.null_count and not bounds.may_be_null[0].as_py():
        return "a null"
    found = pc.drop_null(values)
    if len(found) and not bounds.may_be_value[0].as_py():
        return "a value that is not null"
    if pa.types.is_floating(found.type):
        found = pc.filter(found, pc.invert(pc.is_nan(found)))
    if not len(found):
        return None
    extremes: Any = pc.min_max(found)
    lower, upper = bounds.lower[0].as_py(), bounds.upper[0].as_py()
    least, greatest = (
        _as_bound(extremes[name].as_py(), lower if lower is not None else upper) for name in ("min", "max")
    )
    if isinstance(upper, str) and len(upper) >= _PREFIX_CHARS:
        greatest = greatest[: len(upper)]
    if lower is not None and least < lower:
        return f"{least!r:.100}"
    return f"{greatest!r:.100}" if upper is not None and greatest > upper else None


def _as_bound(value: Any, bound: Any) -> Any:
    return float(value) if isinstance(bound, float) else value


def _wrong(path: str, what: str) -> Problem:
    return Problem("error", CorruptDataError.code, f"{what} {_WRONG_STATISTICS}", path)
