"""G1: which files hold a range of ids on one date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_open_large_checkpoint import ROUNDS, prepare
from benchmarks.planning_contestants import duckdb_planned, polars_planned
from benchmarks.synthetic_log import FILES_PER_DATE, FIRST_DAY, ROWS_PER_FILE

TITLE = "G1: open, prune 1,000,000 files by partition and id range"
DATE = FIRST_DAY + 500
FIRST_ID = 500 * FILES_PER_DATE * ROWS_PER_FILE + 400 * ROWS_PER_FILE
LAST_ID = FIRST_ID + 3 * ROWS_PER_FILE - 1

Run = Callable[[Path], object]


def delta_orch() -> Run:
    """Partition values first, statistics of what they leave."""
    from delta_orch.expressions.nodes import And, Column, Comparison, Literal
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.protocol.types import DATE as DATE_TYPE
    from delta_orch.protocol.types import LONG
    from delta_orch.storage.local import LocalStore

    where = And(
        (
            Comparison("=", Column(("date",)), Literal(DATE.astype(object), DATE_TYPE)),
            Comparison(">=", Column(("id",)), Literal(FIRST_ID, LONG)),
            Comparison("<=", Column(("id",)), Literal(LAST_ID, LONG)),
        )
    )
    return lambda table: TableLog(LocalStore(table)).snapshot().files(["path"], where).num_rows


def deltalake() -> Run:
    """delta-rs: its file actions as a table, filtered by partition, the range by its flattened statistics."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    def run(table: Path) -> int:
        actions = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
        kept = actions.filter(
            (pc.field("partition.date") == DATE.astype(object))
            & (pc.field("max.id") >= FIRST_ID)
            & (pc.field("min.id") <= LAST_ID)
        )
        return int(kept.num_rows)

    return run


def duckdb_delta() -> Run:
    """DuckDB's delta extension."""
    return duckdb_planned(f"date = date '{DATE}' and id between {FIRST_ID} and {LAST_ID}")


def polars() -> Run:
    """Polars."""
    return polars_planned(
        lambda col: (col("date") == DATE.astype(object)) & (col("id") >= FIRST_ID) & (col("id") <= LAST_ID)
    )


def pyarrow_floor() -> Run:
    """Decode the dates with bare pyarrow, and the statistics of the row groups that hold the right one: the least any
    client must do. Looks at no commit."""
    import orjson
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def run(table: Path) -> int:
        (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
        file = pq.ParquetFile(checkpoint)
        found = 0
        for group in range(file.num_row_groups):
            (actions,) = file.read_row_group(group, ["add.partitionValues"]).column("add").chunks
            # Each has one partition value; the null actions before them have none.
            is_wanted = pc.equal(actions.field("partitionValues").items, str(DATE))
            if not pc.any(is_wanted).as_py():
                continue
            (actions,) = file.read_row_group(group, ["add.stats"]).column("add").chunks
            statistics = actions.field("stats").drop_null().filter(is_wanted).to_pylist()
            bounds = [(s["minValues"]["id"], s["maxValues"]["id"]) for s in map(orjson.loads, statistics)]
            found += sum(high >= FIRST_ID and low <= LAST_ID for low, high in bounds)
        return found

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "deltalake": deltalake,
    "duckdb, delta extension": duckdb_delta,
    "polars, planning only": polars,
    "floor: pyarrow, two columns": pyarrow_floor,
}
__all__ = ["CONTESTANTS", "ROUNDS", "TITLE", "prepare"]
