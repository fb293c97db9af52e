"""Arrow rows as data frames of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def pandas_frame(rows: pa.Table) -> pd.DataFrame:
    """See `Scan.to_pandas`."""
    try:
        import pandas as pd
    except ImportError as e:
        raise _missing("pandas", e) from e
    frame = rows.to_pandas(integer_object_nulls=True)
    # NumPy has no null of these. As floats, integers beyond 2**53 would be others.
    integers = {pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}
    mapper = {**integers, pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get
    for position, column in enumerate(rows.columns):
        if column.null_count and mapper(column.type) is not None:
            frame.isetitem(position, column.to_pandas(types_mapper=mapper))
    return frame


def polars_frame(rows: pa.Table) -> pl.DataFrame:
    """See `Scan.to_polars`."""
    try:
        import polars as pl
    except ImportError as e:
        raise _missing("polars", e) from e
    return pl.DataFrame(rows)


def _missing(package: str, error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f"{package} is not installed", cause=str(error), remedy=f"Run pip install {package}", package=package
    )
