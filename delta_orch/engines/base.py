"""What an engine is: the only part of delta_orch that touches rows.

Verbs plan files and say what rows they want; an engine scans, runs SQL, writes Parquet and collects. Two engines exist,
`local` (Arrow and DuckDB, in process) and `spark`; a verb never asks which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from delta_orch.expressions.nodes import Expression
from delta_orch.protocol.types import StructField, StructType
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
    """Texts that must not be longer than their column was declared (`varchar(5)`); null is no text.

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
    """A column the relation lacks.

    Attributes:
        name: As in the schema.
        sql: Its value in each row, in Spark SQL: over the other columns of the table as they will be written for a
            generated column, over none for a default.
    """

    name: str
    sql: str


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
        extra_columns: Columns of the relation that are none of the table's (`_row-id-col-…`): written after all others
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


class Engine(Protocol):
    """The seam between verbs and rows."""

    name: str

    def accepts(self, data: Any) -> bool:
        """Whether `relation(data)` takes this value."""

    def relation(self, data: Any) -> Relation:
        """A user's value (DataFrame, Arrow table or reader, pandas, Polars) as this engine's relation."""

    def schema(self, relation: Relation) -> StructType:
        """The relation's schema in Delta's types."""

    def scan(self, plan: ScanPlan) -> Relation:
        """The rows of a plan, lazily; partition columns come from the log, types from `plan.schema`.

        Raises MissingFileError (at the latest when rows are pulled) where a file is not there.
        """

    def union(self, relations: Sequence[Relation]) -> Relation:
        """All rows of relations of one schema."""

    def sql(self, query: str, relations: Mapping[str, Relation]) -> Relation:
        """Run one Spark SQL query over named relations."""

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

    def to_arrow(self, relation: Relation) -> pa.Table:
        """Collect all rows. Timestamps in UTC at microseconds."""

    def to_reader(self, relation: Relation) -> pa.RecordBatchReader:
        """The rows as a stream in bounded memory."""
