"""One engine a session, whatever becomes of it: views, settings, interruptions. `cluster_run.py` has restarts."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.classic import ClassicHost
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.portable import PortableHost
from delta_orch.errors import CancelledError, SchemaMismatchError
from tests.spark.spark_files import Files

pytestmark = pytest.mark.spark


def test_the_host_is_chosen_by_what_the_session_can_do_and_kept(spark: Any, spark_connect: Any) -> None:
    assert isinstance(SparkEngine(spark).host, ClassicHost)
    assert isinstance(SparkEngine(spark_connect).host, PortableHost)
    for session in (spark, spark_connect):
        assert SparkEngine(session).host is SparkEngine(session.range(1)).host
        assert SparkEngine(session).name == "spark"


@pytest.mark.long
def test_a_session_is_not_kept_alive(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    files = Files(tmp_path / "t")
    adds, schema = files.write(SparkEngine(session), session.range(3))
    files.scan(SparkEngine(session), adds, schema).count()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


@pytest.mark.long
def test_settings_changed_later_take_effect(classic: SparkEngine, files: Files, spark: Any) -> None:
    rows = spark.range(0, 100, 1, 4)
    adds, _ = files.write(classic, rows)
    assert adds.num_rows == 4
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "5")
    try:
        adds, _ = files.write(classic, rows)
        assert adds.num_rows == 20
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")


def test_the_active_session_stays_the_users(classic: SparkEngine, files: Files, spark: Any) -> None:
    from pyspark.sql import SparkSession

    adds, schema = files.write(classic, pa.table({"id": [1]}))
    classic.to_arrow(classic.sql("SELECT * FROM t", {"t": files.scan(classic, adds, schema)}))
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)
    rows = files.scan(classic, adds, schema)
    assert rows.sparkSession is spark
    assert rows._jdf.sparkSession().equals(spark._jsparkSession)


@pytest.mark.long
def test_temporary_views_and_functions_of_the_user_reach_a_write(engine: SparkEngine, files: Files) -> None:
    session = engine.host.session
    session.range(3).createOrReplaceTempView("mine")
    try:
        adds, schema = files.write(engine, session.sql("SELECT id + 1 AS id FROM mine"))
        assert sorted(engine.to_arrow(files.scan(engine, adds, schema))["id"].to_pylist()) == [1, 2, 3]
    finally:
        session.catalog.dropTempView("mine")


@pytest.mark.long
def test_python_functions_and_cached_rows_reach_a_write(classic: SparkEngine, files: Files, spark: Any) -> None:
    from pyspark.sql.functions import udf

    twice = udf(lambda x: x * 2, "bigint")
    cached = spark.range(3).cache()
    try:
        cached.count()
        adds, schema = files.write(classic, cached.select(twice("id").alias("id")))
        assert sorted(classic.to_arrow(files.scan(classic, adds, schema))["id"].to_pylist()) == [0, 2, 4]
    finally:
        cached.unpersist()


@pytest.mark.long
def test_a_write_is_work_of_the_users_session(spark: Any, spark_connect: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as classic_functions
    from pyspark.sql.connect import functions as connect_functions
    from pyspark.sql.connect.observation import Observation as ConnectObservation
    from pyspark.sql.observation import Observation as ClassicObservation

    mapped = {"delta.columnMapping.mode": "id"}
    for number, session in enumerate((spark, spark_connect)):
        table = DeltaTable(tmp_path / f"t{number}")

        def observed(rows: Any, number: int = number) -> tuple[Any, Any]:
            observation = ConnectObservation() if number else ClassicObservation()
            F = connect_functions if number else classic_functions
            return observation, rows.observe(observation, F.count(F.lit(1)).alias("n"), F.max("id").alias("most"))

        observation, rows = observed(session.range(5))
        table.append(rows)
        assert observation.get == {"n": 5, "most": 4}
        # These files are written by Arrow, in tasks.
        observation, rows = observed(session.range(7).selectExpr("id", "array(id) AS many"))
        DeltaTable(tmp_path / f"mapped{number}").append(rows, properties=mapped)
        assert observation.get == {"n": 7, "most": 6}
        observation, rows = observed(session.range(3, 9))
        table.upsert(rows, keys=["id"])
        # A checkpoint over Connect answers without metrics: Spark ends the observation empty.
        assert observation.get == ({} if number else {"n": 6, "most": 8})
        assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == list(range(9))


@pytest.mark.long
@pytest.mark.parametrize("by", ["interruptAll", "group", "tag", "connect"])
def test_what_the_user_stops_is_not_committed(spark: Any, spark_connect: Any, tmp_path: Path, by: str) -> None:
    from pyspark.sql.connect.functions import udf as connect_udf
    from pyspark.sql.functions import udf as classic_udf

    session, udf = (spark_connect, connect_udf) if by == "connect" else (spark, classic_udf)
    table = DeltaTable(tmp_path / "t")
    table.append(session.range(3))
    started = str(tmp_path / "started")

    def slow(x):  # type: ignore[no-untyped-def]  # pyspark takes hints for those of a pandas function
        Path(started).touch()
        time.sleep(0.05)
        return x

    rows = session.range(0, 4000, 1, 2).select(udf(slow, "bigint")("id").alias("id"))
    stop = {
        "interruptAll": lambda: session.interruptAll(),
        "connect": lambda: session.interruptAll(),
        "tag": lambda: spark.sparkContext.cancelJobsWithTag("nightly"),
        "group": lambda: spark.sparkContext.cancelJobGroup("nightly"),
    }[by]

    def stop_once_started() -> None:
        for _ in range(600):
            if Path(started).exists():
                break
            time.sleep(0.1)
        stop()

    stopper = threading.Thread(target=stop_once_started)
    if by == "tag":
        spark.sparkContext.addJobTag("nightly")
    if by == "group":
        spark.sparkContext.setJobGroup("nightly", "rows of the night", True)
    try:
        stopper.start()
        with pytest.raises(CancelledError, match="cancelled"):
            table.append(rows)
        stopper.join()
    finally:
        if by == "tag":
            spark.sparkContext.clearJobTags()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)
    assert table.version() == 0
    table.append(session.range(3, 5))
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_types_that_no_table_has_are_the_datas(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(spark.range(1))
    with pytest.raises(SchemaMismatchError, match="The data has the column late of type interval day to second"):
        table.append(spark.sql("SELECT 1L AS id, INTERVAL '1' DAY - INTERVAL '1' SECOND AS late"))
    assert table.version() == 0
