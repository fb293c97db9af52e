"""Looking at what a table holds before its metadata promise something about it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import Engine, ScanPlan
from delta_orch.errors import ColumnNotFoundError, ConstraintViolationError, InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.stats_columns import parse_stats
from delta_orch.log.read.skipping.record_counts import record_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.schema_edit import Path, quote_path
from delta_orch.scan.scan import SCAN_COLUMNS
from delta_orch.table.configuration import TableConfiguration
from delta_orch.verbs.alter.draft import RowProof

_MAX_VALUE_CHARACTERS = 200


def ensure_rows_satisfy(engine: Engine, snapshot: Snapshot, table: TableConfiguration, proof: RowProof) -> None:
    """Read the rows that could break a condition, as the table will name and type them.

    Files whose statistics rule a violation out are not opened.

    Raises:
        ConstraintViolationError: A row breaks it, and is shown. Nothing was changed.
        UnsupportedExpressionError: The engine cannot evaluate it; the other one can.
    """
    prunable = _resolves_alike(proof.violation, snapshot)
    files = snapshot.files(SCAN_COLUMNS, proof.violation if prunable else None)
    if not files.num_rows:
        return
    plan = ScanPlan(
        store=snapshot.store,
        schema=table.schema,
        partition_columns=table.partition_columns,
        files=files,
        where=proof.violation,
        column_mapping=table.column_mapping,
    )
    found = engine.to_arrow(engine.scan(plan), limit=1)
    if found.num_rows:
        row = {key: _shorten(value) for key, value in found.slice(0, 1).to_pylist()[0].items()}
        shown = ", ".join(f"{key}={value!r}" for key, value in row.items())
        raise ConstraintViolationError(
            f"A row of the table violates the {proof.name}",
            cause=f"It must satisfy {proof.condition}; the row is {shown}",
            remedy="Correct or delete such rows first; the table is unchanged",
            constraint=proof.name,
            row=row,
        )


def _resolves_alike(violation: Expression, snapshot: Snapshot) -> bool:
    """Whether the statistics of the snapshot's files speak of the same columns and types."""
    try:
        return resolve_expression(violation, snapshot.schema) == violation
    except (ColumnNotFoundError, InvalidExpressionError):
        return False


def ensure_files_have_statistics(snapshot: Snapshot, columns: Sequence[Path]) -> None:
    """Check that every file has statistics of every column (PROTOCOL, "Writer Requirements for Clustered Table").

    Args:
        columns: Physical paths.

    Raises:
        InvalidRequestError: A file lacks them. Nothing was changed.
    """
    texts = FileTable(snapshot.files(["stats"])).stats
    if not columns or not len(texts):
        return
    counts = parse_stats(texts, pa.struct([pa.field("nullCount", _counts_type(columns))]))
    for path in columns:
        missing = pc.sum(pc.is_null(pc.struct_field(counts, ["nullCount", *path]))).as_py()
        if missing:
            raise InvalidRequestError(
                f"{missing} files have no statistics of {quote_path(path)}",
                cause="A table can only be clustered by columns that every file has statistics of",
                remedy="Rewrite those files first, for example by overwriting the table with its own rows",
                column=".".join(path),
                files=missing,
            )


def _counts_type(columns: Sequence[Path]) -> pa.DataType:
    """The struct type in which each of the paths is a 64-bit integer."""
    by_name: dict[str, list[Path]] = {}
    for name, *rest in columns:
        by_name.setdefault(name, []).append(tuple(rest))
    return pa.struct(
        [pa.field(name, pa.int64() if rests == [()] else _counts_type(rests)) for name, rests in by_name.items()]
    )


def ensure_files_fit_iceberg(snapshot: Snapshot, table: TableConfiguration) -> None:
    """Check the files that are there where Iceberg compatibility is switched on (PROTOCOL, "Writer Requirements for
    IcebergCompatV1" and "…V2").

    Raises:
        InvalidRequestError: A file has a deletion vector, or for V1 lacks its number of records or its partition
            values. Nothing was changed.
    """
    before, after = snapshot.properties, table.properties
    begins_v1 = after.enable_iceberg_compat_v1 and not before.enable_iceberg_compat_v1
    begins_v2 = after.enable_iceberg_compat_v2 and not before.enable_iceberg_compat_v2
    if not (begins_v1 or begins_v2) or not snapshot.num_files:
        return
    files = snapshot.files(["dv_id", "stats"])
    problem = None
    if FileTable(files).dv_id.null_count < files.num_rows:
        problem = "Some of its files have deletion vectors"
    elif begins_v1 and snapshot.partition_columns:
        problem = "Its files do not hold the values of the partition columns"
    elif begins_v1 and record_counts(files).null_count:
        problem = "Some of its files do not say how many records they have"
    if problem is not None:
        raise InvalidRequestError(
            "The table cannot become compatible with Iceberg as it is",
            cause=problem,
            remedy="Overwrite the table with its own rows first, or create a new table",
        )


def _shorten(value: object) -> object:
    if isinstance(value, str | bytes) and len(value) > _MAX_VALUE_CHARACTERS:
        return value[:_MAX_VALUE_CHARACTERS]
    return value
