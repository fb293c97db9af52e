"""One field out of a million shredded variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.scan_contestants import duckdb_with_delta
from benchmarks.synthetic_log import cached
from benchmarks.synthetic_rows import write_log

TITLE = "Variants: sum of $.id over 1,000,000 rows, shredded by DuckDB into id, name, ts and a nested object"
NUM_ROWS = 1_000_000

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A table of one Parquet file, made once."""

    def write(table: Path) -> None:
        import duckdb

        table.mkdir(parents=True, exist_ok=True)
        variants = """
            select {
                'id': i, 'name': 'user-' || (i % 5000), 'ts': timestamp '2024-01-01' + interval (i) second,
                'place': {'latitude': i / 1e6, 'longitude': i / 2e6, 'city': 'city ' || (i % 100)}
            }::variant as v
        """
        with duckdb.connect() as connection:
            connection.execute(f"copy ({variants} from range({NUM_ROWS}) as r(i)) to '{table / 'v.parquet'}'")
        write_log(table, [{"name": "v", "type": "variant"}], ["variantType", "variantShredding"])

    return cached(directory, "shredded_variant_table", write)


def delta_orch() -> Run:
    """The typed column of the path (no value stands beside it in this file), and `variant_get`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from delta_orch.variant import variant_get

    def run(table: Path) -> int:
        part = pq.ParquetFile(table / "v.parquet").read(columns=["v.typed_value.id.typed_value"])
        return int(pc.sum(variant_get(part["v"], "$.id", pa.int64())).as_py())

    return run


def delta_orch_unshredded() -> Run:
    """All columns read and reconstructed, and `variant_get` on the encoded values."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from delta_orch.protocol.variant.extract import variant_get
    from delta_orch.protocol.variant.reconstruct import reconstruct_variant

    def run(table: Path) -> int:
        variants = reconstruct_variant(pq.read_table(table / "v.parquet")["v"])
        return int(pc.sum(variant_get(variants, "$.id", pa.int64())).as_py())

    return run


def duckdb() -> Run:
    """DuckDB on the bare file."""
    import duckdb

    return lambda table: int(duckdb.execute(f"select sum(v.id::bigint) from '{table / 'v.parquet'}'").fetchall()[0][0])


def duckdb_delta() -> Run:
    """DuckDB's delta extension."""
    connection = duckdb_with_delta()
    return lambda table: int(
        connection.execute(f"select sum(v.id::bigint) from delta_scan('{table}')").fetchall()[0][0]
    )


def deltalake() -> Run:
    """delta-rs, as DataFusion sees the table."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    def run(table: Path) -> int:
        query = "select sum(cast(variant_get(v, '$.id') as bigint)) as n from t"
        found = QueryBuilder().register("t", DeltaTable(str(table))).execute(query)
        return int(pa.table(found).to_pylist()[0]["n"])

    return run


def polars() -> Run:
    """Polars, which opens tables through delta-rs."""
    import polars as pl

    typed = pl.col("v").struct.field("typed_value").struct.field("id").struct.field("typed_value")
    return lambda table: int(pl.scan_delta(str(table)).select(typed.sum()).collect().item())


def arrow_floor() -> Run:
    """The typed column alone: the least any client in Python must do."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def run(table: Path) -> int:
        part = pq.ParquetFile(table / "v.parquet").read(columns=["v.typed_value.id.typed_value"])
        chunks = part["v"].chunks
        return sum(int(pc.sum(c.field("typed_value").field("id").field("typed_value")).as_py()) for c in chunks)

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "delta_orch, reconstructed first": delta_orch_unshredded,
    "deltalake, DataFusion": deltalake,
    "duckdb, delta extension": duckdb_delta,
    "polars": polars,
    "duckdb on the file": duckdb,
    "floor: pyarrow, one column": arrow_floor,
}
