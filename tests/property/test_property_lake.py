"""Random statements over several tables beside a model. `python -m tests.harness.lake --cases 300` runs more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.lake.model import State, Wrong
from tests.harness.lake.run import check_lake


@pytest.mark.parametrize("seed", (1, 3, 7))
def test_tables_are_as_the_model_says(tmp_path: Path, seed: int) -> None:
    told = check_lake(seed, tmp_path, steps=10)
    assert sum(text.isdigit() for text in told) > 4


@pytest.mark.long
@pytest.mark.spark
def test_tables_written_on_spark_are_as_the_model_says(spark: Any, tmp_path: Path) -> None:
    from delta_orch.engines.spark.engine import SparkEngine

    assert check_lake(5, tmp_path, SparkEngine(spark), steps=6)


def test_rows_that_differ_are_told_with_the_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "bag", lambda state, rows: Counter([("a row",)]))
    with pytest.raises(Wrong, match=r"rows of version 0 differ(.|\n)*missing:\n    a row\n0: t0: create"):
        check_lake(0, tmp_path)
