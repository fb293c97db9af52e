"""G3: every row of a large table, aggregated."""

from __future__ import annotations

from benchmarks.scan_contestants import Query, contestants
from benchmarks.synthetic_rows import plain_table

TITLE = "G3: aggregates over all five columns of 20,000,000 rows in 20 files"
AGGREGATES = (("sum", "id"), ("sum", "k"), ("max", "value"), ("min", "name"), ("max", "day"))

prepare = plain_table
CONTESTANTS = contestants(Query(AGGREGATES))
