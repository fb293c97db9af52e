"""The report's pictures, as SVG text. Colours come from the page's style sheet, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from html import escape

from delta_orch.demo.results import BreakStep, CommitPoint, Compaction, DayRows

WIDTH = 1080


def rows_per_day(days: Sequence[DayRows]) -> str:
    """A bar a day: its height the rows in bronze, its colour how the day came in, a mark where the source differs."""
    height, left, bottom, top = 250, 46, 26, 12
    peak = _nice_ceiling(max((max(day.source, day.bronze) for day in days), default=1))
    step = (WIDTH - left) / max(len(days), 1)
    plot = height - bottom - top
    parts = [_grid(left, top, plot, peak)]
    for index, day in enumerate(days):
        x, bar = left + index * step, plot * day.bronze / peak
        tip = f"{day.day}: {day.source:,} in the source, {day.bronze:,} in bronze, {day.silver:,} in silver"
        parts.append(
            f'<rect class="bar {day.origin}" x="{x:.2f}" y="{top + plot - bar:.2f}" width="{max(step - 0.6, 0.8):.2f}" '
            f'height="{bar:.2f}"><title>{escape(f"{tip} ({day.origin})")}</title></rect>'
        )
        if not day.source == day.bronze == day.silver:
            parts.append(f'<circle class="wrong" cx="{x + step / 2:.2f}" cy="{top + 4}" r="4"/>')
    parts.append(_month_axis(days, left, step, height))
    return _svg(WIDTH, height, "Flights per day in bronze", parts)


def commits_over_time(commits: Sequence[CommitPoint], steps: Sequence[BreakStep], start_ms: int) -> str:
    """A lane a table, a dot a commit at its moment; the attempts to break it shade the background."""
    tables = list(dict.fromkeys(commit.table for commit in commits))
    lane, left, top, bottom = 46, 150, 34, 26
    height = top + lane * len(tables) + bottom
    end_ms = max([commit.timestamp_ms for commit in commits] + [step.ended_ms for step in steps], default=start_ms) + 1
    scale = (WIDTH - left - 14) / max(end_ms - start_ms, 1)

    def at(moment_ms: int) -> float:
        return left + (moment_ms - start_ms) * scale

    parts = []
    for number, step in enumerate(steps, 1):
        x, width = at(step.started_ms), max((step.ended_ms - step.started_ms) * scale, 3)
        parts.append(
            f'<rect class="attempt" x="{x:.1f}" y="{top - 14}" width="{width:.1f}" '
            f'height="{height - top - bottom + 14}">'
            f"<title>{escape(step.title)}</title></rect>"
            f'<text class="tick" x="{x + width / 2:.1f}" y="{top - 19}" text-anchor="middle">{number}</text>'
        )
    for row, table in enumerate(tables):
        y = top + lane * row + lane / 2
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(table)}</text>')
        for commit in (commit for commit in commits if commit.table == table):
            tip = f"{table} version {commit.version}: {commit.operation}, {commit.rows:,} rows"
            radius = 3 + min(math.log10(commit.rows + 1), 6) * 0.9
            parts.append(
                f'<circle class="commit {operation_class(commit.operation)}" cx="{at(commit.timestamp_ms):.1f}" '
                f'cy="{y}" r="{radius:.1f}"><title>{escape(tip)}</title></circle>'
            )
    parts.append(_seconds_axis(start_ms, end_ms, left, scale, height))
    return _svg(WIDTH, height, "Commits over time", parts)


def operation_class(operation: str) -> str:
    """The style of a commit's dot."""
    if operation.startswith("VACUUM"):
        return "vacuum"
    return {"OPTIMIZE": "optimize", "CREATE TABLE": "create"}.get(operation, "write")


def file_sizes(compaction: Compaction) -> str:
    """How many files there are of each size, before and after: two histograms on one logarithmic axis."""
    width, height, left, bottom, top = 520, 190, 40, 30, 10
    edges = [2.0**power for power in range(10, 27)]
    before, after = (_histogram(sizes, edges) for sizes in (compaction.sizes_before, compaction.sizes_after))
    used = [index for index in range(len(edges) - 1) if before[index] or after[index]] or [0]
    first, last = max(min(used) - 1, 0), min(max(used) + 1, len(edges) - 2)
    peak = _nice_ceiling(max([*before, *after, 1]))
    step = (width - left) / (last - first + 1)
    plot = height - bottom - top
    parts = [_grid(left, top, plot, peak, width)]
    for slot, index in enumerate(range(first, last + 1)):
        x = left + slot * step
        for offset, (name, counts) in enumerate((("before", before), ("after", after))):
            bar = plot * counts[index] / peak
            tip = f"{name}: {counts[index]:,} files of {_size(edges[index])} to {_size(edges[index + 1])}"
            parts.append(
                f'<rect class="bar {name}" x="{x + step * (0.08 + 0.42 * offset):.1f}" y="{top + plot - bar:.1f}" '
                f'width="{step * 0.4:.1f}" height="{bar:.1f}"><title>{escape(tip)}</title></rect>'
            )
        label = _size(edges[index])
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{label}</text>')
    return _svg(width, height, f"File sizes of {compaction.table} before and after compaction", parts)


def stage_seconds(seconds: Mapping[str, float]) -> str:
    """A horizontal bar a stage."""
    row, left = 26, 250
    height = row * len(seconds) + 4
    peak = max(seconds.values(), default=1.0) or 1.0
    parts = []
    for index, (name, value) in enumerate(seconds.items()):
        y, bar = index * row + 4, (WIDTH - left - 70) * value / peak
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        size = f'width="{max(bar, 1):.1f}" height="{row - 8}"'
        parts.append(f'<rect class="bar stage" x="{left}" y="{y}" {size} rx="2"/>')
        parts.append(f'<text class="tick" x="{left + bar + 8:.1f}" y="{y + 14}">{value:.1f} s</text>')
    return _svg(WIDTH, height, "Seconds per stage", parts)


def _histogram(sizes: Sequence[int], edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for size in sizes:
        index = int(math.log2(max(size, 1))) - 10
        counts[min(max(index, 0), len(counts) - 1)] += 1
    return counts


def _grid(left: int, top: int, plot: int, peak: int, width: int = WIDTH) -> str:
    lines = next(lines for lines in (4, 5, 3, 2, 1) if peak % lines == 0)
    parts = []
    for number in range(lines + 1):
        y = top + plot - plot * number / lines
        parts.append(f'<line class="grid" x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f"{peak * number // lines:,}"
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(parts)


def _month_axis(days: Sequence[DayRows], left: float, step: float, height: int) -> str:
    parts = []
    for index, day in enumerate(days):
        parsed = date.fromisoformat(day.day)
        x = left + index * step
        if len(days) <= 31:
            label = str(parsed.day)
        elif parsed.day == 1:
            label = parsed.strftime("%b")
        else:
            continue
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}">{label}</text>')
    return "".join(parts)


def _seconds_axis(start_ms: int, end_ms: int, left: float, scale: float, height: int) -> str:
    span = (end_ms - start_ms) / 1000
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300) if span / s <= 12), 600)
    marks = range(0, int(span) + 1, step)
    return "".join(
        f'<text class="tick" x="{left + second * 1000 * scale:.1f}" y="{height - 8}" text-anchor="middle">'
        f"{second} s</text>"
        for second in marks
    )


def _nice_ceiling(value: float) -> int:
    """The next round number: an axis ends there."""
    power = 10 ** int(math.log10(max(value, 1)))
    candidates = (int(factor * power) for factor in (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10))
    return next(candidate for candidate in candidates if candidate >= value)


def _size(size_bytes: float) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.0f} {unit}"
    return f"{size_bytes:.0f} B"


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
