"""The values an asset hands over or asks for: which library's they are is decided without importing any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.scan.scan import Scan

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

Loader = Callable[[Scan], object]


def wants_table(annotation: object) -> bool:
    """Whether an input is annotated with `DeltaTable`."""
    return isinstance(annotation, type) and issubclass(annotation, DeltaTable)


def wants_snapshot(annotation: object) -> bool:
    """Whether an input is annotated with `TableSnapshot`."""
    return isinstance(annotation, type) and issubclass(TableSnapshot, annotation) and issubclass(annotation, Snapshot)


def loader_for(annotation: object, engine: str) -> Loader:
    """How rows become a value of the annotated type.

    Args:
        annotation: The input's type. `Any` or nothing gives a Spark DataFrame where `engine` is `spark`, else an Arrow
            table.
        engine: The IO manager's.

    Raises:
        InvalidRequestError: The type is not one of the supported ones.
    """
    if annotation is None or annotation is Any or annotation is object:
        return _to_spark if engine == "spark" else _to_arrow
    name = f"{_library(annotation)}.{getattr(annotation, '__name__', '')}"
    loader = _LOADERS.get(name)
    if loader is None:
        raise InvalidRequestError(
            f"An input of type {annotation!r} cannot be loaded from a Delta table",
            remedy="Annotate it with pyarrow.Table, pyarrow.RecordBatchReader, pandas.DataFrame, polars.DataFrame, "
            "polars.LazyFrame, pyspark.sql.DataFrame, DeltaTable or TableSnapshot",
        )
    return loader


def _library(annotation: object) -> str:
    return str(getattr(annotation, "__module__", "")).partition(".")[0]


def _to_arrow(scan: Scan) -> pa.Table:
    return scan.to_arrow()


def _to_reader(scan: Scan) -> pa.RecordBatchReader:
    return scan.to_reader()


def _to_pandas(scan: Scan) -> object:
    return scan.to_arrow().to_pandas()


def _to_polars(scan: Scan) -> pl.DataFrame:
    import polars as pl

    return pl.from_arrow(scan.to_arrow())


def _to_lazy_polars(scan: Scan) -> pl.LazyFrame:
    return _to_polars(scan).lazy()


def _to_spark(scan: Scan) -> object:
    return scan.to_spark(spark_session())


def spark_session() -> SparkSession:
    """The active Spark session, or a new one with the default configuration."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


_LOADERS: dict[str, Loader] = {
    "pyarrow.Table": _to_arrow,
    "pyarrow.RecordBatchReader": _to_reader,
    "pandas.DataFrame": _to_pandas,
    "polars.DataFrame": _to_polars,
    "polars.LazyFrame": _to_lazy_polars,
    "pyspark.DataFrame": _to_spark,
}
