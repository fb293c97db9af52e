"""What the demo found out: plain values that become the closing lines and `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from delta_orch.protocol.actions import JsonValue
from tests.demo.control_totals import Comparison


@dataclass(frozen=True, slots=True)
class Check:
    """One statement that turned out true or false."""

    what: str
    passed: bool


@dataclass(frozen=True, slots=True)
class BreakStep:
    """One attempt to break the pipeline.

    Attributes:
        name: Short and unique, e.g. `recovered`.
        title: What was done.
        outcome: What the tables show afterwards, in one sentence.
        checks: Everything that had to hold; all of it is looked up, nothing assumed.
        numbers: What the step adds to the summary, e.g. `recovered`.
    """

    name: str
    title: str
    outcome: str
    checks: Sequence[Check]
    seconds: float
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(slots=True)
class Results:
    """Everything, filled in as the demo goes on."""

    rows_in_source: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    airflow_comparisons: list[Comparison] = field(default_factory=list)
    quarantined: dict[str, int] = field(default_factory=dict)
    airflow_quarantined: dict[str, int] = field(default_factory=dict)
    readers_unavailable: dict[str, str] = field(default_factory=dict)
    steps: list[BreakStep] = field(default_factory=list)
    files_before_compaction: int = 0
    files_after_compaction: int = 0
    files_vacuumed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    airflow: dict[str, JsonValue] = field(default_factory=dict)
    dagster_runs: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def rows(self, table: str) -> int:
        """Rows of a table of Dagster as the readers found them; -1 where they disagree."""
        return _rows(self.comparisons, table)

    def airflow_rows(self, table: str) -> int:
        """The same of a table of Airflow."""
        return _rows(self.airflow_comparisons, table)

    def readers_confirmed(self) -> list[str]:
        """The readers for which every table was right, value for value."""
        names = dict.fromkeys(comparison.reader for comparison in self.comparisons)
        return [name for name in names if all(c.confirmed for c in self.comparisons if c.reader == name)]

    def number(self, name: str) -> int:
        return sum(step.numbers.get(name, 0) for step in self.steps)

    def failures(self) -> list[str]:
        """Everything that is not as it must be; empty when the demo has succeeded."""
        wrong = [f"{s.name}: {check.what}" for s in self.steps for check in s.checks if not check.passed]
        wrong += [f"{s.name}: nothing was checked" for s in self.steps if not s.checks]
        for kind, comparisons in (("", self.comparisons), ("airflow: ", self.airflow_comparisons)):
            if not comparisons:
                wrong.append(f"{kind}no reader has opened the tables")
            wrong += [f"{kind}{describe_mismatch(c)}" for c in comparisons if not c.confirmed]
        # Empty where Airflow has not run at all, which is wrong for a reason of its own.
        for task in self.airflow.get("retried", ()):
            if (task["tries"], task["outcome"]) != (2, "recovered"):
                wrong.append(f"airflow: {task['task']} did not fail after its commit and find it again: {task}")
        for task, cleared in self.airflow.get("cleared", {}).items():
            if cleared["outcome"] != "replaced":
                wrong.append(f"airflow: {task} was cleared and did not replace its rows: {cleared}")
        followed = self.airflow.get("followed")
        if isinstance(followed, dict):
            handshake, wanted = self.airflow["handshake"], {"before": [], "after": [f"carriers-{followed['version']}"]}
            if handshake != wanted:
                wrong.append(f"handshake: Dagster's sensor asked for {handshake} instead of {wanted}")
        if len(self.readers_confirmed()) < 2:
            wrong.append(f"only {len(self.readers_confirmed())} independent readers confirmed all tables")
        rows = (self.rows_in_source, self.rows("flights"), self.rows("flights_enriched"), self.airflow_rows("flights"))
        if len(set(rows)) > 1:
            wrong.append("rows: {} in the source, {} in bronze, {} in silver, {} in bronze of Airflow".format(*rows))
        if sum(self.quarantined.values()) != self.number("rows_quarantined"):
            wrong.append(f"quarantine: {self.quarantined}, and {self.number('rows_quarantined')} rows were damaged")
        if self.quarantined != self.airflow_quarantined:
            wrong.append(f"quarantine: {self.quarantined} by Dagster, {self.airflow_quarantined} by Airflow")
        return wrong

    def summary(self) -> dict[str, JsonValue]:
        """The content of `summary.json`."""
        failures = self.failures()
        main = [c for c in self.comparisons if c.table in ("flights", "flights_enriched")]
        return {
            "passed": not failures,
            "failures": failures,
            "rows_in_source": self.rows_in_source,
            "rows_in_dagster": self.rows("flights"),
            "rows_in_airflow": self.airflow_rows("flights"),
            "rows_in_silver": self.rows("flights_enriched"),
            "rows_in_gold": self.rows("carrier_daily"),
            "duplicates": max((c.duplicates for c in main), default=None),
            "lost_rows": max((c.lost_rows for c in main), default=None),
            "steps_recovered": self.number("recovered"),
            "quarantined": self.quarantined,
            "rows_repaired": self.number("rows_repaired"),
            "runs_fenced": self.number("fenced"),
            "rows_undone": self.number("undone"),
            "loaders_without_news": self.number("loaders_without_news"),
            "files_before_compaction": self.files_before_compaction,
            "files_after_compaction": self.files_after_compaction,
            "files_vacuumed": self.files_vacuumed,
            "readers_confirmed": self.readers_confirmed(),
            "readers_unavailable": self.readers_unavailable,
            "seconds_per_stage": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
            "seconds": round(sum(self.seconds.values()), 1),
            "steps": [
                {"name": s.name, "title": s.title, "passed": s.passed, "outcome": s.outcome, **s.numbers}
                for s in self.steps
            ],
            "comparisons": [_comparison(c) for c in self.comparisons],
            "airflow": {
                **self.airflow,
                "quarantined": self.airflow_quarantined,
                "comparisons": [_comparison(c) for c in self.airflow_comparisons],
            },
            "dagster_runs": self.dagster_runs,
            "versions": self.versions,
        }


def _rows(comparisons: Sequence[Comparison], table: str) -> int:
    found = {comparison.found.rows for comparison in comparisons if comparison.table == table}
    return found.pop() if len(found) == 1 else -1


def describe_mismatch(comparison: Comparison) -> str:
    """In words, what a reader found wrong in a table."""
    return (
        f"{comparison.reader} found {comparison.table} different from the CSV: {comparison.lost_rows} rows lost, "
        f"{comparison.extra_rows} too many, {comparison.duplicates} duplicates; {comparison.found} instead of "
        f"{comparison.expected}"
    )


def _comparison(comparison: Comparison) -> dict[str, JsonValue]:
    derived = {"duplicates": comparison.duplicates, "confirmed": comparison.confirmed}
    return {**asdict(comparison), **derived}
