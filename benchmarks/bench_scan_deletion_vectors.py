"""G3 with one row in a hundred deleted by deletion vectors."""

from __future__ import annotations

from benchmarks.bench_scan_full import AGGREGATES
from benchmarks.scan_contestants import Query, contestants
from benchmarks.synthetic_rows import table_with_deletion_vectors

TITLE = "G3 with 1 % of the rows deleted by deletion vectors, scattered (the floors read the deleted rows, too)"
FLOOR_MAY_DIFFER = True

prepare = table_with_deletion_vectors
CONTESTANTS = contestants(Query(AGGREGATES))
