"""`python -m delta_orch.demo.airflow_week`: the DAG in `dags/`, run day by day with `dag.test()`, in its own process.

Airflow reads its configuration when it is imported, so its home and its sqlite database are set before. The result is
written as JSON to the file given.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import warnings
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from delta_orch.demo.places import Places, checkout, enter


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m delta_orch.demo.airflow_week", description=__doc__)
    parser.add_argument("--days", nargs="+", type=date.fromisoformat, required=True)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    places = Places(Path(os.environ["FLIGHTS_HOME"]))
    enter(places)
    configure(places)
    started = time.monotonic()
    create_database()
    dag = load_dag()
    seconds_to_set_up = time.monotonic() - started
    # One session for all tasks: each finds it running and leaves it running.
    importlib.import_module("delta_orch.demo.session").spark_session()
    states = {day.isoformat(): run_day(dag, day) for day in [*options.days, options.days[0]]}
    result = {
        "dag_runs": len(options.days) + 1,
        "states": states,
        "seconds_to_set_up": round(seconds_to_set_up, 1),
    }
    options.result.write_text(json.dumps(result))
    return 0 if set(states.values()) == {"success"} else 1


def configure(places: Places) -> None:
    """Set Airflow's home and configuration. Must happen before its first import."""
    home = places.airflow
    os.environ.update(
        {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(checkout() / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        }
    )


def create_database() -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()


def load_dag() -> Any:
    """The DAG, imported and known to the database."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dag_folder=str(checkout() / "dags"), bundle_name="dags-folder")
    if bag.import_errors:
        raise RuntimeError(f"The DAG cannot be imported: {bag.import_errors}")
    sync_bag_to_db(bag, "dags-folder", None)
    return bag.dags["flights"]


def run_day(dag: Any, day: date) -> str:
    """One DAG run for a day's data interval. Returns its state."""
    run = dag.test(logical_date=datetime(day.year, day.month, day.day, tzinfo=UTC))
    return str(getattr(run.state, "value", run.state))


if __name__ == "__main__":
    raise SystemExit(main())
