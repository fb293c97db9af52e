"""Reads files with typed columns. Arrow reads Parquet, ORC, text and binary files, and Polars reads Avro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.arrival.source_files import Numbers, SourceFiles, ensure_known_options
from delta_orch.arrival.text_rows import SourceRows, new_field
from delta_orch.arrival.text_values import as_rescued
from delta_orch.engines.conform import conform_column, nulls_of
from delta_orch.engines.file_lookup import NamePositions
from delta_orch.engines.local.duckdb_query import BATCH, on_batches
from delta_orch.errors import MissingDependencyError, SchemaMismatchError
from delta_orch.expressions.to_sql import quote_duckdb_string
from delta_orch.protocol.arrow_building import field_to_arrow, schema_from_arrow
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import StructField, StructType

_CHUNK_BYTES = 8 << 20
_TEXT = pa.schema([("value", pa.string())])
_BINARY = pa.schema([("content", pa.binary())])
Contents = tuple[pa.Schema, Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class ArrowRows:
    """The rows of files with typed columns."""

    files: SourceFiles

    @cached_property
    def _is_whole(self) -> bool:
        """Whether a text file is one row instead of one row per line."""
        option_names = ("whole_file",) if self.files.source.format == "text" else ()
        return ensure_known_options(self.files.source, option_names).get("whole_file") is True

    def schema(self, number: int) -> pa.Schema:
        """Raises UnreadableFileError."""
        with self._opened(number) as (schema, _):
            return schema

    def rows(self, numbers: Numbers, target: StructType) -> Iterator[SourceRows]:
        """Raises UnreadableFileError, at the latest while rows are read. SchemaMismatchError: A file has a column that
        does not fit, and the source does not rescue it."""
        fitted: dict[pa.Schema, Callable[[pa.RecordBatch, int], SourceRows]] = {}
        for number in numbers:
            with self._opened(number) as (schema, batches):
                if schema not in fitted:
                    fitted[schema] = self._fitting(schema, target, number)
                while True:
                    with self.files.reading([number]):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield fitted[schema](batch, number)

    @contextmanager
    def _opened(self, number: int) -> Iterator[Contents]:
        kind = self.files.source.format
        with (self.files.open_text if kind == "text" else self.files.open)(number) as file:
            readers = {"parquet": _parquet, "avro": _avro, "orc": _orc, "text": self._lines, "binary": _bytes}
            with self.files.reading([number]):
                contents = readers[kind](file)
            yield contents

    def _lines(self, file: IO[bytes]) -> Contents:
        def batches() -> Iterator[pa.RecordBatch]:
            begun, is_first = b"", True
            size = () if self._is_whole else (_CHUNK_BYTES,)
            while chunk := file.read(*size):
                chunk = bytes(chunk)
                chunk, is_first = chunk.removeprefix(b"\xef\xbb\xbf") if is_first else chunk, False
                lines, newline, rest = (begun + chunk).rpartition(b"\n")
                if self._is_whole:
                    yield pa.record_batch([[chunk.decode()]], schema=_TEXT)
                    continue
                begun = rest
                if newline:
                    yield _split(lines)
            if begun:
                yield _split(begun)

        return _TEXT, batches()

    def _fitting(
        self, schema: pa.Schema, target: StructType, number: int
    ) -> Callable[[pa.RecordBatch, int], SourceRows]:
        """Get the function that turns batches of a file's schema into rows of the target.

        A column fits if its type fits, so that every value is a value of the table's column.
        """
        rescues = self.files.source.schema_mode == "rescue"
        names, places, misfits = NamePositions(schema.names), [], set(range(len(schema)))
        for field in target:
            place = names.find(field.name)
            problem = None if place is None else _problem(schema.field(place), field)
            if problem is None:
                places.append(place)
                misfits.discard(-1 if place is None else place)
                continue
            if not rescues:
                raise SchemaMismatchError(
                    f"The file {self.files.uris[number]} does not have the table's schema",
                    cause=problem,
                    remedy='Cast the column of the table or of the file, or pass schema_mode="rescue"',
                    column=field.name,
                    path=self.files.paths[number],
                )
            places.append(None)
        new = [schema.names[place] for place in sorted(misfits)]
        if new and not rescues:
            raise new_field(", ".join(new), self.files, number)
        kept = on_batches(_rescued_sql(new), "A value cannot be rescued") if new else None
        chosen = sorted(misfits)

        def fitted(batch: pa.RecordBatch, own: int) -> SourceRows:
            columns = []
            for field, place in zip(target, places, strict=True):
                kind = field_to_arrow(field).type
                if place is None:
                    columns.append(nulls_of(batch.num_rows, kind))
                else:
                    columns.append(conform_column(batch.column(place), kind, lossless=True, path=field.name))
            misfit = pa.nulls(batch.num_rows, pa.string())
            if kept is not None:
                parts = pa.RecordBatch.from_arrays(
                    [batch.column(i) for i in chosen], [f"c{i}" for i in range(len(new))]
                )
                misfit = kept(parts).column(0).combine_chunks()
            return SourceRows(columns, misfit, np.full(batch.num_rows, own, np.int64))

        return fitted


def _problem(field: pa.Field, wanted: StructField) -> str | None:
    """Return why a file's column does not fit the table's column. None if it fits."""
    try:
        source = schema_from_arrow(pa.schema([field.with_nullable(True)]))
        ensure_schema_fits(source, StructType((wanted,)), fill_nulls=True)
    except SchemaMismatchError as e:
        return e.cause or e.problem
    return None


def _rescued_sql(names: list[str]) -> str:
    keys = [quote_duckdb_string(json.dumps(name, ensure_ascii=False) + ":") for name in names]
    parts = [
        f"CASE WHEN c{i} IS NOT NULL THEN {key} || {as_rescued(f'CAST(to_json(c{i}) AS VARCHAR)')} END"
        for i, key in enumerate(keys)
    ]
    return f"SELECT '{{' || nullif(concat_ws(',', {', '.join(parts)}), '') || '}}' AS misfit FROM {BATCH}"


def _parquet(file: pa.NativeFile) -> Contents:
    parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    return parquet.schema_arrow.remove_metadata(), parquet.iter_batches()


def _orc(file: pa.NativeFile) -> Contents:
    from pyarrow import orc

    stripes = orc.ORCFile(file)
    return stripes.schema, (stripes.read_stripe(i) for i in range(stripes.nstripes))


def _avro(file: pa.NativeFile) -> Contents:
    """Read the whole file into memory.

    Raises:
        MissingDependencyError: Polars is not installed.
        ArrowInvalid: The file is damaged, or has a type that Polars does not read, such as a map.
    """
    try:
        import polars
    except ImportError as e:
        remedy = 'Run pip install "delta-orch[avro]"'
        raise MissingDependencyError(
            "Reading Avro needs Polars, which is not installed", cause=str(e), remedy=remedy
        ) from e
    data = file.read()
    try:
        rows = polars.read_avro(io.BytesIO(data)).to_arrow()
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as e:
        raise pa.ArrowInvalid(str(e)) from e
    # Each block ends with the last bytes of the file's header. Polars does not notice if they are missing.
    if rows.num_rows and data.find(data[-16:]) == len(data) - 16:
        raise pa.ArrowInvalid("The file is cut off: it does not end with its sync marker")
    return rows.schema, iter(rows.to_batches())


def _bytes(file: pa.NativeFile) -> Contents:
    return _BINARY, iter([pa.record_batch([[file.read()]], schema=_BINARY)])


def _split(lines: bytes) -> pa.RecordBatch:
    """Return one row per line. A line may end with `\\r\\n`."""
    texts = pc.list_flatten(pc.split_pattern(pa.array([lines.decode()], pa.large_string()), "\n"))
    return pa.record_batch([pc.cast(pc.replace_substring_regex(texts, "\r$", ""), pa.string())], schema=_TEXT)
