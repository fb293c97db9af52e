"""What the tables must hold, computed from the CSV files by DuckDB alone, and whether they do.

Nothing here uses delta_orch's own code or Spark: the four tables are described a second time, in plain SQL over the
CSV files, and compared with what a reader found: rows, distinct keys, sums, and one checksum over every value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("flights", "weather_readings", "flights_enriched", "carrier_daily")

FLIGHTS_COLUMNS = {
    "flight_date": "DATE", "year": "BIGINT", "month": "BIGINT", "day": "BIGINT", "dep_time": "BIGINT",
    "sched_dep_time": "BIGINT", "dep_delay": "BIGINT", "arr_time": "BIGINT", "sched_arr_time": "BIGINT",
    "arr_delay": "BIGINT", "carrier": "VARCHAR", "flight": "BIGINT", "tailnum": "VARCHAR", "origin": "VARCHAR",
    "dest": "VARCHAR", "air_time": "BIGINT", "distance": "BIGINT", "hour": "BIGINT", "minute": "BIGINT",
    "time_hour": "TIMESTAMPTZ",
}  # fmt: skip
WEATHER_COLUMNS = {
    "flight_date": "DATE", "origin": "VARCHAR", "hour": "BIGINT", "temp": "DOUBLE", "dewp": "DOUBLE",
    "humid": "DOUBLE", "wind_dir": "BIGINT", "wind_speed": "DOUBLE", "wind_gust": "DOUBLE", "precip": "DOUBLE",
    "pressure": "DOUBLE", "visib": "DOUBLE", "time_hour": "TIMESTAMPTZ",
}  # fmt: skip
PLANE_COLUMNS = {
    "plane_year": "BIGINT", "manufacturer": "VARCHAR", "model": "VARCHAR", "engines": "BIGINT", "seats": "BIGINT",
    "engine_type": "VARCHAR",
}  # fmt: skip
READING_COLUMNS = {
    "temp": "DOUBLE", "humid": "DOUBLE", "wind_speed": "DOUBLE", "precip": "DOUBLE", "visib": "DOUBLE",
}  # fmt: skip
CALENDAR = ("year", "month", "day")
CSV_COLUMNS: dict[str, Mapping[str, str]] = {
    "flights": {name: kind for name, kind in FLIGHTS_COLUMNS.items() if name != "flight_date"},
    "weather": {"origin": "VARCHAR"}
    | dict.fromkeys(CALENDAR, "BIGINT")
    | {name: kind for name, kind in WEATHER_COLUMNS.items() if name not in ("flight_date", "origin")},
    "planes": {
        "tailnum": "VARCHAR", "year": "BIGINT", "type": "VARCHAR", "manufacturer": "VARCHAR", "model": "VARCHAR",
        "engines": "BIGINT", "seats": "BIGINT", "speed": "BIGINT", "engine": "VARCHAR",
    },
    "airlines": {"carrier": "VARCHAR", "name": "VARCHAR"},
}  # fmt: skip
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "flights": FLIGHTS_COLUMNS,
    "weather_readings": WEATHER_COLUMNS,
    "flights_enriched": {name: kind for name, kind in FLIGHTS_COLUMNS.items() if name not in CALENDAR}
    | {"cancelled": "BOOLEAN"}
    | PLANE_COLUMNS
    | READING_COLUMNS,
    "carrier_daily": {
        "flight_date": "DATE", "carrier": "VARCHAR", "carrier_name": "VARCHAR", "flights": "BIGINT",
        "cancelled": "BIGINT", "mean_dep_delay": "DOUBLE", "mean_arr_delay": "DOUBLE", "seats": "BIGINT",
    },
}  # fmt: skip
KEYS: Mapping[str, Sequence[str]] = {
    "flights": ("flight_date", "carrier", "flight", "origin", "sched_dep_time"),
    "weather_readings": ("origin", "time_hour"),
    "flights_enriched": ("flight_date", "carrier", "flight", "origin", "sched_dep_time"),
    "carrier_daily": ("flight_date", "carrier"),
}
SUMS: Mapping[str, Sequence[str]] = {
    "flights": ("distance", "air_time", "dep_delay", "arr_delay"),
    "weather_readings": ("temp", "precip"),
    "flights_enriched": ("distance", "arr_delay", "seats", "temp"),
    "carrier_daily": ("flights", "cancelled", "seats", "mean_dep_delay"),
}


@dataclass(frozen=True, slots=True)
class Totals:
    """One table in a few numbers. `checksum` covers every value of every row, in any order of rows."""

    rows: int
    distinct_keys: int
    sums: Mapping[str, float]
    checksum: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a reader found in one table beside what the CSV files say.

    Attributes:
        lost_rows: Rows of the CSV that the table does not hold, value for value.
        extra_rows: Rows of the table that the CSV does not hold, repetitions counted.
        duplicates: Rows of the table beyond the first of each key.
    """

    table: str
    reader: str
    expected: Totals
    found: Totals
    lost_rows: int
    extra_rows: int

    @property
    def duplicates(self) -> int:
        return self.found.rows - self.found.distinct_keys

    @property
    def confirmed(self) -> bool:
        return self.expected == self.found and self.lost_rows == self.extra_rows == self.duplicates == 0


def connect() -> DuckDBPyConnection:
    """A DuckDB connection in UTC that shows no progress bar."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


def expect_from_csv(
    connection: DuckDBPyConnection, flights: str, weather: str, planes: str, airlines: str, months: Sequence[int]
) -> dict[str, str]:
    """Define what each table must hold, from CSV files (paths or globs), of the months given.

    Returns: the name of a DuckDB table, by table.
    """
    csv = {"flights": flights, "weather": weather, "planes": planes, "airlines": airlines}
    for name, files in csv.items():
        chosen = f"WHERE month IN ({', '.join(map(str, months))})" if name in ("flights", "weather") else ""
        # Types are given, never sniffed: a day without rain would make an integer of `precip`.
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE csv_{name} AS SELECT * FROM read_csv('{_quoted(files)}', header = true, "
            f"delim = ',', nullstr = 'NA', columns = {dict(CSV_COLUMNS[name])!r}) {chosen}"
        )
    for table, query in _EXPECTED.items():
        connection.execute(f"CREATE OR REPLACE TEMP TABLE expected_{table} AS {query}")
    return {table: f"expected_{table}" for table in TABLES}


def compare(
    connection: DuckDBPyConnection, table: str, reader: str, expected: str, found: str, *, is_exact: bool = True
) -> Comparison:
    """Compare two DuckDB relations that should hold one table's rows.

    Args:
        is_exact: Look for lost and extra rows value for value in any case; otherwise only where the totals (and so the
            checksums over all values) differ.
    """
    expected_totals, found_totals = totals(connection, table, expected), totals(connection, table, found)
    lost, extra = 0, 0
    if is_exact or expected_totals != found_totals:
        lost, extra = _differences(connection, table, expected, found)
    return Comparison(table, reader, expected_totals, found_totals, lost, extra)


def _differences(connection: DuckDBPyConnection, table: str, expected: str, found: str) -> tuple[int, int]:
    """How many rows of `expected` are not in `found`, and the other way round; repetitions counted."""
    columns = _normalised(table)
    query = f"""
        SELECT coalesce(sum(greatest(surplus, 0)), 0), coalesce(sum(greatest(-surplus, 0)), 0)
        FROM (
            SELECT sum(weight) AS surplus
            FROM (
                SELECT {columns}, 1 AS weight FROM {expected} UNION ALL SELECT {columns}, -1 AS weight FROM {found}
            )
            GROUP BY {", ".join(COLUMNS[table])}
        )
    """
    lost, extra = connection.execute(query).fetchall()[0]
    return int(lost), int(extra)


def totals(connection: DuckDBPyConnection, table: str, relation: str) -> Totals:
    """The numbers of one DuckDB relation that has the columns of `table`."""
    # Decimals: a sum of doubles depends on the order of the rows.
    sums = ", ".join(f"coalesce(sum({column}::DECIMAL(24, 6)), 0)::DOUBLE" for column in SUMS[table])
    row = connection.execute(
        f"SELECT count(*), count(DISTINCT ({', '.join(KEYS[table])})), "
        # The sum of the rows' hashes does not depend on their order, and a repeated row changes it.
        f"printf('%016x', (coalesce(sum(hash({_cast(table)})::HUGEINT), 0) % 18446744073709551616)::UBIGINT), {sums} "
        f"FROM {relation}"
    ).fetchall()[0]
    rows, distinct_keys, checksum, *values = row
    return Totals(rows, distinct_keys, dict(zip(SUMS[table], values, strict=True)), checksum)


def _cast(table: str) -> str:
    return ", ".join(_cast_column(name, kind) for name, kind in COLUMNS[table].items())


def _normalised(table: str) -> str:
    return ", ".join(f"{_cast_column(name, kind)} AS {name}" for name, kind in COLUMNS[table].items())


def _cast_column(name: str, kind: str) -> str:
    # A mean may differ in its last bit between two engines that are both right.
    return f"round({name}, 9)" if name.startswith("mean_") else f"{name}::{kind}"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


_EXPECTED = {
    "flights": "SELECT make_date(year, month, day) AS flight_date, * FROM csv_flights",
    "weather_readings": """
        SELECT make_date(year, month, day) AS flight_date, * EXCLUDE (year, month, day) FROM csv_weather
    """,
    "flights_enriched": """
        SELECT make_date(f.year, f.month, f.day) AS flight_date, f.* EXCLUDE (year, month, day),
               f.dep_time IS NULL AS cancelled, p.year AS plane_year, p.manufacturer, p.model, p.engines, p.seats,
               p.engine AS engine_type, w.temp, w.humid, w.wind_speed, w.precip, w.visib
        FROM csv_flights f
        LEFT JOIN csv_planes p ON f.tailnum = p.tailnum
        LEFT JOIN csv_weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
    """,
    "carrier_daily": """
        SELECT e.flight_date, e.carrier, any_value(a.name) AS carrier_name, count(*) AS flights,
               count(*) FILTER (e.cancelled) AS cancelled, avg(e.dep_delay) AS mean_dep_delay,
               avg(e.arr_delay) AS mean_arr_delay, sum(e.seats) AS seats
        FROM expected_flights_enriched e LEFT JOIN csv_airlines a ON e.carrier = a.carrier
        GROUP BY e.flight_date, e.carrier
    """,
}
