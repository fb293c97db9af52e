"""G3 under column mapping."""

from __future__ import annotations

from benchmarks.bench_scan_full import AGGREGATES
from benchmarks.scan_contestants import Query, contestants
from benchmarks.synthetic_rows import mapped_table, physical_name

TITLE = "G3 under column mapping by name"

prepare = mapped_table
CONTESTANTS = contestants(Query(AGGREGATES, bare={name: physical_name(name) for _, name in AGGREGATES}))
