"""The Spark engine in each of its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.portable import PortableHost
from tests.spark.spark_files import Files


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
