"""Reads files as rows on Spark. Each task reads some of the files like a single process, so both engines return the
same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_source import FileSource
from delta_orch.arrival.reading import Reading
from delta_orch.arrival.source_files import SourceFiles
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.errors import PACKAGE, spark_errors
from delta_orch.engines.spark.frames import BatchFunction, arrow_to_frame, map_in_arrow, spark_schema
from delta_orch.protocol.arrow_building import schema_from_arrow, string_array
from delta_orch.protocol.types import BINARY, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_FILES = 1_000
"""The maximal number of files of a task, which reads one after the other."""
_UNREADABLE = pa.schema([("path", pa.string()), ("error", pa.string())])
_FILES = StructType((StructField("files", BINARY),))


class SparkRows(NamedTuple):
    """The rows of files as a DataFrame. `set_aside` has the files that cannot be read, with their errors."""

    schema: pa.Schema
    rows: DataFrame
    set_aside: list[tuple[str, str]]


def spark_rows(reading: Reading, engine: SparkEngine) -> SparkRows:
    """Read files. See `read_files`. One task reads a file completely, however large it is.

    With `on_error="quarantine"`, a first job finds the files that cannot be read. A DataFrame may be evaluated several
    times, and must return the same rows each time.
    """
    source, files, session = reading.files.source, reading.files.files, engine.host.session
    set_aside: list[tuple[str, str]] = []
    if source.on_error == "quarantine":
        errors = _in_tasks(session, reading.files, _unreadable(source, reading.target), _UNREADABLE)
        with spark_errors("read the files", needs_package=PACKAGE):
            set_aside = [(row["path"], row["error"]) for row in errors.toArrow().sort_by("path").to_pylist()]
        broken = string_array([path for path, _ in set_aside])
        files = pc.filter(files, pc.invert(pc.is_in(files["path"], broken)))
    # A file that was readable in the first job must be readable again.
    readable = replace(source, on_error="fail")
    rows = _in_tasks(session, SourceFiles(readable, files), _rows(readable, reading.target), reading.schema)
    return SparkRows(reading.schema, rows, set_aside)


def _in_tasks(session: SparkSession, files: SourceFiles, read: BatchFunction, schema: pa.Schema) -> DataFrame:
    """Return the results of `read` for parts of the files, with one task for each part."""
    parts = [
        piece[first : first + _TASK_FILES]
        for piece in files.pieces(range(files.files.num_rows))
        for first in range(0, len(piece), _TASK_FILES)
    ]
    listings = pa.table({"files": pa.array([_stored(files.files.slice(p[0], len(p))) for p in parts], pa.binary())})
    tasks = arrow_to_frame(session, listings, _FILES).repartition(max(len(parts), 1))
    return map_in_arrow(tasks, read, spark_schema(schema_from_arrow(schema)))


def _stored(files: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as writer:
        writer.write_table(files)
    return bytes(sink.getvalue())


def _each(source: FileSource, target: StructType, read: Callable[[Reading], Iterator[pa.RecordBatch]]) -> BatchFunction:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for listing in batch.column(0).to_pylist():
                files = pa.ipc.open_stream(listing).read_all()
                yield from read(Reading(SourceFiles(source, files), target))

    return run


def _rows(source: FileSource, target: StructType) -> BatchFunction:
    return _each(source, target, lambda reading: reading.batches([]))


def _unreadable(source: FileSource, target: StructType) -> BatchFunction:
    def read(reading: Reading) -> Iterator[pa.RecordBatch]:
        set_aside: list[tuple[str, str]] = []
        for _ in reading.batches(set_aside):
            pass  # The batches are not needed, only the unreadable files.
        yield pa.RecordBatch.from_pylist([{"path": p, "error": e} for p, e in set_aside], _UNREADABLE)

    return _each(source, target, read)
