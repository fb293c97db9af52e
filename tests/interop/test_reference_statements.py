"""Random tables and statements in SQL beside Delta on Spark: the same answers, rows and schemas, and nothing raw.

`DELTA_ORCH_STATEMENTS` says how many run; `python -m tests.harness.statements` runs hundreds, and lists what only one
side refuses.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.harness.sequences.run import Differs
from tests.harness.statements.run import check_case
from tests.interop.reference_client import Reference

# A busy machine runs hundreds of statements in minutes.
pytestmark = pytest.mark.timeout(1800)
STATEMENTS = int(os.environ.get("DELTA_ORCH_STATEMENTS", "2"))


@pytest.mark.parametrize("seed", range(STATEMENTS))
def test_random_statements_say_what_delta_on_spark_says(reference: Reference, tmp_path: Path, seed: int) -> None:
    found = check_case(seed, tmp_path, reference, {"local": "local"})
    assert found.ran > 10


class _Losing:
    """A reference that loses the last row of every answer."""

    def __init__(self, reference: Reference) -> None:
        self.run = reference.run
        self._reference = reference

    def query(self, query: str) -> pa.Table:
        rows = self._reference.query(query)
        return rows.slice(0, max(rows.num_rows - 1, 0))


def test_another_answer_is_noticed(reference: Reference, tmp_path: Path) -> None:
    with pytest.raises(Differs, match="rows of"):
        check_case(0, tmp_path, _Losing(reference), {"local": "local"})  # type: ignore[arg-type]
