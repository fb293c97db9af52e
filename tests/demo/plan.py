"""Which months the demo treats how."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError

MONTHS_IN_YEAR = 12
FEWEST_MONTHS = 8
PROCESSES = 4
"""How many load the same files at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The months of one demo, from January on.

    Attributes:
        months: All of them.
        in_time: Arrive in their order at first. The first one arrives again later.
        late: Arrives after those that follow it.
        killed: Loaded by a run that is killed.
        damaged: Arrives in a file that is cut off, then with damaged lines, then as it should be.
        fenced: Loaded by two attempts of one run, of which the older ends last.
        undone: Its weather is loaded too early, and taken back.
        raced: Loaded by several processes at once.
        amended: Its flights are corrected, by files that come out of order.
        processes: How many race.
    """

    months: tuple[int, ...]
    in_time: tuple[int, ...]
    late: int
    killed: int
    damaged: int
    fenced: int
    undone: int
    raced: int
    amended: int
    processes: int


def make_plan(num_months: int = MONTHS_IN_YEAR, num_processes: int = PROCESSES) -> Plan:
    """The plan for the first `num_months` months of 2013.

    Raises:
        InvalidRequestError: Too few, or more than the year has; or fewer than two processes.
    """
    if num_processes < 2:
        raise InvalidRequestError(f"The demo races 2 processes or more, not {num_processes}")
    if not FEWEST_MONTHS <= num_months <= MONTHS_IN_YEAR:
        raise InvalidRequestError(f"The demo takes {FEWEST_MONTHS} to {MONTHS_IN_YEAR} months, not {num_months}")
    months = tuple(range(1, num_months + 1))
    late, killed, damaged, fenced, undone, raced, amended = months[1:8]
    in_time = tuple(month for month in months if month not in months[1:8])
    return Plan(months, in_time, late, killed, damaged, fenced, undone, raced, amended, num_processes)
