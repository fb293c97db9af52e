"""A scan as SQL: DuckDB reads the data files itself, at its own speed, where that gives exactly the same rows.

The log still decides everything: which files, which of their columns, under which names and types, which rows are
deleted. Each footer is looked at first. What DuckDB is not known to read as Arrow does (INT96 beside nanoseconds, dates
of old calendars, variants, names that differ in case only, other stores than the local disk, …) is left to Arrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from delta_orch.engines.base import OutputColumn, ScanPlan
from delta_orch.engines.local.duckdb_columns import ColumnWriter, NotNativeError, Path, type_name
from delta_orch.engines.local.prefetch import map_ahead
from delta_orch.engines.local.scan import output_schema, partition_constants
from delta_orch.engines.output_columns import fields_on
from delta_orch.engines.read_errors import read_error
from delta_orch.errors import DeltaError
from delta_orch.expressions.to_sql import quote_duckdb_identifier, quote_duckdb_string
from delta_orch.expressions.tree import columns_of
from delta_orch.log.columns.arrow_building import binary_array, int64_array, int64_range
from delta_orch.log.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.types import (
    DATE,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.storage.parquet_footer import ParquetFooter, read_footer

_PLAIN_TYPES = frozenset({"NONE", "UNKNOWN", "STRING", "INT", "DECIMAL", "DATE", "TIMESTAMP"})
_VIRTUAL_COLUMNS = frozenset({"file_index", "file_row_number", "filename"})
_PATTERN_CHARACTERS = frozenset("*?[]{}\\\0")
_MOST_ROWS = (1 << 31) - 1  # what DuckDB's `get_bit` can address
_MOST_KINDS = 16
_MOST_BRANCHES = 64
"""Files with deletion vectors up to which each gets a query of its own, which is quicker by a tenth."""
_MOST_RUNS = 8
_NUMBERS = count()
_FILES = "files"
_FACTS = "facts"
Runs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NativeScan:
    """A query over data files.

    Attributes:
        sql: Gives the columns of `schema` in DuckDB's types of them, and the fields of structs that the plan returns.
        output: The names in it of what the plan returns, in order.
        tables: To be registered under these names before.
        statements: To be executed after that, before the query.
    """

    sql: str
    schema: StructType
    output: tuple[str, ...]
    tables: dict[str, pa.Table]
    statements: list[str]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column to select: under which name, and what it is in the table, see `ColumnWriter.column`."""

    name: str
    steps: tuple[StructField, ...]
    is_output: bool = True


@dataclass(frozen=True, slots=True)
class _Footer:
    """A data file as its footer describes it; `kind` counts the different ones of a scan."""

    path: str
    num_rows: int
    kind: int
    never_null: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class _Kind:
    """What files with the same schema have in common. `rebuilt` names structs, see `ColumnWriter`."""

    schema: pq.ParquetSchema
    stored_arrow: bytes | None
    arrow_schema: pa.Schema
    nanos_are_int96: bool
    rebuilt: set[Path] = field(default_factory=set)


def native_scan(plan: ScanPlan) -> NativeScan | None:
    """The plan as a query, its `where` left aside; None where Arrow must read the files.

    Opens every file of the plan to read its footer, and all deletion vectors.

    Raises:
        MissingFileError: A file is not there.
        TableError: A file is not readable as Parquet, or a deletion vector not usable.
        StorageError: A file cannot be read.
    """
    wanted = _wanted(plan)
    if not wanted or not plan.files.num_rows or plan.row_tracking is not None or plan.arrow_filter is not None:
        return None
    paths = [plan.store.resolve(path) for path in plan.files.column("path").to_pylist()]
    is_local = isinstance(plan.store.data_filesystem()[0], pafs.LocalFileSystem)
    if not is_local or any(_PATTERN_CHARACTERS.intersection(path) or not path.startswith("/") for path in paths):
        return None
    try:
        return _Builder(plan, wanted, paths).build()
    except NotNativeError:
        return None


def _wanted(plan: ScanPlan) -> list[_Wanted]:
    output = plan.output or [OutputColumn(name, (name,)) for name in output_schema(plan).names]
    wanted = []
    for number, column in enumerate(output):
        steps = tuple(fields_on(column.path, plan.schema))
        wanted.append(_Wanted(steps[0].name if len(steps) == 1 else f"{number} {column.name}", steps))
    used = set() if plan.where is None else {column.path[0] for column in columns_of(plan.where)}
    used -= {w.steps[0].name for w in wanted if len(w.steps) == 1}
    return [*wanted, *(_Wanted(field.name, (field,), is_output=False) for field in plan.schema if field.name in used)]


class _Builder:
    def __init__(self, plan: ScanPlan, wanted: list[_Wanted], paths: list[str]) -> None:
        self._plan = plan
        self._paths = paths
        self._wanted = wanted
        self._stored = [w for w in wanted if w.steps[0].name not in plan.partition_columns]
        self._constants = partition_constants(
            plan, [w.name for w in wanted if w.steps[0].name in plan.partition_columns]
        )
        self._has_times = any(_holds_times(w.steps[-1].data_type) for w in wanted)
        self._kinds: list[_Kind] = []
        self._tables: dict[str, pa.Table] = {}
        self._statements: list[str] = []

    def build(self) -> NativeScan:
        if len({w.name.lower() for w in self._wanted}) < len(self._wanted):
            raise NotNativeError
        footers = [self._footer(path, footer) for path, footer in map_ahead(_read_footer, self._paths)]
        vectors = read_deletion_vectors(self._plan.store, deletion_vector_descriptors(self._plan.files))
        groups: dict[tuple[int, frozenset[Path], bool], list[int]] = defaultdict(list)
        for index, (footer, vector) in enumerate(zip(footers, vectors, strict=True)):
            groups[footer.kind, footer.never_null, vector is not None].append(index)
        parts = [
            self._part(self._writer(kind, never_null), self._kinds[kind], files, footers, vectors)
            for (kind, never_null, _), files in groups.items()
        ]
        schema = StructType(tuple(w.steps[0] for w in self._wanted if len(w.steps) == 1))
        output = tuple(w.name for w in self._wanted if w.is_output)
        return NativeScan(" UNION ALL ".join(parts), schema, output, self._tables, self._statements)

    def _writer(self, kind: int, never_null: frozenset[Path] = frozenset()) -> ColumnWriter:
        return ColumnWriter(self._plan.column_mapping, self._kinds[kind].nanos_are_int96, never_null)

    def _footer(self, path: str, footer: ParquetFooter) -> _Footer:
        with _own_errors(path):
            metadata = footer.metadata
            kind = self._kind_of(metadata)
            if metadata.num_rows > _MOST_ROWS or (self._has_times and footer.calendar is not None):
                raise NotNativeError
            structs = self._kinds[kind].rebuilt
            never_null = _never_null(footer, structs) if structs else frozenset()
        return _Footer(path, metadata.num_rows, kind, never_null)

    def _kind_of(self, metadata: pq.FileMetaData) -> int:
        schema, stored_arrow = metadata.schema, (metadata.metadata or {}).get(b"ARROW:schema")
        for index, kind in enumerate(self._kinds):
            if kind.stored_arrow == stored_arrow and kind.schema.equals(schema):
                return index
        if len(self._kinds) == _MOST_KINDS:
            raise NotNativeError
        kind = _Kind(schema, stored_arrow, schema.to_arrow_schema(), _nanos_are_int96(metadata))
        self._kinds.append(kind)
        writer = self._writer(len(self._kinds) - 1)
        self._columns(writer, kind)
        kind.rebuilt.update(writer.rebuilt)
        return len(self._kinds) - 1

    def _columns(self, writer: ColumnWriter, kind: _Kind) -> list[str]:
        candidates = list(kind.arrow_schema)
        return [writer.column(w.steps, candidates, f"{_FILES}.") for w in self._stored]

    def _part(
        self,
        writer: ColumnWriter,
        kind: _Kind,
        files: list[int],
        footers: list[_Footer],
        vectors: Sequence[DeletionVector | None],
    ) -> str:
        """The rows of files of one kind, all of them with a deletion vector or all of them without."""
        has_vectors = vectors[files[0]] is not None
        texts = dict(zip((w.name for w in self._stored), self._columns(writer, kind), strict=True))
        facts = {name: f"c{index}" for index, name in enumerate(self._constants.column_names)}
        paths = [footers[i].path for i in files]
        if not facts and not has_vectors:
            return f"(SELECT {self._selected(texts)} FROM {self._read_parquet(paths)} AS {_FILES})"
        columns = {"file": int64_range(0, len(files))}
        columns |= {column: self._constants.column(name).take(int64_array(files)) for name, column in facts.items()}
        deleted = [_deleted_rows(vectors[i], footers[i].num_rows) for i in files]
        runs = [_few_runs(rows) if len(files) <= _MOST_BRANCHES else None for rows in deleted]
        if has_vectors:
            columns["deleted"] = binary_array(
                [
                    _mask(rows, footers[i].num_rows) if few is None else b"\0"
                    for i, rows, few in zip(files, deleted, runs, strict=True)
                ]
            )
        table = f"delta_orch_files_{next(_NUMBERS)}"
        self._tables[table] = pa.table(columns)
        if has_vectors and len(files) <= _MOST_BRANCHES:
            return " UNION ALL ".join(
                self._branch(table, n, path, texts, facts, runs[n]) for n, path in enumerate(paths)
            )
        return self._joined(table, paths, texts, facts, has_vectors=has_vectors)

    def _selected(self, texts: dict[str, str]) -> str:
        return ", ".join(f"{texts[w.name]} AS {quote_duckdb_identifier(w.name)}" for w in self._wanted)

    def _joined(
        self, table: str, paths: list[str], texts: dict[str, str], facts: dict[str, str], *, has_vectors: bool
    ) -> str:
        """Many files in one go; what holds for all rows of a file is joined to them."""
        texts = texts | {name: f"{_FACTS}.{column}" for name, column in facts.items()}
        columns = ["file", *facts.values(), *(["CAST(deleted AS BIT) AS deleted"] if has_vectors else [])]
        # Materialised: computed once, not for each row.
        with_facts = f"WITH {_FACTS} AS MATERIALIZED (SELECT {', '.join(columns)} FROM {table})"
        source = f"{self._read_parquet(paths)} AS {_FILES} JOIN {_FACTS} ON {_FILES}.file_index = {_FACTS}.file"
        where = f" WHERE {_is_live(f'{_FACTS}.deleted')}" if has_vectors else ""
        return f"({with_facts} SELECT {self._selected(texts)} FROM {source}{where})"

    def _branch(
        self, table: str, number: int, path: str, texts: dict[str, str], facts: dict[str, str], runs: Runs | None
    ) -> str:
        """One file with a deletion vector: a condition on constants is applied in the middle of decoding."""
        texts, values = dict(texts), {column: column for column in facts.values()}
        if runs is None:
            values["deleted"] = "CAST(deleted AS BIT)"
        for column, value in values.items():
            variable = _variable(table, number, column)
            self._statements.append(f"SET VARIABLE {variable} = (SELECT {value} FROM {table} WHERE file = {number})")
        for name, column in facts.items():
            data_type = type_name(next(w.steps[0].data_type for w in self._wanted if w.name == name))
            texts[name] = f"CAST(getvariable('{_variable(table, number, column)}') AS {data_type})"
        is_live = _is_live(f"getvariable('{_variable(table, number, 'deleted')}')")
        if runs is not None:
            is_live = " AND ".join(f"{_FILES}.file_row_number NOT BETWEEN {a} AND {b}" for a, b in runs) or "TRUE"
        return f"(SELECT {self._selected(texts)} FROM {self._read_parquet([path])} AS {_FILES} WHERE {is_live})"

    def _read_parquet(self, paths: list[str]) -> str:
        options = ["hive_partitioning = false", "union_by_name = false"]
        if any(column.physical_type in ("FLOAT", "DOUBLE") for kind in self._kinds for column in _leaves(kind.schema)):
            # The bounds in a footer pass over NaN, which is greater than any number, as in Spark.
            options.append("can_have_nan = true")
        return f"read_parquet([{', '.join(map(quote_duckdb_string, paths))}], {', '.join(options)})"


def _holds_times(data_type: DataType) -> bool:
    match data_type:
        case StructType(fields):
            return any(_holds_times(field.data_type) for field in fields)
        case ArrayType(element_type):
            return _holds_times(element_type)
        case MapType(key_type, value_type):
            return _holds_times(key_type) or _holds_times(value_type)
        case _:
            return data_type in (DATE, TIMESTAMP, TIMESTAMP_NTZ)


def _leaves(schema: pq.ParquetSchema) -> list[pq.ColumnSchema]:
    return [schema.column(index) for index in range(len(schema))]


def _variable(table: str, number: int, column: str) -> str:
    return f"{table}_{number}_{column}"


def _is_live(deleted: str) -> str:
    return f"get_bit({deleted}, CAST({_FILES}.file_row_number AS INTEGER)) = 0"


@contextmanager
def _own_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as e:
        if isinstance(e, DeltaError):
            raise
        raise read_error(e, path) from e


def _read_footer(path: str) -> ParquetFooter:
    with _own_errors(path), pa.OSFile(path, "rb") as source:
        return read_footer(source)


def _nanos_are_int96(metadata: pq.FileMetaData) -> bool:
    """Raises NotNativeError where the file holds what DuckDB reads in other types than Arrow, or cannot tell apart."""
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    names = [name.lower() for name in metadata.schema.to_arrow_schema().names]
    if len(set(names)) < len(names) or _VIRTUAL_COLUMNS.intersection(names):
        raise NotNativeError
    if any(column.logical_type.type not in _PLAIN_TYPES for column in columns) or b"geo" in (metadata.metadata or {}):
        raise NotNativeError
    has_nanos = any("nanoseconds" in str(column.logical_type) for column in columns)
    return not has_nanos and any(column.physical_type == "INT96" for column in columns)


def _never_null(footer: ParquetFooter, structs: set[Path]) -> frozenset[Path]:
    """Structs of which no row is null, as there is a field below them of which none is."""
    footer.ensure_sound_chunks()
    metadata = footer.metadata
    leaves = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if any("." in name for struct in structs for name in struct) or len(set(leaves)) < len(leaves):
        return frozenset()
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]

    def has_no_null(leaf: int) -> bool:
        statistics = [group.column(leaf).statistics for group in groups]
        return all(s is not None and s.has_null_count and s.null_count == 0 for s in statistics)

    return frozenset(
        struct
        for struct in structs
        if any(leaf.startswith(".".join(struct) + ".") and has_no_null(i) for i, leaf in enumerate(leaves))
    )


def _deleted_rows(vector: DeletionVector | None, num_rows: int) -> npt.NDArray[np.int64]:
    rows = np.zeros(0, dtype=np.uint64) if vector is None else vector.row_indexes(num_rows)
    return rows.astype(np.int64)


def _few_runs(rows: npt.NDArray[np.int64]) -> Runs | None:
    """Ascending rows as a few runs of neighbours, of each the first and the last; None if they are no few."""
    ends = np.flatnonzero(np.diff(rows) > 1)
    if len(ends) >= _MOST_RUNS:
        return None
    firsts, lasts = [0, *(ends + 1)], [*ends, len(rows) - 1]
    return [(int(rows[first]), int(rows[last])) for first, last in zip(firsts, lasts, strict=True)] if len(rows) else []


def _mask(rows: npt.NDArray[np.int64], num_rows: int) -> bytes:
    """One bit a row, the first one highest; set where the row is deleted."""
    flags = np.zeros(num_rows, dtype=np.bool_)
    flags[rows] = True
    return np.packbits(flags).tobytes() or b"\0"
