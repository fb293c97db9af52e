"""Reads files as rows of a table: in the table's types, each row with its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from delta_orch.arrival.file_source import FileSource
from delta_orch.arrival.reading import Reading

if TYPE_CHECKING:
    from delta_orch.engines.base import Engine
    from delta_orch.engines.spark.engine import SparkEngine

SET_ASIDE_SCHEMA = pa.schema([("path", pa.string()), ("error", pa.string())])


@dataclass
class FileRows:
    """The rows of some files.

    Attributes:
        schema: The columns of the table, or of the files if there is no table. Then `_rescued_data` and `source_file`,
            if the source requests them. With `schema_mode="merge"`, it includes new columns of the files.
        batches: The rows, as a RecordBatchReader or, on the Spark engine, as a Spark DataFrame. They can be read once.
    """

    schema: pa.Schema
    batches: Any
    _set_aside: list[tuple[str, str]] = field(default_factory=list)

    @property
    def set_aside(self) -> pa.Table:
        """Return the files that could not be read, with their errors, as `SET_ASIDE_SCHEMA`. None of their rows is in
        `batches`. The result is complete after all batches were read."""
        return pa.Table.from_pylist([{"path": p, "error": e} for p, e in self._set_aside], SET_ASIDE_SCHEMA)


def read_files(source: FileSource, files: pa.Table, schema: pa.Schema | None, *, engine: Engine) -> FileRows:
    """Read files of a source as rows, in the types of a table.

    Values keep every digit. A value that does not fit its column is refused or rescued (`FileSource.schema_mode`). A
    file yields all of its rows or none. With `on_error="quarantine"`, its rows are held until the last one was read.

    Args:
        files: Files from `FileSource.list_files`.
        schema: The columns of the table that come from files. None if the table is created from the files.

    Raises, at the latest while rows are read:
        SchemaMismatchError: A field is new, or a value does not fit its column. The error names the file and the row.
        UnreadableFileError: A file cannot be read, and `on_error` is `fail`.
        StorageError: The store failed, or a file has changed since it was listed.
        InvalidRequestError: The format has no such option, or no file defines the columns.
        MissingDependencyError, UnsupportedError: The format or the type of a column is not supported.
    """
    if engine.name == "spark":
        from delta_orch.arrival.spark_rows import spark_rows

        spark = spark_rows(Reading.of(source, files, schema), cast("SparkEngine", engine))
        return FileRows(spark.schema, spark.rows, spark.set_aside)
    reading = Reading.of(source, files, schema)
    rows = FileRows(reading.schema, None)
    rows.batches = pa.RecordBatchReader.from_batches(reading.schema, reading.batches(rows._set_aside))
    return rows
