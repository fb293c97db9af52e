"""Delete one row in a hundred, from every file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.row_changes import contestants, tables

TITLE = "DELETE of 1 % of 20,000,000 rows, scattered over 20 files"
RESULTS_MAY_DIFFER = True
WHERE = "k < 10"

prepare = tables


def _ours(table: Path) -> object:
    from delta_orch import DeltaTable

    return DeltaTable(table).delete(WHERE).operation_metrics["numDeletedRows"]


def _theirs(table: Path) -> object:
    from deltalake import DeltaTable

    return DeltaTable(str(table)).delete(WHERE)["num_deleted_rows"]


CONTESTANTS = contestants(_ours, _theirs)
