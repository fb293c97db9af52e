"""The Spark engine in each of its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.portable import PortableHost
from tests.share import IS_ALL
from tests.spark.spark_files import Files

HERE = Path(__file__).parent

_SINCE_4_1 = {
    "test_only_columns_that_are_needed_are_read": "the function that keeps rows gets all columns",
    "test_what_is_printed_means_what_was_written": "a path behind a colon needs the name of a column before it",
    "test_every_allowed_function_is_one_of_spark": "there is no try_to_date",
    "test_operators_bind_as_in_spark": "'it''s' is two texts side by side",
    "test_trap_9_a_struct_under_other_names_is_read_whole": "structs are read whole",
    "test_a_write_is_work_of_the_users_session": "an observation of a write over Connect ends empty",
    **dict.fromkeys(
        (
            "test_healthy_tables_have_the_same_rows_on_both_engines[14]",
            "test_on_connect[spark-variant-stats-nested-no-checkpoint]",
            "test_on_connect[spark-variant-stats-with-struct-no-checkpoint]",
            "test_on_the_portable_path[spark-variant-stats-nested-no-checkpoint]",
            "test_on_the_portable_path[spark-variant-stats-with-struct-no-checkpoint]",
            "test_variants[classic-shredded]",
            "test_variants[connect-shredded]",
            "test_variants[portable-shredded]",
        ),
        "shredded variants are neither read nor written",
    ),
}
"""Tests of what Spark 4.0 has not, with what it does instead. They fail there, and must say so when they do not."""


_ON_EVERY_SESSION = ("test_spark_requests.py", "test_spark_reading_traps.py", "test_spark_sessions.py")
"""Modules about what each kind of session does in a way of its own."""


def _is_of_another(item: pytest.Item) -> bool:
    """Whether a share leaves this case to another test, or another session.

    It has each test on the JVM's path. Half of the tests it has on the portable one, too, which is the same code over
    Connect and in a classic session: a fourth in either.
    """
    engine = item.callspec.params.get("engine") if isinstance(item, pytest.Function) and "[" in item.name else None
    if engine not in ("connect", "portable") or item.get_closest_marker("sampled") is not None:
        return False
    chosen = ("connect", "portable", None, None)[crc32(item.nodeid.replace(engine, "", 1).encode()) % 4]
    return engine != chosen and item.path.parent == HERE and item.path.name not in _ON_EVERY_SESSION


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not IS_ALL and not any("[" in argument for argument in config.args):
        left_out = [item for item in items if _is_of_another(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    try:
        from pyspark import __version__ as version
    except ImportError:
        return
    if version.startswith("4.0."):
        for item in items:
            if item.name in _SINCE_4_1:
                item.add_marker(pytest.mark.xfail(strict=True, reason=f"Spark 4.0: {_SINCE_4_1[item.name]}"))


@pytest.fixture(scope="session")
def portable_engine(spark: Any) -> SparkEngine:
    """A classic session treated as one whose JVM is out of reach."""
    engine = SparkEngine(spark)
    engine.host = PortableHost(spark)
    return engine


@pytest.fixture(params=["classic", "connect", "portable"])
def engine(request: pytest.FixtureRequest) -> SparkEngine:
    if request.param == "portable":
        answer: SparkEngine = request.getfixturevalue("portable_engine")
        return answer
    return SparkEngine(request.getfixturevalue("spark" if request.param == "classic" else "spark_connect"))


@pytest.fixture
def classic(spark: Any) -> SparkEngine:
    return SparkEngine(spark)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "table")
