"""Which days the demo treats how."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from delta_orch.errors import InvalidRequestError

FIRST_DAY = date(2013, 1, 1)
DAYS_IN_YEAR = 365
FEWEST_DAYS = 12
PROCESSES = 4
"""How many backfill at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The days of one demo, from 1 January on.

    Attributes:
        days: All of them, without a gap.
        daily: Come in one by one at first, each in a run of its own.
        backfill: Come in as one range, in one run.
        amended: Of `daily`; some of its flights are corrected later, and some reported only then.
        corrected: Of `daily`; at first preliminary data is delivered. Its run is executed again.
        killed: Comes in by a run that is killed.
        fenced: Comes in by two runs, of which the older ends last.
        undone: Comes in by mistake, is taken back, and comes in last of all.
        parallel: Of `backfill`, for each process some; at first preliminary data is delivered.
        airflow: A week (or as much of it as there is), once more as the Airflow DAG.
    """

    days: tuple[date, ...]
    daily: tuple[date, ...]
    backfill: tuple[date, ...]
    amended: date
    corrected: date
    killed: date
    fenced: date
    undone: date
    parallel: tuple[tuple[date, ...], ...]
    airflow: tuple[date, ...]

    @property
    def preliminary(self) -> frozenset[date]:
        """The days of which preliminary data is delivered at first, before any attempt to break the pipeline."""
        return frozenset({self.corrected, *(day for days in self.parallel for day in days)})


def make_plan(num_days: int = DAYS_IN_YEAR, num_processes: int = PROCESSES) -> Plan:
    """The plan for the first `num_days` days of 2013: January (of fewer days the first half) day by day, the rest as
    one range.

    Raises:
        InvalidRequestError: Too few, or more than the year has; or fewer than two processes.
    """
    if num_processes < 2:
        raise InvalidRequestError(f"The demo backfills with 2 processes or more, not {num_processes}")
    if not FEWEST_DAYS <= num_days <= DAYS_IN_YEAR:
        raise InvalidRequestError(f"The demo takes {FEWEST_DAYS} to {DAYS_IN_YEAR} days, not {num_days}")
    days = tuple(FIRST_DAY + timedelta(number) for number in range(num_days))
    num_first = min(31, num_days // 2)
    first, backfill = days[:num_first], days[num_first:]
    # Spread over the month, but not over the days that Airflow runs as well.
    undone, killed, fenced = first[max(num_first // 4, 2)], first[num_first // 2], first[num_first * 3 // 4]
    share = len(backfill) // num_processes
    parallel = tuple(backfill[number * share :][: min(3, share)] for number in range(num_processes))
    daily = tuple(day for day in first if day not in (undone, killed, fenced))
    return Plan(
        days=days,
        daily=daily,
        backfill=backfill,
        amended=daily[0],
        corrected=daily[1],
        killed=killed,
        fenced=fenced,
        undone=undone,
        parallel=parallel,
        airflow=daily[:7] if num_days == DAYS_IN_YEAR else daily[:2],
    )
