"""What OpenLineage is told of a task: the tables it read and wrote, as facets. Its provider is imported on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.protocol.types import StructType


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task has done.

    Attributes:
        table: The table it worked on.
        xcom: What it reported.
    """

    table: DeltaTable
    xcom: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Source:
    """A table that was read, as it was then."""

    uri: str
    snapshot: TableSnapshot


class Reporting(Protocol):
    """An operator that has ended."""

    outcome: Outcome | None
    has_read: Mapping[str, tuple[DeltaTable, int]]
    writes: bool


def lineage_of(operator: Reporting) -> OperatorLineage:
    """Inputs and outputs of a task that has ended.

    Datasets are named by their location, as Spark's own integration does. Versions are the table's. Where columns come
    from is known for a query on tables.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet, Fields, InputField
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    outcome = operator.outcome
    if outcome is None:
        return OperatorLineage()
    # The tables as they were opened: OpenLineage's listener asks in a process forked off, where Airflow cannot be asked
    # for a connection.
    sources = {
        name: Source(table.uri, table.snapshot(version=version)) for name, (table, version) in operator.has_read.items()
    }
    inputs = [
        InputDataset(*dataset_name(source.uri), facets=_facets(source.snapshot.schema, source.snapshot.version))
        for source in sources.values()
    ]
    version = outcome.xcom["version"]
    if not isinstance(version, int):
        return OperatorLineage(inputs=inputs)
    written = outcome.table.snapshot(version=version)
    facets = _facets(written.schema, version)
    if not operator.writes:
        return OperatorLineage(inputs=[*inputs, InputDataset(*dataset_name(outcome.table.uri), facets=facets)])
    sql = getattr(operator, "sql", None)
    if isinstance(sql, str) and is_by_name(operator) and (columns := origins(sql, sources, written.schema.names)):
        facets["columnLineage"] = ColumnLineageDatasetFacet(
            {
                column: Fields([InputField(*dataset_name(uri), field) for uri, field in fields])
                for column, fields in columns.items()
            }
        )
    metrics = outcome.xcom.get("operation_metrics")
    numbers: Mapping[str, Any] = metrics if isinstance(metrics, Mapping) else {}
    statistics = OutputStatisticsOutputDatasetFacet(
        rowCount=_first(numbers, "numOutputRows"),
        size=_first(numbers, "numOutputBytes", "numAddedBytes"),
        fileCount=_first(numbers, "numFiles", "numAddedFiles", "numTargetFilesAdded"),
    )
    output = OutputDataset(
        *dataset_name(outcome.table.uri),
        facets=facets,
        outputFacets={"outputStatistics": statistics} if numbers else {},
    )
    return OperatorLineage(inputs=inputs, outputs=[output])


def dataset_name(table_uri: str) -> tuple[str, str]:
    """Namespace and name of a table among OpenLineage's datasets: `s3://lake` and `bronze/flights`, `file` and
    `/data/flights`."""
    parts = urlsplit(table_uri)
    if parts.scheme in ("", "file", "local"):
        return "file", (table_uri if not parts.scheme else parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _facets(schema: StructType, version: int) -> dict[str, Any]:
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    fields = [SchemaDatasetFacetFields(field.name, str(field.data_type)) for field in schema.fields]
    return {"schema": SchemaDatasetFacet(fields=fields), "version": DatasetVersionDatasetFacet(str(version))}


def is_by_name(operator: object) -> bool:
    """Whether each column is written from the column of its name; a merge's clauses may say otherwise."""
    clauses: Iterable[Mapping[str, Mapping[str, object]]] = getattr(operator, "clauses", ())
    return all(arguments.keys() <= {"condition"} for clause in clauses for arguments in clause.values())


def origins(sql: str, sources: Mapping[str, Source], written: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """The columns of the sources, with the source's location, that each written column of a query is made of; without
    those that cannot be followed, and empty if sqlglot is not installed."""
    if find_spec("sqlglot") is None:
        return {}
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage

    by_name = {name.lower(): source for name, source in sources.items()}
    schema = {
        name: {field.name: "string" for field in source.snapshot.schema.fields} for name, source in sources.items()
    }
    sources_of_column: dict[str, set[tuple[str, str]]] = {}
    for column in written:
        # The table may have columns that the query does not fill.
        with suppress(SqlglotError, ValueError):
            for node in lineage(column, sql, schema=schema, dialect="spark").walk():
                table = getattr(node.expression, "name", "")
                if not isinstance(node.expression, exp.Table) or table.lower() not in by_name:
                    continue
                source = by_name[table.lower()]
                # A name may have dots.
                field = source.snapshot.schema.find(sqlglot.parse_one(node.name).name)
                if field is not None:
                    sources_of_column.setdefault(column, set()).add((source.uri, field.name))
    return {column: sorted(fields) for column, fields in sources_of_column.items()}


def _first(metrics: Mapping[str, Any], *names: str) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), None)
