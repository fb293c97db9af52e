"""The other tasks of a DAG that change rows of tables, as one of them that is running sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from delta_orch.airflow.table_operator import DeltaTableOperator
from delta_orch.pipeline.recorded import said_by

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun

_AHEAD = (None, "removed", "up_for_retry", "skipped")
"""States of a task instance that begins again: it was cleared, or it is retried; or was cleared and then skipped, as by
a branch that goes another way now. What it has written before does not stand."""


@dataclass(frozen=True)
class Neighbors:
    """The other tasks.

    Attributes:
        context: Airflow's.
        run: Of the context: the task that is running.
    """

    context: Context
    run: TaskRun

    @cached_property
    def all(self) -> Mapping[str, tuple[type, Mapping[str, object]]]:
        """Class and arguments by task id. A mapped task has them in hand."""
        tasks = self.context["dag"].task_dict.items()
        kinds = {name: getattr(task, "operator_class", type(task)) for name, task in tasks if name != self.run.task_id}
        return {
            name: (kinds[name], getattr(task, "partial_kwargs", None) or vars(task))
            for name, task in tasks
            if name in kinds and issubclass(kinds[name], DeltaTableOperator) and kinds[name].writes
        }

    @cached_property
    def before(self) -> frozenset[str]:
        """Those that this task waits for."""
        return self._relatives(upstream=True)

    @cached_property
    def after(self) -> frozenset[str]:
        """Those that wait for this task."""
        return self._relatives(upstream=False)

    def _relatives(self, *, upstream: bool) -> frozenset[str]:
        relatives = self.context["ti"].task.get_flat_relative_ids(upstream=upstream) if self.all else ()
        return frozenset(self.all.keys() & relatives)

    def told(self, what: str) -> Mapping[str, Mapping[str, object]]:
        """The arguments of tasks whose class has such a method, which is true of them."""
        known = {name: (getattr(kind, what, None), arguments) for name, (kind, arguments) in self.all.items()}
        return {name: arguments for name, (does, arguments) in known.items() if does is not None and does(arguments)}

    def removing(self) -> Mapping[str, Mapping[str, object]]:
        """The tasks before this one that remove rows of a predicate or of partitions, with their arguments."""
        return {name: arguments for name, arguments in self.told("removes_rows").items() if name in self.before}

    @cached_property
    def _told_before(self) -> Sequence[Mapping[str, object]]:
        """The XComs of those that this task waits for."""
        told = self.context["ti"].xcom_pull(task_ids=sorted(self.before)) if self.before else ()
        return [xcom for xcom in told if isinstance(xcom, Mapping)]

    def version_before(self, table_uri: str) -> int | None:
        """The newest version of a table that those before this task have told of in this run."""
        found = [xcom.get("version") for xcom in self._told_before if xcom.get("table_uri") == table_uri]
        return max((version for version in found if isinstance(version, int)), default=None)

    def states(self, task_id: str, map_index: int | None = None) -> Sequence[str | None]:
        """Of a task's instances in this run, as Airflow has them now."""
        about = {"dag_id": self.run.dag_id, "map_index": map_index, "task_ids": [task_id], "run_ids": [self.run.run_id]}
        return [*self.context["ti"].get_task_states(**about).get(self.run.run_id, {}).values()]

    def state_of(self, info: Mapping[str, object]) -> str | None:
        """Of the task instance that has made a commit in this run; None also where there is none."""
        return next(iter(self.states(str(said_by(info).get("task_id")), self.run.map_index_of(info))), None)

    def is_to_come(self, info: Mapping[str, object]) -> bool:
        """Whether a task that has made a commit in this run begins again, and makes it again."""
        return self.state_of(info) in _AHEAD
