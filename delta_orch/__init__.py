"""Exactly-once Delta Lake pipeline steps for Dagster and Airflow, on Spark, without a JAR.

Importing the package loads none of its parts: each name below brings in what it needs on first use.
"""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from delta_orch._version import VERSION as __version__

if TYPE_CHECKING:
    from delta_orch.arrival.file_source import FileSource
    from delta_orch.delta_table import DeltaTable
    from delta_orch.errors import DeltaError
    from delta_orch.expressions.literal import literal
    from delta_orch.log.files.txn import TxnId
    from delta_orch.pipeline.requeue import requeue
    from delta_orch.pipeline.submitted import submitted_run
    from delta_orch.statements.run import sql
    from delta_orch.storage.patience import configure
    from delta_orch.table.column_definitions import column, identity_column
    from delta_orch.verbs.expect import Expect

__all__ = [
    "DeltaError",
    "DeltaTable",
    "Expect",
    "FileSource",
    "TxnId",
    "__version__",
    "column",
    "configure",
    "identity_column",
    "literal",
    "requeue",
    "sql",
    "submitted_run",
]

_HOME = {
    "DeltaError": "delta_orch.errors",
    "DeltaTable": "delta_orch.delta_table",
    "Expect": "delta_orch.verbs.expect",
    "FileSource": "delta_orch.arrival.file_source",
    "TxnId": "delta_orch.log.files.txn",
    "column": "delta_orch.table.column_definitions",
    "configure": "delta_orch.storage.patience",
    "identity_column": "delta_orch.table.column_definitions",
    "literal": "delta_orch.expressions.literal",
    "requeue": "delta_orch.pipeline.requeue",
    "sql": "delta_orch.statements.run",
    "submitted_run": "delta_orch.pipeline.submitted",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        # A constant may be NaN or infinite: `literal` judges its argument itself.
        if isinstance(value, FunctionType) and name != "literal":
            value = globals()[name] = import_module("delta_orch.arguments").checked(value)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
