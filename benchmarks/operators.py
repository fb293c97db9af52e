"""What the plugin costs a worker: `python -m benchmarks.operators`.

The processor time to parse a DAG file with twenty operators over an empty one, and of an append by an operator over
the same append by the core, the smallest of ten runs each, under a real Airflow whose database is SQLite.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = pa.table({"i": list(range(1000))})
RUNS = 10


def parse_s() -> float:
    """Of twenty operators of five kinds, their modules imported for the first time."""
    from airflow.sdk import DAG

    with DAG("first", schedule=None):
        pass
    started = time.process_time()
    from delta_orch.airflow import (
        DeltaIncrementalOperator,
        DeltaMergeOperator,
        DeltaOptimizeOperator,
        DeltaTableVersionSensor,
        DeltaWriteOperator,
    )

    with DAG("twenty", schedule=None):
        for number in range(4):
            DeltaWriteOperator(task_id=f"w{number}", table_uri="/x/y", sql="SELECT 1 AS i")
            DeltaIncrementalOperator(task_id=f"i{number}", source="/x/s", target="/x/t", python_callable=len)
            DeltaMergeOperator(task_id=f"m{number}", table_uri="/x/y", merge_keys=["i"], sql="SELECT 1 AS i")
            DeltaTableVersionSensor(task_id=f"s{number}", table_uri="/x/y", after_version=1)
            DeltaOptimizeOperator(task_id=f"o{number}", table_uri="/x/y")
    taken = time.process_time() - started
    assert "pyspark" not in sys.modules and "pyarrow.parquet" not in sys.modules
    return taken


def append_s(root: Path) -> tuple[float, float]:
    """By an operator, and by the core."""
    from airflow.sdk import DAG

    from delta_orch import DeltaTable, TxnId
    from delta_orch.airflow import DeltaWriteOperator
    from tests.airflow.conftest import Runs

    taken: list[float] = []

    class Measured(DeltaWriteOperator):
        def execute(self, context: Any) -> Any:
            started = time.process_time()
            found = super().execute(context)
            taken.append(time.process_time() - started)
            return found

    with DAG("measured", schedule=None) as dag:
        Measured(task_id="append", table_uri=root / "operator", python_callable=lambda: ROWS)
    for number in range(RUNS):
        # A day each: a run of the same one would replace its rows.
        assert str(Runs().run(dag, datetime(2026, 1, 1 + number, tzinfo=UTC)).state) == "success"
    core: list[float] = []
    for number in range(RUNS):
        started = time.process_time()
        DeltaTable(root / "core").append(ROWS, txn=TxnId("core", number))
        core.append(time.process_time() - started)
    return min(taken), min(core)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        import tests.airflow.conftest  # noqa: F401 (the settings of a small Airflow)

        parsing = parse_s()
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.utils.db import initdb

        initdb()
        DagBundlesManager().sync_bundles_to_db()
        operator, core = append_s(Path(home))
    sys.stdout.write(f"parsing twenty operators: {1000 * parsing:.0f} ms\n")
    sys.stdout.write(f"append: operator {1000 * operator:.0f} ms, core {1000 * core:.0f} ms\n")


if __name__ == "__main__":
    main()
