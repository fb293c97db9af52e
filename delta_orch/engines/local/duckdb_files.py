"""A scan as SQL: DuckDB reads the data files itself, at its own speed, where that gives exactly the same rows.

The log decides which files are read, their columns, names and types, and the deleted rows. Each footer is read first.
Files that DuckDB may read differently from Arrow (INT96 beside nanoseconds, dates of old calendars, variants, texts to
pad, names that differ only in case, stores other than the local disk, …) are left to Arrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import Candidates, ensure_field_ids
from delta_orch.engines.local.duckdb_columns import ColumnWriter, NotNativeError, Path, type_name
from delta_orch.engines.read_errors import reading
from delta_orch.engines.scan_plan import OutputColumn, ScanPlan
from delta_orch.errors import SchemaMismatchError, TableError
from delta_orch.expressions.to_sql import quote_duckdb_identifier, quote_duckdb_string
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import binary_array, int64_array, int64_range
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.schema import char_columns
from delta_orch.protocol.types import (
    DATE,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    StructField,
    StructType,
    fields_on,
    types_of,
)
from delta_orch.storage.base import ensure_regular_file
from delta_orch.storage.parquet_footer import ParquetFooter, read_footer
from delta_orch.storage.prefetch import map_ahead

if TYPE_CHECKING:
    from delta_orch.protocol.deletion_vector import DeletionVector

_PLAIN_TYPES = frozenset({"NONE", "UNKNOWN", "STRING", "INT", "DECIMAL", "DATE", "TIMESTAMP"})
_VIRTUAL_COLUMNS = frozenset({"file_index", "file_row_number", "filename"})
_PATTERN_CHARACTERS = frozenset("*?[]{}\\\0")
_TIMES = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
_MOST_ROWS = (1 << 31) - 1  # what DuckDB's `get_bit` can address
_MOST_KINDS = 16
_NUMBERS = count()
_FILES = "files"
_FACTS = "facts"


class NativeScan(NamedTuple):
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


class _Wanted(NamedTuple):
    """A column to select: its name, and its place in the table; see `ColumnWriter.column`."""

    name: str
    steps: tuple[StructField, ...]
    is_output: bool = True


class _Footer(NamedTuple):
    """A data file as its footer describes it.

    Attributes:
        kind: Counts the different ones of a scan.
        parts: Its rows as ranges of whole row groups, of no more than a million each where row groups allow that;
            none where no file of the scan has a deletion vector.
        never_null: See `ColumnWriter`.
    """

    path: str
    num_rows: int
    kind: int
    parts: tuple[range, ...]
    never_null: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The properties that files with the same schema share. `rebuilt` names structs, see `ColumnWriter`."""

    schema: pq.ParquetSchema
    stored_arrow: bytes | None
    arrow_schema: pa.Schema
    nanos_are_int96: bool
    rebuilt: set[Path] = field(default_factory=set)


def native_scan(plan: ScanPlan) -> NativeScan | None:
    """The plan as a query, its `where` left aside; None where Arrow must read the files.

    Opens every file of the plan to read its footer, and all deletion vectors.

    Raises:
        MissingFileError: A file does not exist.
        TableError: A file is not readable as Parquet, or a deletion vector not usable.
        StorageError: A file cannot be read.
    """
    selected = _wanted(plan)
    if not selected or not plan.files.num_rows or plan.made_columns or plan.arrow_filter is not None:
        return None
    if char_columns(StructType(tuple(w.steps[0] for w in selected))):
        return None
    paths = [plan.store.resolve(path) for path in FileTable(plan.files).path.to_pylist()]
    plan.ensure_each_once()
    is_local = isinstance(plan.store.data_filesystem()[0], pafs.LocalFileSystem)
    if not is_local or any(_PATTERN_CHARACTERS.intersection(path) or not path.startswith("/") for path in paths):
        return None
    try:
        return _Builder(plan, selected, paths).build()
    except (NotNativeError, SchemaMismatchError):
        # If a file does not fit the table, reading by Arrow raises the error with the file's name.
        return None


def _wanted(plan: ScanPlan) -> list[_Wanted]:
    output = plan.output or [OutputColumn(name, (name,)) for name in plan.read_schema.names]
    selected = []
    for number, column in enumerate(output):
        steps = tuple(fields_on(column.path, plan.schema))
        selected.append(_Wanted(steps[0].name if len(steps) == 1 else f"{number} {column.name}", steps))
    used = set() if plan.where is None else {column.path[0] for column in columns_of(plan.where)}
    used -= {w.steps[0].name for w in selected if len(w.steps) == 1}
    return [*selected, *(_Wanted(field.name, (field,), is_output=False) for field in plan.schema if field.name in used)]


class _Builder:
    def __init__(self, plan: ScanPlan, wanted: list[_Wanted], paths: list[str]) -> None:
        self._plan = plan
        self._paths = paths
        self._wanted = wanted
        self._stored = [w for w in wanted if w.steps[0].name not in plan.partition_columns]
        self._constants = _constants(plan, [w.name for w in wanted if w.steps[0].name in plan.partition_columns])
        self._has_vectors = plan.has_deletion_vectors
        self._has_times = any(t in _TIMES for w in wanted for t in types_of(w.steps[-1].data_type))
        self._kinds: list[_Kind] = []
        self._tables: dict[str, pa.Table] = {}
        self._statements: list[str] = []

    def build(self) -> NativeScan:
        if len({w.name.lower() for w in self._wanted}) < len(self._wanted):
            raise NotNativeError
        footers = list(map(self._footer, self._paths, map_ahead(_read_footer, self._paths)))
        vectors = self._vectors()
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

    def _vectors(self) -> Sequence[DeletionVector | None]:
        if not self._has_vectors:
            return [None] * len(self._paths)
        from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors

        return read_deletion_vectors(self._plan.store, deletion_vector_descriptors(self._plan.files))

    def _writer(self, kind: int, never_null: frozenset[Path] = frozenset()) -> ColumnWriter:
        return ColumnWriter(self._plan.column_mapping, self._kinds[kind].nanos_are_int96, never_null)

    def _footer(self, path: str, footer: ParquetFooter) -> _Footer:
        with reading(path):
            metadata = footer.metadata
            kind = self._kind_of(metadata)
            if metadata.num_rows > _MOST_ROWS or (self._has_times and footer.calendar is not None):
                raise NotNativeError
            structs = self._kinds[kind].rebuilt
            never_null = _never_null(footer, structs) if structs else frozenset()
            return _Footer(path, metadata.num_rows, kind, self._parts(metadata), never_null)

    def _parts(self, metadata: pq.FileMetaData) -> tuple[range, ...]:
        if not self._has_vectors:
            return ()
        return row_parts(metadata)

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
        candidates = Candidates(kind.arrow_schema)
        ensure_field_ids((w.steps[0] for w in self._stored), candidates, self._plan.column_mapping)
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
            where = _where(self._conditions_of_bounds(paths))
            return f"(SELECT {self._selected(texts)} FROM {self._read_parquet(paths)} AS {_FILES}{where})"
        columns = {"file": int64_range(0, len(files))}
        columns |= {column: pc.take(self._constants.column(name), int64_array(files)) for name, column in facts.items()}
        table = f"delta_orch_files_{next(_NUMBERS)}"
        if has_vectors:
            deleted = [deleted_rows(vectors[i], footers[i].num_rows) for i in files]
            branches = branches_of([footers[i].parts for i in files], deleted)
            if branches is not None:
                self._tables[table] = pa.table(columns)
                return self._branched(table, paths, texts, facts, branches)
            masks = (mask_of(rows, footers[i].num_rows) for i, rows in zip(files, deleted, strict=True))
            columns["deleted"] = binary_array(list(masks))
        self._tables[table] = pa.table(columns)
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
        where = (
            f" WHERE get_bit({_FACTS}.deleted, CAST({_FILES}.file_row_number AS INTEGER)) = 0" if has_vectors else ""
        )
        return f"({with_facts} SELECT {self._selected(texts)} FROM {source}{where})"

    def _branched(
        self, table: str, paths: list[str], texts: dict[str, str], facts: dict[str, str], branches: list[Branch]
    ) -> str:
        """Each file for itself, in parts if it is long: conditions on constants are applied while it is decoded."""
        for column in facts.values():
            self._set_list(f"{table}_{column}", f"SELECT {column} AS value, file AS number FROM {table}")
        masks = [branch.mask for branch in branches if branch.mask is not None]
        if masks:
            self._tables[f"{table}_masks"] = pa.table(
                {"number": int64_range(0, len(masks)), "mask": binary_array(masks)}
            )
        for first in range(0, len(masks), MASKS_TOGETHER):
            chosen = f"number BETWEEN {first} AND {first + MASKS_TOGETHER - 1}"
            rows = f"SELECT CAST(mask AS BIT) AS value, number FROM {table}_masks WHERE {chosen}"
            self._set_list(f"{table}_masks_{first}", rows)
        types = {w.name: w.steps[0].data_type for w in self._wanted if w.name in facts}
        parts, number = [], 0
        for branch in branches:
            constants = {
                name: f"CAST({_item(f'{table}_{column}', branch.file)} AS {type_name(types[name])})"
                for name, column in facts.items()
            }
            place = number % MASKS_TOGETHER
            mask = _item(f"{table}_masks_{number - place}", place)
            number += branch.mask is not None
            read = [paths[branch.file]]
            conditions = branch.conditions(f"{_FILES}.file_row_number", mask) or self._conditions_of_bounds(read)
            source = f"{self._read_parquet(read)} AS {_FILES}"
            parts.append(f"(SELECT {self._selected(texts | constants)} FROM {source}{_where(conditions)})")
        return " UNION ALL ".join(parts)

    def _set_list(self, variable: str, rows: str) -> None:
        """A variable that holds the `value` of rows in the order of `number`: one statement costs as much as a list."""
        self._statements.append(f"SET VARIABLE {variable} = (SELECT list(value ORDER BY number) FROM ({rows}))")

    def _read_parquet(self, paths: list[str]) -> str:
        options = ["hive_partitioning = false", "union_by_name = false"]
        if self._has_floats():
            # The bounds in a footer pass over NaN, which is greater than any number, as in Spark.
            options.append("can_have_nan = true")
        return f"read_parquet([{', '.join(map(quote_duckdb_string, paths))}], {', '.join(options)})"

    def _has_floats(self) -> bool:
        return any(
            column.physical_type in ("FLOAT", "DOUBLE") for kind in self._kinds for column in _leaves(kind.schema)
        )

    def _conditions_of_bounds(self, paths: list[str]) -> list[str]:
        """True of every row: of one file that is read without a condition, DuckDB takes the greatest value from the
        footer, and a bound that may pass over NaN for NaN."""
        return [f"{_FILES}.file_row_number >= 0"] if len(paths) == 1 and self._has_floats() else []


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _constants(plan: ScanPlan, names: list[str]) -> pa.Table:
    if not names:
        return pa.table({})
    from delta_orch.engines.local.scan import partition_constants

    return partition_constants(plan, names)


def _leaves(schema: pq.ParquetSchema) -> list[pq.ColumnSchema]:
    return [schema.column(index) for index in range(len(schema))]


def _item(variable: str, index: int) -> str:
    return f"getvariable('{variable}')[{index + 1}]"


def _read_footer(path: str) -> ParquetFooter:
    ensure_regular_file(path)
    with reading(path), pa.OSFile(path, "rb") as source:
        footer = read_footer(source)
        if not footer.may_expand:
            return footer
        from delta_orch.storage.expansion import ensure_bounded

        try:
            ensure_bounded(source, footer, range(footer.metadata.num_row_groups), path=path)
        except TableError:
            # Arrow's way decides by the columns that are read.
            raise NotNativeError from None
        return footer


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
    """Structs without null rows: one of their fields is never null."""
    metadata = footer.metadata
    leaves = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if any("." in name for struct in structs for name in struct) or len(set(leaves)) < len(leaves):
        return frozenset()
    below = {struct: footer.leaves_below([".".join(struct)]) for struct in structs}
    footer.ensure_sound_chunks({leaf for found in below.values() for leaf in found})
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]

    def has_no_null(leaf: int) -> bool:
        statistics = [group.column(leaf).statistics for group in groups]
        return all(s is not None and s.has_null_count and s.null_count == 0 for s in statistics)

    return frozenset(struct for struct, found in below.items() if any(map(has_no_null, found)))


# Deleted rows as conditions in DuckDB's SQL: which files of a scan are read how, and the masks for that.


_MOST_BRANCHES = 64
"""Files with deletion vectors, or parts of them, up to which each gets a query of its own: quicker by a tenth."""
_MASK_ROWS = 1 << 20
"""The rows of such a part. DuckDB copies a constant for every 2048 rows, so that masks must be short."""
MASKS_TOGETHER = 8
"""Masks in a list that one statement hands over. The list is copied for each of them."""
_MOST_RUNS = 8
Runs = list[tuple[int, int]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Branch:
    """A file with a deletion vector, or some of its row groups, as a query of its own.

    Attributes:
        file: Its place among the files.
        rows: The rows of the file that are read; None for all.
        runs: Deleted rows, from the first to the last.
        mask: All others that are deleted, see `mask_of`. Where `rows` is given, the row's number modulo `_MASK_ROWS`
            is its place: inside for rows of other branches, too, for which DuckDB may ask before it drops them.
    """

    file: int
    rows: range | None = None
    runs: Runs = field(default_factory=list)
    mask: bytes | None = None

    def conditions(self, row: str, mask: str) -> list[str]:
        """True of the rows that are read and not deleted, all of them. `row` is a row's number, `mask` the mask."""
        conditions = [f"{row} NOT BETWEEN {first} AND {last}" for first, last in self.runs]
        if self.rows is not None:
            conditions.append(f"{row} BETWEEN {self.rows[0]} AND {self.rows[-1]}")
            row = f"{row} & {_MASK_ROWS - 1}"
        return conditions if self.mask is None else [*conditions, f"get_bit({mask}, CAST({row} AS INTEGER)) = 0"]


def deleted_rows(vector: DeletionVector | None, num_rows: int) -> Rows:
    """The deleted rows of a file, ascending."""
    rows = np.zeros(0, dtype=np.uint64) if vector is None else vector.row_indexes(num_rows)
    return rows.astype(np.int64)


def _few_runs(rows: Rows) -> Runs | None:
    """Ascending rows as a few runs of neighbours, of each the first and the last; None if they are no few."""
    ends = np.flatnonzero(np.diff(rows) > 1)
    if len(ends) >= _MOST_RUNS:
        return None
    firsts, lasts = [0, *(ends + 1)], [*ends, len(rows) - 1]
    return [(int(rows[first]), int(rows[last])) for first, last in zip(firsts, lasts, strict=True)] if len(rows) else []


def row_parts(metadata: pq.FileMetaData) -> tuple[range, ...]:
    """The row groups of a file, neighbours together as long as they have no more rows than a mask should."""
    if metadata.num_rows <= _MASK_ROWS:
        return (range(metadata.num_rows),)
    parts = [range(0)]
    for group in range(metadata.num_row_groups):
        first, stop = parts[-1].start, parts[-1].stop + metadata.row_group(group).num_rows
        if stop - first > _MASK_ROWS and parts[-1]:
            first = parts[-1].stop
            parts.append(range(first, stop))
        else:
            parts[-1] = range(first, stop)
    return tuple(parts)


def branches_of(parts: Sequence[Sequence[range]], deleted: Sequence[Rows]) -> list[Branch] | None:
    """Files with a deletion vector as single queries; None where those were too many, or their masks too long.

    Args:
        parts: `row_parts` of each file.
        deleted: `deleted_rows` of each file.
    """
    if len(deleted) > _MOST_BRANCHES:
        return None
    branches: list[Branch] = []
    for file, (ranges, rows) in enumerate(zip(parts, deleted, strict=True)):
        runs = _few_runs(rows)
        if runs is not None:
            branches.append(Branch(file, runs=runs))
        elif len(branches) + len(ranges) > _MOST_BRANCHES or max(map(len, ranges)) > _MASK_ROWS:
            return None
        elif len(ranges) == 1:
            branches.append(Branch(file, mask=mask_of(rows, len(ranges[0]))))
        else:
            branches += [Branch(file, part, mask=_part_mask(rows, part)) for part in ranges]
    return branches if len(branches) <= _MOST_BRANCHES else None


def _part_mask(rows: Rows, part: range) -> bytes:
    inside = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.stop)]
    return mask_of(inside % _MASK_ROWS, _MASK_ROWS)


def mask_of(rows: Rows, num_rows: int) -> bytes:
    """One bit a row, the first one highest; set where the row is deleted."""
    flags = np.zeros(num_rows, dtype=np.bool_)
    flags[rows] = True
    return np.packbits(flags).tobytes() or b"\0"
