"""The pipeline of `dagster_defs/` as the demo drives it, in this process, on an instance on disk.

Every run is a real one: recorded, with events, and re-executed by Dagster's own means, which keep the root run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from dagster_defs import defs
from delta_orch import DeltaTable
from delta_orch.protocol.actions import JsonObject, JsonValue
from tests.demo.control_totals import TABLES, Comparison
from tests.demo.places import Places
from tests.demo.plan import Plan
from tests.demo.source import Landing, Source
from tests.demo.verification import Verifier

PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"


def bronze_job() -> dg.JobDefinition:
    return defs.resolve_job_def("bronze")


def corrections_job() -> dg.JobDefinition:
    return defs.resolve_job_def("corrections")


def refresh_job() -> dg.JobDefinition:
    return defs.resolve_job_def("refresh")


def maintenance_job() -> dg.JobDefinition:
    return defs.resolve_job_def("maintenance")


JOBS = {"bronze": bronze_job, "corrections": corrections_job}
"""The jobs whose runs are executed again."""


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
        return str(self.metadata[asset]["delta/outcome"])


class Runs:
    """Starts runs on one instance.

    Args:
        instance: Dagster's; on disk, so that other processes and `dagster dev` see the runs.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance

    def bronze(self, days: Sequence[date], assets: Sequence[str] | None = None, **tags: str) -> RunReport:
        """Materialize days, one after the other without a gap, in one run."""
        if len(days) == 1:
            partition = {PARTITION_TAG: days[0].isoformat()}
        else:
            partition = {RANGE_START_TAG: days[0].isoformat(), RANGE_END_TAG: days[-1].isoformat()}
        return self._execute(bronze_job, {**partition, **tags}, assets)

    def corrections(self, day: date, **tags: str) -> RunReport:
        """Upsert the corrections delivered for a day."""
        return self._execute(corrections_job, {PARTITION_TAG: day.isoformat(), **tags})

    def refresh(self, **tags: str) -> RunReport:
        """Silver, then gold."""
        return self._execute(refresh_job, tags)

    def maintenance(self, **tags: str) -> RunReport:
        return self._execute(maintenance_job, tags)

    def reexecute(self, run_id: str, *, from_failure: bool) -> RunReport:
        """Run a run of `JOBS` again, all of it or only from its failed step on. The root run stays what it was."""
        parent = self.instance.get_run_by_id(run_id)
        if parent is None:
            raise LookupError(f"The instance has no run {run_id}")
        options = (
            dg.ReexecutionOptions.from_failure(run_id, self.instance)
            if from_failure
            else dg.ReexecutionOptions(parent_run_id=run_id)
        )
        with dg.execute_job(
            dg.reconstructable(JOBS[parent.job_name]),
            self.instance,
            # As Dagster's UI does: the partition of a run is in its tags.
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

    def _execute(
        self, job: Callable[[], dg.JobDefinition], tags: Mapping[str, str], assets: Sequence[str] | None = None
    ) -> RunReport:
        with dg.execute_job(
            dg.reconstructable(job),
            self.instance,
            tags=dict(tags),
            asset_selection=None if assets is None else [dg.AssetKey(name) for name in assets],
            raise_on_error=True,
        ) as result:
            return self.report(result.run_id)


SENSOR = "bronze_changed"


@dataclass(slots=True)
class Pipeline:
    """Everything a stage of the demo works with."""

    places: Places
    plan: Plan
    source: Source
    landing: Landing
    runs: Runs
    verifier: Verifier
    _sensor_cursor: str | None = field(default=None)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.places.tables / name)

    def versions(self) -> dict[str, int]:
        return {name: self.table(name).version() for name in TABLES}

    def refresh(self) -> list[RunReport]:
        """Evaluate the sensor on bronze's log as Dagster's daemon does, and make the runs it asks for."""
        sensor: dg.SensorDefinition = defs.resolve_sensor_def(SENSOR)
        with dg.build_sensor_context(instance=self.runs.instance, cursor=self._sensor_cursor) as context:
            result = sensor.evaluate_tick(context)
        self._sensor_cursor = result.cursor or self._sensor_cursor
        return [self.runs.refresh(**_tags(request)) for request in result.run_requests or ()]

    def asked_by(self, sensor: str) -> list[str | None]:
        """The keys of the runs that another sensor asks for."""
        with dg.build_sensor_context(instance=self.runs.instance) as context:
            tick = defs.resolve_sensor_def(sensor).evaluate_tick(context)
        return [request.run_key for request in tick.run_requests or ()]

    def deliver(self, days: Sequence[date]) -> None:
        """The source delivers days; some of them as preliminary data, to be corrected later."""
        for day in days:
            if day == self.plan.amended:
                self.landing.deliver_uncorrected(self.source, day)
            elif day in self.plan.preliminary:
                self.landing.deliver_preliminary(self.source, [day])
                if day == self.plan.corrected:
                    self.landing.deliver_first_readings(self.source, day)
            else:
                self.landing.deliver(self.source, [day])

    def verify(self) -> list[Comparison]:
        """All tables against what has been delivered so far."""
        return self.verifier.against_landing(self.landing)

    def num_files(self) -> int:
        """The live files of all tables."""
        return sum(self.table(name).snapshot().num_files for name in TABLES)

    def rows(self, table: str, day: date | None = None) -> int:
        """How many rows a table has, of a day or of all."""
        column = "reading_date" if table == "weather_readings" else "flight_date"
        where = None if day is None else f"{column} = DATE '{day.isoformat()}'"
        rows = self.table(table).snapshot().scan(columns=[column], where=where).to_arrow()
        return int(rows.num_rows)


def _tags(request: dg.RunRequest) -> dict[str, str]:
    return {**dict(request.tags or {}), "dagster/run_key": request.run_key or ""}
