"""20 million rows in Arrow become a table."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.synthetic_rows import plain_table

if TYPE_CHECKING:
    import pyarrow as pa

TITLE = "Append of 20,000,000 rows that come as Arrow batches: a new table, zstd, statistics included"
RESULTS_MAY_DIFFER = True
MOST_ROUNDS = 3
COMPRESSION = "zstd"

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """G3, whose files are the source."""
    return plain_table(directory)


def delta_orch() -> Run:
    """`append` of a record batch reader."""
    from delta_orch import DeltaTable

    return lambda source: _into(source, lambda path: DeltaTable(path).append(_batches(source)))


def deltalake() -> Run:
    """delta-rs."""
    from deltalake import WriterProperties, write_deltalake

    properties = WriterProperties(compression=COMPRESSION.upper())
    return lambda source: _into(
        source, lambda path: write_deltalake(path, _batches(source), writer_properties=properties)
    )


def one_file() -> Run:
    """pyarrow, one file in row groups of a million rows; no log, no checks."""
    import pyarrow.parquet as pq

    def write(source: Path, path: str) -> None:
        reader = _batches(source)
        Path(path).mkdir()
        with pq.ParquetWriter(f"{path}/rows.parquet", reader.schema, compression=COMPRESSION) as writer:
            for batch in reader:
                writer.write_batch(batch)

    return lambda source: _into(source, lambda path: write(source, path))


def floor() -> Run:
    """As many of these writers as there are processors, each with a file of its own."""
    import pyarrow.parquet as pq

    def write(source: Path, path: str) -> None:
        reader = _batches(source)
        taking = threading.Lock()
        Path(path).mkdir()

        def take() -> pa.RecordBatch | None:
            with taking:
                return next(reader, None)

        def write_one(file: str) -> None:
            with pq.ParquetWriter(file, reader.schema, compression=COMPRESSION) as writer:
                while (batch := take()) is not None:
                    writer.write_batch(batch)

        count = os.cpu_count() or 1
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(write_one, [f"{path}/{number}.parquet" for number in range(count)]))

    return lambda source: _into(source, lambda path: write(source, path))


def dataset() -> Run:
    """pyarrow's dataset writer, which encodes files on threads."""
    import pyarrow.dataset as ds

    def write(source: Path, path: str) -> None:
        options = ds.ParquetFileFormat().make_write_options(compression=COMPRESSION)
        ds.write_dataset(_batches(source), path, format="parquet", file_options=options, max_rows_per_file=5_000_000)

    return lambda source: _into(source, lambda path: write(source, path))


def _batches(source: Path) -> pa.RecordBatchReader:
    """The rows as a stream; every contestant reads them the same way, as part of what is measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(source.glob("*.parquet"))
    schema = pq.read_schema(files[0]).remove_metadata()
    return pa.RecordBatchReader.from_batches(
        schema, (b.cast(schema) for f in files for b in pq.ParquetFile(f).iter_batches(1_000_000))
    )


def _into(source: Path, write: Callable[[str], object]) -> str:
    root = Path(tempfile.mkdtemp(dir=source.parent))
    try:
        write(str(root / "table"))
        files = list((root / "table").rglob("*.parquet"))
        return f"{sum(f.stat().st_size for f in files) / 1e6:.0f} MB in {len(files)} files"
    finally:
        shutil.rmtree(root)


CONTESTANTS = {
    "delta_orch": delta_orch,
    "deltalake": deltalake,
    "floor: pyarrow, a file a processor": floor,
    "pyarrow, one file": one_file,
    "pyarrow dataset": dataset,
}
