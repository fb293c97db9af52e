"""The values an asset hands over or asks for: which library's they are is decided without importing any."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin
from typing import Literal as OneOf

import pyarrow as pa

from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.scan.frames import pandas_frame
from delta_orch.scan.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Loader = Callable[[Scan], object]
Kind = OneOf["rows", "table", "snapshot", "changes"]

_SUPPORTED = (
    "pyarrow.Table, pyarrow.RecordBatchReader, pandas.DataFrame, polars.DataFrame, polars.LazyFrame, "
    "duckdb.DuckDBPyRelation, pyspark.sql.DataFrame, DeltaTable, DeltaSnapshot or ChangeFeed"
)


@dataclass(frozen=True, slots=True)
class WantedValue:
    """What an input's annotation asks for.

    Attributes:
        kind: `rows` of some library, or the table, a snapshot or a change feed itself.
        annotation: The type of one value.
        optional: None stands for "there is nothing yet".
        by_partition: A `dict` with a value for each partition key.
    """

    kind: Kind
    annotation: object
    optional: bool = False
    by_partition: bool = False


def wanted_value(annotation: object, *, is_fan_in: bool) -> WantedValue:
    """Read an annotation: `Optional[T]`, `dict[str, T]` (a value a partition), and for the outputs of several steps
    `list[T]`, where Dagster asks for one value after the other.

    Raises:
        InvalidRequestError: `T` is not one of the supported types.
    """
    inner, optional = unwrap_optional(annotation)
    by_partition = False
    origin, arguments = get_origin(inner), get_args(inner)
    if is_fan_in and (origin is list or inner is list):
        inner = arguments[0] if arguments else Any
        # Each of the values may be missing.
        inner, optional = unwrap_optional(inner)
    elif origin in (dict, Mapping) and len(arguments) == 2 and arguments[0] is str:
        inner, by_partition = arguments[1], True
    kind = _kind_of(inner)
    if kind == "rows" and not _is_unspecific(inner) and _type_name(inner) not in _LOADERS:
        raise InvalidRequestError(
            f"An input of type {annotation!r} cannot be loaded from a Delta table",
            remedy=f"Annotate it with {_SUPPORTED}, with Optional of one of them, or with dict[str, …] for a value a "
            "partition key",
        )
    return WantedValue(kind, inner, optional, by_partition)


def unwrap_optional(annotation: object) -> tuple[object, bool]:
    """`T` and whether None may stand in its place."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and len(members) < len(get_args(annotation)):
            return members[0], True
    return annotation, annotation is None or annotation is type(None)


def _kind_of(annotation: object) -> Kind:
    if isinstance(annotation, type):
        if issubclass(annotation, DeltaTable):
            return "table"
        if issubclass(TableSnapshot, annotation) and issubclass(annotation, Snapshot):
            return "snapshot"
        if issubclass(annotation, ChangeFeed):
            return "changes"
    return "rows"


def _is_unspecific(annotation: object) -> bool:
    return annotation is None or annotation is Any or annotation is object


def loader_for(annotation: object, engine: str) -> Loader:
    """How rows become a value of the annotated type, one that `wanted_value` found.

    Args:
        annotation: The type. `Any` or nothing gives a Spark DataFrame where `engine` is `spark`, else an Arrow table.
        engine: The IO manager's.
    """
    return _LOADERS[_library_type(annotation, engine)][0]


def empty_value(annotation: object, schema: pa.Schema, engine: str) -> object:
    """A value of the annotated type without rows, where there is no table to ask."""
    return _LOADERS[_library_type(annotation, engine)][1](schema.empty_table())


def _library_type(annotation: object, engine: str) -> str:
    if _is_unspecific(annotation):
        return "pyspark.DataFrame" if engine == "spark" else "pyarrow.Table"
    return _type_name(annotation)


def _type_name(annotation: object) -> str:
    library = str(getattr(annotation, "__module__", "")).partition(".")[0].lstrip("_")
    return f"{library}.{getattr(annotation, '__name__', '')}"


def _to_polars(rows: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(rows)


def _to_duckdb(rows: pa.Table) -> object:
    import duckdb

    return duckdb.from_arrow(rows)


def _empty_on_spark(rows: pa.Table) -> object:
    from delta_orch.engines.spark.frames import spark_schema

    return spark_session().createDataFrame([], spark_schema(schema_from_arrow(rows.schema)))


def spark_session() -> SparkSession:
    """The active Spark session, or a new one with the default configuration."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


_LOADERS: dict[str, tuple[Loader, Callable[[pa.Table], object]]] = {
    "pyarrow.Table": (Scan.to_arrow, lambda rows: rows),
    "pyarrow.RecordBatchReader": (Scan.to_reader, pa.Table.to_reader),
    "pandas.DataFrame": (Scan.to_pandas, pandas_frame),
    "polars.DataFrame": (lambda scan: _to_polars(scan.to_arrow()), _to_polars),
    "polars.LazyFrame": (lambda scan: _to_polars(scan.to_arrow()).lazy(), lambda rows: _to_polars(rows).lazy()),
    "duckdb.DuckDBPyRelation": (Scan.to_duckdb, _to_duckdb),
    "pyspark.DataFrame": (lambda scan: scan.to_spark(spark_session()), _empty_on_spark),
}
"""A type → how it is loaded by a scan, and how it is made of an Arrow table without rows."""
