"""The metadata entries and the data version that a write reports to Dagster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.dagster.resource import DeltaTableResource, resolve_env
from delta_orch.delta_table import TableSnapshot
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import disjunction
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.pipeline.maintenance import ROW_COUNT_COLUMNS, count_rows, deleted_rows_ratio
from delta_orch.pipeline.partitions import looks_only_at
from delta_orch.pipeline.unit import StepReport
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import Scan
from delta_orch.verbs.expect import BROKEN_ROWS

STORAGE_KIND = "deltalake"

TABLE_RESOURCE = "delta/table_resource"
"""Definition metadata: the resource key or variable that names a table whose place only a run knows."""

Metadata = dict[str, Any]
"""Metadata entries: plain values and Dagster's own."""

MOST_COUNTED_PARTITIONS = 1000
"""Runs over more partitions than that report no row count for each of them."""
MANY_FILES = 100
"""A run that writes more files than this for one partition logs a warning."""


def data_version(snapshot: Snapshot) -> dg.DataVersion:
    """`{table id}:{version}`: two equal ones mean the very same rows."""
    return dg.DataVersion(f"{snapshot.metadata.id}:{snapshot.version}")


def place_metadata(table: DeltaTableResource | str) -> Metadata:
    """Definition metadata: where a table is, or the resource key or variable that tells a run."""
    if isinstance(table, DeltaTableResource) and resolve_env(table.table_uri):
        return {"dagster/storage_kind": STORAGE_KIND, "dagster/uri": table.table().uri}
    uri = table if isinstance(table, str) else table.table_uri
    named = uri.env_var_name if isinstance(uri, dg.EnvVar) else uri
    return {"dagster/storage_kind": STORAGE_KIND, TABLE_RESOURCE: named}


def table_metadata(snapshot: Snapshot, table_name: str, definition: Mapping[str, object] | None = None) -> Metadata:
    """Metadata entries about the table as it stands.

    Args:
        definition: The metadata of the asset's definition: what it says of columns that the table says nothing of.
    """
    declared = (definition or {}).get("dagster/column_schema")
    metadata: Metadata = {
        "dagster/column_schema": column_schema(snapshot.schema, snapshot.partition_columns, declared),
        "dagster/table_name": table_name,
        "dagster/uri": snapshot.store.address,
        "dagster/storage_kind": STORAGE_KIND,
        "delta/version": snapshot.version,
        "delta/num_files": snapshot.num_files,
        "delta/size_bytes": pc.sum(FileTable(snapshot.files(["size"])).size).as_py() or 0,
    }
    files = snapshot.files(ROW_COUNT_COLUMNS)
    rows = count_rows(files)
    if rows is not None:
        metadata["dagster/row_count"] = rows
        metadata["delta/deleted_rows_ratio"] = deleted_rows_ratio(files)
    return metadata


def report_metadata(
    report: StepReport,
    snapshot: Snapshot,
    table_name: str,
    *,
    run_id: str | None = None,
    seconds: float | None = None,
    definition: Mapping[str, object] | None = None,
) -> Metadata:
    """Metadata entries about a step and the table it left.

    Args:
        snapshot: `report.snapshot()`.
        run_id: The run of the step, which a commit of its own links to. None outside of a run.
        seconds: What the step took.
        definition: See `table_metadata`.
    """
    metadata: Metadata = {**outcome_metadata(report), **table_metadata(snapshot, table_name, definition)}
    if seconds is not None:
        metadata["delta/seconds"] = seconds
    if report.outcome == "recovered" and report.recovered is not None:
        run_id = _run_in(report.recovered.commit_info)
    if run_id is not None and report.outcome in _OWN:
        metadata["delta/committed_by"] = dg.MetadataValue.dagster_run(run_id)
    if report.outcome in _OWN:
        metadata["delta/operation_metrics"] = dg.JsonMetadataValue(report.metrics)
        # Each a number of its own, as the UI plots them. The log has them as text.
        numbers = {name: str(value) for name, value in report.metrics.items()}
        metadata |= {
            _plain_name(name): int(value)
            for name, value in numbers.items()
            if value.removeprefix("-").isdecimal() and not name.startswith(BROKEN_ROWS)
        }
    if report.commit is not None and report.commit.rebased_versions:
        metadata["delta/rebased_versions"] = dg.JsonMetadataValue(list(report.commit.rebased_versions))
    return metadata


_OWN = ("written", "replaced", "recovered")
"""Outcomes of a step that has a commit to report."""


def outcome_metadata(report: StepReport) -> Metadata:
    """The outcome of a step, which the UI shows first."""
    metadata: Metadata = {"delta/outcome": report.outcome}
    if report.rows_replaced is not None and report.outcome == "replaced":
        metadata["delta/rows_replaced"] = report.rows_replaced
    if report.fenced_by is not None:
        metadata["delta/fenced_by"] = dg.MetadataValue.dagster_run(report.fenced_by)
    return metadata


def _run_in(commit_info: Mapping[str, object] | None) -> str | None:
    """The Dagster run that a commit names in its `userMetadata`."""
    commit = user_metadata_of(commit_info)
    return str(commit["run_id"]) if commit.get("orchestrator") == "dagster" and "run_id" in commit else None


def markdown_text(value: object) -> str:
    """A value in a line of Markdown that looks as it is: nothing of it becomes a link, an image, HTML or a cell."""
    plain = "".join(c if c.isprintable() else " " for c in str(value))
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", plain)


def _plain_name(metric: str) -> str:
    """`numOutputRows` as `delta/metrics/num_output_rows`."""
    return "delta/metrics/" + re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", metric).lower()


def warn_of_many_files(
    context: dg.OutputContext, report: StepReport, num_partitions: int, partition_columns: Sequence[str]
) -> None:
    files = report.metrics.get("numFiles")
    if num_partitions and isinstance(files, int) and files > MANY_FILES * num_partitions:
        context.log.warning(
            "The run's partitions (%d) were written as %d files: each value of %s is a directory of its own. "
            "The metadata 'partition_by' names other columns, or [] for none.",
            num_partitions,
            files,
            ", ".join(partition_columns),
        )


def partition_row_counts(snapshot: Snapshot, scopes: Mapping[str, Expression]) -> dict[str, int]:
    """Rows of each partition, for those the log alone can tell.

    Args:
        snapshot: The table.
        scopes: Partition key → its rows.

    Returns: nothing where a scope looks at other than partition columns, or where there are too many.
    """
    resolved = {key: resolve_expression(scope, snapshot.schema) for key, scope in scopes.items()}
    if not 0 < len(scopes) <= MOST_COUNTED_PARTITIONS or not all(
        looks_only_at(scope, snapshot.partition_columns) for scope in resolved.values()
    ):
        return {}
    # What lies in none of them is left out once, and not once a partition.
    files = snapshot.files(["partition_values", *ROW_COUNT_COLUMNS], disjunction(*resolved.values()))
    counts = {key: _count_scope(files, scope, snapshot) for key, scope in resolved.items()}
    return {key: rows for key, rows in counts.items() if rows is not None}


def _count_scope(files: pa.Table, scope: Expression, snapshot: Snapshot) -> int | None:
    match = match_files(files, scope, snapshot.schema, snapshot.partition_columns)
    return count_rows(files.filter(match.all_match))


def column_schema(schema: StructType, partition_columns: tuple[str, ...], declared: object = None) -> dg.TableSchema:
    """Dagster's picture of a table's columns. A declared `dg.TableSchema` describes those without a comment."""
    declared = declared.value if isinstance(declared, dg.MetadataValue) else declared
    columns = declared.columns if isinstance(declared, dg.TableSchema) else ()
    descriptions = {column.name: column.description for column in columns}
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=field.name,
                type=str(field.data_type),
                description=comment
                if isinstance(comment := field.metadata.get("comment"), str) and comment
                else descriptions.get(field.name),
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
                tags={"partition": ""} if field.name in partition_columns else {},
            )
            for field in schema
        ]
    )


LINEAGE = "dagster/column_lineage"


def column_lineage(
    rows: object, report: StepReport, key: dg.AssetKey, graph: Any, instance: dg.DagsterInstance
) -> Metadata:
    """The metadata entry `dagster/column_lineage`, or none.

    Args:
        rows: What a function returned.
        report: Of their write. The table has the columns of the rows under the same names.
        key: Its asset.
        graph: The asset graph. One of the asset's parents must be known to be the table that the rows were read from.
    """
    if isinstance(rows, TableSnapshot):
        rows = rows.scan()
    if isinstance(rows, Scan):
        plan, own = rows.plan(), rows.schema
    elif isinstance(rows, ChangeFeed):
        plan, own = rows.plans()[0], rows.table_schema
    else:
        return {}
    uri = plan.store.address.rstrip("/")
    parents = [parent for parent in graph.get(key).parent_keys if uri in _places(parent, graph, instance)]
    if len(parents) != 1:
        return {}
    written = report.snapshot().schema
    deps = {
        column.name: [dg.TableColumnDep(parents[0], source)]
        for name, source in _sources(plan)
        if own.find(name) is not None and (column := written.find(name)) is not None
    }
    return {LINEAGE: dg.TableColumnLineage(deps)} if deps else {}


def _sources(plan: ScanPlan) -> Iterator[tuple[str, str]]:
    """What a column of the rows is called, and the column of the table that it is, or that it is a field of."""
    computed = () if plan.row_tracking is None else plan.row_tracking.names
    output = plan.output or [(name, (name,)) for name in plan.columns or plan.schema.names]
    return ((name, path[0]) for name, path in output if name not in computed)


def _places(key: dg.AssetKey, graph: Any, instance: dg.DagsterInstance) -> set[str]:
    """The location of an asset's table, by its definition or its last event."""
    defined = graph.get(key).metadata.get("dagster/uri")
    if defined is None:
        event = instance.get_latest_materialization_event(key)
        latest: dg.AssetMaterialization | dg.AssetObservation | None = event.asset_materialization if event else None
        if latest is None:
            observed = instance.fetch_observations(key, limit=1).records
            latest = observed[0].event_log_entry.asset_observation if observed else None
        defined = None if latest is None else latest.metadata.get("dagster/uri")
    text = defined.value if isinstance(defined, dg.MetadataValue) else defined
    return {text.rstrip("/")} if isinstance(text, str) else set()
