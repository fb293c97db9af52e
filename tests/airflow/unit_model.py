"""Random stories of task instances, as Airflow counts them, against a plain model of the three sentences.

    python -m tests.airflow.unit_model [--seeds 500] [--first 0]

A story is a sequence of events in one or two runs of a task: attempts that succeed, die before or after their commit or
are overtaken while they compute; retries; clears of a task, of a whole run and of a task that runs; runs that are
deleted and created again; changes of the DAG's retries; compactions. The model knows no order, no counter and no
transaction: it says which rows may be there after each event.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import ConcurrentTransactionError, RedoNotPossibleError
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.unit import StepReport

DAYS = (datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC))
WAYS: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "column": {"mode": "append", "unit_column": "load_id"},
    "day": {"mode": "overwrite"},
    "partitions": {"mode": "overwrite_partitions"},
    "merge": {"mode": "merge", "merge_keys": ("day",)},
}


class Died(Exception):
    """The process of an attempt has ended."""


@dataclass
class Airflow:
    """What Airflow's database has of one run of a task, and its clock."""

    clock: list[int]
    day: datetime
    retries: int
    try_number: int = 0
    max_tries: int = 0
    clear_number: int = 0
    started: datetime = DAYS[0]
    attempt_id: str = ""
    run_id: str = ""
    map_index: int = -1

    def create(self) -> None:
        self.try_number, self.max_tries, self.clear_number = 0, self.retries, 0
        self.run_id = f"scheduled__{self.day:%Y-%m-%d}"
        self.start()

    def start(self) -> None:
        self.started = self._now()
        self.begin()

    def begin(self) -> None:
        """A new try: Airflow counts it and gives it an id, which is ordered by time."""
        self.try_number += 1
        self.attempt_id = f"{self._tick():012}"

    def clear(self, *, resets_run: bool) -> None:
        self.max_tries = self.try_number + self.retries
        self.clear_number += 1
        if resets_run:
            self.started = self._now()
        self.begin()

    def restart(self, *, told: bool) -> None:
        """Clear while it runs. Whether `max_tries` moves depends on how the process ends."""
        self.clear_number += 1
        if told:
            self.max_tries = self.try_number + self.retries
        self.begin()

    def context(self) -> Any:
        ti = SimpleNamespace(
            dag_id="d", task_id="t", map_index=self.map_index, run_id=self.run_id, try_number=self.try_number,
            max_tries=self.max_tries, task=SimpleNamespace(retries=self.retries), id=self.attempt_id,
        )  # fmt: skip
        dag_run = SimpleNamespace(
            run_type="scheduled", logical_date=self.day, data_interval_start=self.day,
            data_interval_end=self.day + timedelta(days=1), run_after=self.day, start_date=self.started,
            clear_number=self.clear_number,
        )  # fmt: skip
        return {"ti": ti, "dag_run": dag_run}

    def _tick(self) -> int:
        self.clock[0] += 1
        return self.clock[0]

    def _now(self) -> datetime:
        return datetime(2024, 2, 1, tzinfo=UTC) + timedelta(seconds=self._tick())


@dataclass
class Unit:
    """The model of one unit.

    Attributes:
        rows: Which attempts' rows may be there: one of these.
        committed: The attempts since the newest clear that may have committed, and Airflow saw none of them succeed.
        cleared: Whether the next attempt does the unit again, may be, or repeats what died.
    """

    rows: set[str] = field(default_factory=lambda: {""})
    is_done: bool = False
    cleared: str = "yes"


class Story:
    """One story: events on a table, and what the model says."""

    def __init__(self, seed: int, way: str) -> None:
        self.random = random.Random(f"{seed} {way}")
        self.way = way
        self.table = DeltaTable(f"memory://{uuid4()}")
        clock = [0]
        self.runs = [Airflow(clock, day, self.random.choice((0, 1, 2))) for day in DAYS]
        self.units = [Unit() for _ in DAYS]
        self.told: list[str] = []

    def carry_out(self, length: int) -> None:
        for run in self.runs:
            run.create()
        for _ in range(length):
            which = self.random.randrange(len(self.runs))
            self._event(which)
            self._check()

    def _event(self, which: int) -> None:
        run, unit = self.runs[which], self.units[which]
        fate = self.random.choice(("ok", "ok", "before", "after", "overtaken"))
        self.told.append(f"{which}: try {run.try_number} {fate}")
        overtaken = self._overtake(which) if fate == "overtaken" else None
        done, report = self._attempt(replace(run), fate, overtaken)
        if overtaken is None or self.told[-1] == "  recovered":
            self._expect(unit, self._label(which, run), done, report, fate)
            self._next(which, "ok" if fate in ("ok", "overtaken") and done else "died")
        elif report is not None and report.outcome not in ("fenced", "recovered"):
            raise AssertionError(f"an attempt that was overtaken has {report.outcome}")
        if self.random.random() < 0.2 and self.table.exists():
            self.told.append("optimize")
            self.table.optimize()

    def _overtake(self, which: int) -> Callable[[], None]:
        """While an attempt computes, Airflow takes it for dead, or it is cleared; the next one runs to its end."""

        def overtake() -> None:
            run, unit = self.runs[which], self.units[which]
            self._next(which, "died")
            label = self._label(which, run)
            done, report = self._attempt(replace(run), "ok", None)
            self._expect(unit, label, done, report, "ok")
            self._next(which, "ok" if done else "died")

        return overtake

    def _label(self, which: int, run: Airflow) -> str:
        return f"{which}:{run.attempt_id}"

    def _attempt(self, run: Airflow, fate: str, during: Callable[[], None] | None) -> tuple[bool, StepReport | None]:
        task = TaskRun.from_context(run.context())
        day, label = f"{run.day:%Y-%m-%d}", f"{self.runs_of(run)}:{run.attempt_id}"

        def rows() -> pa.Table:
            if fate == "before":
                raise Died
            if during is not None:
                during()
            return pa.table({"day": [day], "by": [label]})

        how = dict(WAYS[self.way])
        if self.way == "day":
            how["where"] = f"day = '{day}'"
        options: Any = {"user_metadata": task.user_metadata()}
        if self.way == "partitions":
            options["partition_by"] = ["day"]
        step = Step("Task t", self.table, attempt=task.attempt(task.writer()), options=options, **how)
        try:
            report = step.run(rows)
        except Died:
            return False, None
        except ConcurrentTransactionError:
            self.told.append("  a conflict")
            return False, None
        except RedoNotPossibleError as error:
            assert self.way == "append", error
            self.told.append("  refused: moved by a compaction")
            return False, None
        self.told.append(f"  {report.outcome}")
        return fate != "after", report

    def runs_of(self, run: Airflow) -> int:
        return DAYS.index(run.day)

    def _expect(self, unit: Unit, label: str, done: bool, report: StepReport | None, fate: str) -> None:
        """What the sentences say of an attempt that is the newest of its unit."""
        if report is None:
            return  # It died before its commit, or was refused: nothing has changed.
        if not unit.is_done or unit.cleared == "yes":
            unit.rows = {label}
        elif unit.cleared == "perhaps":
            unit.rows = unit.rows | {label}
        unit.is_done = True
        unit.cleared = "no"

    def _next(self, which: int, how: str) -> None:
        """What Airflow, or a user, does after an attempt."""
        run, unit = self.runs[which], self.units[which]
        retried = how == "died" and run.try_number <= run.max_tries and self.random.random() < 0.5
        event = (
            "retry"
            if retried
            else self.random.choice(
                ("clear", "clear the run", "clear", "recreate", "restart", "restart unseen")
                if how == "died"
                else ("clear", "clear the run", "recreate")
            )
        )
        if self.random.random() < 0.15:
            run.retries = self.random.choice((0, 1, 2, 3))
            self.told.append(f"{which}: {run.retries} retries")
            # Airflow sees a retry of a DAG whose retries have changed: it may be taken for a clear.
            if event == "retry" and unit.cleared == "no":
                unit.cleared = "perhaps"
        self.told.append(f"{which}: {event}")
        if event == "retry":
            run.begin()
            return
        if event == "restart unseen":
            run.restart(told=False)
            unit.cleared = "perhaps" if unit.cleared == "no" else unit.cleared
            return
        if event == "restart":
            run.restart(told=True)
        elif event == "recreate":
            run.create()
        else:
            run.clear(resets_run=event == "clear the run")
        unit.cleared = "yes"

    def _check(self) -> None:
        found: list[str] = []
        if self.table.exists():
            found = self.table.snapshot().scan(columns=["by"]).to_arrow()["by"].to_pylist()
        for which, unit in enumerate(self.units):
            own = [label for label in found if label.startswith(f"{which}:")]
            if (own[0] if own else "") not in unit.rows or len(own) > 1:
                raise AssertionError(
                    f"{self.way}: run {which} has {own}, and may have {sorted(unit.rows)}\n" + "\n".join(self.told)
                )
            unit.rows = {own[0] if own else ""}


def tell(seed: int, way: str, length: int = 12) -> None:
    """Carry a story out. Raises AssertionError: The table has other rows than the sentences allow."""
    Story(seed, way).carry_out(length)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.first, given.first + given.seeds):
        for way in WAYS:
            try:
                tell(seed, way)
            except AssertionError as error:
                wrong += 1
                sys.stdout.write(f"seed {seed}: {error}\n")
    sys.stdout.write(f"{given.seeds * len(WAYS)} stories, {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
