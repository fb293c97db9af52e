"""A task instance as Airflow counts it, through every short story of deaths, retries and clearings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.airflow.neighbors import Neighbors
from delta_orch.airflow.once import OnceWriter
from delta_orch.airflow.run_context import TaskRun
from delta_orch.pipeline.run_identity import Idempotency
from delta_orch.pipeline.step import Step, StepReport

DAY = datetime(2024, 1, 5, tzinfo=UTC)
START = datetime(2024, 1, 6, 0, 1, tzinfo=UTC)


class Died(Exception):
    """The process of an attempt has ended."""


@dataclass
class Instance:
    """A task instance and its run, as Airflow's database has them."""

    table: DeltaTable
    replaces: bool
    retries: int = 2
    max_tries: int = 2
    try_number: int = 1
    clear_number: int = 0
    start_date: datetime = START
    run_after: datetime = DAY + timedelta(days=1)
    run_id: str = "scheduled__2024-01-05"
    run_type: str = "scheduled"
    task_id: str = "t"
    map_index: int = -1
    whole: bool = False
    is_said: bool = False
    where: str = "v >= ''"
    dynamic: bool = False
    creates: bool = False
    values: tuple[str, ...] = ()
    name: str | None = None
    work: str = ""
    idempotency: Idempotency = "run"
    returned: bool = False
    keeps_state: bool = True
    counts_every_clearing: bool = True
    states: dict[int, str | None] = field(default_factory=dict)
    """Of the other mapped tasks of the run, by map index; None and what is missing: not begun."""
    life: int = field(default_factory=itertools.count().__next__)
    store: dict[str, Any] = field(default_factory=dict)

    def context(self) -> Any:
        task = SimpleNamespace(retries=self.retries, on_success_callback=None)
        ti = SimpleNamespace(
            dag_id="d", task_id=self.task_id, map_index=self.map_index, run_id=self.run_id, try_number=self.try_number,
            max_tries=self.max_tries, task=task, id=f"{self.life:06}-{self.try_number:06}",
            _ti_context_from_server=SimpleNamespace(xcom_keys_to_clear=["return_value"] if self.returned else []),
            get_task_states=self._states,
        )  # fmt: skip
        dag_run = SimpleNamespace(
            clear_number=self.clear_number, partition_key=None, data_interval_start=DAY, run_after=self.run_after,
            data_interval_end=DAY + timedelta(days=1), start_date=self.start_date, run_type=self.run_type,
        )  # fmt: skip
        kept = SimpleNamespace(get=self.store.get, set=lambda key, value, retention: self.store.update({key: value}))
        told = {"ti": ti, "dag_run": dag_run, "dag": SimpleNamespace(task_dict={})}
        return {**told, **({"task_state_store": kept} if self.keeps_state else {})}

    def _states(
        self, dag_id: str, map_index: int, task_ids: list[str], run_ids: list[str]
    ) -> dict[str, dict[str, str | None]]:
        assert (dag_id, task_ids, run_ids) == ("d", [self.task_id], [self.run_id])
        return {self.run_id: {f"{self.task_id}_{map_index}": self.states.get(map_index)}} if self.states else {}

    def attempt(self, fate: str = "ok", during: Callable[[], object] = lambda: None) -> StepReport:
        """One attempt; its rows name its try.

        Args:
            fate: `ok`; it dies `before` or `after` its commit, or when it has `returned` its report.
            during: Happens while it computes.
        """
        context, own = self.context(), self.try_number
        run = TaskRun.from_context(context)
        self.returned = False

        def rows() -> pa.Table:
            if fate == "before":
                raise Died
            during()
            if self.values:
                return pa.table({"v": list(self.values), "by": [self.map_index] * len(self.values)})
            return pa.table({"v": [f"{self.map_index}:{own}" if self.map_index >= 0 else str(own)]})

        where = self.where if self.replaces and not self.whole and not self.dynamic else None
        mode: Any = "overwrite_partitions" if self.dynamic else "overwrite" if self.replaces else "append"
        mode = "error" if self.creates else mode
        step = Step("Task t", self.table, mode, where=where, options={"user_metadata": run.user_metadata()})
        once = OnceWriter(
            tasks=Neighbors(context, run), table=self.table, idempotency=self.idempotency, name=self.name,
            adds=not self.replaces, replaces_table=self.whole, is_said=self.is_said,
            work=self.work,
        )  # fmt: skip
        report = once.run(step, rows)
        if fate in ("before", "after"):  # Or as it finds its work done.
            raise Died
        self.returned = True
        if fate == "returned":
            raise Died
        for callback in context["ti"].task.on_success_callback or []:
            callback(context)
        return report

    def retry(self) -> None:
        self.try_number += 1

    def retry_after_another_task_was_cleared(self) -> None:
        self.clear_number += self.counts_every_clearing
        self.retry()

    def clear(self) -> None:
        self.max_tries = self.try_number + self.retries
        self.start_date = max(self.start_date, datetime.now(UTC))
        self.clear_number += 1
        self.retry()

    def clear_and_leave_the_run(self) -> None:
        """`reset_dag_runs: false` of the REST API."""
        self.max_tries = self.try_number + self.retries
        self.retry()

    def clear_in_a_run_that_goes_on(self) -> None:
        self.max_tries = self.try_number + self.retries
        self.retry_after_another_task_was_cleared()

    def clear_while_it_runs(self) -> None:
        self.retry_after_another_task_was_cleared()

    def clear_without_the_dag(self) -> None:
        """Airflow finds no serialized DAG, and leaves the tries."""
        self.max_tries = max(self.max_tries, self.try_number)
        self.clear_number += 1
        self.retry()

    def clear_with_more_retries(self) -> None:
        """The file of the DAG has more retries than the version that the run is of."""
        self.clear()
        self.retries += 4

    def clear_with_fewer_retries(self) -> None:
        self.retries = 0
        self.clear()


RETRIES = ("retry", "retry_after_another_task_was_cleared")
CERTAIN = (
    "clear", "clear_and_leave_the_run", "clear_in_a_run_that_goes_on", "clear_with_more_retries",
    "clear_with_fewer_retries",
)  # fmt: skip
HIDDEN = ("clear_while_it_runs", "clear_without_the_dag")
"""Clearings that leave the tries as they are."""


def stories() -> Iterator[list[str]]:
    """Fates and what follows them, in turn; the last attempt lives."""
    fates, steps = ("before", "after", "returned", "ok"), (*RETRIES, *CERTAIN, *HIDDEN)
    one = [
        (fate, step)
        for fate, step in itertools.product(fates, steps)
        # What succeeded is not retried, and does not run.
        if fate != "ok" or step not in (*RETRIES, "clear_while_it_runs")
    ]
    again = [(fate, step) for fate, step in one if step in ("retry", "clear", "clear_while_it_runs")]
    for first, second in itertools.product(one, again):
        yield [*first, *second, "ok"]


def carry_out(instance: Instance, story: list[str]) -> None:
    for fate, step in itertools.zip_longest(story[::2], story[1::2]):
        with suppress(Died):
            instance.attempt(fate)
        if step is not None:
            getattr(instance, step)()


def new_table() -> DeltaTable:
    table = DeltaTable(f"memory://{uuid4()}")
    table.create(pa.schema([("v", pa.string())]))
    return table


def content(table: DeltaTable) -> list[str]:
    return sorted(table.snapshot().scan().to_arrow()["v"].to_pylist()) if table.exists() else []


def tries(story: list[str], *, replaces: bool) -> list[str]:
    """Whose rows are there at the end, by the page of events."""
    there: list[int] = []
    acknowledged = True
    since_clear: list[int] = []
    for number, (fate, step) in enumerate(itertools.zip_longest(story[::2], story[1::2]), 1):
        if fate != "before":
            commits = not since_clear if replaces else acknowledged
            if commits:
                there = [number] if replaces else [*there, number]
                since_clear.append(number)
            # What was found done is as good as committed.
            acknowledged = fate == "ok" or (fate == "returned" and step in CERTAIN)
        if step in (*CERTAIN, *HIDDEN, RETRIES[1]):
            since_clear = []
    return sorted(str(number) for number in there)
