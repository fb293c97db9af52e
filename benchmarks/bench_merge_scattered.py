"""Merge rows that lie in every file."""

from __future__ import annotations

from benchmarks.row_changes import tables, upsert_contestants

TITLE = "MERGE of 200,000 rows into 20,000,000, matches in all 20 files"
RESULTS_MAY_DIFFER = True
SOURCE = """
    select (i * 97) % 20000000 as id, 1::bigint as k, 0.5::double as value, 'new' as name, date '2021-01-01' as day
    from range(200000) r(i)
"""

prepare = tables
CONTESTANTS = upsert_contestants(SOURCE)
