"""What an engine is: the only part of delta_orch that touches rows.

Verbs plan files and say what rows they want; an engine scans, runs SQL, writes Parquet and collects. Two engines exist,
`local` (Arrow and DuckDB, in process) and `spark`; a verb never asks which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.types import LONG, DataType, StructField, StructType
from delta_orch.table.column_mapping import ColumnMappingMode, physical_name

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from delta_orch.storage.base import LogStore

Relation = Any
"""Rows in an engine's own shape: a Spark DataFrame, or a local relation. Verbs only pass it back to its engine."""


@dataclass(frozen=True, slots=True)
class RowTracking:
    """Where the two columns of row tracking come from (PROTOCOL, "Reader Requirements for Row Tracking").

    `plan.schema` ends with both, type long, and `columns` and `where` may name them like any other. Neither is stored
    under its name: the value is that of the materialised column where the file has it and it is not null, otherwise

    - for the row id, `base_row_id` of the file plus the position of the row in the file, deleted rows counted;
    - for the commit version, `default_row_commit_version` of the file;

    both are in `plan.files` then.

    Attributes:
        row_id, row_commit_version: The names of the two columns in `plan.schema`.
        materialized_row_id, materialized_row_commit_version: The names of the columns in data files, as they stand
            there; None where the table has none. No column of the schema has the name.
    """

    row_id: str
    row_commit_version: str
    materialized_row_id: str | None = None
    materialized_row_commit_version: str | None = None

    @property
    def names(self) -> tuple[str, str]:
        return (self.row_id, self.row_commit_version)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column a scan returns.

    Attributes:
        name: What it is called.
        path: Where it stands in the schema: a column, or a field of the structs before it; null where one of them is.
    """

    name: str
    path: tuple[str, ...]


def output_columns_schema(output: Iterable[OutputColumn], schema: StructType) -> StructType:
    """What is returned, as a schema; a field may be null where a struct around it may."""
    return StructType(tuple(_output_field(column, schema) for column in output))


def _output_field(column: OutputColumn, schema: StructType) -> StructField:
    fields = list(fields_on(column.path, schema))
    innermost = fields[-1]
    if len(fields) == 1:
        return replace(innermost, name=column.name)
    nullable = any(step.nullable for step in fields)
    return StructField(column.name, innermost.data_type, nullable, innermost.metadata)


def column_indexes(path: Sequence[str], schema: StructType) -> list[int]:
    """The position of the column in the schema, and of each field on the way in the struct around it."""
    found = []
    current: DataType = schema
    for step in fields_on(path, schema):
        assert isinstance(current, StructType)
        found.append(current.names.index(step.name))
        current = step.data_type
    return found


def fields_on(path: Sequence[str], schema: StructType) -> Iterator[StructField]:
    """The column a path begins with, and the fields it leads through."""
    current: DataType = schema
    for name in path:
        assert isinstance(current, StructType)
        found = current.find(name)
        assert found is not None
        yield found
        current = found.data_type


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Which rows to read: everything an engine needs, nothing it must look up in the log.

    Attributes:
        store: The table's store.
        schema: The table's logical schema, partition columns included.
        partition_columns: Logical names.
        files: The files that survived planning, columns of `file_columns.ADD_SCHEMA` (`stats` may be left out).
            Rows that a file's deletion vector marks are not in the table. Partition values go by physical names.
        columns: Top-level columns to return, in this order; None for all, in schema order.
        where: Rows to keep (true only; neither false nor null), resolved against `schema`. None keeps all.
        column_mapping: How columns are found in data files (`table.column_mapping`).
        row_tracking: Set where `schema` ends with the columns of row tracking.
        arrow_filter: Rows to keep beside `where`, as an Arrow expression over the columns of `schema` in Arrow's types.
        output: What to return of `columns`, in order, where that is more than some of them as they are; None otherwise.
            `schema` then has no more of a struct than is wanted of it.
        prune: For an engine that learns of more predicates when the scan runs: gives, for one that is resolved against
            the table's schema, the `path` of each file of the snapshot that may hold rows for which it is true. Raises
            as `Snapshot.files`. It stays in its process: a plan that was pickled has none.
    """

    store: LogStore
    schema: StructType
    partition_columns: tuple[str, ...]
    files: pa.Table
    columns: tuple[str, ...] | None = None
    where: Expression | None = None
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE
    row_tracking: RowTracking | None = None
    arrow_filter: pc.Expression | None = None
    output: tuple[OutputColumn, ...] | None = None
    prune: Callable[[Expression], pa.Table] | None = field(default=None, compare=False, repr=False)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether any file has a deletion vector. `files` may lack the column where none has."""
        if "deletion_vector" not in self.files.column_names:
            return False
        vectors = FileTable(self.files).deletion_vector
        return bool(vectors.null_count < len(vectors))

    @property
    def read_schema(self) -> StructType:
        """The top-level columns to return, in order."""
        if self.columns is None:
            return self.schema
        found = [self.schema.find(name) for name in self.columns]
        return StructType(tuple(column for column in found if column is not None))


def with_row_addresses(plan: ScanPlan, file_number: str, row_position: str) -> ScanPlan:
    """The plan with the address of each row, in two columns of type long at the end of its schema.

    The verb that finds rows needs it to mark them as deleted. No row is addressed twice.

    Args:
        plan: Without row tracking: the columns of an address are made like those of row tracking.
        file_number: The name of the column with the number of the row's file in `plan.files`. No other column has it.
        row_position: The name of the column with the position of the row in its file, deleted rows counted. Likewise.
    """
    assert plan.row_tracking is None, "rows have either ids or addresses"
    from delta_orch.log.files.arrow_building import int64_array, int64_range

    count = plan.files.num_rows
    known = [name for name in plan.files.column_names if name not in ("base_row_id", "default_row_commit_version")]
    files = plan.files.select(known)
    files = files.append_column("base_row_id", int64_array([0] * count))
    files = files.append_column("default_row_commit_version", int64_range(0, count))
    names = (row_position, file_number)
    return replace(
        plan,
        schema=StructType((*plan.schema, *(StructField(name, LONG) for name in names))),
        files=files,
        columns=None if plan.columns is None else (*plan.columns, *names),
        row_tracking=RowTracking(*names),
    )


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


@dataclass(frozen=True, slots=True)
class IdentityValues:
    """Values for an identity column the relation lacks: each row gets another one of `first`, `first + step`, ….

    Values may be left out (parallel writers share them out without asking each other), none is used twice.
    """

    name: str
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows become data files.

    Attributes:
        store: The table's store.
        schema: The table's schema, in whose order and types the rows are written. The engine matches columns by name
            without regard to case and casts where the cast loses nothing; what could not fit was refused before. What
            the relation lacks and no other attribute fills is null.
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
        shred_variants: Variants may be written shredded.
        defaults: Columns the relation lacks, with the value of every row.
        generated: Columns the relation lacks, computed once all others are there.
        identities: Identity columns the relation lacks.
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
    shred_variants: bool = False
    defaults: tuple[ComputedColumn, ...] = ()
    generated: tuple[ComputedColumn, ...] = ()
    identities: tuple[IdentityValues, ...] = ()

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The partition columns as `partition_values` names them."""
        if self.column_mapping is ColumnMappingMode.NONE:
            return self.partition_columns
        fields = (self.schema.find(name) for name in self.partition_columns)
        return tuple(physical_name(f) for f in fields if f is not None)

    @property
    def written_schema(self) -> StructType:
        """What the relation becomes before files are made of it: the table's columns, then the extra ones."""
        return StructType((*self.schema, *self.extra_columns)) if self.extra_columns else self.schema


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of a join: its rows, and the name they have in the join's expressions."""

    alias: str
    relation: Relation


JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What `aggregate` computes of the rows of a group.

    Attributes:
        name: The column of the result.
        function: With Spark's meaning and result type. `count` counts rows for which `value` is not null.
        value: None counts every row.
    """

    name: str
    function: Literal["count", "sum", "min", "max"]
    value: Expression | None = None


def join_schema(sides: Mapping[str, StructType]) -> StructType:
    """What the expressions of a join are resolved against: a struct for each side, under its alias."""
    return StructType(tuple(StructField(alias, schema) for alias, schema in sides.items()))


def ensure_distinct(names: Sequence[str]) -> None:
    """Raises InvalidRequestError where two columns of a result have the same name, without regard to case."""
    if len({name.lower() for name in names}) < len(names):
        raise InvalidRequestError(
            "Two columns of the result have the same name", remedy="Give each its own name", columns=list(names)
        )


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

        Raises MissingFileError (at the latest when rows are pulled) where a file is not there.
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

    def union(self, relations: Sequence[Relation]) -> Relation:
        """All rows of relations of one schema."""

    def aggregate(self, relation: Relation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> Relation:
        """One row for each group of rows with the same keys: the keys, then the measures. Nulls are one group; without
        keys there is exactly one row."""

    def sql(self, query: str, relations: Mapping[str, Relation]) -> Relation:
        """Run a query that the user wrote in Spark SQL over named relations. Verbs use the requests above."""

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """Write all rows as new data files; none existing is touched.

        Who commits them says that they are `just_written` (`Staging.add_files`): they need not be on disk yet.

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
