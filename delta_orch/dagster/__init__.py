"""Delta tables in Dagster: an IO manager, a resource, a sensor, incremental and maintenance assets, checks."""

from __future__ import annotations

import dagster as dg

from delta_orch._version import VERSION
from delta_orch.dagster.audits import build_delta_audit_checks
from delta_orch.dagster.batch_function import IncrementalConfig
from delta_orch.dagster.checks import ByPartition, build_delta_check
from delta_orch.dagster.components import (
    DeltaCatalogComponent,
    DeltaConnectionComponent,
    DeltaIncrementalComponent,
    DeltaIngestComponent,
    DeltaMaintenanceComponent,
    DeltaTablesComponent,
)
from delta_orch.dagster.incremental import DeltaOut, delta_asset, delta_multi_asset
from delta_orch.dagster.io_manager import DeltaLakeIOManager
from delta_orch.dagster.maintenance import (
    MaintenanceConfig,
    UndoConfig,
    build_delta_maintenance_assets,
    build_delta_undo_op,
    with_delta_maintenance,
)
from delta_orch.dagster.observation import build_delta_observations, report_existing_partitions
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.sensor import DeltaAutomation, build_delta_file_sensor, build_delta_log_sensor
from delta_orch.dagster.spark_submit import PipesDeltaSparkClient
from delta_orch.delta_table import TableSnapshot as DeltaSnapshot
from delta_orch.pipeline.audit import Audit
from delta_orch.pipeline.incremental import ChangeBatch, FileBatch
from delta_orch.pipeline.maintenance import MaintenancePolicy

__all__ = [
    "Audit",
    "ByPartition",
    "ChangeBatch",
    "DeltaAutomation",
    "DeltaCatalogComponent",
    "DeltaConnectionComponent",
    "DeltaIncrementalComponent",
    "DeltaIngestComponent",
    "DeltaLakeIOManager",
    "DeltaMaintenanceComponent",
    "DeltaOut",
    "DeltaSnapshot",
    "DeltaTableResource",
    "DeltaTablesComponent",
    "FileBatch",
    "IncrementalConfig",
    "MaintenanceConfig",
    "MaintenancePolicy",
    "PipesDeltaSparkClient",
    "UndoConfig",
    "build_delta_audit_checks",
    "build_delta_check",
    "build_delta_file_sensor",
    "build_delta_log_sensor",
    "build_delta_maintenance_assets",
    "build_delta_observations",
    "build_delta_undo_op",
    "delta_asset",
    "delta_multi_asset",
    "report_existing_partitions",
    "with_delta_maintenance",
]

# Public, but not marked as exported.
dg.DagsterLibraryRegistry.register("delta-orch", VERSION, is_dagster_package=False)  # type: ignore[attr-defined]
