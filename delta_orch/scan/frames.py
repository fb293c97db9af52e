"""Arrow rows as data frames of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_INTEGERS = ("Int8", "Int16", "Int32", "Int64")


def pandas_frame(rows: pa.Table) -> pd.DataFrame:
    """See `Scan.to_pandas`."""
    try:
        import pandas as pd
    except ImportError as e:
        raise _missing("pandas", e) from e
    # By default pandas makes floats of integers where one is null: those beyond 2**53 would change.
    types = {getattr(pa, name.lower())(): pd.api.types.pandas_dtype(name) for name in _INTEGERS}
    mapper = {**types, pa.bool_(): pd.BooleanDtype()}.get
    return rows.to_pandas(types_mapper=mapper, integer_object_nulls=True)


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
