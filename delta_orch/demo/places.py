"""Where the demo keeps what: everything below one folder, which each demo starts anew."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import delta_orch
from delta_orch.errors import InvalidRequestError

_MARKER = ".delta-orch-demo"

_DAGSTER_YAML = """\
telemetry:
  enabled: false
# What steps print goes to the demo's own log; copying it once more takes two processes for each run.
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one demo below `home`."""

    home: Path

    @property
    def source(self) -> Path:
        return self.home / "source"

    @property
    def landing(self) -> Path:
        return self.home / "landing"

    @property
    def tables(self) -> Path:
        return self.home / "tables"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def dagster(self) -> Path:
        return self.home / "dagster"

    @property
    def airflow(self) -> Path:
        return self.home / "airflow"

    @property
    def signals(self) -> Path:
        return self.home / "signals"

    def prepare(self) -> None:
        """Start with an empty home.

        Raises:
            InvalidRequestError: The folder holds something that no demo has made. Nothing was removed.
        """
        if self.home.exists():
            is_ours = (self.home / _MARKER).exists() or self.home == default_home()
            if any(self.home.iterdir()) and not is_ours:
                raise InvalidRequestError(
                    f"{self.home} is not empty, and no earlier demo has made it", remedy="Name another folder"
                )
            shutil.rmtree(self.home)
        for folder in (self.home, self.logs, self.dagster, self.airflow, self.signals):
            folder.mkdir(parents=True)
        (self.home / _MARKER).touch()
        (self.dagster / "dagster.yaml").write_text(_DAGSTER_YAML)

    def environment(self) -> dict[str, str]:
        """What `dagster_defs/`, `dags/`, Dagster and Spark find their places by, here and in child processes."""
        return {
            "FLIGHTS_HOME": str(self.home),
            # Nobody reads old versions here, so that vacuum has something to delete.
            "FLIGHTS_RETENTION": "interval 0 hours",
            "DAGSTER_HOME": str(self.dagster),
            "SPARK_LOCAL_DIRS": str(self.home / "spark"),
            "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS") or _java_options(),
        }


def _java_options() -> str:
    # For minutes of work the quick compiler is the better one: the other takes as long as it saves.
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Where `make setup` has kept the classes of a session, each of the demo's starts in half the time.
    archive = Path(sys.prefix) / "spark.jsa"
    return f"{options} -Xlog:disable -XX:SharedArchiveFile={archive}" if archive.exists() else options


def default_home() -> Path:
    """`build/demo` in the checkout; `dagster_defs/` and `dags/` use it, too, when they are run by themselves."""
    return checkout() / "build" / "demo"


def checkout() -> Path:
    """The folder with `dagster_defs/` and `dags/`.

    Raises:
        InvalidRequestError: The package was installed without them.
    """
    folder = Path(delta_orch.__file__).resolve().parent.parent
    if not (folder / "dagster_defs").is_dir() or not (folder / "dags").is_dir():
        raise InvalidRequestError(
            "The demo runs the example pipelines in dagster_defs/ and dags/, which are not beside the package",
            remedy="Run `make demo` in a checkout of the repository",
        )
    return folder


def enter(places: Places) -> None:
    """Make this process, and those it starts, work in these places."""
    os.environ.update(places.environment())
