"""Spark sessions for all tests that need one: a classic one, and a Connect client of a server in the same JVM."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.share import HAS_SLOW, IS_ALL, ONE_OF, place, sample

# How long an example takes says something about the machine and its load, not about the code. A share has the same
# examples in every run; `make test-all` looks for new ones.
settings.register_profile("delta_orch", deadline=None, derandomize=not IS_ALL)
settings.load_profile("delta_orch")

# Processes that tests start find the harness, `tests.harness`, as this one does.
_ROOT = str(Path(__file__).resolve().parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

# What is set for other work must not reach the tests: another Spark, a cloud, an Airflow or Dagster that runs here.
_OF_OTHER_WORK = ("AIRFLOW", "AWS_", "AZURE_", "DAGSTER_", "GOOGLE_", "HADOOP_", "PYSPARK_", "SPARK_")
for _name in [name for name in os.environ if name.startswith(_OF_OTHER_WORK)]:
    del os.environ[_name]
# No proxy stands before the emulators.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get(_name)]))

# A store that fails on purpose is not waited for as long as one that fails at night.
os.environ.setdefault("DELTA_ORCH_RETRY_SECONDS", "2")

_JAVA_OPTIONS = "-Duser.timezone=America/Los_Angeles -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM's own zone is not UTC, so that what depends on it by mistake is seen."""

_QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile queries over a few rows costs much of their time, and to compile their expressions a quarter of it. What
Spark cannot interpret takes the fixture `compiled`."""

# For every JVM that tests start, in processes of their own as well. `make test-all` has Spark as users have it.
_ARCHIVE = Path(sys.prefix) / "spark.jsa"  # See scripts/spark_archive.py.
if "JDK_JAVA_OPTIONS" not in os.environ:
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(
        [
            *(["-Xlog:disable", f"-XX:SharedArchiveFile={_ARCHIVE}"] if _ARCHIVE.exists() else []),
            *([] if IS_ALL else ["-XX:TieredStopAtLevel=1", *(f"-D{name}={value}" for name, value in _QUICK.items())]),
        ]
    )

# Nobody waits for a disk that is none. What must reach one is told by tests that watch the calls.
if Path("/dev/shm").is_dir():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first, and leave out what larger runs have. What is named runs: slow tests by their file too."""
    on_spark = {item.path for item in items if item.get_closest_marker("spark") is not None}
    items.sort(key=lambda item: place(item.path.as_posix(), is_on_spark=item.path in on_spark))
    if not HAS_SLOW and not any(".py" in argument for argument in config.args):
        _leave_out(config, items, [item for item in items if item.get_closest_marker("slow") is not None])
    if any("[" in argument for argument in config.args):
        return
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for family in families.values() for item in _share(family)}
    _leave_out(config, items, [item for family in families.values() for item in family if item not in kept])


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def _share(family: list[pytest.Item]) -> Sequence[pytest.Item]:
    marker = family[0].get_closest_marker("sampled")
    assert marker is not None
    kinds = marker.kwargs.get("kinds", lambda **values: [(name, id(value)) for name, value in values.items()])
    one_of = marker.args[0] if marker.args else ONE_OF
    return sample(family, one_of, lambda item: kinds(**item.callspec.params))  # type: ignore[attr-defined]


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
