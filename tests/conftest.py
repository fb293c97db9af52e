"""Spark sessions for all tests that need one: a classic one, and a Connect client of a server in the same JVM."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says something about the machine and its load, not about the code. Each run has the same
# examples; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("search", deadline=None)
settings.register_profile("delta_orch", deadline=None, derandomize=True)
settings.load_profile("delta_orch")

_HERE = Path(__file__).resolve().parent
_QUICK = ("unit", "protocol", "conformance", "verbs")
"""Folders whose tests are `quick`, except those with Spark and long ones."""

_LONGEST = (
    "property/test_local_expressions_spark_differential.py",
    "conformance/test_conformance_golden.py",
    "property/test_property_spark_reading.py",
    "spark/test_spark_format_writes.py",
)
"""The files that take longest. They come first, and files without Spark last: two processes end together then."""

# Processes that tests start find the harness, `tests.harness`, as this one does.
_ROOT = str(_HERE.parent)
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

# What is set for other work must not reach the tests: another Spark, a cloud, an Airflow or Dagster that runs here.
_OF_OTHER_WORK = (
    "AIRFLOW",
    "AWS_",
    "AZURE_",
    "DAGSTER_",
    "DATABRICKS_",
    "GOOGLE_",
    "HADOOP_",
    "PYSPARK_",
    "SPARK_",
    "UNITY_",
)
for _name in [name for name in os.environ if name.startswith(_OF_OTHER_WORK)]:
    del os.environ[_name]
# No proxy stands before the emulators.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get(_name)]))

# Shells start what runs in the background with SIGINT ignored, and Dagster gives SIGTERM the handler of SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A store that fails on purpose is not waited for as long as one that fails at night.
os.environ.setdefault("DELTA_ORCH_RETRY_SECONDS", "2")

_JAVA_OPTIONS = "-Duser.timezone=America/Los_Angeles -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM's own zone is not UTC, so that what depends on it by mistake is seen."""

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile queries over a few rows costs much of their time, and to compile their expressions a quarter of it. What
Spark cannot interpret takes the fixture `compiled`."""

# For every JVM that tests start, in processes of their own as well. With `JDK_JAVA_OPTIONS= make test-long`, Spark
# compiles its queries, as it does for users.
_ARCHIVE = Path(sys.prefix) / "spark.jsa"  # See scripts/spark_archive.py.
if "JDK_JAVA_OPTIONS" not in os.environ:
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(
        [
            *(["-Xlog:disable", f"-XX:SharedArchiveFile={_ARCHIVE}"] if _ARCHIVE.exists() else []),
            "-XX:TieredStopAtLevel=1",
            *(f"-D{name}={value}" for name, value in _INTERPRETED.items()),
        ]
    )

# Nobody waits for a disk that is none. What must reach one is told by tests that watch the calls.
if Path("/dev/shm").is_dir():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and put long files first."""
    for item in items:
        is_in_process = item.path.relative_to(_HERE).parts[0] in _QUICK and item.get_closest_marker("spark") is None
        if is_in_process and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.quick)
    on_spark = {item.path for item in items if item.get_closest_marker("spark") is not None}

    def turn(item: pytest.Item) -> int:
        name = item.path.relative_to(_HERE).as_posix()
        return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST) + (item.path not in on_spark)

    items.sort(key=turn)


@pytest.fixture(scope="module", autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """Tables in memory end with the module that made them: property tests leave thousands."""
    yield
    if "delta_orch.storage.memory" in sys.modules:
        sys.modules["delta_orch.storage.memory"].FILES.clear()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def _spark_and_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, int]]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java runtime: Spark cannot start")
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
    # Workers must be this interpreter, whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch: Path = tmp_path_factory.mktemp("spark")
    port = _free_port()
    session = (
        pyspark.sql.SparkSession.builder.master("local[2]")
        .appName("delta_orch tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", str(port))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session, port
    session.stop()


@pytest.fixture(scope="session")
def spark(_spark_and_port: tuple[Any, int]) -> Any:
    """A classic session, `local[2]`, session time zone UTC. A test that sets a setting puts it back."""
    return _spark_and_port[0]


@pytest.fixture(scope="session")
def spark_connect(_spark_and_port: tuple[Any, int]) -> Iterator[Any]:
    """A Spark Connect session, over loopback."""
    pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(f"sc://127.0.0.1:{_spark_and_port[1]}").create()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


@pytest.fixture
def compiled(spark: Any, spark_connect: Any) -> Iterator[None]:
    """For what Spark runs compiled alone: it reads shredded variants so, and lists its tables."""
    sessions, name = (spark, spark_connect), "spark.sql.codegen.factoryMode"
    before = [session.conf.get(name) for session in sessions]
    for session in sessions:
        session.conf.set(name, "FALLBACK")
    yield
    for session, value in zip(sessions, before, strict=True):
        session.conf.set(name, value)
