"""Every golden table, on both engines: what it expects is read, and only what it says must be refused is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import spark_engine
from tests.harness.golden import GoldenCase, check_case, load_cases

ROOT = Path(__file__).parents[2] / ".." / "shared" / "golden"
CASES = load_cases(ROOT)
NEEDS_GOLDEN = pytest.mark.skipif(not CASES, reason=f"the golden tables are not at {ROOT}")


@NEEDS_GOLDEN
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: GoldenCase, tmp_path: Path) -> None:
    check_case(case, tmp_path, LocalEngine())


@pytest.mark.sampled(10, kinds=lambda case: case.features)
@NEEDS_GOLDEN
@pytest.mark.spark
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_on_spark(case: GoldenCase, tmp_path: Path, spark: Any) -> None:
    check_case(case, tmp_path, spark_engine(spark))
