"""G3: a range of ids in one of twenty files."""

from __future__ import annotations

from benchmarks.bench_scan_full import AGGREGATES
from benchmarks.scan_contestants import Query, contestants, delta_orch_dataset
from benchmarks.synthetic_rows import plain_table

TITLE = "G3: the same aggregates over 100,001 of 20,000,000 rows, chosen by id, in one of 20 files"

prepare = plain_table
QUERY = Query(AGGREGATES, (7_100_000, 7_200_000))
CONTESTANTS = {**contestants(QUERY), "delta_orch, pyarrow dataset": lambda: delta_orch_dataset(QUERY)}
