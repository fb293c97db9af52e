"""Order the rows of a table along a curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.row_changes import PLAIN, link, on_a_copy, tables
from benchmarks.synthetic_log import cached

TITLE = "Z-order by two columns, 5,000,000 rows in 5 files"
FILES = 5
BY = ["k", "value"]
RESULTS_MAY_DIFFER = True

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """The first quarter of G3."""
    source = tables(directory)

    def make(made: Path) -> None:
        from delta_orch import DeltaTable

        link(source / PLAIN, made / PLAIN)
        DeltaTable(made / PLAIN).delete(f"id >= {FILES * 1_000_000}")

    return cached(directory, "rows_to_order", make)


def delta_orch() -> Run:
    """`optimize(zorder_by=…)`."""
    from delta_orch import DeltaTable

    return on_a_copy(PLAIN, lambda copy: DeltaTable(copy).optimize(zorder_by=BY).operation_metrics["numAddedFiles"])


def deltalake() -> Run:
    """delta-rs."""
    from deltalake import DeltaTable

    return on_a_copy(PLAIN, lambda copy: DeltaTable(str(copy)).optimize.z_order(BY)["numFilesAdded"])


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake}
