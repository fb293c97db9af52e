"""Spark in tasks: sessions that a task starts, and sessions it only uses. In a process of its own, so that no session
of another test is running when it begins."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaWriteOperator

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    import conftest
    from airflow.sdk import DAG, task

    from delta_orch import DeltaTable
    from delta_orch.airflow import DeltaIncrementalOperator, DeltaWriteOperator
    from delta_orch.airflow.spark_session import running_spark_session

    home = Path(sys.argv[2])
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    runs = conftest.Runs()
    SPARK = {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    applications = []


    def rows(name):
        table = DeltaTable(str(home / name)).snapshot().scan().to_arrow()
        return sorted(zip(*(table[column].to_pylist() for column in ("day", "flight"))))


    def double(batch, spark):
        applications.append(spark.sparkContext.applicationId)
        return batch.scan().to_spark(spark).selectExpr("day", "flight * 2 AS flight")


    with DAG("spark", schedule="@daily", start_date=conftest.DAY_1) as dag:

        @task.delta(
            table_uri=str(home / "bronze"),
            write="overwrite",
            replace_where="day = date'{{ ds }}'",
            partition_by=["day"],
            spark_conf=SPARK,
        )
        def bronze(ds, spark=None):
            applications.append(spark.sparkContext.applicationId)
            return spark.sql(f"SELECT date'{ds}' AS day, id AS flight FROM range(3)")

        silver = DeltaIncrementalOperator(
            task_id="silver",
            source=str(home / "bronze"),
            target=str(home / "silver"),
            python_callable=double,
            partition_by=["day"],
            spark_conf=SPARK,
        )
        gold = DeltaWriteOperator(
            task_id="gold",
            sql="SELECT day, sum(flight) AS flight FROM silver GROUP BY day",
            tables={"silver": str(home / "silver")},
            table_uri=str(home / "gold"),
            write="overwrite",
            spark_conf=SPARK,
        )
        bronze() >> silver >> gold

    from datetime import date

    first = runs.run(dag, conftest.DAY_1)
    assert str(first.state) == "success", first.state
    day_1, day_2 = date(2024, 1, 1), date(2024, 1, 2)
    assert rows("bronze") == [(day_1, 0), (day_1, 1), (day_1, 2)]
    assert rows("silver") == [(day_1, 0), (day_1, 2), (day_1, 4)]
    assert rows("gold") == [(day_1, 6)]
    assert len(set(applications)) == 2, "each task starts and stops a session of its own"
    assert running_spark_session() is None

    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in SPARK.items():
        builder = builder.config(key, value)
    mine = builder.getOrCreate()
    applications.clear()
    second = runs.run(dag, conftest.DAY_2)
    assert str(second.state) == "success", second.state
    assert set(applications) == {mine.sparkContext.applicationId}, "a running session is used"
    assert mine.range(2).count() == 2, "and left running"
    assert rows("gold") == [(day_1, 6), (day_2, 6)]
    mine.stop()

    # A master by connection, and a task that is told to end in the middle of a job.
    import os
    import signal
    import threading
    import time

    os.environ["AIRFLOW_CONN_HERE"] = '{"conn_type": "spark", "host": "local[1]"}'


    def waits(batches):
        yield from batches
        time.sleep(600)  # longer than this script may take


    def slow(spark, ti):
        assert spark.conf.get("spark.master") == "local[1]"
        frame = spark.range(1).selectExpr("date'2024-01-09' AS day", "id AS flight")
        if ti.try_number == 1:
            threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            return frame.mapInArrow(waits, frame.schema)
        return frame


    settings = {key: value for key, value in SPARK.items() if key != "spark.master"}
    from datetime import timedelta

    with DAG("killed", schedule=None) as killed:
        DeltaWriteOperator(
            task_id="slow", table_uri=str(home / "gold"), python_callable=slow, spark_conn_id="here",
            spark_conf=settings, retries=1, retry_delay=timedelta(0),
        )
    run = runs.run(killed)
    assert (runs.state(run, "slow"), runs.tries(run, "slow")) == ("success", 2)
    assert rows("gold") == [(day_1, 6), (day_2, 6), (date(2024, 1, 9), 0)]
    assert running_spark_session() is None
    print("all of it")
    """
)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_sessions_of_tasks(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        # Spark's workers run the `python3` of the path otherwise, which may have no pyarrow.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "all of it" in done.stdout


def test_only_what_asks_for_spark_needs_it(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `delta-orch[airflow,local]`, without pyspark."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with DAG("without_spark", schedule=None) as dag:
        write: dict[str, Any] = {"sql": "SELECT 1 AS id", "write": "overwrite"}
        DeltaWriteOperator(task_id="local", table_uri=tmp_path / "local", **write)
        DeltaWriteOperator(task_id="spark", table_uri=tmp_path / "spark", spark_conf={"spark.master": "local"}, **write)
    run = runs.run(dag)
    assert (runs.state(run, "local"), runs.state(run, "spark")) == ("success", "failed")
    assert DeltaTable(tmp_path / "local").snapshot().scan().to_arrow()["id"].to_pylist() == [1]
