"""Where the demo keeps what: everything below one folder, which each demo starts anew."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection

CHECKOUT = Path(__file__).resolve().parents[2]
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
    """`build/demo` in the checkout. `dagster_defs/` and `dags/` use it, too, when they are started by themselves."""
    return CHECKOUT / "build" / "demo"


def enter(places: Places) -> None:
    """Make this process, and those it starts, work in these places."""
    os.environ.update(places.environment())


def relax_sqlite() -> None:
    """Let new sqlite connections of this process leave flushing to the operating system.

    Dagster commits each event of a run by itself. A backfill of a year makes thousands of them, and waits for the disk
    each time. Commits survive a kill of the process without it, but not a power cut.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", _do_not_wait):
        event.listen(Engine, "connect", _do_not_wait)


def _do_not_wait(connection: DBAPIConnection, record: object) -> None:
    if type(connection).__module__.partition(".")[0] in ("sqlite3", "_sqlite3", "sqlalchemy"):
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.close()
