"""Fields of a struct under column mapping."""

from __future__ import annotations

from benchmarks.scan_contestants import Query, contestants
from benchmarks.synthetic_rows import nested_mapped_table, physical_name

TITLE = "Two of three fields of a struct under column mapping by name, 5,000,000 rows in 5 files"
AGGREGATES = (("sum", "id"), ("max", "place.latitude"), ("max", "place.city"))


def _physical(path: str) -> str:
    return ".".join(map(physical_name, path.split(".")))


prepare = nested_mapped_table
CONTESTANTS = contestants(Query(AGGREGATES, bare={name: _physical(name) for _, name in AGGREGATES}))
