"""Upsert a thousand keys."""

from __future__ import annotations

from benchmarks.row_changes import tables, upsert_contestants

TITLE = "Upsert of 1,000 keys into 20,000,000 rows, a tenth of them new"
RESULTS_MAY_DIFFER = True
SOURCE = """
    select i * 22000 as id, 1::bigint as k, 0.5::double as value, 'new' as name, date '2021-01-01' as day
    from range(1000) r(i)
"""

prepare = tables
CONTESTANTS = upsert_contestants(SOURCE)
