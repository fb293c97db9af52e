"""Files as rows of a table: in the table's types, each with the file that it came from."""

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
        schema: The columns: those of the table, or of the files where there is none, then `_rescued_data` and
            `source_file` if the source asks for them. With `schema_mode="merge"`, new columns of the files are in it.
        batches: The rows, once: a RecordBatchReader, or a Spark DataFrame on the Spark engine.
    """

    schema: pa.Schema
    batches: Any
    _set_aside: list[tuple[str, str]] = field(default_factory=list)

    @property
    def set_aside(self) -> pa.Table:
        """The files that could not be read, and why: columns of `SET_ASIDE_SCHEMA`. None of their rows is in `batches`.
        Complete once all batches were read."""
        return pa.Table.from_pylist([{"path": p, "error": e} for p, e in self._set_aside], SET_ASIDE_SCHEMA)


def read_files(source: FileSource, files: pa.Table, schema: pa.Schema | None, *, engine: Engine) -> FileRows:
    """The rows of files of a source, in the types of a table.

    Values keep every digit: what does not fit its column is refused, or rescued, see `FileSource.schema_mode`. A file
    gives all of its rows or none: with `on_error="quarantine"` its rows wait until the last of them was read.

    Args:
        files: Of `FileSource.list_files`.
        schema: The columns of the table that come from files; None for a table that is made of them.

    Raises, at the latest while rows are read:
        SchemaMismatchError: A field is new, or a value does not fit its column. It names the file and the row.
        UnreadableFileError: A file cannot be read, and `on_error` is `fail`.
        StorageError: The store failed, or a file has changed since it was listed.
        InvalidRequestError: The format has no such option, or no file says which columns there are.
        MissingDependencyError, UnsupportedError: Nothing here reads the format, or gives values of a column's type.
    """
    if engine.name == "spark":
        from delta_orch.arrival.spark_rows import spark_rows

        spark = spark_rows(Reading.of(source, files, schema), cast("SparkEngine", engine))
        return FileRows(spark.schema, spark.rows, spark.set_aside)
    reading = Reading.of(source, files, schema)
    rows = FileRows(reading.schema, None)
    rows.batches = pa.RecordBatchReader.from_batches(reading.schema, reading.batches(rows._set_aside))
    return rows
