"""What both orchestrators need to run `spark-submit`: the program, its driver's environment, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from delta_orch.errors import MissingDependencyError

_TERMINATION_S = 3.0
_DRIVER_ENVIRONMENTS = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")


def find_spark_submit(name: str) -> str:
    """The path of a program of Spark: on the PATH, or beside this interpreter.

    Raises:
        MissingDependencyError: It is in neither place.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise MissingDependencyError(
            f"There is no {name} on the PATH",
            remedy="Install Spark, or delta-orch[spark], which brings it",
            package="pyspark",
        )
    return found


def driver_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Settings that give a driver variables. In cluster mode it does not have the environment of `spark-submit`."""
    return {prefix + name: value for prefix in _DRIVER_ENVIRONMENTS for name, value in variables.items()}


def submit_environment(master: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of `spark-submit`. What runs on this machine runs with this interpreter."""
    environment = {**os.environ, **variables}
    if master.startswith("local"):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def end_process(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and its children: asked first, killed three seconds later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATION_S)
            return
