"""What the benchmarks of DELETE, UPDATE and MERGE share: G3 with and without deletion vectors, a copy for every run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.synthetic_log import cached
from benchmarks.synthetic_rows import plain_table

Run = Callable[[Path], object]
PLAIN, VECTORS = "plain", "vectors"


def tables(directory: Path) -> Path:
    """A directory with the same rows in two tables, of which one takes deletion vectors."""
    source = plain_table(directory)

    def make(made: Path) -> None:
        from delta_orch import DeltaTable

        for name in (PLAIN, VECTORS):
            link(source, made / name)
        DeltaTable(made / VECTORS).alter().set_properties({"delta.enableDeletionVectors": "true"}).commit()

    return cached(directory, "rows_to_change", make)


def link(source: Path, target: Path) -> None:
    """A copy of a table whose files are links: what removes one of them leaves the other."""
    shutil.copytree(source, target, copy_function=lambda one, other: Path(other).hardlink_to(one), dirs_exist_ok=True)


def on_a_copy(name: str, change: Callable[[Path], object]) -> Run:
    """Run on links to the files of one of the tables, as every run needs it as it was."""

    def run(directory: Path) -> object:
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            copy = Path(scratch) / "table"
            link(directory / name, copy)
            return change(copy)

    return run


def contestants(ours: Callable[[Path], object], theirs: Callable[[Path], object]) -> Mapping[str, Callable[[], Run]]:
    """Both ways of this package, and delta-rs, which knows one."""

    def delta_orch(name: str) -> Run:
        import delta_orch  # noqa: F401

        return on_a_copy(name, ours)

    def deltalake() -> Run:
        import deltalake  # noqa: F401

        return on_a_copy(PLAIN, theirs)

    return {
        "delta_orch, deletion vectors": lambda: delta_orch(VECTORS),
        "delta_orch, rewriting": lambda: delta_orch(PLAIN),
        "deltalake, rewriting": deltalake,
    }


def upsert_contestants(source: str) -> Mapping[str, Callable[[], Run]]:
    """An upsert by `id` of the rows of a query of DuckDB: how many rows were updated and inserted."""

    def ours(table: Path) -> object:
        import duckdb

        from delta_orch import DeltaTable

        metrics = DeltaTable(table).upsert(duckdb.sql(source).to_arrow_table(), ["id"]).metrics
        return metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]

    def theirs(table: Path) -> object:
        import duckdb
        from deltalake import DeltaTable

        rows = duckdb.sql(source).to_arrow_table()
        merge = DeltaTable(str(table)).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        told = merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return told["num_target_rows_updated"], told["num_target_rows_inserted"]

    return contestants(ours, theirs)
