"""Infers the columns of files, if neither a table nor a declaration defines them.

JSON values have types, so a text always stays a text. A column of CSV gets the first type that every cell fits: long,
double, boolean, date, timestamp, or text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.arrival.arrow_rows import ArrowRows
from delta_orch.arrival.source_files import Numbers, SourceFiles
from delta_orch.arrival.text_rows import NO_OBJECT, CsvRows, JsonRows
from delta_orch.engines.local.duckdb_session import connect
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.schema_check import is_lossless_cast
from delta_orch.protocol.type_text import declared_type
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

SAMPLE_FILES, SAMPLE_ROWS = 100, 100_000
_OF_TEXT: tuple[DataType, ...] = (LONG, DecimalType(38, 0), DOUBLE, BOOLEAN, DATE, TIMESTAMP_NTZ, TIMESTAMP)
_OF_NUMBERS = _OF_TEXT[:3]


def schema_of_files(files: SourceFiles, *, whole: bool) -> StructType:
    """Return the columns of the files, with the types that the source hints at. A file that cannot be read has no
    columns.

    Args:
        whole: Read all files and rows instead of a sample of `SAMPLE_FILES` files, evenly spread, and `SAMPLE_ROWS`
            rows.

    Raises:
        UnreadableFileError: A file cannot be read, and `on_error` is `fail`.
    """
    numbers: Numbers = range(len(files.paths))
    if not whole:
        numbers = numbers[:: max(len(numbers) // SAMPLE_FILES, 1)]
    numbers = [number for number in numbers if files.sizes[number] or files.source.format == "binary"]
    hints = hinted(files)
    file_schemas = _isolated(files, numbers, None if whole else SAMPLE_ROWS)
    merged = StructType(())
    for schema in file_schemas:
        merged = _united(merged, schema, files.source.format in ("json", "csv"))
    return StructType(tuple(hints.find(field.name) or field for field in merged))


def hinted(files: SourceFiles) -> StructType:
    """Return the columns that the source declares, all or some. Raises SchemaMismatchError if a type is invalid."""
    declared = files.source.schema
    if isinstance(declared, pa.Schema):
        return schema_from_arrow(declared)
    if declared is None:
        return StructType(())
    if not isinstance(declared, Mapping):
        raise InvalidRequestError(
            f"schema={declared!r} does not declare columns",
            remedy="Pass pyarrow.schema(…), or a dict of names and types such as {'id': 'decimal(20,0)'}",
        )
    return StructType(tuple(StructField(name, declared_type(kind, (name,))[0]) for name, kind in declared.items()))


def _isolated(files: SourceFiles, numbers: Numbers, most_rows: int | None) -> Iterator[StructType]:
    def read(together: Numbers) -> Iterator[StructType]:
        match files.source.format:
            case "json":
                yield _of_json(JsonRows(files), together, most_rows)
            case "csv":
                yield _of_csv(CsvRows(files), together, most_rows)
            case _:
                schemas = list(map(ArrowRows(files).schema, together))
                yield from map(schema_from_arrow, dict.fromkeys(schemas))

    for piece in files.pieces(numbers):
        if files.source.on_error == "fail":
            yield from read(piece)
        else:
            # The reader of the rows reports this file.
            yield from files.isolated(piece, read, lambda number, cause: None)


def _of_json(rows: JsonRows, numbers: Numbers, most_rows: int | None) -> StructType:
    with rows.files.local_texts(numbers) as paths, closing(connect()) as connection:
        objects = f"({rows.objects(paths)}{_limit(most_rows)})"
        with rows.files.reading(numbers, paths):
            other = "min(CASE WHEN json_type(o) <> 'OBJECT' THEN f END)"
            sql = f"SELECT json_group_structure(CAST(o AS JSON)), {other} FROM {objects}"
            ((structure, place),) = connection.sql(sql).fetchall()
            if place is not None:
                raise rows.files.unreadable(numbers[place], NO_OBJECT)
            known = json.loads(structure or "{}")
            numeric = [name for name, kind in known.items() if kind in ("UBIGINT", "BIGINT", "HUGEINT", "DOUBLE")]
            checks = []
            for name in numeric:
                pointer = name.replace("~", "~0").replace("/", "~1").replace("'", "''")
                checks += [rows.values.of_json(f"json_extract(o, '/{pointer}')", kind)[1] for kind in _OF_NUMBERS]
            types = _first_fits(connection, checks, objects, _OF_NUMBERS, numeric)
    fields: dict[str, StructField] = {}
    for name, kind in known.items():
        if kind != "NULL":
            fields.setdefault(name.lower(), StructField(name, types.get(name) or _json_type(kind)))
    return StructType(tuple(fields.values()))


def _of_csv(rows: CsvRows, numbers: Numbers, most_rows: int | None) -> StructType:
    merged = StructType(())
    with rows.files.local_texts(numbers) as paths, closing(connect()) as connection:
        for names, places in rows.by_header(numbers, paths, None).items():
            cells = f"({rows.cells(names, [paths[p] for p in places])}{_limit(most_rows)})"
            checks = [rows.values.of_text(f"c{i}", kind)[1] for i in range(len(names)) for kind in _OF_TEXT]
            with rows.files.reading([numbers[p] for p in places], [paths[p] for p in places]):
                counted = ", ".join(f"count(nullif(c{i}, ''))" for i in range(len(names)))
                (counts,) = connection.sql(f"SELECT {counted} FROM {cells}").fetchall()
                types = _first_fits(connection, checks, cells, _OF_TEXT, list(names))
            schema = StructType(
                tuple(StructField(n, types[n] if count else STRING) for n, count in zip(names, counts, strict=True))
            )
            merged = _united(merged, schema, True)
    return merged


def _first_fits(
    connection: Connection, checks: Sequence[str], rows: str, kinds: Sequence[DataType], names: Sequence[str]
) -> dict[str, DataType]:
    """Return for each column the first type that all its values fit."""
    if not checks:
        return {}
    (answers,) = connection.sql(f"SELECT {', '.join(f'bool_and({c})' for c in checks)} FROM {rows}").fetchall()
    column_types = {}
    for place, name in enumerate(names):
        own = answers[place * len(kinds) : (place + 1) * len(kinds)]
        column_types[name] = next((kind for kind, fits in zip(kinds, own, strict=True) if fits), STRING)
    return column_types


def _united(ours: StructType, theirs: StructType, is_text: bool) -> StructType:
    """Return the columns of both schemas, in order of appearance."""
    fields = {field.name.lower(): field for field in ours}
    for field in theirs:
        old_field = fields.setdefault(field.name.lower(), field)
        fields[field.name.lower()] = StructField(old_field.name, _wider(old_field.data_type, field.data_type, is_text))
    return StructType(tuple(fields.values()))


def _wider(ours: DataType, theirs: DataType, is_text: bool) -> DataType:
    """Return a type for the values of both types. It is text if no other type holds the values of both."""
    if isinstance(ours, StructType) and isinstance(theirs, StructType):
        return _united(ours, theirs, is_text)
    if isinstance(ours, ArrayType) and isinstance(theirs, ArrayType):
        return ArrayType(_wider(ours.element_type, theirs.element_type, is_text), True)
    if is_lossless_cast(theirs, ours):
        return ours
    if is_lossless_cast(ours, theirs):
        return theirs
    if ours in _OF_NUMBERS and theirs in _OF_NUMBERS:
        return max(ours, theirs, key=_OF_NUMBERS.index)
    return STRING if is_text else ours


def _json_type(kind: object) -> DataType:
    """Return a type from the name that `json_group_structure` uses. Values of several types are text."""
    if isinstance(kind, dict) and kind:
        fields: dict[str, StructField] = {}
        for name, inner in kind.items():
            fields.setdefault(name.lower(), StructField(name, _json_type(inner)))
        return StructType(tuple(fields.values()))
    if isinstance(kind, list):
        return ArrayType(_json_type(kind[0]), True)
    names = {"UBIGINT": LONG, "BIGINT": LONG, "HUGEINT": DecimalType(38, 0), "DOUBLE": DOUBLE, "BOOLEAN": BOOLEAN}
    return names.get(str(kind), STRING)


def _limit(most_rows: int | None) -> str:
    return "" if most_rows is None else f" LIMIT {most_rows}"
