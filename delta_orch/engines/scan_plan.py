"""Which rows an engine is to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from posixpath import normpath
from typing import TYPE_CHECKING, NamedTuple, Protocol

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import int64_range, one_chunk, string_array
from delta_orch.protocol.types import LONG, DataType, StructField, StructType, fields_on
from delta_orch.table.column_mapping import ColumnMappingMode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.compute import Expression as ArrowExpression

    from delta_orch.storage.base import LogStore


class RowTracking(NamedTuple):
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


FILE_NUMBERS = "file_number"
"""The column of `ScanPlan.files` that numbers them where rows have addresses."""


class RowAddresses(NamedTuple):
    """The two columns that say where a row is stored, both of type long. No row is addressed twice.

    `plan.schema` ends with both, after those of row tracking, and `columns` and `where` may name them like any other.
    `plan.files` has the column `FILE_NUMBERS`.

    Attributes:
        file_number: The name of the column with the number of the row's file.
        row_position: The name of the column with the position of the row in its file, deleted rows counted.
    """

    file_number: str
    row_position: str

    @property
    def names(self) -> tuple[str, str]:
        return (self.file_number, self.row_position)


class OutputColumn(NamedTuple):
    """A column a scan returns.

    Attributes:
        name: What it is called.
        path: Where it stands in the schema: a column, or a field of the structs before it; null where one of them is.
    """

    name: str
    path: tuple[str, ...]


def output_columns_schema(output: Iterable[OutputColumn], schema: StructType) -> StructType:
    """The schema of the result. A field may be null if a struct around it may be null."""
    return StructType(tuple(_output_field(column, schema) for column in output))


def _output_field(column: OutputColumn, schema: StructType) -> StructField:
    fields = list(fields_on(column.path, schema))
    innermost = fields[-1]
    if len(fields) == 1:
        return replace(innermost, name=column.name)
    nullable = any(step.nullable for step in fields)
    return StructField(column.name, innermost.data_type, nullable, innermost.metadata)


def ensure_distinct(names: Sequence[str]) -> None:
    """Raises InvalidRequestError where two columns of a result have the same name, without regard to case."""
    if len({name.lower() for name in names}) < len(names):
        raise InvalidRequestError(
            "Two columns of the result have the same name", remedy="Give each its own name", columns=list(names)
        )


def column_indexes(path: Sequence[str], schema: StructType) -> list[int]:
    """The position of the column in the schema, and of each field on the way in the struct around it."""
    indexes = []
    current: DataType = schema
    for name in path:
        assert isinstance(current, StructType)
        place = current.place(name)
        assert place is not None
        indexes.append(place)
        current = current.fields[place].data_type
    return indexes


def value_at(batch: pa.RecordBatch, indexes: Sequence[int]) -> pa.Array:
    """The values at the place that `column_indexes` gives, null where a struct on the way is."""
    first, *below = indexes
    return pc.struct_field(batch.column(first), below) if below else batch.column(first)


class FilePruning(Protocol):
    """The log's facts about the files of a snapshot. Both raise as `Snapshot.files`."""

    def __call__(self, where: Expression | None) -> pa.Table:
        """The `path` of each file that may hold rows for which a predicate is true, resolved against the table's
        schema; for None the `path` of each file and its `num_rows`, int64, null where statistics do not say."""

    def extremes(self, column: Column, data_type: DataType) -> pa.Table | None:
        """The `path` of each file, and what `file_statistics.exact_extremes` says; None if nobody knows."""


_MAY_BE_RESPELLED = r"%|//|:|^/|(?:^|/)\.\.?(?:/|$)"
"""Paths that may be others under another name: encoded, absolute, or by a detour."""
_MOST_ROW_ID = (1 << 63) - (1 << 40)
"""No file has as many rows as there are numbers above it."""


def _ensure_row_ids_fit(files: pa.Table) -> None:
    """Raises ProtocolViolationError where the ids of a file's rows would not be numbers from 0 to 2**63."""
    bases = FileTable(files).base_row_id.to_pylist()
    for path, base in zip(FileTable(files).path.to_pylist(), bases, strict=True):
        if base is not None and not 0 <= base <= _MOST_ROW_ID:
            raise ProtocolViolationError(
                f"The rows of {path} can have no ids",
                cause=f"Its baseRowId is {base}",
                remedy="Find the commit that added the file; read without row_tracking",
                path=path,
            )


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
        where: Rows to keep (true only; neither false nor null), resolved against `schema`. None keeps all files.
        column_mapping: How columns are found in data files (`table.column_mapping`).
        row_tracking: Set where `schema` ends with the columns of row tracking.
        row_addresses: Set where `schema` ends with the columns of addresses (`with_row_addresses`).
        opened: Where it is given, the engine in process adds for each file that it opens how many row groups the file
            has, and how many of them are read.
        arrow_filter: Rows to keep beside `where`, as an Arrow expression over the columns of `schema` in Arrow's types.
        output: What to return of `columns`, in order, where that is more than some of them as they are; None otherwise.
            `schema` then has no more of a struct than is wanted of it.
        each_once: Whether no file may occur twice. Those of a version must not.
        is_copied: Whether what is read takes the place of the files, so that no size in the log is believed.
        prune: For an engine that learns of more predicates when the scan runs. It is not pickled with the plan.
    """

    store: LogStore
    schema: StructType
    partition_columns: tuple[str, ...]
    files: pa.Table
    columns: tuple[str, ...] | None = None
    where: Expression | None = None
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE
    row_tracking: RowTracking | None = None
    arrow_filter: ArrowExpression | None = None
    output: tuple[OutputColumn, ...] | None = None
    prune: FilePruning | None = field(default=None, compare=False, repr=False)
    row_addresses: RowAddresses | None = None
    opened: list[tuple[int, int]] | None = field(default=None, compare=False, repr=False)
    each_once: bool = False
    is_copied: bool = False

    def __post_init__(self) -> None:
        if self.row_tracking is not None and self.files.num_rows:
            _ensure_row_ids_fit(self.files)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether any file has a deletion vector. `files` may lack the column where none has."""
        if "deletion_vector" not in self.files.column_names:
            return False
        vectors = FileTable(self.files).deletion_vector
        return bool(vectors.null_count < len(vectors))

    def ensure_each_once(self) -> None:
        """Raises ProtocolViolationError where two files are one: their rows would count twice. Raises as the store's
        `resolve` for a path that may be another spelling, too; and of one file with two deletion vectors, which a
        version never has."""
        if not self.each_once or not self.files.num_rows:
            return
        files = FileTable(self.files)
        paths = pc.binary_join_element_wise(self.store.resolve("x")[:-1], files.path, "")
        odd = pc.match_substring_regex(files.path, _MAY_BE_RESPELLED)
        if pc.any(odd).as_py():
            resolved = map(self.store.resolve, pc.filter(files.path, odd).to_pylist())
            # On a file system there is more than one way to a file; a key of an object store means itself.
            plain = [normpath(path) if path.startswith("/") else path for path in resolved]
            paths = pc.replace_with_mask(one_chunk(paths), one_chunk(odd), string_array(plain))
        if len(pc.unique(paths)) == len(paths):
            return
        counts = pc.value_counts(paths)
        path = pc.filter(counts, pc.greater(counts.field("counts"), 1)).field("values")[0].as_py()
        raise ProtocolViolationError(
            f"The log names the file {path} twice",
            cause="A checkpoint that repeats an entry, two spellings of one path, or two deletion vectors of one file",
            remedy="Restore a version that names it once: table.restore(version). If a checkpoint repeats the entry, "
            "delete the checkpoint, while its commits are there",
            path=path,
        )

    @property
    def made_columns(self) -> tuple[str, ...]:
        """The columns of the schema that no file has under that name: those of row tracking, and of addresses."""
        tracked = () if self.row_tracking is None else self.row_tracking.names
        return tracked if self.row_addresses is None else (*tracked, *self.row_addresses.names)

    @property
    def read_schema(self) -> StructType:
        """The top-level columns to return, in order."""
        if self.columns is None:
            return self.schema
        fields = [self.schema.find(name) for name in self.columns]
        return StructType(tuple(column for column in fields if column is not None))


def with_row_addresses(plan: ScanPlan, file_number: str, row_position: str) -> ScanPlan:
    """The plan with the address of each row, in two columns of type long at the end of its schema.

    The verb that finds rows needs it to mark them as deleted. No row is addressed twice. The plan may also have the
    columns of row tracking.

    Args:
        file_number: The name of the column with the number of the row's file in `plan.files`. No other column has it.
        row_position: The name of the column with the position of the row in its file, deleted rows counted. Likewise.
    """
    addresses = RowAddresses(file_number, row_position)
    return replace(
        plan,
        schema=StructType((*plan.schema, *(StructField(name, LONG) for name in addresses.names))),
        files=plan.files.append_column(FILE_NUMBERS, int64_range(0, plan.files.num_rows)),
        columns=None if plan.columns is None else (*plan.columns, *addresses.names),
        row_addresses=addresses,
    )
