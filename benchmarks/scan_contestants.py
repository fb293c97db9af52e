"""Who takes part in a benchmark of scans: one aggregate over all columns of a table, or over the rows of a range."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Run = Callable[[Path], object]
_WHOLE: dict[str, Callable[..., Any]] = {"sum": sum, "min": min, "max": max}


@dataclass(frozen=True)
class Query:
    """`count(*)` and one aggregate a column.

    Attributes:
        aggregates: Pairs of a function (`sum`, `min`, `max`) and a column.
        id_range: First and last id wanted, both included; None for all rows.
        columns: What a scan is asked for, where that is not simply the columns of `aggregates`.
        bare: The names of columns in data files, where they have others there.
    """

    aggregates: Sequence[tuple[str, str]]
    id_range: tuple[int, int] | None = None
    columns: Sequence[str] | None = None
    bare: Mapping[str, str] = field(default_factory=dict)

    def select(self, source: str, names: Mapping[str, str] | None = None) -> str:
        """The query in SQL. `names` are those of columns in the source, quoted."""
        names = names or {}
        terms = ", ".join(f"{function}({names.get(name, name)})" for function, name in self.aggregates)
        where = "" if self.id_range is None else f" where {self.condition(names.get('id', 'id'))}"
        return f"select count(*), {terms} from {source}{where}"

    def condition(self, name: str = "id") -> str:
        """The range as a predicate."""
        assert self.id_range is not None
        return f"{name} between {self.id_range[0]} and {self.id_range[1]}"

    @property
    def scanned(self) -> list[str]:
        """The columns to scan."""
        return list(self.columns or [name for _, name in self.aggregates])


def contestants(query: Query) -> dict[str, Callable[[], Run]]:
    """All of them, by name."""
    return {
        "delta_orch, to_duckdb": lambda: _delta_orch_duckdb(query),
        "delta_orch, to_reader": lambda: _delta_orch_reader(query),
        "deltalake, DataFusion": lambda: _deltalake_datafusion(query),
        "deltalake, pyarrow dataset": lambda: _deltalake_dataset(query),
        "duckdb, delta extension": lambda: _duckdb_delta(query),
        "polars": lambda: _polars(query),
        "floor: duckdb on the files": lambda: _duckdb_files(query),
        "floor: pyarrow on the files": lambda: _pyarrow_files(query),
    }


def _delta_orch_duckdb(query: Query) -> Run:
    import duckdb

    from delta_orch import DeltaTable

    connection = duckdb.connect()
    where = None if query.id_range is None else query.condition()
    terms = ", ".join(f"{function}({name.rpartition('.')[2]})" for function, name in query.aggregates)

    def run(table: Path) -> object:
        rows = DeltaTable(table).snapshot().scan(query.scanned, where).to_duckdb(connection)
        return rows.aggregate(f"count(*), {terms}").fetchall()[0]

    return run


def _delta_orch_reader(query: Query) -> Run:
    import pyarrow.dataset  # noqa: F401 - a scan imports it

    from delta_orch import DeltaTable

    where = None if query.id_range is None else query.condition()
    return lambda table: _aggregated(DeltaTable(table).snapshot().scan(query.scanned, where).to_reader(), query)


def delta_orch_dataset(query: Query) -> Run:
    """A data set of pyarrow, of tables whose files hold exactly their rows."""
    import pyarrow.dataset as ds

    from delta_orch import DeltaTable

    def run(table: Path) -> object:
        return _aggregated(_scanned(DeltaTable(table).snapshot().to_pyarrow_dataset(), query, ds.field("id")), query)

    return run


def _deltalake_datafusion(query: Query) -> Run:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    def run(table: Path) -> object:
        found = QueryBuilder().register("t", DeltaTable(str(table))).execute(query.select("t", _nested(query)))
        (row,) = pa.table(found).to_pylist()
        return tuple(row.values())

    return run


def _deltalake_dataset(query: Query) -> Run:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    def run(table: Path) -> object:
        return _aggregated(_scanned(DeltaTable(str(table)).to_pyarrow_dataset(), query, ds.field("id")), query)

    return run


def duckdb_with_delta() -> Any:
    """A connection of the DuckDB that fits its delta extension: `scripts/setup.sh` puts both beside the environment."""
    beside = Path(sys.prefix) / "referees"
    sys.path.insert(0, str(beside))
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    extension = next(beside.rglob("delta.duckdb_extension"), None)
    connection.execute(f"load '{extension}'" if extension else "load delta")
    return connection


def _duckdb_delta(query: Query) -> Run:
    connection = duckdb_with_delta()
    return lambda table: connection.execute(query.select(f"delta_scan('{table}')")).fetchall()[0]


def _polars(query: Query) -> Run:
    import polars as pl

    def column(name: str) -> Any:
        first, *rest = name.split(".")
        found = pl.col(first)
        for part in rest:
            found = found.struct.field(part)
        return found

    terms = [getattr(column(name), function)().alias(str(n)) for n, (function, name) in enumerate(query.aggregates)]

    def run(table: Path) -> object:
        rows = pl.scan_delta(str(table))
        if query.id_range is not None:
            rows = rows.filter(pl.col("id").is_between(*query.id_range))
        return rows.select(pl.len(), *terms).collect().row(0)

    return run


def _duckdb_files(query: Query) -> Run:
    import duckdb

    connection = duckdb.connect()
    names = {name: ".".join(f'"{part}"' for part in query.bare.get(name, name).split(".")) for name in _names(query)}
    return lambda table: connection.execute(query.select(f"'{table}/*.parquet'", names)).fetchall()[0]


def _pyarrow_files(query: Query) -> Run:
    import pyarrow.dataset as ds

    bare_id = ds.field(query.bare.get("id", "id"))

    def run(table: Path) -> object:
        files = ds.dataset(sorted(str(path) for path in table.glob("*.parquet")))
        return _aggregated(_scanned(files, query, bare_id), query)

    return run


def _scanned(dataset: Any, query: Query, id_field: Any) -> Any:
    import pyarrow.dataset as ds

    columns = {name: ds.field(*query.bare.get(name, name).split(".")) for name in _names(query)}
    where = None
    if query.id_range is not None:
        where = (id_field >= query.id_range[0]) & (id_field <= query.id_range[1])
    return dataset.scanner({name: columns[name] for _, name in query.aggregates}, where).to_reader()


def _names(query: Query) -> list[str]:
    return ["id", *(name for _, name in query.aggregates)]


def _nested(query: Query) -> dict[str, str]:
    # DataFusion would take the first part of `a.b` for a table.
    return {name: name.replace(".", "['", 1) + "']" for name in _names(query) if "." in name}


def _aggregated(batches: Any, query: Query) -> tuple[object, ...]:
    """The aggregates of a stream, batch by batch."""
    import pyarrow.compute as pc

    count, parts = 0, []
    for batch in batches:
        count += batch.num_rows
        if not batch.num_rows:
            continue
        names = [name if name in batch.schema.names else name.rpartition(".")[2] for _, name in query.aggregates]
        parts.append(
            [getattr(pc, f)(batch.column(n)).as_py() for (f, _), n in zip(query.aggregates, names, strict=True)]
        )
    columns = zip(*parts, strict=True)
    return (count, *(_WHOLE[f](values) for (f, _), values in zip(query.aggregates, columns, strict=True)))
