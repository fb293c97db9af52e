"""Reads JSON and CSV files. DuckDB parses the files and returns each value as text. Then the texts are converted to
types."""

from __future__ import annotations

import csv
import json
import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.source_files import Numbers, SourceFiles, ensure_known_options, together
from delta_orch.arrival.text_values import EXACT_DIGITS, TextValues, as_rescued, exact_numbers
from delta_orch.engines.file_lookup import NamePositions
from delta_orch.engines.local.duckdb_session import connect
from delta_orch.engines.local.spool import MEMORY_BYTES
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.to_sql import quote_duckdb_string
from delta_orch.protocol.types import DOUBLE, FLOAT, StructType

_VALUE_OPTIONS = ("date_format", "timestamp_format")
JSON_OPTIONS = ("layout", "maximum_object_size", *_VALUE_OPTIONS)
CSV_OPTIONS = (
    "delimiter", "quote", "escape", "comment", "header", "column_names", "skip", "null_text", "max_line_size",
    "decimal_separator", *_VALUE_OPTIONS,
)  # fmt: skip
_BATCH_ROWS = 16_384
_SMALL_BYTES = 64 << 10
_PIECE_BYTES = 8 << 20
NO_OBJECT = "It holds a value that is not an object"


class SourceRows(NamedTuple):
    """Rows of some files.

    Attributes:
        columns: The columns of the target, in any Arrow type that fits their values.
        misfit: The other values of each row, as a JSON object with the file's names. Null if there are none.
        numbers: The file of each row, in the order of the file's rows.
    """

    columns: list[pa.Array]
    misfit: pa.Array
    numbers: npt.NDArray[np.int64]


class TextColumn(NamedTuple):
    """SQL for a column: its value, whether the conversion loses nothing, and the original text."""

    value: str
    fits: str
    text: str


@dataclass(frozen=True)
class JsonRows:
    """The rows of JSON files: one object per line, several objects in sequence, or an array of objects."""

    files: SourceFiles

    @cached_property
    def _options(self) -> dict[str, object]:
        return ensure_known_options(self.files.source, JSON_OPTIONS)

    @cached_property
    def values(self) -> TextValues:
        return TextValues(**{name: str(value) for name, value in self._options.items() if name in _VALUE_OPTIONS})

    def objects(self, paths: Sequence[str]) -> str:
        """Return SQL for `o`, an object as text, and `f`, the position of its file among the paths."""
        layout = self._options.get("layout", "auto")
        if layout not in ("auto", "newline_delimited", "array", "unstructured"):
            raise InvalidRequestError(
                f"layout={layout!r} is not a layout of JSON files",
                remedy="Use 'auto', 'newline_delimited', 'array' or 'unstructured'",
            )
        size = int(str(self._options.get("maximum_object_size", 16 << 20)))
        return (
            f"SELECT json AS o, file_index AS f FROM read_json_objects({_texts(paths)}, format = '{layout}', "
            f"maximum_object_size = {size}, compression = 'none')"
        )

    def rows(self, numbers: Numbers, target: StructType) -> Iterator[SourceRows]:
        """Raises UnreadableFileError, at the latest while rows are read."""
        with self.files.local_texts(numbers) as paths:
            yield from _rows(self.objects(paths), partial(self._sql, target), numbers, paths, self.files)

    def _sql(self, target: StructType, objects: str) -> str:
        pointers = _texts(f"/{f.name.replace('~', '~0').replace('/', '~1')}" for f in target)
        lower = _texts(f.name.lower() for f in target)
        folded = "list_transform(json_keys(t), lambda k: lower(k))"
        inside = "json_extract(t, '$.*')"
        # Fields that no column holds: unknown or repeated fields. A null counts as missing.
        is_used = f"list_contains({lower}, lower(k)) AND list_position({folded}, lower(k)) = i"
        item = f"{inside}[i]"
        extra = (
            f"CASE WHEN NOT ({is_used}) AND json_type({item}) <> 'NULL' "
            f"THEN to_json(k) || ':' || {as_rescued(f'CAST({item} AS VARCHAR)')} END"
        )
        columns = []
        for place, field in enumerate(target, 1):
            value, fits = self.values.of_json(f"p[{place}]", field.data_type)
            columns.append(TextColumn(value, fits, as_rescued(f"CAST(p[{place}] AS VARCHAR)")))
        query = f"SELECT *, json_keys(o) AS ks, CAST(json_extract(o, {pointers}) AS JSON[]) AS p FROM {objects}"
        query = f"SELECT *, len(ks) = len(list_filter(p, lambda v: v IS NOT NULL)) AS is_plain FROM ({query})"
        needs_digits = f"regexp_matches(o, '{EXACT_DIGITS}') AND (NOT is_plain OR {_may_lose_digits(target)})"
        text = f"CASE WHEN {needs_digits} THEN {exact_numbers('o')} WHEN NOT is_plain THEN o END"
        other = f"CASE WHEN json_type(o) <> 'OBJECT' THEN '{NO_OBJECT}' END"
        query = f"SELECT * EXCLUDE (o), CAST({text} AS JSON) AS t, {other} AS other FROM ({query})"
        by_name = f"list_transform({lower}, lambda n: {inside}[list_position({folded}, n)])"
        extras = f"array_to_string(list_filter(list_transform(ks, lambda k, i: {extra}), lambda x: x IS NOT NULL), ',')"
        query = (
            f"SELECT f, other, CASE WHEN t IS NULL THEN p ELSE {by_name} END AS p, "
            f"CASE WHEN NOT is_plain THEN {extras} END AS extras FROM ({query})"
        )
        return _select(columns, target, f"({query})", "nullif(extras, '')", other="other")


def _may_lose_digits(target: StructType) -> str:
    """Return SQL for whether a number with a point occurs in or below a column that is not a double."""
    conditions = []
    for place, field in enumerate(target, 1):
        kind, text = f"json_type(p[{place}])", f"CAST(p[{place}] AS VARCHAR)"
        inside = f"({kind} IN ('OBJECT', 'ARRAY') AND regexp_matches({text}, '[0-9][.eE]'))"
        own = "false" if field.data_type in (DOUBLE, FLOAT) else f"{kind} = 'DOUBLE'"
        conditions.append(f"coalesce({own} OR {inside}, false)")
    return f"({' OR '.join(conditions)})"


@dataclass(frozen=True)
class CsvRows:
    """The rows of CSV files. The first line of each file names its columns."""

    files: SourceFiles

    @cached_property
    def _options(self) -> dict[str, object]:
        options = ensure_known_options(self.files.source, CSV_OPTIONS)
        for name, default in (("delimiter", ","), ("quote", '"'), ("comment", ""), ("decimal_separator", ".")):
            value = options.setdefault(name, default)
            if not isinstance(value, str) or (
                len(value) != 1 and (value or name in ("delimiter", "decimal_separator"))
            ):
                raise InvalidRequestError(f"The option {name}={value!r} of CSV must be one character")
        options.setdefault("escape", options["quote"])
        return options

    @cached_property
    def values(self) -> TextValues:
        names = (*_VALUE_OPTIONS, "decimal_separator")
        return TextValues(**{name: str(value) for name, value in self._options.items() if name in names})

    def by_header(
        self, numbers: Numbers, paths: Sequence[str], target: StructType | None
    ) -> dict[tuple[str, ...], list[int]]:
        """Group the positions of files with the same columns. Empty files are skipped.

        Raises UnreadableFileError if two columns of a file have the same name, or if the first line is not valid CSV.
        """
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, (number, path) in enumerate(zip(numbers, paths, strict=True)):
            try:
                names = self._first_line(number, path)
            except (OSError, UnicodeError) as e:
                raise self.files.failure(e, [number]) from e
            if not names:
                continue
            if not self._options.get("header", True):
                own = self._options.get("column_names") or (target and target.names)
                names = list(own) if isinstance(own, list | tuple) else [f"column{i}" for i in range(len(names))]
            if len({name.lower() for name in names}) < len(names):
                raise self.files.unreadable(number, f"Two columns have one name: {', '.join(names)}")
            found[tuple(names)].append(place)
        return found

    def _first_line(self, number: int, path: str) -> list[str]:
        quote, escape = str(self._options["quote"]), str(self._options["escape"])
        comment = str(self._options["comment"])
        with open(path, encoding="utf-8-sig", newline="") as file:  # noqa: PTH123 - once a file
            for _ in range(int(str(self._options.get("skip", 0)))):
                file.readline()
            lines = (line for line in file if not line.startswith(comment)) if comment else file
            reader = csv.reader(
                lines, delimiter=str(self._options["delimiter"]), quotechar=quote or None, strict=True,
                doublequote=escape == quote, escapechar=escape if escape != quote and escape else None,
                quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            )  # fmt: skip
            try:
                first = next(reader, [])
                if not first and any(reader):
                    raise self.files.unreadable(number, "Its first line, which names the columns, is empty")
            except csv.Error as e:
                raise self.files.unreadable(number, f"Its first line is not one of CSV: {e}") from e
        return first

    def cells(self, names: Sequence[str], paths: Sequence[str]) -> str:
        """Return SQL for `c0`, `c1`, …, the texts of the columns, and `f`, the position of the row's file among the
        paths."""
        options = self._options
        columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
        texts = {"delim": "delimiter", "quote": "quote", "escape": "escape", "comment": "comment"}
        dialect = "".join(f", {name} = {quote_duckdb_string(str(options[ours]))}" for name, ours in texts.items())
        numbers = {name: int(str(options[name])) for name in ("skip", "max_line_size") if name in options}
        dialect += "".join(f", {name} = {value}" for name, value in numbers.items())
        dialect += f", nullstr = {quote_duckdb_string(str(options.get('null_text', '')))}"
        return (
            f"SELECT *, file_index AS f FROM read_csv({_texts(paths)}, auto_detect = false, "
            f"columns = {{{columns}}}{dialect}, header = {bool(options.get('header', True))}, "
            f"allow_quoted_nulls = false, null_padding = false, strict_mode = true, compression = 'none')"
        )

    def rows(self, numbers: Numbers, target: StructType) -> Iterator[SourceRows]:
        """Raises UnreadableFileError, at the latest while rows are read. SchemaMismatchError: A file has a column that
        the table does not have, and the source does not rescue it."""
        with self.files.local_texts(numbers) as paths:
            for names, places in self.by_header(numbers, paths, target).items():
                new = [name for name in names if target.find(name) is None]
                if new and self.files.source.schema_mode != "rescue":
                    raise new_field(", ".join(new), self.files, numbers[places[0]])
                own, own_numbers = [paths[place] for place in places], [numbers[place] for place in places]
                self._ensure_quotes_end(names, own_numbers, own)
                select = partial(self._sql, names, target)
                yield from _rows(self.cells(names, own), select, own_numbers, own, self.files)

    def _ensure_quotes_end(self, names: Sequence[str], numbers: Numbers, paths: Sequence[str]) -> None:
        """Raise UnreadableFileError for a file that ends inside quotes. DuckDB 2.0.1 drops such a row if it reads
        several files, and refuses it if it reads one."""
        quote, escape = (str(self._options[name]).encode() for name in ("quote", "escape"))
        for number, path in zip(numbers, paths, strict=True) if quote and len(paths) > 1 else ():
            if _may_end_in_quotes(path, quote, escape):
                with self.files.reading([number], [path]), closing(connect()) as connection:
                    for _ in connection.sql(self.cells(names, [path])).to_arrow_reader(_BATCH_ROWS):
                        pass

    def _sql(self, names: Sequence[str], target: StructType, cells: str) -> str:
        positions, columns = NamePositions(names), []
        for field in target:
            place = positions.find(field.name)
            text = "CAST(NULL AS VARCHAR)" if place is None else f"c{place}"
            value, fits = self.values.of_text(text, field.data_type)
            columns.append(TextColumn(value, fits, f"CAST(to_json({text}) AS VARCHAR)"))
        extras = [
            _entry(name, f"CAST(to_json(c{i}) AS VARCHAR)", f"c{i} IS NOT NULL")
            for i, name in enumerate(names)
            if target.find(name) is None
        ]
        return _select(columns, target, cells, *extras)


def _may_end_in_quotes(path: str, quote: bytes, escape: bytes) -> bool:
    """Whether a text has an odd number of quotes, without escaped ones."""
    if not Path(path).stat().st_size:
        return False
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if escape in (b"", quote):
            pieces = range(0, len(text), _PIECE_BYTES)
            return sum(text[start : start + _PIECE_BYTES].count(quote) for start in pieces) % 2 == 1
        # A long text is read again instead of being held in memory.
        is_long = len(text) > MEMORY_BYTES
        return is_long or text[:].replace(escape * 2, b"").replace(escape + quote, b"").count(quote) % 2 == 1


def _entry(name: str, text: str, condition: str) -> str:
    key = quote_duckdb_string(json.dumps(name, ensure_ascii=False) + ":")
    return f"CASE WHEN {condition} THEN {key} || {text} END"


def _select(columns: Sequence[TextColumn], target: StructType, rows: str, *extras: str, other: str = "NULL") -> str:
    """Return SQL for `SourceRows`, with positions of files among the paths.

    Args:
        extras: SQL for entries of an object. Null if there is no entry.
        other: SQL for the whole row, if it has no columns.
    """
    values = [f"{column.value} AS v{i}" for i, column in enumerate(columns)]
    entries = [
        _entry(f.name, c.text, f"NOT {c.fits}") for f, c in zip(target, columns, strict=True) if c.fits != "true"
    ]
    inside = f"concat_ws(',', NULL, {', '.join([*entries, *extras, 'NULL'])})"
    misfit = f"coalesce({other}, '{{' || nullif({inside}, '') || '}}')"
    return f"SELECT {', '.join(values)}, CAST({misfit} AS VARCHAR) AS misfit, CAST(f AS BIGINT) AS f FROM {rows}"


def _rows(
    texts: str, select: Callable[[str], str], numbers: Numbers, paths: Sequence[str], files: SourceFiles
) -> Iterator[SourceRows]:
    """Yield the rows that `select` makes from the rows of `texts`."""
    places = np.asarray(numbers, np.int64)
    with closing(connect()) as connection:

        def batches() -> Iterator[pa.RecordBatch]:
            with files.reading(numbers, paths):
                size = sum(map(os.path.getsize, paths))
                if len(paths) == 1 or size > MEMORY_BYTES:
                    yield from connection.sql(select(f"({texts})")).to_arrow_reader(_BATCH_ROWS)
                    return
                # Small files come one by one. The cost for a few rows is the same as for thousands, and several threads
                # are slower than one.
                connection.execute("SET threads = 1" if size < len(paths) * _SMALL_BYTES else "RESET threads")
                connection.register("texts", connection.sql(texts).to_arrow_table().combine_chunks())
                connection.execute("RESET threads")
                yield from connection.sql(select("texts")).to_arrow_table().to_batches()

        for batch in together(batches()):
            *columns, misfit, place = batch.columns
            file_numbers = places[place.to_numpy()]
            if (first := pc.index(pc.equal(misfit, NO_OBJECT), True).as_py()) >= 0:
                raise files.unreadable(int(file_numbers[first]), NO_OBJECT)
            yield SourceRows(columns, misfit, file_numbers)


def new_field(names: str, files: SourceFiles, number: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"The file {files.uris[number]} has the field {names}, but the table does not",
        remedy='Pass schema_mode="merge" to add columns, or "rescue" to keep the value in _rescued_data',
        column=names,
        path=files.paths[number],
    )


def _texts(values: Sequence[str] | Iterator[str]) -> str:
    return f"[{', '.join(map(quote_duckdb_string, values))}]"
