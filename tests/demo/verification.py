"""Looking at the tables as somebody else sees them, and at the CSV files, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.demo.control_totals import TABLES, Comparison, compare, connect, expect_from_csv
from tests.demo.readers import LOG_REPLAY, Reader
from tests.demo.results import Check
from tests.demo.source import Source

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True, slots=True)
class Verifier:
    """Compares the tables in a folder with CSV files."""

    tables: Path

    def quickly(self, source: Source, months: Sequence[int]) -> list[Comparison]:
        """With the distribution's own files, by replaying the logs in SQL; by checksums."""
        connection = connect()
        return self._compare(connection, self._expect(connection, source, months), LOG_REPLAY, is_exact=False)

    def against_source(self, source: Source, months: Sequence[int], readers: Sequence[Reader]) -> list[Comparison]:
        """With the distribution's own files, by every reader, value for value."""
        connection = connect()
        expected = self._expect(connection, source, months)
        return [c for reader in readers for c in self._compare(connection, expected, reader, is_exact=True)]

    def rows_in_source(self, source: Source, months: Sequence[int]) -> int:
        connection = connect()
        expected = self._expect(connection, source, months)
        return int(connection.execute(f"SELECT count(*) FROM {expected['flights']}").fetchall()[0][0])

    def _expect(self, connection: DuckDBPyConnection, source: Source, months: Sequence[int]) -> dict[str, str]:
        files = {table: str(source.csv(table)) for table in ("flights", "weather", "planes", "airlines")}
        return expect_from_csv(connection, **files, months=months)

    def _compare(
        self, connection: DuckDBPyConnection, expected: dict[str, str], reader: Reader, *, is_exact: bool
    ) -> list[Comparison]:
        found = {table: reader.open(connection, table, self.tables / table) for table in TABLES}
        return [
            compare(connection, table, reader.name, expected[table], found[table], is_exact=is_exact)
            for table in TABLES
        ]


def quarantined(tables: Path) -> dict[str, int]:
    """How many rows stand in the quarantine of the flights, by the rule that they break."""
    from deltalake import DeltaTable

    rows = DeltaTable(str(tables / "flights_quarantine")).to_pyarrow_table(columns=["rules"])
    return dict(sorted(Counter(rule for rules in rows["rules"].to_pylist() for rule in rules).items()))


def as_checks(comparisons: Sequence[Comparison]) -> list[Check]:
    """One check a table: counts, distinct keys, sums and checksum are those of the CSV."""
    return [
        Check(f"{c.table}: {c.found.rows:,} rows, checksum {c.found.checksum}, as the CSV says", c.confirmed)
        for c in comparisons
    ]
