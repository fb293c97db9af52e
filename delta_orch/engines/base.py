"""The interface of an engine, the only part of delta_orch that reads or writes rows.

Verbs plan files and describe rows. An engine scans, runs SQL, writes Parquet and collects. There are two engines,
`local` (Arrow and DuckDB, in process) and `spark`. A verb does not depend on the kind of its engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.protocol.types import StructField, StructType
from delta_orch.table.column_mapping import ColumnMappingMode, physical_partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.row_sets import RowKey, RowSet
    from delta_orch.engines.space_curve import Curve
    from delta_orch.storage.base import LogStore


class Relation(Protocol):
    """Rows of one schema, lazily, in the form of their engine: a Spark DataFrame, or a `LocalRelation`.

    Every request of an engine takes relations of this engine, and most return one. A verb never uses the content of a
    relation directly. It passes the relation to the next request, and gets columns (`Engine.schema`), rows (`to_arrow`,
    `to_reader`) or files (`write`) from the engine.
    """

    @property
    def schema(self) -> Any:
        """The columns, in the engine's own types. `Engine.schema` returns them in Delta's types."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition that every written row must satisfy. False **and null** are violations.

    Attributes:
        name: The name in errors, such as `replace_where`, `NOT NULL constraint on id`, or the name of a CHECK.
        condition: The condition, resolved against the written schema.
    """

    name: str
    condition: Expression


@dataclass(frozen=True, slots=True)
class LengthCheck:
    """The declared length of texts (`varchar(5)`), which written texts must not exceed. Null passes.

    Attributes:
        path: The path from a column to the texts, through fields of structs, `element`, `key` and `value`, as the
            schema spells them.
        declared: The declaration for errors, `char(5)` or `varchar(5)`.
        max_characters: The maximal number of Unicode code points.
    """

    path: tuple[str, ...]
    declared: str
    max_characters: int

    @property
    def name(self) -> str:
        return f"declared length of column {'.'.join(self.path)}, {self.declared}"


@dataclass(frozen=True, slots=True)
class StatisticsPolicy:
    """The leaf columns for which statistics are collected (`delta.dataSkippingNumIndexedCols`, `…StatsColumns`).

    `num_indexed_columns` counts leaves in schema order, -1 for all. If `columns` is given, it names them instead.
    `also` names columns that always have statistics: clustering columns need them, and identity values are read from
    them. Paths are logical. `says_tight` records that the bounds are tight, if rows may be marked as deleted later.
    """

    num_indexed_columns: int = 32
    columns: tuple[tuple[str, ...], ...] | None = None
    also: tuple[tuple[str, ...], ...] = ()
    says_tight: bool = False


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column with a value for each row.

    In a `WriteSpec`, it is a column that the relation lacks, with its `name` in the schema. The `value` of a default
    uses no column. The `value` of a generated column uses the other columns of the table, as they will be written.
    """

    name: str
    value: Expression


def as_they_are(names: Iterable[str]) -> list[ComputedColumn]:
    """Return columns that are passed on unchanged."""
    return [ComputedColumn(name, Column((name,))) for name in names]


@dataclass(frozen=True, slots=True)
class IdentityValues:
    """Values for an identity column that the relation lacks. Each row gets a different value of `first`, `first +
    step`, ….

    Values may be skipped, because parallel tasks do not communicate, but no value is used twice.
    """

    name: str
    first: int
    step: int


DEFAULT_FILE_SIZE_BYTES = 128 * 1024 * 1024
"""The default if neither the caller nor `delta.targetFileSize` sets a size."""


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows become data files.

    Attributes:
        store: The table's store.
        schema: The table's schema, which sets the order and the types of the written rows. The engine matches columns
            by name without regard to case, and makes lossless casts. Values that could not fit were refused before. A
            column is null if the relation lacks it and no other attribute computes it.
        partition_columns: Logical names. Paths have `name=value/` directories.
        checks: Verified for each row while it is written. NOT NULL of the schema is always verified.
        lengths: Verified for each text while it is written.
        target_file_size_bytes: The intended size of files. None lets the engine choose.
        optimize_write: If the engine writes in parallel, bring the rows of a partition together first. False writes the
            rows in their order. This is faster, but can make one file for each task and partition.
        compression: Parquet codec, in the protocol's spelling (`zstd`, `snappy`, `uncompressed`, …).
        column_mapping: How data files name the columns. Files, statistics and partition values get the physical names
            (`table.column_mapping`), files also field ids. All other attributes use logical names.
        extra_columns: Columns of the relation that the table does not have (`_row-id-col-…`): written after all others
            under exactly their names, without statistics, checks or field ids.
        change_type: The value of a last column `_change_type` in the files, so that a `cdc` action may name them.
        directory: The directory of the files below the table's root, `_change_data` for files that hold only changes.
        keep_partition_columns: Files hold the partition columns too, after the others.
        random_prefix_length: The length of random directory names for the files. None writes directly into the table's
            directory.
        data_page_version: `1.0` or `2.0`.
        page_checksums: Whether pages have checksums. Spark writes them in any case.
        shred_variants: Variants may be written shredded.
        defaults: Columns that the relation lacks, with the value of every row.
        generated: Columns that the relation lacks, computed after all other columns.
        identities: Identity columns that the relation lacks.
        keeps_order: Whether the rows are ordered, so that each file gets neighbouring rows.
    """

    store: LogStore
    schema: StructType
    partition_columns: tuple[str, ...]
    checks: tuple[RowCheck, ...] = ()
    lengths: tuple[LengthCheck, ...] = ()
    statistics: StatisticsPolicy = field(default_factory=StatisticsPolicy)
    target_file_size_bytes: int | None = None
    compression: str = "zstd"
    optimize_write: bool = True
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE
    extra_columns: tuple[StructField, ...] = ()
    change_type: str | None = None
    directory: str = ""
    keep_partition_columns: bool = False
    random_prefix_length: int | None = None
    data_page_version: str = "1.0"
    page_checksums: bool = False
    shred_variants: bool = False
    defaults: tuple[ComputedColumn, ...] = ()
    generated: tuple[ComputedColumn, ...] = ()
    identities: tuple[IdentityValues, ...] = ()
    keeps_order: bool = False

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Return the partition columns with their names in `partition_values`."""
        if self.column_mapping is ColumnMappingMode.NONE:
            return self.partition_columns
        return physical_partitions(self.schema, self.partition_columns)

    @property
    def written_schema(self) -> StructType:
        """Return the columns of the written relation: the table's columns, then the extra columns."""
        return StructType((*self.schema, *self.extra_columns)) if self.extra_columns else self.schema


class JoinSide(NamedTuple):
    """One side of a join: its rows and their alias in the join's expressions.

    Attributes:
        num_rows: The approximate number of rows, or None. If it is known for both sides, an engine holds the smaller
            side in memory.
    """

    alias: str
    relation: Relation
    num_rows: int | None = None


JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]


class WindowColumn(NamedTuple):
    """A function of `window`, computed for a row from the rows of its group, in their order.

    Attributes:
        name: The column of the result.
        function: `row_number` counts from 1. `lag` is the value of the previous row, `lead` of the next row; null if
            there is no such row.
        value: None for `row_number`.
    """

    name: str
    function: Literal["row_number", "lag", "lead"]
    value: Expression | None = None


class Measure(NamedTuple):
    """A measure of `aggregate`, computed from the rows of a group.

    Attributes:
        name: The column of the result.
        function: With Spark's meaning and result type. `count` counts rows for which `value` is not null.
        value: None counts every row.
    """

    name: str
    function: Literal["count", "sum", "min", "max"]
    value: Expression | None = None


def join_schema(sides: Mapping[str, StructType]) -> StructType:
    """Return the schema for the expressions of a join, with a struct for each side under its alias."""
    return StructType(tuple(StructField(alias, schema) for alias, schema in sides.items()))


class Division(NamedTuple):
    """The rules that divide rows.

    Attributes:
        flags: Conditions over the rows that are never null, under names that the rows do not have.
        aside: Flags. A row with at least one true flag is set aside.
        left_out: Flags. A row with at least one true flag is omitted, unless it is set aside.
        most_shown: The maximal number of rows of `Divided.some`.
    """

    flags: Sequence[ComputedColumn]
    aside: Collection[str]
    left_out: Collection[str]
    most_shown: int


class DividedCounts(NamedTuple):
    """The number of all rows, of rows aside, of omitted rows, and of rows for which each flag is true."""

    num_rows: int
    num_aside: int
    num_left_out: int
    by_flag: Mapping[str, int]


class Divided(NamedTuple):
    """The result of `Engine.divided`.

    Attributes:
        kept: The rows that are neither aside nor left out. May be read once.
        counts: None until `kept` has been read to its end.
        some: Rows with a true flag, as an Arrow table, at most as many as requested.
        aside: The rows that were set aside, with the flags as boolean columns after their own.
    """

    kept: Relation
    counts: Callable[[], DividedCounts | None]
    some: Callable[[str], pa.Table]
    aside: Callable[[], Relation]


class Engine(Protocol):
    """The seam between verbs and rows.

    Requests have expressions as trees, resolved against the schema of their rows. An engine compiles a tree once: to
    Arrow or DuckDB, or to text for Spark. Only `Opaque` nodes hold text, from the user or from the table's metadata.

    Relations are lazy. A request raises UnsupportedExpressionError if the engine cannot evaluate an expression. Reading
    rows raises InvalidExpressionError if ANSI Spark would fail for a row (overflow, division by zero).
    """

    name: str

    def accepts(self, data: object) -> bool:
        """Whether `relation(data)` accepts this value."""

    def relation(self, data: object) -> Relation:
        """Return a user's value (DataFrame, Arrow table or reader, pandas, Polars) as a relation of this engine."""

    def schema(self, relation: Relation) -> StructType:
        """Return the relation's schema in Delta's types."""

    def scan(self, plan: ScanPlan) -> Relation:
        """Return the rows of a plan, lazily. Partition columns come from the log, types from `plan.schema`.

        Raises MissingFileError (at the latest when rows are read) if a file does not exist.
        """

    def filter(self, relation: Relation, where: Expression) -> Relation:
        """Return the rows for which `where` is true, not false and not null."""

    def project(self, relation: Relation, columns: Sequence[ComputedColumn]) -> Relation:
        """Return exactly these columns, in this order. Names differ in more than case."""

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> Relation:
        """Return the pairs of rows for which `on` is true, and for an outer join the rows without a match.

        Expressions are over `join_schema`. Each side is a struct under its alias, which is null for a row without a
        match. The columns of a `semi` or `anti` join are over the left side.
        """

    def conform(self, relation: Relation, schema: StructType) -> Relation:
        """Return the rows with exactly these columns and types. Columns match by name, without regard to case. Missing
        columns and fields are null, and values get a lossless cast. Values that could not fit were refused before."""

    def union(self, relations: Sequence[Relation]) -> Relation:
        """Return all rows of relations of one schema."""

    def aggregate(self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> Relation:
        """Return one row for each group of rows with the same keys: the keys, then the measures. Nulls are one group.
        Without keys there is exactly one row."""

    def window(
        self,
        relation: Relation,
        keys: Sequence[Column],
        order_by: Sequence[Column],
        columns: Sequence[WindowColumn],
    ) -> Relation:
        """Return all columns of the rows, then the columns that are computed from the rows of the same group.

        To get the first row of each group, filter a `row_number` for 1.

        Args:
            keys: Rows with the same values are one group. Nulls are equal.
            order_by: The order within a group, ascending, nulls first. If two rows are equal in it, either may be
                first.
        """

    def statement(self) -> AbstractContextManager[None]:
        """A context for the requests of one statement, in which an engine may reuse its resources."""

    def evaluated(self, relation: Relation, *, repeats: bool = False) -> AbstractContextManager[Relation]:
        """Evaluate the rows now and once. The relation may be read any number of times inside the context, and returns
        the same rows each time. Rows that do not fit into memory are spilled to disk and deleted afterwards.

        Args:
            repeats: Whether the relation itself returns the same rows each time. In that case an engine may return it
                if the rows do not fit into memory.

        Raises StorageError if, for example, the disk is full. Other errors: As reading the rows.
        """

    def divided(self, relation: Relation, division: Division) -> AbstractContextManager[Divided]:
        """Divide rows. The relation is evaluated once, so each row goes exactly one way. Rows aside are held in memory
        or on disk, and are deleted after the context.

        Raises as reading the rows, at the latest when `kept` is read.
        """

    def row_sets(self, relation: Relation, kind: str, file_number: str, row_position: str) -> dict[RowKey, RowSet]:
        """Return the rows that a relation addresses, by `kind` and file, as one bitmap per file. No row is returned.

        Args:
            kind: The name of a text column, not null.
            file_number, row_position: The names of two columns of type long, as `with_row_addresses` makes them. Rows
                with null addresses are only counted, under the file None.
        """

    def along_curve(
        self, relation: Relation, columns: Sequence[Column], curve: Curve, *, num_rows: int | None, num_files: int
    ) -> Relation:
        """Order all rows along a curve, so that rows with similar values in the columns are close. One column is
        sorted. The result may only affect which rows share a file.

        Args:
            columns: Resolved columns of types that have an order, at most `space_curve.MAX_COLUMNS`.
            num_rows: The approximate number of rows, or None.
            num_files: The number of parts that a parallel engine makes.
        """

    def select(self, query: str, relations: Mapping[str, Relation]) -> object:
        """Run a query that the user wrote in the engine's own SQL over named relations.

        Returns: The rows for the user, as an Arrow table or a Spark DataFrame. They have types of the engine, which a
        table need not support.

        Raises InvalidExpressionError: The engine refuses the query.
        """

    def sql(self, query: str, relations: Mapping[str, Relation], *, named: bool = True) -> Relation:
        """Run the same query for rows to write. Verbs use the requests above.

        Args:
            named: False names the columns by their position, not by the query.

        Raises SchemaMismatchError: A column has a type that no table has.
        """

    def quoted(self, name: str) -> str:
        """Return a name in the form that the engine's SQL needs."""

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """Write all rows as new data files. Existing files do not change.

        The commit declares them `just_written` (`Staging.add_files`), because they need not be on disk yet.

        Returns: One row per file, as `file_columns.ADD_SCHEMA`, with statistics. Without rows there is no file.

        Raises:
            ConstraintViolationError: A row breaks a check or NOT NULL. Files that were written by then belong to no
                commit, and vacuum deletes them.
            StorageError: For example, the disk is full. The same applies to its files.
        """

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Rewrite files without evaluating an expression. The rows of each plan, in order, become new files
        (compaction).

        Returns and raises as `write`.
        """

    def to_arrow(self, relation: Relation, limit: int | None = None) -> pa.Table:
        """Collect all rows, or any `limit` of them. Timestamps are in UTC, in microseconds."""

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        """Return the rows as a stream in bounded memory."""
