"""The pipeline as the demo drives it: deliveries, Dagster runs, the sensor, and a look at the logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from delta_orch.delta_table import DeltaTable
from delta_orch.demo.control_totals import TABLES, Comparison
from delta_orch.demo.dagster_runs import RunReport, Runs, load_definitions
from delta_orch.demo.places import Places
from delta_orch.demo.plan import Plan
from delta_orch.demo.results import CommitPoint
from delta_orch.demo.source import Landing, Source
from delta_orch.demo.verification import Verifier
from delta_orch.log.files.file_columns import FileTable

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
        sensor: dg.SensorDefinition = load_definitions().resolve_sensor_def(SENSOR)
        with dg.build_sensor_context(instance=self.runs.instance, cursor=self._sensor_cursor) as context:
            result = sensor.evaluate_tick(context)
        self._sensor_cursor = result.cursor or self._sensor_cursor
        return [self.runs.refresh(**_tags(request)) for request in result.run_requests or ()]

    def asked_by(self, sensor: str) -> list[str | None]:
        """The keys of the runs that another sensor asks for."""
        with dg.build_sensor_context(instance=self.runs.instance) as context:
            tick = load_definitions().resolve_sensor_def(sensor).evaluate_tick(context)
        return [request.run_key for request in tick.run_requests or ()]

    def verify(self) -> list[Comparison]:
        """All tables against what has been delivered so far."""
        return self.verifier.against_landing(self.landing)

    def commits(self) -> list[CommitPoint]:
        """Every commit of every table, as the logs tell them."""
        points = []
        for name in TABLES:
            for entry in reversed(self.table(name).history()):
                metrics = entry.operation_metrics or {}
                rows = int(metrics.get("numOutputRows", 0) or 0)
                points.append(CommitPoint(name, entry.version, entry.timestamp_ms, entry.operation or "", rows))
        return points

    def file_sizes(self, name: str) -> Sequence[int]:
        """Bytes of each live file."""
        sizes: list[int] = FileTable(self.table(name).snapshot().files(["size"])).size.to_pylist()
        return sizes

    def rows(self, table: str, day: date | None = None) -> int:
        """How many rows a table has, of a day or of all."""
        column = "reading_date" if table == "weather_readings" else "flight_date"
        where = None if day is None else f"{column} = DATE '{day.isoformat()}'"
        rows = self.table(table).snapshot().scan(columns=[column], where=where).to_arrow()
        return int(rows.num_rows)


def _tags(request: dg.RunRequest) -> dict[str, str]:
    return {**dict(request.tags or {}), "dagster/run_key": request.run_key or ""}
