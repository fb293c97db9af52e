"""Reads units from the log of a table: the commit of each unit, and the settings of its step.

A unit is the transaction of a pipeline step (`pipeline.unit`). Its commit records the settings of the step under
`commitInfo.step`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from delta_orch.expressions.nodes import Column, Comparison, Expression, In, Literal
from delta_orch.log.files.commit_reader import Commit, user_metadata_of
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.types import STRING

ADDING, REPLACING = ("append", "error", "ignore"), ("overwrite", "overwrite_partitions", "overwrite_changed")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The step that wrote a unit, as `commitInfo.step` records it.

    Attributes:
        write: The mode of the step.
        unit_column: The column that holds the unit's name.
        adds_to: The order of an earlier commit of the unit whose rows this commit kept. None if it replaced the rows,
            or if there was no earlier commit.
        inputs: The tables that the step read: `table` (the URI), `table_id`, `consumer`, `starting_version` (None for a
            snapshot) and `ending_version`.
        quarantine: The location of the quarantine for rows that break a rule (`verbs.quarantine`). None if the step has
            no quarantine.
    """

    write: str
    unit_column: str | None = None
    adds_to: int | None = None
    inputs: tuple[Mapping[str, object], ...] = ()
    quarantine: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the record as JSON for `commitInfo.step`."""
        record: dict[str, object] = {"write": self.write}
        if self.unit_column is not None:
            record["unitColumn"] = self.unit_column
        if self.adds_to is not None:
            record["addsTo"] = self.adds_to
        if self.inputs:
            record["inputs"] = [dict(one) for one in self.inputs]
        if self.quarantine is not None:
            record["quarantine"] = self.quarantine
        return record

    @classmethod
    def of(cls, commit_info: Mapping[str, object] | None) -> StepRecord | None:
        """Return the step of a commit. None if no step made the commit."""
        record = (commit_info or {}).get("step")
        if not isinstance(record, Mapping) or not isinstance(write := record.get("write"), str):
            return None
        column, adds_to, inputs = record.get("unitColumn"), record.get("addsTo"), record.get("inputs")
        quarantine = record.get("quarantine")
        return cls(
            write,
            column if isinstance(column, str) else None,
            adds_to if isinstance(adds_to, int) else None,
            tuple(one for one in inputs if isinstance(one, Mapping)) if isinstance(inputs, list) else (),
            quarantine if isinstance(quarantine, str) else None,
        )


class LogWalk:
    """The commits of a log from a version backwards. Each commit is read only once, even in several iterations.

    Args:
        log: The log.
        version: The newest version of the walk.
    """

    def __init__(self, log: TableLog, version: int) -> None:
        self.log = log
        self.version = version
        self._commits: list[Commit] = []
        self._older = log.newest_first(version)

    def __iter__(self) -> Iterator[Commit]:
        """Iterate from the newest commit to the oldest commit of the log. Raises CorruptLogError if a commit is
        damaged."""
        place = 0
        while True:
            if place == len(self._commits):
                commit = next(self._older, None)
                if commit is None:
                    return
                self._commits.append(commit)
            yield self._commits[place]
            place += 1

    def find(self, app_id: str, order: int | None = None) -> Commit | None:
        """Return the newest commit that recorded a transaction id, or exactly this version of it. None if the log does
        not have it. Raises as iteration does."""
        for commit in self:
            if any(txn.app_id == app_id and order in (None, txn.version) for txn in commit.txns):
                return commit
        return None


@dataclass(frozen=True)
class RecordedUnit:
    """A unit that a table has recorded. Its commit is read from the log on first access.

    Attributes:
        name: `pipeline.unit.Unit.name`.
        order: The order of the attempt that made the newest commit.
        walk: The log.
    """

    name: str
    order: int
    walk: LogWalk

    @cached_property
    def commit(self) -> Commit | None:
        """Return the newest commit. None if the log no longer has it."""
        return self.walk.find(self.name, self.order)

    @property
    def version(self) -> int | None:
        """Return the version of the commit. None if the log no longer has it."""
        return None if self.commit is None else self.commit.version

    @property
    def commit_info(self) -> Mapping[str, object]:
        """Return `commitInfo` of the commit. Empty if the log no longer has the commit."""
        return {} if self.commit is None else self.commit.commit_info or {}

    @property
    def step(self) -> StepRecord | None:
        """Return the step that wrote the unit. None if the log no longer has the commit, or if no step made it."""
        return StepRecord.of(self.commit_info)


def run_of(commit_info: Mapping[str, object] | None) -> str | None:
    """Return the id of the orchestrator's run that made a commit."""
    run_id = user_metadata_of(commit_info).get("run_id")
    return str(run_id) if run_id else None


def unit_predicate(column: str, units: Sequence[str]) -> Expression:
    """Return the predicate for the rows of units, if a column holds their names."""
    names = tuple(Literal(unit, STRING) for unit in units)
    return Comparison("=", Column((column,)), names[0]) if len(names) == 1 else In(Column((column,)), names)
