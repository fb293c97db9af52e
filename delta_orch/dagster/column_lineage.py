"""Which columns of other assets the columns of a table come from, told where it is certain.

It is certain for rows that a function hands on as they are read: a scan, a snapshot or a change feed. What became of
rows in a frame, nobody can tell, though its columns may have the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg

from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.dagster.metadata import Metadata
from delta_orch.delta_table import TableSnapshot
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.pipeline.step_report import StepReport
from delta_orch.scan.scan import Scan

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
    uri = plan.store.uri.rstrip("/")
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
    """Where an asset's table is, as its definition or its last event says."""
    defined = graph.get(key).metadata.get("dagster/uri")
    if defined is None:
        event = instance.get_latest_materialization_event(key)
        told: dg.AssetMaterialization | dg.AssetObservation | None = event.asset_materialization if event else None
        if told is None:
            observed = instance.fetch_observations(key, limit=1).records
            told = observed[0].event_log_entry.asset_observation if observed else None
        defined = None if told is None else told.metadata.get("dagster/uri")
    text = defined.value if isinstance(defined, dg.MetadataValue) else defined
    return {text.rstrip("/")} if isinstance(text, str) else set()
