"""The pipeline of `dagster_defs/` as the demo drives it, in this process, on an instance on disk.

Every run is a real one: recorded, with events, and re-executed by Dagster's own means, which keep the root run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import dagster as dg

from dagster_defs import defs
from delta_orch import DeltaTable
from delta_orch.protocol.actions import JsonObject, JsonValue
from tests.demo.control_totals import TABLES, Comparison
from tests.demo.places import Places
from tests.demo.plan import Plan
from tests.demo.source import Landing, Source
from tests.demo.verification import Verifier


def flights_job() -> dg.JobDefinition:
    return defs.resolve_job_def("load_flights")


def weather_job() -> dg.JobDefinition:
    return defs.resolve_job_def("load_weather")


def refresh_job() -> dg.JobDefinition:
    return defs.resolve_job_def("refresh")


def maintenance_job() -> dg.JobDefinition:
    return defs.resolve_job_def("maintenance")


LOADS = {"flights": flights_job, "weather": weather_job}
"""The jobs that load files. Their runs are executed again."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run that has ended.

    Attributes:
        metadata: What each asset's materialization or observation says, by asset key. Values have no wrappers.
    """

    run_id: str
    root_run_id: str
    success: bool
    metadata: Mapping[str, JsonObject]

    def outcome(self, asset: str) -> str:
        """The outcome of the asset's step: written, replaced, recovered, fenced or nothing new."""
        return str(self.metadata.get(asset, {}).get("delta/outcome", "nothing new"))


class Runs:
    """Starts runs on one instance.

    Args:
        instance: Dagster's; on disk, so that other processes and `dagster dev` see the runs.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance

    def load(self, what: str, **tags: str) -> RunReport:
        """Load the new files of flights or weather."""
        return self._execute(LOADS[what], tags)

    def refresh(self, **tags: str) -> RunReport:
        """Silver, then gold."""
        return self._execute(refresh_job, tags)

    def maintenance(self, **tags: str) -> RunReport:
        return self._execute(maintenance_job, tags)

    def reexecute(self, run_id: str, *, from_failure: bool) -> RunReport:
        """Run a run of `LOADS` again, all of it or only from its failed step on. The root run stays what it was."""
        parent = self.instance.get_run_by_id(run_id)
        if parent is None:
            raise LookupError(f"The instance has no run {run_id}")
        options = (
            dg.ReexecutionOptions.from_failure(run_id, self.instance)
            if from_failure
            else dg.ReexecutionOptions(parent_run_id=run_id)
        )
        with dg.execute_job(
            dg.reconstructable(LOADS[parent.job_name.removeprefix("load_")]),
            self.instance,
            tags=dict(parent.tags),
            reexecution_options=options,
            raise_on_error=True,
        ) as result:
            return self.report(result.run_id)

    def report(self, run_id: str) -> RunReport:
        """What the instance knows of a run, whichever process ran it."""
        run = self.instance.get_run_by_id(run_id)
        if run is None:
            raise LookupError(f"The instance has no run {run_id}")
        kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION}
        metadata: dict[str, dict[str, JsonValue]] = {}
        for entry in self.instance.all_logs(run_id, of_type=kinds):
            event = entry.asset_materialization or entry.asset_observation
            if event is not None:
                values = {name: value.value for name, value in event.metadata.items()}
                metadata.setdefault(event.asset_key.to_user_string(), {}).update(values)
        return RunReport(run_id, run.root_run_id or run_id, run.is_success, metadata)

    def find(self, **tags: str) -> list[dg.DagsterRun]:
        """Runs by their tags, newest first."""
        return list(self.instance.get_runs(dg.RunsFilter(tags=tags)))

    def count(self) -> dict[str, int]:
        """How many runs ended how."""
        counts: dict[str, int] = {}
        for run in self.instance.get_runs():
            counts[run.status.value.lower()] = counts.get(run.status.value.lower(), 0) + 1
        return counts

    def _execute(self, job: Callable[[], dg.JobDefinition], tags: Mapping[str, str]) -> RunReport:
        with dg.execute_job(dg.reconstructable(job), self.instance, tags=dict(tags), raise_on_error=True) as result:
            return self.report(result.run_id)


@dataclass(slots=True)
class Pipeline:
    """Everything a stage of the demo works with."""

    places: Places
    plan: Plan
    source: Source
    landing: Landing
    runs: Runs
    verifier: Verifier
    loaded: set[int] = field(default_factory=set)
    _cursors: dict[str, str | None] = field(default_factory=dict)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.places.tables / name)

    def versions(self) -> dict[str, int]:
        return {name: self.table(name).version() for name in TABLES}

    def arrive(self, what: str, *months: int) -> list[RunReport]:
        """Files of flights or weather are there: evaluate their sensor, and make the runs it asks for.

        Args:
            months: Are complete in the table then.
        """
        reports = [self.runs.load(what, **tags) for tags in self._requests(f"{what}_arrived")]
        if what == "flights":
            self.loaded |= set(months)
        return reports

    def deliver(self, *months: int) -> None:
        """Months arrive as they should, one after the other: each is loaded before the next one is there."""
        for month in months:
            self.landing.deliver(self.source, month)
            self.arrive("weather")
            self.arrive("flights", month)

    def refresh(self) -> list[RunReport]:
        """Evaluate the sensors on bronze's logs, and make the runs they ask for: silver and gold follow."""
        asked = [tags for name in ("flights", "weather") for tags in self._requests(f"{name}_changed")]
        return [self.runs.refresh(**tags) for tags in asked]

    def asked_by(self, sensor: str) -> list[str | None]:
        """The keys of the runs that a sensor asks for."""
        return [tags.get("dagster/run_key") for tags in self._requests(sensor)]

    def _requests(self, name: str) -> list[dict[str, str]]:
        """Evaluate a sensor as Dagster's daemon does: the tags of the runs that it asks for."""
        sensor: dg.SensorDefinition = defs.resolve_sensor_def(name)
        with dg.build_sensor_context(instance=self.runs.instance, cursor=self._cursors.get(name)) as context:
            tick = sensor.evaluate_tick(context)
        self._cursors[name] = tick.cursor or self._cursors.get(name)
        return [
            {**dict(request.tags or {}), "dagster/sensor_name": name, "dagster/run_key": request.run_key or ""}
            for request in tick.run_requests or ()
        ]

    def verify(self) -> list[Comparison]:
        """All tables against the months that have been loaded so far."""
        return self.verifier.quickly(self.source, sorted(self.loaded))

    def num_files(self) -> int:
        """The live files of all tables."""
        return sum(self.table(name).snapshot().num_files for name in TABLES)

    def rows(self, table: str, month: int | None = None) -> int:
        """How many rows a table has, of a month or of all."""
        where = None if month is None else f"month(flight_date) = {month}"
        rows = self.table(table).snapshot().scan(columns=["flight_date"], where=where).to_arrow()
        return int(rows.num_rows)
