"""DuckDB connections set up to answer as Spark does, and DuckDB's errors as ours."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import DeltaError, InvalidExpressionError, MissingDependencyError, StorageError
from delta_orch.expressions.to_sql import quote_duckdb_string
from delta_orch.log.files.file_columns import FileTable

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
            "temp_directory": _spill_directory(),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "arrow_large_buffer_size": "true",  # a vector of long texts has more than 2 GiB
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def confine(connection: Connection, plans: Iterable[ScanPlan | None]) -> None:
    """From here on the connection opens no files but those of the plans and its own for spilling, and loads nothing."""
    files = [
        quote_duckdb_string(plan.store.resolve(path))
        for plan in plans
        if plan is not None
        for path in FileTable(plan.files).path.to_pylist()
    ]
    connection.execute(f"SET allowed_paths = [{', '.join(files)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _spill_directory() -> str:
    """Where a connection spills what does not fit in memory. DuckDB makes it when it first does, and removes it.

    It is below one directory for the user alone (mode 0700), so that a process that is killed leaves nothing.
    """
    import tempfile
    import uuid

    home = Path(tempfile.gettempdir(), f"delta-orch-duckdb-{os.getuid()}")
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
    status = home.lstat()
    if (status.st_uid, status.st_mode & ~0o7000) != (os.getuid(), stat.S_IFDIR | 0o700):
        home = _other_home(os.getpid())
    return str(home / uuid.uuid4().hex)


@cache
def _other_home(process: int) -> Path:
    """For this process, if another user's directory takes this place."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix="delta-orch-duckdb-"))


EXPRESSION_REMEDY = 'Leave out such values, or use the Spark engine (engine="spark"): it takes some that DuckDB refuses'
QUERY_REMEDY = 'Write DuckDB\'s SQL for the local engine, or use Spark SQL with engine="spark"'


@contextmanager
def duckdb_errors(problem: str = "The query failed while it ran", remedy: str = EXPRESSION_REMEDY) -> Iterator[None]:
    """Turns DuckDB's errors into InvalidExpressionError, and StorageError where memory or the disk is full. Ctrl-C is
    KeyboardInterrupt, as anywhere."""
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as e:
        raise StorageError("DuckDB could not finish the query", cause=str(e), remedy="Free disk space or memory") from e
    except (duckdb.Error, OSError, pa.ArrowException) as e:
        if isinstance(e, DeltaError):
            raise
        if isinstance(e, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
            problem = "DuckDB refuses the query"
        raise InvalidExpressionError(problem, cause=str(e).split("\n")[0], remedy=remedy) from e
    except RuntimeError as e:
        if str(e) == "Query interrupted":
            raise KeyboardInterrupt from e
        raise
