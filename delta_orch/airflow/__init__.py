"""Airflow provider for Delta Lake. Importing this package imports neither Airflow nor Arrow; each name below does.

Raises MissingDependencyError: Airflow is older than 3.0, or not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_orch.airflow.assets import delta_table_asset
    from delta_orch.airflow.check_operator import DeltaCheckOperator
    from delta_orch.airflow.commit_trigger import DeltaCommitTrigger
    from delta_orch.airflow.decorators import delta_changes_task, delta_task
    from delta_orch.airflow.hook import DeltaHook
    from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
    from delta_orch.airflow.maintenance_operators import (
        DeltaCheckpointOperator,
        DeltaOptimizeOperator,
        DeltaVacuumOperator,
    )
    from delta_orch.airflow.publish_operator import DeltaPublishOperator, delta_write_audit_publish
    from delta_orch.airflow.relay_operator import DeltaPartitionRelayOperator
    from delta_orch.airflow.retry_policy import DELTA_RETRY_POLICY
    from delta_orch.airflow.row_operators import DeltaDeleteOperator, DeltaMergeOperator, DeltaUpdateOperator
    from delta_orch.airflow.sensors import (
        DeltaFreshnessSensor,
        DeltaPartitionSensor,
        DeltaRowSensor,
        DeltaTableVersionSensor,
        DeltaTxnSensor,
    )
    from delta_orch.airflow.submit_operator import DeltaSparkSubmitOperator
    from delta_orch.airflow.triggers import DeltaConditionTrigger, DeltaVersionTrigger
    from delta_orch.airflow.whole_table_operators import DeltaCloneOperator, DeltaRestoreOperator, DeltaUndoOperator
    from delta_orch.airflow.write_operator import DeltaWriteOperator

__all__ = [
    "DELTA_RETRY_POLICY",
    "DeltaCheckOperator",
    "DeltaCheckpointOperator",
    "DeltaCloneOperator",
    "DeltaCommitTrigger",
    "DeltaConditionTrigger",
    "DeltaDeleteOperator",
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
    "delta_changes_task",
    "delta_table_asset",
    "delta_task",
    "delta_write_audit_publish",
]

_HOME = {
    "DELTA_RETRY_POLICY": "retry_policy",
    "DeltaCheckOperator": "check_operator",
    "DeltaCheckpointOperator": "maintenance_operators",
    "DeltaCloneOperator": "whole_table_operators",
    "DeltaCommitTrigger": "commit_trigger",
    "DeltaConditionTrigger": "triggers",
    "DeltaDeleteOperator": "row_operators",
    "DeltaFreshnessSensor": "sensors",
    "DeltaHook": "hook",
    "DeltaIncrementalOperator": "incremental_operator",
    "DeltaMergeOperator": "row_operators",
    "DeltaOptimizeOperator": "maintenance_operators",
    "DeltaPartitionRelayOperator": "relay_operator",
    "DeltaPartitionSensor": "sensors",
    "DeltaPublishOperator": "publish_operator",
    "DeltaRestoreOperator": "whole_table_operators",
    "DeltaRowSensor": "sensors",
    "DeltaSparkSubmitOperator": "submit_operator",
    "DeltaTableVersionSensor": "sensors",
    "DeltaTxnSensor": "sensors",
    "DeltaUndoOperator": "whole_table_operators",
    "DeltaUpdateOperator": "row_operators",
    "DeltaVacuumOperator": "maintenance_operators",
    "DeltaVersionTrigger": "triggers",
    "DeltaWriteOperator": "write_operator",
    "delta_changes_task": "decorators",
    "delta_table_asset": "assets",
    "delta_task": "decorators",
    "delta_write_audit_publish": "publish_operator",
}


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
