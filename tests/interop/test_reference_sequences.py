"""Random sequences of statements beside Delta on Spark: the same rows, row ids and changes after every step, and each
reads what the other wrote.

`DELTA_ORCH_SEQUENCES` says how many run; `python -m tests.harness.sequences` runs hundreds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.spark.engine import SparkEngine
from tests.harness.sequences.run import check_sequence
from tests.interop.reference_client import Reference, ReferenceError

# A busy machine runs hundreds of statements in minutes.
pytestmark = pytest.mark.timeout(1800)
SEQUENCES = int(os.environ.get("DELTA_ORCH_SEQUENCES", "4"))


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_a_random_sequence_gives_what_delta_on_spark_gives(
    reference: Reference, spark: Any, tmp_path: Path, seed: int
) -> None:
    check_sequence(seed, tmp_path, reference, {"local": "local", "spark": SparkEngine(spark)})


class _Failing:
    """A reference that fails in its own code."""

    def run(self, *_: str) -> None:
        raise ReferenceError("SparkException: [INTERNAL_ERROR] The Spark SQL phase optimization failed")


def test_a_sequence_is_undecided_where_the_reference_fails_by_itself(tmp_path: Path) -> None:
    found = check_sequence(1, tmp_path, _Failing(), {"local": "local"})  # type: ignore[arg-type]
    assert found.refused == 0
