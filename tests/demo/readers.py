"""Readers of Delta tables that share no code with delta_orch: they confirm, or they do not, what it wrote.

Each defines a DuckDB relation with a table's rows, so that all are summed up by the same SQL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.demo.control_totals import COLUMNS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Open: TypeAlias = "Callable[[DuckDBPyConnection, str, Path], str]"
"""(DuckDB connection, table's name, table's folder) → the relation with its rows."""


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    what: str
    open: Open


def find_readers(extension_folder: Path) -> tuple[list[Reader], dict[str, str]]:
    """The readers this machine has, and for each it has not, why."""
    readers = [DELTALAKE, LOG_REPLAY]
    reason = why_unavailable(extension_folder)
    if reason is not None:
        return readers, {"duckdb delta extension": reason}
    scan = partial(_open_extension, extension_folder=extension_folder)
    return [*readers, Reader("duckdb delta extension", "delta-kernel-rs in DuckDB", scan)], {}


def _open_deltalake(connection: DuckDBPyConnection, table: str, folder: Path) -> str:
    from deltalake import DeltaTable

    relation = f"deltalake_{table}"
    connection.register(relation, DeltaTable(str(folder)).to_pyarrow_table())
    return relation


def _open_log_replay(connection: DuckDBPyConnection, table: str, folder: Path) -> str:
    """Replay the log as PROTOCOL says ("Action Reconciliation"), in SQL."""
    log = folder / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    checkpoint_version = int(checkpoints[-1].name[:20]) if checkpoints else -1
    commits = [path for path in sorted(log.glob("*.json")) if int(path.stem) > checkpoint_version]
    versions = [int(path.stem) for path in commits]
    if versions != list(range(checkpoint_version + 1, checkpoint_version + 1 + len(versions))):
        raise ValueError(f"The log of {folder} has a gap: {versions} follow {checkpoint_version}")
    actions = []
    if checkpoints:
        actions.append(_checkpoint_actions(checkpoints[-1], checkpoint_version))
    if commits:
        actions.append(_commit_actions(commits))
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE live_files AS SELECT path, arg_max(partition_values, rank) AS partition_values "
        f"FROM ({' UNION ALL '.join(actions)}) GROUP BY path HAVING arg_max(is_add, rank)"
    )
    _ensure_plain(connection, commits, checkpoints)
    return _scan_live_files(connection, table, folder)


def _checkpoint_actions(checkpoint: Path, version: int) -> str:
    return (
        f"SELECT add.path AS path, add.partitionValues AS partition_values, true AS is_add, {2 * version + 1} AS rank "
        f"FROM read_parquet('{checkpoint}') WHERE add.path IS NOT NULL"
    )


_COMMIT_COLUMNS = (
    "{add: 'STRUCT(path VARCHAR, partitionValues MAP(VARCHAR, VARCHAR), deletionVector JSON)', "
    "remove: 'STRUCT(path VARCHAR)', protocol: 'STRUCT(minReaderVersion INT)'}"
)


def _read_commits(commits: list[Path]) -> str:
    files = ", ".join(f"'{path}'" for path in commits)
    return (
        f"read_json([{files}], format = 'newline_delimited', filename = true, columns = {_COMMIT_COLUMNS}, "
        "maximum_object_size = 67108864)"
    )


def _commit_actions(commits: list[Path]) -> str:
    # Within one commit removes apply before adds: hence the odd rank for an add.
    version = "2 * regexp_extract(filename, '(\\d{20})\\.json$', 1)::BIGINT"
    source = _read_commits(commits)
    return (
        f"SELECT add.path AS path, add.partitionValues AS partition_values, true AS is_add, {version} + 1 AS rank "
        f"FROM {source} WHERE add.path IS NOT NULL "
        f"UNION ALL SELECT remove.path, NULL, false, {version} FROM {source} WHERE remove.path IS NOT NULL"
    )


def _ensure_plain(connection: DuckDBPyConnection, commits: list[Path], checkpoints: list[Path]) -> None:
    """A replay this short is right only for tables without reader features."""
    versions: list[tuple[int]] = []
    if commits:
        versions += connection.execute(
            f"SELECT protocol.minReaderVersion FROM {_read_commits(commits)} WHERE protocol IS NOT NULL"
        ).fetchall()
    if checkpoints:
        versions += connection.execute(
            f"SELECT protocol.minReaderVersion FROM read_parquet('{checkpoints[-1]}') WHERE protocol IS NOT NULL"
        ).fetchall()
    if not versions or any(version != (1,) for version in versions):
        raise ValueError(f"The log's reader versions are {versions}; the replay in SQL reads version 1 only")


def _scan_live_files(connection: DuckDBPyConnection, table: str, folder: Path) -> str:
    relation = f"replay_{table}"
    rows = connection.execute("SELECT url_decode(path) FROM live_files").fetchall()
    files = ", ".join(f"'{folder / path}'" for (path,) in rows)
    partition_columns = connection.execute(
        "SELECT DISTINCT unnest(map_keys(partition_values)) FROM live_files"
    ).fetchall()
    values = "".join(
        f", (l.partition_values['{name}'])::{COLUMNS[table][name]} AS {name}" for (name,) in partition_columns
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {relation} AS SELECT d.* EXCLUDE (filename){values} "
        f"FROM read_parquet([{files}], filename = true, hive_partitioning = false) d "
        f"JOIN live_files l ON d.filename = '{folder}/' || url_decode(l.path)"
    )
    return relation


def _open_extension(connection: DuckDBPyConnection, table: str, folder: Path, *, extension_folder: Path) -> str:
    rows = extension_folder / f"{folder.parent.name}-{table}.parquet"
    copy_rows(extension_folder, folder, rows)
    relation = f"extension_{table}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS SELECT * FROM read_parquet('{rows}')")
    return relation


DELTALAKE = Reader("deltalake", "delta-rs, the Rust implementation", _open_deltalake)
LOG_REPLAY = Reader("duckdb log replay", "the log's JSON and checkpoint replayed as SQL in DuckDB", _open_log_replay)


_INSTALL_TIMEOUT_SECONDS = 25
_COPY_TIMEOUT_SECONDS = 120

_COPY = """
import sys
import duckdb

extension, folder, table, rows = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET TimeZone = 'UTC'")
if extension:
    connection.execute(f"LOAD '{extension}'")
else:
    connection.execute(f"SET extension_directory = '{folder}'; INSTALL delta; LOAD delta")
if table:
    connection.execute(f"COPY (FROM delta_scan('{table}')) TO '{rows}' (FORMAT parquet)")
"""


def why_unavailable(folder: Path) -> str | None:
    """Why DuckDB's delta extension cannot be used; None where it can. `folder` is where a download would be kept."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # A firewall that drops packets would hold a download up for minutes.
        done = _run(folder, timeout=_INSTALL_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"its download did not finish within {_INSTALL_TIMEOUT_SECONDS} s"
    if done.returncode == 0:
        return None
    lines = [line.partition(": ")[2] for line in done.stderr.splitlines() if "Error: " in line]
    return lines[0].partition(" at URL")[0] if lines else f"the attempt ended with code {done.returncode}"


def copy_rows(folder: Path, table: Path, rows: Path) -> None:
    """Write the rows of a table, as the extension reads them, to a Parquet file. Raises RuntimeError."""
    done = _run(folder, str(table), str(rows), timeout=_COPY_TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"DuckDB's delta extension could not read {table}: {done.stderr.strip()}")


def _run(folder: Path, table: str = "", rows: str = "", *, timeout: float) -> subprocess.CompletedProcess[str]:
    # The extension fits one release of DuckDB, seldom the one that is installed. `scripts/setup.sh` puts that release
    # beside the environment. Without it, DuckDB downloads an extension for the installed release.
    environment, extension = dict(os.environ), ""
    beside = Path(sys.prefix) / "referees"
    if path := next(beside.rglob("delta.duckdb_extension"), None):
        environment["PYTHONPATH"], extension = str(beside), str(path)
    command = [sys.executable, "-c", _COPY, extension, str(folder), table, rows]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
