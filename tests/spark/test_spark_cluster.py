"""A standalone cluster: executors in JVMs of their own, on workers that are not the driver, and what becomes of writes.

The short form is run here. `make cluster` runs the long ones (`cluster_run.py`, `stream_kills.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1900)]

HERE = Path(__file__).parent
IS_LONG = os.environ.get("DELTA_ORCH_CLUSTER") == "long"


def ensure_well(program: str, *arguments: str, cwd: Path, seconds: int) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # The repository's directory shows pyspark the package `pyspark_delta_orch`, as an installation does.
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=seconds,
        check=False,
        cwd=cwd,
    )
    sys.stdout.write(done.stdout)
    assert done.stdout.strip().endswith("all well"), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_features_and_a_killed_executor_on_a_standalone_cluster(spark: Any, tmp_path: Path) -> None:
    ensure_well("cluster_run.py", str(tmp_path), *([] if IS_LONG else ["--short"]), cwd=tmp_path, seconds=900)


@pytest.mark.skipif(not IS_LONG, reason="make cluster runs it: eleven processes of Spark")
def test_streams_whose_processes_are_killed(spark: Any, tmp_path: Path) -> None:
    ensure_well("stream_kills.py", str(tmp_path / "streams"), cwd=tmp_path, seconds=1800)
