"""What a worker does next, decided by its number and a counter: a restarted one goes on where it was killed."""

from __future__ import annotations

import random
from dataclasses import dataclass

DAYS = ("a", "b", "c", "d")
MAX_ROWS = 4
MOST_VERSIONS_BACK = 50
"""What a restore goes back from the newest version that it knows, at most, whatever others commit meanwhile."""
_IDS_PER_STEP = 10
_IDS_PER_WORKER = 10_000_000
_WEIGHTS = {
    "append": 40,
    "replace_day": 12,
    "replace_ids": 6,
    "replace_days_of_data": 8,
    "set_property": 5,
    "add_column": 1,
    "optimize": 8,
    "checkpoint": 5,
    "compact_log": 3,
    "vacuum": 3,
    "cleanup_log": 4,
    "delete_ids": 6,
    "update_ids": 6,
    "upsert_ids": 12,
    "restore": 2,
    "zorder": 2,
    "purge": 2,
    "repair": 1,
}
ROW_CHANGES = frozenset({"delete_ids", "update_ids"})
MAY_FIND_NOTHING = ROW_CHANGES | {"restore"}
"""Operations that commit nothing where there is nothing to change."""
WRITES = MAY_FIND_NOTHING | {"append", "replace_day", "replace_ids", "replace_days_of_data", "upsert_ids"}
COMMITS = WRITES | {"set_property", "add_column"}
"""Operations that are one commit of their own, recognised by their id in `commitInfo.userMetadata`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of one worker.

    Attributes:
        op_id: Unique in the run.
        rows: Pairs of day and id that it writes.
        id_range: First id and the one after the last that `replace_ids` replaces, `delete_ids` deletes and `update_ids`
            takes over, in its day.
        one_day: The day of an operation that writes no rows of its own.
    """

    worker: int
    number: int
    kind: str
    rows: tuple[tuple[str, int], ...]
    id_range: tuple[int, int]
    one_day: str = ""

    @property
    def op_id(self) -> str:
        return f"{self.worker}-{self.number}"

    @property
    def day(self) -> str:
        return self.rows[0][0] if self.rows else self.one_day


def plan_step(seed: int, worker: int, number: int) -> Step:
    """The step of that number; the same one whenever it is asked for."""
    chance = random.Random(f"{seed}-{worker}-{number}")
    kind = chance.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]
    first = worker * _IDS_PER_WORKER + number * _IDS_PER_STEP
    count = chance.randint(1, MAX_ROWS)
    days = (
        chance.choices(DAYS, k=count) if kind in ("append", "replace_days_of_data") else [chance.choice(DAYS)] * count
    )
    # What is replaced lies among the ids of some worker, up to and with those written now.
    low = chance.randint(0, 8) * _IDS_PER_WORKER + chance.randint(0, max(number, 1)) * _IDS_PER_STEP
    if kind in ("replace_ids", "upsert_ids"):
        rows = tuple((days[0], low + i) for i in range(count))
    elif kind in MAY_FIND_NOTHING:
        rows = ()
    else:
        rows = tuple((day, first + i) for i, day in enumerate(days))
    return Step(worker, number, kind, rows, (low, low + chance.randint(MAX_ROWS, 5 * _IDS_PER_STEP)), days[0])
