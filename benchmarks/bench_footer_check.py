"""The footer of a wide Parquet file: Arrow's own reading, and the check before Arrow is asked for column chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

TITLE = "Footer of a Parquet file of 100 columns × 20 row groups: read, and checked for the columns that are read"
RESULTS_MAY_DIFFER = True
_CHECKS = 20

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """One file of four types of columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = (pa.int64(), pa.string(), pa.float64(), pa.int32())
    numbers = pa.array(range(2000))
    rows = pa.table({f"column_{index}": numbers.cast(kinds[index % len(kinds)]) for index in range(100)})
    path = directory / "wide.parquet"
    pq.write_table(rows, path, row_group_size=100)
    return path


def arrow() -> Run:
    """Arrow's own reading of the footer; no check."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return _repeated(lambda data: pq.ParquetFile(pa.BufferReader(data)).metadata)


def three_columns() -> Run:
    """delta_orch: read and checked for three columns."""
    return _checked([3, 40, 77])


def all_columns() -> Run:
    """delta_orch: read and checked for all columns."""
    return _checked(None)


def _checked(leaves: list[int] | None) -> Run:
    import pyarrow as pa

    from delta_orch.storage.parquet_footer import read_footer

    return _repeated(lambda data: read_footer(pa.BufferReader(data)).ensure_sound_chunks(leaves))


def _repeated(read: Callable[[bytes], object]) -> Run:
    def run(path: Path) -> int:
        data = path.read_bytes()
        for _ in range(_CHECKS):
            read(data)
        return _CHECKS

    return run


CONTESTANTS = {"delta_orch": three_columns, "delta_orch_all_columns": all_columns, "arrow": arrow}
