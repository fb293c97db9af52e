"""Looking at the tables as somebody else sees them, and at the CSV files, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tests.demo.control_totals import TABLES, Comparison, compare, connect, expect_from_csv
from tests.demo.readers import LOG_REPLAY, Reader
from tests.demo.results import Check
from tests.demo.source import Landing, Source

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True, slots=True)
class Verifier:
    """Compares the tables in a folder with CSV files."""

    tables: Path

    def against_landing(self, landing: Landing) -> list[Comparison]:
        """With what has been delivered so far, by replaying the logs in SQL; by checksums."""
        connection = connect()
        expected = expect_from_csv(
            connection,
            flights=f"{landing.folder}/flights/*/*.csv",
            weather=f"{landing.folder}/weather/*.csv",
            planes=landing.reference_file("planes"),
            airlines=landing.reference_file("airlines"),
            corrections=f"{landing.folder}/corrections/*.csv" if landing.has_corrections() else None,
        )
        return self._compare(connection, expected, LOG_REPLAY, is_exact=False)

    def against_source(self, source: Source, days: Sequence[date], readers: Sequence[Reader]) -> list[Comparison]:
        """With the distribution's own files, by every reader, value for value."""
        connection = connect()
        expected = self._expect_source(connection, source, days)
        return [c for reader in readers for c in self._compare(connection, expected, reader, is_exact=True)]

    def rows_in_source(self, source: Source, days: Sequence[date]) -> int:
        connection = connect()
        expected = self._expect_source(connection, source, days)
        return int(connection.execute(f"SELECT count(*) FROM {expected['flights']}").fetchall()[0][0])

    def _expect_source(self, connection: DuckDBPyConnection, source: Source, days: Sequence[date]) -> dict[str, str]:
        return expect_from_csv(
            connection,
            **{table: str(source.csv(table)) for table in ("flights", "weather", "planes", "airlines")},
            first_day=days[0],
            last_day=days[-1],
        )

    def _compare(
        self, connection: DuckDBPyConnection, expected: dict[str, str], reader: Reader, *, is_exact: bool
    ) -> list[Comparison]:
        found = {table: reader.open(connection, table, self.tables / table) for table in TABLES}
        return [
            compare(connection, table, reader.name, expected[table], found[table], is_exact=is_exact)
            for table in TABLES
        ]


def as_checks(comparisons: Sequence[Comparison]) -> list[Check]:
    """One check a table: counts, distinct keys, sums and checksum are those of the CSV."""
    return [
        Check(f"{c.table}: {c.found.rows:,} rows, checksum {c.found.checksum}, as the CSV says", c.confirmed)
        for c in comparisons
    ]
