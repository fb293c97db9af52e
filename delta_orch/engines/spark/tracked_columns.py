"""The columns of row tracking in Spark (PROTOCOL, "Reader Requirements for Row Tracking").

What the log says of a file, the id of its first row and the version its rows are from, travels like a partition value:
a constant of the file. The position in the file is Spark's own, deleted rows counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from delta_orch.engines.base import RowTracking, ScanPlan
from delta_orch.engines.spark.errors import DAMAGE_MARK
from delta_orch.engines.spark.live_rows import FILE_COLUMN, POSITION_COLUMN
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.log.files.arrow_building import int64_range
from delta_orch.protocol.types import LONG, StructField, StructType

# Names that only exist inside the plan.
_BASE_ROW_ID = "delta_orch_base_row_id"
_COMMIT_VERSION = "delta_orch_default_row_commit_version"

FILE_CONSTANTS = StructType((StructField(_BASE_ROW_ID, LONG), StructField(_COMMIT_VERSION, LONG)))
"""The constants of a file that tracked columns need."""


def tracked_names(tracking: RowTracking | None) -> tuple[str, ...]:
    """The columns of a plan's schema that no file has under its name."""
    return () if tracking is None else tracking.names


def materialized_fields(tracking: RowTracking | None) -> tuple[StructField, ...]:
    """The columns to read from files for row tracking."""
    if tracking is None:
        return ()
    names = (tracking.materialized_row_id, tracking.materialized_row_commit_version)
    return tuple(StructField(name, LONG) for name in names if name is not None)


def with_file_constants(plan: ScanPlan, partitions: pa.Table, index: pa.Array) -> tuple[pa.Table, pa.Array]:
    """Partitions of one file each, `FILE_CONSTANTS` among their values, and for each file which of them it is in."""
    constants = [plan.files.column(name) for name in ("base_row_id", "default_row_commit_version")]
    return of_each_file(partitions, index, dict(zip(FILE_CONSTANTS.names, constants, strict=True)))


def of_each_file(
    partitions: pa.Table, index: pa.Array, constants: Mapping[str, pa.Array | pa.ChunkedArray]
) -> tuple[pa.Table, pa.Array]:
    """Partitions of one file each, with one more value a file, and for each file which of them it is in."""
    columns = [column.take(index) for column in partitions.columns]
    names = [*partitions.column_names, *constants]
    return pa.Table.from_arrays([*columns, *constants.values()], names=names), int64_range(0, len(index))


def tracked_sql(plan: ScanPlan, name: str) -> str:
    """SQL for one of the columns over the positioned rows of the files; a row for which the log has no value raises."""
    tracking = plan.row_tracking
    assert tracking is not None
    if name == tracking.row_id:
        stored, default, in_log = tracking.materialized_row_id, f"{_BASE_ROW_ID} + {POSITION_COLUMN}", "base_row_id"
    else:
        stored, default = tracking.materialized_row_commit_version, _COMMIT_VERSION
        in_log = "default_row_commit_version"
    values = [default] if stored is None else [quote_identifier(stored), default]
    if plan.files.column(in_log).null_count:
        values.append(_raise_missing(name))
    return values[0] if len(values) == 1 else f"coalesce({', '.join(values)})"


def _raise_missing(name: str) -> str:
    text = quote_string(f"[{DAMAGE_MARK}]The log has no {name} for rows of ")
    return f"CAST(raise_error(concat({text}, {FILE_COLUMN}, {quote_string(f'[end of {DAMAGE_MARK}]')})) AS BIGINT)"
