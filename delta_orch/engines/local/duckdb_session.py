"""DuckDB connections set up to answer as Spark does, and DuckDB's errors as ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.errors import DeltaError, InvalidExpressionError, MissingDependencyError, StorageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_OLDEST = (1, 5)
"""The first release of DuckDB whose reader is tested to do what `duckdb_files` takes for granted."""


def ensure_duckdb() -> None:
    """Raises MissingDependencyError where DuckDB is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError as e:
        raise MissingDependencyError(
            "DuckDB is not installed", cause=str(e), remedy='Run pip install "delta-orch[local]"', package="duckdb"
        ) from e


def reads_as_tested() -> bool:
    """Whether the installed release may read data files itself."""
    import duckdb

    return tuple(int(part) for part in duckdb.__version__.split(".")[:2] if part.isdigit()) >= _OLDEST


def connect() -> Connection:
    """A connection of its own: in memory, in UTC, without extensions or Python's variables.

    Raises MissingDependencyError where DuckDB is not installed.
    """
    ensure_duckdb()
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "temp_directory": _spill_directory(os.getpid()),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@cache
def _spill_directory(process: int) -> str:
    """Where this process spills what does not fit in memory: for its user alone, and gone when the process ends."""
    import atexit
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="delta-orch-duckdb-")

    def remove() -> None:
        # A forked child has one of its own, and must leave its parent's alone.
        if os.getpid() == process:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


@contextmanager
def duckdb_errors(problem: str = "The query failed while it ran") -> Iterator[None]:
    """Turns DuckDB's errors into InvalidExpressionError, and StorageError where memory or the disk is full."""
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as e:
        raise StorageError("DuckDB could not finish the query", cause=str(e), remedy="Free disk space or memory") from e
    except (duckdb.Error, OSError, pa.ArrowException) as e:
        if isinstance(e, DeltaError):
            raise
        raise InvalidExpressionError(problem, cause=str(e).split("\n")[0]) from e
