"""Clustered tables: the columns whose values decide which rows share a file (PROTOCOL, "Clustered Table").

The metadata domain `delta.clustering` names the columns by their physical names. Every file must have statistics of
them: clustering exists to make them selective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.protocol.schema_edit import Path, quote_path, type_at
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import (
    DataType,
    StructType,
    indexed_leaves,
    traits_of,
)
from delta_orch.table.column_mapping import physical_name, physical_path
from delta_orch.table.configuration import TableConfiguration

CLUSTERING_DOMAIN = "delta.clustering"
MAX_CLUSTERING_COLUMNS = 4


def parse_clustering(configuration: str | None) -> tuple[Path, ...] | None:
    """The physical paths in the domain's configuration; None where the table is not clustered.

    A column is a list of names; the protocol's example has the bare name of a top-level one.

    Raises:
        ProtocolViolationError: The configuration is malformed.
    """
    if configuration is None:
        return None
    try:
        stored = orjson.loads(configuration)["clusteringColumns"]
        paths = tuple((column,) if isinstance(column, str) else tuple(column) for column in stored)
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise ProtocolViolationError(
            f"The metadata domain {CLUSTERING_DOMAIN} does not name clustering columns", cause=str(e)
        ) from None
    if not all(path and all(isinstance(name, str) for name in path) for path in paths):
        raise ProtocolViolationError(f"The metadata domain {CLUSTERING_DOMAIN} names something that is not a column")
    return paths


def serialize_clustering(columns: Sequence[Path]) -> str:
    """The domain's configuration for physical paths."""
    return orjson.dumps(
        {"clusteringColumns": [list(path) for path in columns], "domainName": CLUSTERING_DOMAIN}
    ).decode()


def logical_path(schema: StructType, physical: Sequence[str]) -> Path | None:
    """The logical path of a physical one through structs; None where no column has it."""
    names: list[str] = []
    current: DataType = schema
    for name in physical:
        field = (
            next((f for f in current if physical_name(f) == name), None) if isinstance(current, StructType) else None
        )
        if field is None:
            return None
        names.append(field.name)
        current = field.data_type
    return tuple(names)


def logical_paths(schema: StructType, physical: Sequence[Path]) -> tuple[Path, ...]:
    """The logical paths of physical ones, without those that no column has."""
    paths = (logical_path(schema, path) for path in physical)
    return tuple(path for path in paths if path is not None)


def ensure_not_partitioned(configuration: TableConfiguration) -> None:
    """Raise InvalidRequestError where a table has partition columns: it is not for clustering, to begin or to end."""
    if configuration.partition_columns:
        raise InvalidRequestError(
            "A table is either partitioned or clustered",
            cause=f"It is partitioned by {', '.join(configuration.partition_columns)}",
            remedy="Cluster a table without partition columns",
        )


def ensure_can_cluster(configuration: TableConfiguration, columns: Sequence[Path]) -> None:
    """Check the clustering columns (physical paths) of a table as it will be.

    Raises:
        InvalidRequestError: The table is partitioned, there are more than four columns, one is named twice or is not
            there, or statistics are not collected for one. Nothing was changed.
    """
    if not columns:
        return
    ensure_not_partitioned(configuration)
    if len(columns) > MAX_CLUSTERING_COLUMNS:
        raise InvalidRequestError(
            f"A table is clustered by at most {MAX_CLUSTERING_COLUMNS} columns, not {len(columns)}",
            remedy="Name those that queries filter by most",
        )
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("A clustering column is named twice", remedy="Name each column once")
    schema = configuration.schema
    indexed = set(indexed_columns(schema, configuration.properties))
    for physical in columns:
        path = logical_path(schema, physical)
        if path is None:
            raise InvalidRequestError(
                f"The table is clustered by {quote_path(physical)}, which the table would no longer have",
                remedy="Cluster by other columns first, or by none: cluster_by()",
            )
        ensure_bounded(path, type_at(schema, path))
        if path not in indexed:
            raise InvalidRequestError(
                f"No statistics are collected for the clustering column {quote_path(path)}",
                cause="It is beyond delta.dataSkippingNumIndexedCols, or not among delta.dataSkippingStatsColumns",
                remedy="Move the column forward, or change that property",
                column=".".join(path),
            )


def ensure_bounded(path: Path, data_type: DataType) -> None:
    """Raise InvalidRequestError where files have no smallest and largest value of a column of that type."""
    if not traits_of(data_type).has_bounds:
        raise InvalidRequestError(
            f"A table cannot be clustered by {quote_path(path)} of type {data_type}",
            cause="Files have no smallest and largest value of it",
            column=".".join(path),
        )


def indexed_columns(schema: StructType, properties: TableProperties) -> Iterator[Path]:
    """The logical paths of the columns that statistics are collected for, partition columns not considered."""
    chosen, count = properties.data_skipping_stats_columns, properties.data_skipping_num_indexed_cols
    return (path for path, _ in indexed_leaves(schema, chosen, count))


def physical_columns(schema: StructType, paths: Sequence[Path]) -> tuple[Path, ...]:
    """The physical paths of logical ones."""
    return tuple(physical_path(schema, path) for path in paths)
