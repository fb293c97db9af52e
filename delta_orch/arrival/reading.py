"""Turns files into rows of a table: in its types, each row with its file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.arrow_rows import ArrowRows
from delta_orch.arrival.file_source import SOURCE_FILE, FileSource
from delta_orch.arrival.inferred_schema import hinted, schema_of_files
from delta_orch.arrival.source_files import Numbers, SourceFiles, together
from delta_orch.arrival.text_rows import CsvRows, JsonRows, SourceRows
from delta_orch.engines.batch_bytes import cut_by_bytes
from delta_orch.engines.conform import conform_column
from delta_orch.engines.file_schema import as_nullable
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.spool import spooled
from delta_orch.errors import InvalidRequestError, SchemaMismatchError, UnsupportedError
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.types import (
    LONG,
    STRING,
    TIMESTAMP,
    ArrayType,
    DataType,
    StructField,
    StructType,
    holds_variant,
)
from delta_orch.table.schema_evolution import merge_schemas

if TYPE_CHECKING:
    pass

RESCUED_DATA = "_rescued_data"
"""The text column of `schema_mode="rescue"`: a JSON object with the values that did not fit the row's columns."""
SOURCE_FILE_TYPE = StructType(
    (
        StructField("path", STRING),
        StructField("modification_time", TIMESTAMP),
        StructField("size", LONG),
        StructField("row_number", LONG),
    )
)


@dataclass(frozen=True)
class Reading:
    """Reads files as rows.

    Attributes:
        target: The columns that files fill.
    """

    files: SourceFiles
    target: StructType

    @classmethod
    def of(cls, source: FileSource, files: pa.Table, schema: pa.Schema | None) -> Reading:
        own = SourceFiles(source, files)
        return cls(own, _target(own, schema))

    @cached_property
    def schema(self) -> pa.Schema:
        source, fields = self.files.source, list(self.target)
        fields += [StructField(RESCUED_DATA, STRING)] if source.schema_mode == "rescue" else []
        fields += [StructField(SOURCE_FILE, SOURCE_FILE_TYPE)] if source.source_file else []
        return schema_to_arrow(StructType(tuple(fields)))

    def batches(self, set_aside: list[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
        """Return the rows, in the order of the files. Files that cannot be read are appended to `set_aside`."""
        files = self.files
        if files.source.on_error == "fail":
            for piece in files.pieces(self._with_rows):
                yield from together(self._rows(piece))
            return

        def put_aside(number: int, cause: str) -> None:
            set_aside.append((files.paths[number], cause))

        for piece in files.pieces(self._with_rows):
            yield from files.isolated(piece, self._complete, put_aside)

    @cached_property
    def _with_rows(self) -> Numbers:
        """Return all files. If an empty file has no rows in this format, empty files are skipped."""
        has_empty = self.files.source.format in ("json", "csv", "text")
        return [number for number, size in enumerate(self.files.sizes) if size or not has_empty]

    def _complete(self, numbers: Numbers) -> Iterator[pa.RecordBatch]:
        """Return the rows after the last one was read."""
        relation = LocalRelation(schema_from_arrow(self.schema), partial(self._rows, numbers))
        with spooled(relation) as rows:
            yield from together(rows.batches())

    def _rows(self, numbers: Numbers) -> Iterator[pa.RecordBatch]:
        kinds: dict[str, type[JsonRows | CsvRows]] = {"json": JsonRows, "csv": CsvRows}
        kind = kinds.get(self.files.source.format, ArrowRows)
        counter = RowNumbers()
        for rows in kind(self.files).rows(numbers, self.target):
            if not len(rows.numbers):
                continue
            row_numbers = counter.of(rows.numbers)
            columns = [
                conform_column(column, f.type, lossless=True, path=f.name)
                for f, column in zip(self.schema, rows.columns, strict=False)
            ]
            if self.files.source.schema_mode == "rescue":
                columns.append(conform_column(rows.misfit, pa.string(), lossless=True, path=RESCUED_DATA))
            elif rows.misfit.null_count < len(rows.misfit):
                raise self._misfit(rows, row_numbers)
            if self.files.source.source_file:
                columns.append(self._source_file(rows.numbers, row_numbers))
            yield from cut_by_bytes(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def _source_file(self, numbers: npt.NDArray[np.int64], row_numbers: npt.NDArray[np.int64]) -> pa.Array:
        places = pa.array(numbers)
        times = pc.cast(self._modification_times, pa.timestamp("us", "UTC"))
        parts = [self.files.uris, times, self.files.files["size"].combine_chunks()]
        arrays = [*(pc.take(part, places) for part in parts), pa.array(row_numbers)]
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema.field(SOURCE_FILE).type))

    @cached_property
    def _modification_times(self) -> pa.Array:
        return pc.cast(self.files.files["modification_time_ms"].combine_chunks(), pa.timestamp("ms", "UTC"))

    def _misfit(self, rows: SourceRows, row_numbers: npt.NDArray[np.int64]) -> SchemaMismatchError:
        place = pc.index(pc.is_valid(rows.misfit), True).as_py()
        number, row = int(rows.numbers[place]), int(row_numbers[place])
        misfits = orjson.loads(rows.misfit[place].as_py())
        problems = [text for name, value in misfits.items() for text in _problems(value, name, self.target)]
        return SchemaMismatchError(
            f"Row {row} of the file {self.files.uris[number]} does not fit the table",
            cause="; ".join(problems),
            remedy='Pass schema_mode="rescue", which keeps such values in _rescued_data; for a new field "merge"; or '
            "declare another type",
            path=self.files.paths[number],
            row_number=row,
            columns=list(misfits),
        )


class RowNumbers:
    """Return the number of each row in its file, from 1. Rows of a file are contiguous."""

    def __init__(self) -> None:
        self._last, self._count = -1, 0

    def of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        places = np.arange(len(numbers))
        is_first = np.diff(numbers, prepend=self._last) != 0
        begins = np.maximum.accumulate(np.where(is_first, places, 0))
        # Rows before the first change belong to the last file of the previous batch.
        goes_on = np.cumsum(is_first) == 0
        row_numbers = places - begins + 1 + np.where(goes_on, self._count, 0)
        self._last, self._count = int(numbers[-1]), int(row_numbers[-1])
        return row_numbers


def _target(files: SourceFiles, schema: pa.Schema | None) -> StructType:
    """The columns that files fill."""
    merges = files.source.schema_mode == "merge"
    if schema is None and isinstance(files.source.schema, pa.Schema):
        schema = schema_to_arrow(hinted(files))
    if schema is None:
        found, hints = schema_of_files(files, whole=merges), hinted(files)
        target = StructType((*found, *(hint for hint in hints if found.find(hint.name) is None)))
    else:
        target = schema_from_arrow(schema)
        if merges:
            found = schema_of_files(files, whole=True)
            target = merge_schemas(target, found, may_widen=False, may_cast=True) if found.fields else target
    own = {SOURCE_FILE} if files.source.source_file else set()
    own |= {RESCUED_DATA} if files.source.schema_mode == "rescue" else set()
    target = StructType(tuple(f for f in target if f.name.lower() not in own))
    if not target.fields:
        raise InvalidRequestError(
            "The columns of the table cannot be inferred from the files",
            cause="The files are empty",
            remedy="Pass schema=pyarrow.schema(…) to FileSource, or load files that have rows",
        )
    for column in target:
        if holds_variant(column.data_type):
            raise UnsupportedError(
                f"The column {column.name} is a variant, which cannot be loaded from files",
                remedy="Load the text into a string column, and parse it in a later step with parse_json",
            )
    # The write checks NOT NULL. Spark would trust a schema that declares it.
    return as_nullable(target)


def _problems(value: object, name: str, target: DataType, path: str = "") -> Iterator[str]:
    """Return the parts of a field that do not fit: new fields by their full path, or the value."""
    table_field = target.find(name) if isinstance(target, StructType) else None
    if table_field is None:
        yield f"the field {path}{name} is new"
        return
    inner, values, prefix = table_field.data_type, [value], f"{path}{name}."
    if isinstance(inner, ArrayType) and isinstance(value, list):
        inner, values, prefix = inner.element_type, value, f"{path}{name}.element."
    new = [
        text
        for item in values
        if isinstance(item, dict) and isinstance(inner, StructType)
        for field_name, part in item.items()
        if inner.find(field_name) is None or isinstance(part, dict | list)
        for text in _problems(part, field_name, inner, prefix)
        if text.endswith("is new")
    ]
    value_text = orjson.dumps(value).decode()[:60]
    yield from new[:1] or [f"the value {value_text} of {path}{name} is not exactly a {table_field.data_type}"]
