"""Those who take part in more than one benchmark of opening a table: none of them reads a data file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.scan_contestants import duckdb_with_delta

Run = Callable[[Path], object]
_OTHERS = re.compile(r"(\d+) other sources?\]")


def deltalake_paths() -> Run:
    """delta-rs: paths as a Python list, the only form it has."""
    from deltalake import DeltaTable

    return lambda table: len(DeltaTable(str(table)).file_uris())


def duckdb_paths() -> Run:
    """DuckDB's delta extension: its own list of paths, counted."""
    connection = duckdb_with_delta()
    query = "select count(data_file) from delta_list_files('{}')"
    return lambda table: connection.execute(query.format(table)).fetchall()[0][0]


def duckdb_planned(condition: str) -> Run:
    """DuckDB's delta extension: plans a scan, and writes to its log how many files that leaves."""
    connection = duckdb_with_delta()
    connection.execute("call enable_logging(level = 'trace')")

    def run(table: Path) -> object:
        connection.execute(f"explain select id from delta_scan('{table}') where {condition}")
        return connection.execute("select min(files_after) from delta_filter_pushdown_log()").fetchall()[0][0]

    return run


def polars_planned(condition: Callable[[Any], Any] | None = None) -> Run:
    """Polars, which has no list of files, only plans that say how many there are.

    Args:
        condition: Of the module's `col`, what rows to ask for.
    """
    import polars as pl

    def run(table: Path) -> int:
        rows = pl.scan_delta(str(table))
        plan = (rows if condition is None else rows.filter(condition(pl.col))).select("id").explain()
        if "Parquet SCAN []" in plan:
            return 0
        found = _OTHERS.search(plan)
        return 1 if found is None else 1 + int(found[1])

    return run
