"""Airflow provider for Delta Lake. Importing this package imports neither Airflow nor Arrow; each name below does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_orch.airflow.assets import delta_table_asset
    from delta_orch.airflow.decorators import delta_task
    from delta_orch.airflow.failures import DELTA_RETRY_POLICY
    from delta_orch.airflow.hook import DeltaHook
    from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
    from delta_orch.airflow.maintenance_operators import (
        DeltaCheckpointOperator,
        DeltaOptimizeOperator,
        DeltaVacuumOperator,
    )
    from delta_orch.airflow.sensors import (
        DeltaFreshnessSensor,
        DeltaPartitionSensor,
        DeltaRowSensor,
        DeltaTableVersionSensor,
        DeltaTxnSensor,
    )
    from delta_orch.airflow.triggers import DeltaConditionTrigger, DeltaVersionTrigger
    from delta_orch.airflow.write_operator import DeltaWriteOperator

__all__ = [
    "DELTA_RETRY_POLICY",
    "DeltaCheckpointOperator",
    "DeltaConditionTrigger",
    "DeltaFreshnessSensor",
    "DeltaHook",
    "DeltaIncrementalOperator",
    "DeltaOptimizeOperator",
    "DeltaPartitionSensor",
    "DeltaRowSensor",
    "DeltaTableVersionSensor",
    "DeltaTxnSensor",
    "DeltaVacuumOperator",
    "DeltaVersionTrigger",
    "DeltaWriteOperator",
    "delta_table_asset",
    "delta_task",
]

_HOME = {
    "DELTA_RETRY_POLICY": "failures",
    "DeltaCheckpointOperator": "maintenance_operators",
    "DeltaConditionTrigger": "triggers",
    "DeltaFreshnessSensor": "sensors",
    "DeltaHook": "hook",
    "DeltaIncrementalOperator": "incremental_operator",
    "DeltaOptimizeOperator": "maintenance_operators",
    "DeltaPartitionSensor": "sensors",
    "DeltaRowSensor": "sensors",
    "DeltaTableVersionSensor": "sensors",
    "DeltaTxnSensor": "sensors",
    "DeltaVacuumOperator": "maintenance_operators",
    "DeltaVersionTrigger": "triggers",
    "DeltaWriteOperator": "write_operator",
    "delta_table_asset": "assets",
    "delta_task": "decorators",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
