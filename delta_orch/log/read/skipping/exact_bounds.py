"""The smallest and greatest value of a column in each file, where statistics say them exactly.

Bounds that only leave out files may be wide. The bounds here answer queries, so a file with inexact statistics has no
    bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, FileTable, record_counts
from delta_orch.log.files.stats_json import read_stats_json
from delta_orch.log.read.skipping.file_statistics import read_bounds
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.protocol.types import BYTE, DATE, INTEGER, LONG, SHORT, DataType

EXACT_TYPES = (BYTE, SHORT, INTEGER, LONG, DATE)
"""Strings may be cut, timestamps are cut to milliseconds, floats leave out NaN, decimals pass through doubles."""
EXACT_COLUMNS = ROW_COUNT_COLUMNS
"""What `exact_extremes` needs of a file table."""

_GREGORIAN = (date(1582, 10, 15) - date(1970, 1, 1)).days
_TIGHT = pa.schema([("tightBounds", pa.bool_())])


def exact_extremes(files: pa.Table, path: Sequence[str], data_type: DataType) -> pa.Table:
    """For each file `is_known`, and `lowest` and `highest` of a column: int64, dates as days since the epoch, both null
    where every value is null.

    Not known are files with a deletion vector or with `tightBounds` false, without a minimum, a maximum or counts, and
    dates before the Gregorian calendar, which old writers count in another one.

    Args:
        files: With `EXACT_COLUMNS`.
        path: The physical path of the column.
        data_type: Its type, one of `EXACT_TYPES`.
    """
    stats = FileTable(files).stats
    bounds = read_bounds(stats, {tuple(path): data_type})[tuple(path)]
    counts = record_counts(files)
    lowest, highest = (_as_int64(values) for values in (bounds.lower, bounds.upper))
    has_range = pc.and_(pc.is_valid(lowest), pc.fill_null(pc.less_equal(lowest, highest), False))
    if data_type == DATE:
        has_range = pc.and_(has_range, pc.fill_null(pc.greater_equal(lowest, _GREGORIAN), False))
    has_none = pc.and_(pc.is_null(lowest), pc.is_null(highest))
    is_empty = pc.and_(pc.and_(pc.invert(bounds.may_be_value), pc.is_valid(counts)), has_none)
    is_tight = pc.and_(pc.is_null(one_chunk(FileTable(files).deletion_vector)), _are_tight(stats))
    is_exact = pc.and_(is_tight, pc.or_(is_empty, pc.and_(has_range, pc.greater(pc.fill_null(counts, 0), 0))))
    nothing = pa.nulls(1, pa.int64())[0]
    return pa.table(
        {
            "is_known": is_exact,
            "lowest": pc.if_else(is_empty, nothing, lowest),
            "highest": pc.if_else(is_empty, nothing, highest),
        }
    )


def _as_int64(values: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(values, pa.int32()) if pa.types.is_date(values.type) else values, pa.int64())


def _are_tight(stats: pa.ChunkedArray) -> pa.Array:
    """Whether bounds are those of the rows: `tightBounds` counts as true where it is not given (PROTOCOL, "Per-file
    Statistics"). A text that Arrow cannot read makes all of them doubtful."""
    parts = []
    for chunk in stats.chunks:
        try:
            tight_bounds = one_chunk(read_stats_json(chunk, _TIGHT)["tightBounds"])
        except pa.ArrowInvalid:
            tight_bounds = pa.array([False] * len(chunk))
        parts.append(pc.fill_null(tight_bounds, True))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.bool_())
