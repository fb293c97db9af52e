"""The cases with deletion vectors, column mapping and type widening, on Spark Connect and the portable path.

The classic session reads all of them in tests/conformance; here are the features whose scan differs by path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.portable import PortableHost
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import GoldenCase, check_case

FEATURES = {"table-feature:deletionVectors", "dv-inline", "column-mapping-name", "column-mapping-id", "type-widening"}
CASES = [case for case in conformance_cases() if FEATURES & set(case.features)]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("compiled"),
]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_connect(case: GoldenCase, tmp_path: Path, spark_connect: Any) -> None:
    check_case(case, tmp_path, SparkEngine(spark_connect))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_the_portable_path(case: GoldenCase, tmp_path: Path, spark: Any) -> None:
    engine = SparkEngine(spark)
    engine.host = PortableHost(spark)
    check_case(case, tmp_path, engine)
