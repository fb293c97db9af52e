"""Merge rows that lie in two files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.row_changes import contestants, tables

TITLE = "MERGE of 200,000 rows into 20,000,000, matches in two of 20 files"
RESULTS_MAY_DIFFER = True
SOURCE = """
    select 900000 + i as id, 1::bigint as k, 0.5::double as value, 'new' as name, date '2021-01-01' as day
    from range(200000) r(i)
"""

prepare = tables


def _ours(table: Path) -> object:
    import duckdb

    from delta_orch import DeltaTable

    metrics = DeltaTable(table).upsert(duckdb.sql(SOURCE).to_arrow_table(), ["id"]).metrics
    return metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]


def _theirs(table: Path) -> object:
    import duckdb
    from deltalake import DeltaTable

    merge = DeltaTable(str(table)).merge(
        duckdb.sql(SOURCE).to_arrow_table(), "t.id = s.id", source_alias="s", target_alias="t"
    )
    told = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return told["num_target_rows_updated"], told["num_target_rows_inserted"]


CONTESTANTS = contestants(_ours, _theirs)
