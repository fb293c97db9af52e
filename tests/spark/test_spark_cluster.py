"""Executors in JVMs of their own: nothing that a scan needs may be left in the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent


def test_every_feature_is_read_by_executors_of_their_own(spark: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # The repository's directory shows pyspark the package `pyspark_delta_orch`, as an installation does.
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(HERE / "cluster_reads.py"), "local-cluster[2,1,1024]", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.strip().endswith("all well"), f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
