"""Measure a step with rules beside the same step without. One row in a hundred goes to the quarantine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.verbs.expect import Expectations

TITLE = "Quarantine: a stream of 5 million rows, two rules, 1 % of the rows are bad"
WARM_UPS = 1
RESULTS_MAY_DIFFER = True
NUM_ROWS = 5_000_000

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A directory on the disk to be measured; every run makes its own tables in it."""
    path = directory / "quarantine"
    path.mkdir(parents=True, exist_ok=True)
    return path


def without_rules() -> Run:
    """The floor: the same step."""
    return lambda directory: _written(directory, None)


def with_quarantine() -> Run:
    """A comparison, and a function that DuckDB evaluates."""
    from delta_orch import Expect
    from delta_orch.verbs.expect import Expectations

    rules = {"amount": Expect("amount > 0"), "text": Expect("length(text) < 5", "warn")}
    return lambda directory: _written(directory, Expectations.of(rules))


@cache
def _rows() -> pa.Table:
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(1)
    amounts = rng.normal(100, 10, NUM_ROWS)
    amounts[::100] = -1
    return pa.table(
        {
            "id": np.arange(NUM_ROWS),
            "amount": amounts,
            "text": pa.array(rng.integers(0, 1000, NUM_ROWS)).cast(pa.string()),
            "number": rng.integers(0, 10**12, NUM_ROWS),
        }
    )


def _written(directory: Path, expect: Expectations | None) -> int:
    from delta_orch import DeltaTable
    from delta_orch.pipeline.step import Step
    from delta_orch.pipeline.unit import Attempt, Unit

    root = Path(tempfile.mkdtemp(dir=directory))
    try:
        table = DeltaTable(root / "t")
        attempt = Attempt((Unit("airflow:dag.task", "monday"),), 1, "run")
        Step("step", table, attempt=attempt, expect=expect).run(lambda: _rows().to_reader(65_536))
        return table.snapshot().scan().count()
    finally:
        shutil.rmtree(root)


CONTESTANTS = {"floor: without rules": without_rules, "with quarantine": with_quarantine}
