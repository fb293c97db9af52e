"""G3 under column mapping: a range of ids in one of twenty files."""

from __future__ import annotations

from benchmarks.bench_scan_full import AGGREGATES
from benchmarks.scan_contestants import Query, contestants
from benchmarks.synthetic_rows import mapped_table, physical_name

TITLE = "G3 under column mapping by name: 100,001 rows, chosen by id, in one of 20 files"

prepare = mapped_table
CONTESTANTS = contestants(
    Query(AGGREGATES, (7_100_000, 7_200_000), bare={name: physical_name(name) for _, name in AGGREGATES})
)
