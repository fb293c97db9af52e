"""The change feed of five versions, from change data files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.synthetic_rows import table_with_change_feed

TITLE = "Change feed: 1,500,000 rows of five versions into memory (DuckDB and Polars read no change feeds)"

Run = Callable[[Path], object]

prepare = table_with_change_feed


def delta_orch() -> Run:
    """All rows in memory."""
    from delta_orch import DeltaTable

    return lambda table: DeltaTable(table).changes(starting_version=1).to_arrow().num_rows


def delta_orch_reader() -> Run:
    """Batch by batch."""
    from delta_orch import DeltaTable

    return lambda table: sum(batch.num_rows for batch in DeltaTable(table).changes(starting_version=1).to_reader())


def deltalake() -> Run:
    """delta-rs."""
    import pyarrow as pa
    from deltalake import DeltaTable

    return lambda table: pa.table(DeltaTable(str(table)).load_cdf(starting_version=1)).num_rows


def pyarrow_floor() -> Run:
    """The change data files and nothing else."""
    import pyarrow.dataset  # noqa: F401 - `read_table` would import it
    import pyarrow.parquet as pq

    return lambda table: pq.read_table(table / "_change_data").num_rows


CONTESTANTS = {
    "delta_orch": delta_orch,
    "delta_orch, to_reader": delta_orch_reader,
    "deltalake": deltalake,
    "floor: pyarrow on the files": pyarrow_floor,
}
