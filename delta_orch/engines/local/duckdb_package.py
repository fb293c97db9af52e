"""DuckDB itself, which is only there if it was asked for."""

from __future__ import annotations

from typing import Any

from delta_orch.errors import MissingDependencyError


def import_duckdb() -> Any:
    """The package. Raises MissingDependencyError."""
    try:
        import duckdb
    except ImportError as e:
        raise MissingDependencyError(
            "DuckDB is not installed", cause=str(e), remedy='Run pip install "delta-orch[local]"', package="duckdb"
        ) from e
    return duckdb
