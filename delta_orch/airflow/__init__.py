"""Airflow provider for Delta Lake. Importing this package imports neither Airflow nor Arrow; each name below does.

Raises MissingDependencyError: Airflow is older than 3.0, or not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_orch.airflow.assets import delta_catalog_assets, delta_table_asset
    from delta_orch.airflow.check_operator import DeltaCheckOperator, DeltaPublishOperator, delta_write_audit_publish
    from delta_orch.airflow.decorators import delta_changes_task, delta_task
    from delta_orch.airflow.hook import DeltaHook
    from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
    from delta_orch.airflow.maintenance_operators import (
        DeltaCheckpointOperator,
        DeltaCloneOperator,
        DeltaOptimizeOperator,
        DeltaPartitionRelayOperator,
        DeltaRestoreOperator,
        DeltaUndoOperator,
        DeltaVacuumOperator,
    )
    from delta_orch.airflow.retry_policy import DELTA_RETRY_POLICY
    from delta_orch.airflow.sensors import (
        DeltaFreshnessSensor,
        DeltaPartitionSensor,
        DeltaRowSensor,
        DeltaTableVersionSensor,
        DeltaTxnSensor,
    )
    from delta_orch.airflow.submit_operator import DeltaSparkSubmitOperator
    from delta_orch.airflow.triggers import (
        DeltaCommitTrigger,
        DeltaConditionTrigger,
        DeltaFileTrigger,
        DeltaVersionTrigger,
    )
    from delta_orch.airflow.write_operator import (
        DeltaDeleteOperator,
        DeltaMergeOperator,
        DeltaUpdateOperator,
        DeltaWriteOperator,
    )

__all__ = [
    "DELTA_RETRY_POLICY",
    "DeltaCheckOperator",
    "DeltaCheckpointOperator",
    "DeltaCloneOperator",
    "DeltaCommitTrigger",
    "DeltaConditionTrigger",
    "DeltaDeleteOperator",
    "DeltaFileTrigger",
    "DeltaFreshnessSensor",
    "DeltaHook",
    "DeltaIncrementalOperator",
    "DeltaMergeOperator",
    "DeltaOptimizeOperator",
    "DeltaPartitionRelayOperator",
    "DeltaPartitionSensor",
    "DeltaPublishOperator",
    "DeltaRestoreOperator",
    "DeltaRowSensor",
    "DeltaSparkSubmitOperator",
    "DeltaTableVersionSensor",
    "DeltaTxnSensor",
    "DeltaUndoOperator",
    "DeltaUpdateOperator",
    "DeltaVacuumOperator",
    "DeltaVersionTrigger",
    "DeltaWriteOperator",
    "delta_catalog_assets",
    "delta_changes_task",
    "delta_table_asset",
    "delta_task",
    "delta_write_audit_publish",
]

_MODULES = {
    "assets": "delta_catalog_assets delta_table_asset",
    "check_operator": "DeltaCheckOperator DeltaPublishOperator delta_write_audit_publish",
    "decorators": "delta_changes_task delta_task",
    "hook": "DeltaHook",
    "incremental_operator": "DeltaIncrementalOperator",
    "maintenance_operators": "DeltaCheckpointOperator DeltaCloneOperator DeltaOptimizeOperator "
    "DeltaPartitionRelayOperator DeltaRestoreOperator DeltaUndoOperator DeltaVacuumOperator",
    "retry_policy": "DELTA_RETRY_POLICY",
    "sensors": "DeltaFreshnessSensor DeltaPartitionSensor DeltaRowSensor DeltaTableVersionSensor DeltaTxnSensor",
    "submit_operator": "DeltaSparkSubmitOperator",
    "triggers": "DeltaCommitTrigger DeltaConditionTrigger DeltaFileTrigger DeltaVersionTrigger",
    "write_operator": "DeltaDeleteOperator DeltaMergeOperator DeltaUpdateOperator DeltaWriteOperator",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _HOME:
        try:
            return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        except ImportError as error:
            import_module(f"{__name__}.provider").ensure_airflow(error)
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
