"""Update a range of rows, which lies in one file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.row_changes import contestants, tables

TITLE = "UPDATE of 100,000 rows of one file, of 20,000,000 rows in 20 files"
RESULTS_MAY_DIFFER = True
WHERE = "id >= 500000 AND id < 600000"

prepare = tables


def _ours(table: Path) -> object:
    from delta_orch import DeltaTable

    return DeltaTable(table).update({"k": "k + 1"}, WHERE).operation_metrics["numUpdatedRows"]


def _theirs(table: Path) -> object:
    from deltalake import DeltaTable

    return DeltaTable(str(table)).update({"k": "k + 1"}, predicate=WHERE)["num_updated_rows"]


CONTESTANTS = contestants(_ours, _theirs)
