"""The interface of an engine, the only part of delta_orch that reads or writes rows.

Verbs plan files and say what rows they want; an engine scans, runs SQL, writes Parquet and collects. Two engines exist,
`local` (Arrow and DuckDB, in process) and `spark`; a verb never asks which one it has.
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
    """Rows of one schema, lazily, in the shape of the engine that made them: a Spark DataFrame, or a `LocalRelation`.

    Every request of an engine takes relations of this engine, and most return one. A verb never looks into a relation:
    it passes it on to the next request, and asks the engine for its columns (`Engine.schema`), for its rows
    (`to_arrow`, `to_reader`) or for files of them (`write`).
    """

    @property
    def schema(self) -> Any:
        """The columns, in the engine's own types. `Engine.schema` has them in Delta's."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition every written row must satisfy: false **and null** are violations.

    Attributes:
        name: What the error calls it, e.g. `replace_where`, `NOT NULL constraint on id`, a CHECK's name.
        condition: Resolved against the written schema.
    """

    name: str
    condition: Expression


@dataclass(frozen=True, slots=True)
class LengthCheck:
    """Texts that must not be longer than their column was declared (`varchar(5)`). Null passes.

    Attributes:
        path: From a column through fields of structs, `element`, `key` and `value` to the texts, as the schema spells
            them.
        declared: As the error calls it, `char(5)` or `varchar(5)`.
        max_characters: Unicode code points.
    """

    path: tuple[str, ...]
    declared: str
    max_characters: int

    @property
    def name(self) -> str:
        return f"declared length of column {'.'.join(self.path)}, {self.declared}"


@dataclass(frozen=True, slots=True)
class StatisticsPolicy:
    """For which leaf columns statistics are collected (`delta.dataSkippingNumIndexedCols`, `…StatsColumns`).

    `num_indexed_columns` counts leaves in schema order, -1 for all; `columns` names them instead where it is given.
    `also` names columns that have statistics in any case: clustering columns must, identity columns tell their values.
    Paths are logical. `says_tight` writes down that the bounds are tight, where rows may be marked as deleted later.
    """

    num_indexed_columns: int = 32
    columns: tuple[tuple[str, ...], ...] | None = None
    also: tuple[tuple[str, ...], ...] = ()
    says_tight: bool = False


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column with a value for each row.

    In a `WriteSpec` it is a column the relation lacks: `name` is that of the schema, and `value` is over no column for
    a default, over the other columns of the table as they will be written for a generated column.
    """

    name: str
    value: Expression


def as_they_are(names: Iterable[str]) -> list[ComputedColumn]:
    """Columns that are only passed on."""
    return [ComputedColumn(name, Column((name,))) for name in names]


@dataclass(frozen=True, slots=True)
class IdentityValues:
    """Values for an identity column the relation lacks: each row gets another one of `first`, `first + step`, ….

    Values may be left out (parallel writers share them out without asking each other), none is used twice.
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
        schema: The table's schema, in whose order and types the rows are written. The engine matches columns by name
            without regard to case and casts where the cast loses nothing; what could not fit was refused before.
            Columns that the relation lacks and no other attribute fills are null.
        partition_columns: Logical names; paths are `name=value/` directories.
        checks: Verified for each row while it is written. NOT NULL of the schema is always verified.
        lengths: Likewise.
        target_file_size_bytes: Aim for files of this size; None leaves it to the engine.
        optimize_write: Bring the rows of a partition together before writing, where the engine writes in parallel.
            False writes as the rows come: quicker, and up to one file for each task and partition.
        compression: Parquet codec, in the protocol's spelling (`zstd`, `snappy`, `uncompressed`, …).
        column_mapping: How data files name the columns. Files, statistics and partition values get the physical names
            (`table.column_mapping`), files also field ids; everything above speaks logical names.
        extra_columns: Columns of the relation that the table does not have (`_row-id-col-…`): written after all others
            under exactly their names, without statistics, checks or field ids.
        change_type: The files hold a last column `_change_type` with this value, so that a `cdc` action may name them.
        directory: Where below the table's root the files lie; `_change_data` for files that are nothing but changes.
        keep_partition_columns: Files hold the partition columns too, after the others.
        random_prefix_length: Files lie in directories with random names of this length instead of directly in the
            table's.
        data_page_version: `1.0` or `2.0`.
        page_checksums: Whether pages have checksums. Spark writes them in any case.
        shred_variants: Variants may be written shredded.
        defaults: Columns the relation lacks, with the value of every row.
        generated: Columns the relation lacks, computed once all others are there.
        identities: Identity columns the relation lacks.
        keeps_order: The rows have been put in order: each file gets neighbours.
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
        """The partition columns as `partition_values` names them."""
        if self.column_mapping is ColumnMappingMode.NONE:
            return self.partition_columns
        return physical_partitions(self.schema, self.partition_columns)

    @property
    def written_schema(self) -> StructType:
        """The relation before it is written to files: the table's columns, then the extra ones."""
        return StructType((*self.schema, *self.extra_columns)) if self.extra_columns else self.schema


class JoinSide(NamedTuple):
    """One side of a join: its rows and their alias in the join's expressions.

    Attributes:
        num_rows: About how many; None where nobody knows. An engine that knows it of both sides holds the smaller one.
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
    """The schema for the expressions of a join: a struct for each side, under its alias."""
    return StructType(tuple(StructField(alias, schema) for alias, schema in sides.items()))


class Division(NamedTuple):
    """Which way rows go.

    Attributes:
        flags: Conditions over the rows that are never null, under names that the rows have not.
        aside: Flags. A row with at least one true flag is set aside.
        left_out: Flags. A row with at least one true flag is omitted, unless it is set aside.
        most_shown: How many rows `Divided.some` gives.
    """

    flags: Sequence[ComputedColumn]
    aside: Collection[str]
    left_out: Collection[str]
    most_shown: int


class DividedCounts(NamedTuple):
    """How many rows there were, how many were set aside, how many were left out, and for how many each flag is true."""

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

    Requests hold expressions as trees, resolved against the schema of what they are evaluated over. An engine compiles
    a tree once: to Arrow or DuckDB, or to the text Spark takes. Text comes in with `Opaque` nodes alone, in the words
    of the user or of the table's metadata.

    Relations are lazy. A request raises UnsupportedExpressionError where the engine does not evaluate an expression.
    Pulling rows raises InvalidExpressionError where Spark, under ANSI, fails for a row (overflow, division by zero).
    """

    name: str

    def accepts(self, data: object) -> bool:
        """Whether `relation(data)` takes this value."""

    def relation(self, data: object) -> Relation:
        """A user's value (DataFrame, Arrow table or reader, pandas, Polars) as this engine's relation."""

    def schema(self, relation: Relation) -> StructType:
        """The relation's schema in Delta's types."""

    def scan(self, plan: ScanPlan) -> Relation:
        """The rows of a plan, lazily; partition columns come from the log, types from `plan.schema`.

        Raises MissingFileError (at the latest when rows are read) if a file does not exist.
        """

    def filter(self, relation: Relation, where: Expression) -> Relation:
        """The rows for which `where` is true, neither false nor null."""

    def project(self, relation: Relation, columns: Sequence[ComputedColumn]) -> Relation:
        """Exactly these columns, in this order. Names differ in more than case."""

    def join(
        self, left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
    ) -> Relation:
        """The pairs of rows for which `on` is true, and for an outer join the rows without a partner.

        Expressions are over `join_schema`: each side is a struct under its alias, null where a row has no partner.
        The columns of a `semi` or `anti` join are over the left side.
        """

    def conform(self, relation: Relation, schema: StructType) -> Relation:
        """The rows with exactly these columns and types: matched by name without regard to case, null where there is no
        such column or field, cast where the cast loses nothing. Values that could not fit were refused before."""

    def union(self, relations: Sequence[Relation]) -> Relation:
        """All rows of relations of one schema."""

    def aggregate(self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> Relation:
        """One row for each group of rows with the same keys: the keys, then the measures. Nulls are one group; without
        keys there is exactly one row."""

    def window(
        self,
        relation: Relation,
        keys: Sequence[Column],
        order_by: Sequence[Column],
        columns: Sequence[WindowColumn],
    ) -> Relation:
        """All columns of the rows, and after them what each row has from the rows of its group.

        The first row of each group is `filter` for 1 over a `row_number`.

        Args:
            keys: Rows with the same values are one group. Nulls are equal.
            order_by: The order within a group, ascending, nulls first. If two rows are equal in it, either may be
                first.
        """

    def statement(self) -> AbstractContextManager[None]:
        """Around the requests of one statement: what an engine makes for one of them may serve the next."""

    def evaluated(self, relation: Relation, *, repeats: bool = False) -> AbstractContextManager[Relation]:
        """The rows, evaluated once and now, as a relation that may be read any number of times inside the context and
        gives the same rows each time. Rows that do not fit into memory are spilled to disk and deleted afterwards.

        Args:
            repeats: The relation itself gives the same rows each time. An engine may return it where they do not fit
                into memory.

        Raises StorageError: e.g. a full disk; else as pulling the rows.
        """

    def divided(self, relation: Relation, division: Division) -> AbstractContextManager[Divided]:
        """Rows that go two ways. The relation is evaluated once, so each row goes one way, whatever it is made of. Rows
        aside wait in memory or on disk, and are gone after the context.

        Raises as pulling the rows, at the latest when `kept` is read.
        """

    def row_sets(self, relation: Relation, kind: str, file_number: str, row_position: str) -> dict[RowKey, RowSet]:
        """The rows that a relation names, by `kind` and file: one bitmap a file comes back, never a row.

        Args:
            kind: The name of a text column, not null.
            file_number, row_position: The names of two columns of type long, as `with_row_addresses` makes them. Where
                they are null, rows are only counted, under the file None.
        """

    def along_curve(
        self, relation: Relation, columns: Sequence[Column], curve: Curve, *, num_rows: int | None, num_files: int
    ) -> Relation:
        """All rows in an order in which rows near each other in the columns are near each other: along a curve through
        them, or sorted where there is one. Which rows share a file is all that may depend on it.

        Args:
            columns: Resolved; of types that have an order, at most `space_curve.MAX_COLUMNS`.
            num_rows: About how many rows there are; None where nobody knows.
            num_files: Into how many parts an engine that writes in parallel cuts the order.
        """

    def select(self, query: str, relations: Mapping[str, Relation]) -> object:
        """Run a query that the user wrote in the engine's own SQL over named relations.

        Returns: The rows as the user gets them, an Arrow table or a Spark DataFrame. Types are the engine's: they need
            not be those of a table.

        Raises InvalidExpressionError: The engine refuses the query.
        """

    def sql(self, query: str, relations: Mapping[str, Relation], *, named: bool = True) -> Relation:
        """The same as rows to write. Verbs use the requests above.

        Args:
            named: False: the columns get names by their position, whatever the query calls them.

        Raises SchemaMismatchError: A column has a type that no table has.
        """

    def quoted(self, name: str) -> str:
        """A name as it stands in the engine's SQL."""

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """Write all rows as new data files; none existing is touched.

        The commit declares them `just_written` (`Staging.add_files`), because they need not be on disk yet.

        Returns: one row a file, columns of `file_columns.ADD_SCHEMA`, with statistics; zero rows give zero files.

        Raises:
            ConstraintViolationError: A row breaks a check or NOT NULL. Files written so far stay as orphans that no
                commit names; vacuum removes them.
            StorageError: e.g. a full disk. The same holds.
        """

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Rewrite files without evaluating an expression: each plan's rows, in order, become new files (compaction).

        Returns and raises as `write`.
        """

    def to_arrow(self, relation: Relation, limit: int | None = None) -> pa.Table:
        """Collect all rows, or any `limit` of them. Timestamps in UTC at microseconds."""

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        """The rows as a stream in bounded memory."""
