"""Many small CSV files become rows of a table."""

from __future__ import annotations

from pathlib import Path

from benchmarks.arriving_files import NUM_FILES, ROWS_OF_FILE, Run, duckdb, files_of, ours

TITLE = f"{NUM_FILES:,} CSV files of {ROWS_OF_FILE} rows, read as a table's columns with source_file"
MOST_ROUNDS = 5


def prepare(directory: Path) -> Path:
    """The files."""
    return files_of(directory, "csv")


def delta_orch() -> Run:
    """`read_files`."""
    return ours("csv")


def floor() -> Run:
    """DuckDB's reader with its own types."""
    return duckdb("csv")


CONTESTANTS = {"delta_orch": delta_orch, "floor": floor}
