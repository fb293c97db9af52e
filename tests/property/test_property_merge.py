"""Random merges against a model in plain Python. `python -m tests.harness.merges --cases 1000` runs more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.merges.run import check_case


@pytest.mark.parametrize("seed", range(12))
def test_a_random_merge_gives_the_rows_of_the_model(tmp_path: Path, seed: int) -> None:
    check_case(seed, tmp_path / "t")


@pytest.mark.spark
@pytest.mark.parametrize("seed", (0, 3, 11))
def test_a_random_merge_on_spark_gives_the_rows_of_the_model(spark: Any, tmp_path: Path, seed: int) -> None:
    check_case(seed, tmp_path / "t", spark.createDataFrame)
