"""A lake's report as one page of HTML that needs nothing else: no script, no font, no picture, no request.

Every text of a table goes through `_text`, and into the page through ElementTree, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from delta_orch.cli.output import one_line, text_of_bytes, text_of_time
from delta_orch.redaction import kept

if TYPE_CHECKING:
    from delta_orch.pipeline.maintenance import ConsumerLag, LakeReport, TableState

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Delta tables</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">
<style>
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #5c6570; --card: #fff; --page: #f4f5f7; --text: #16191d;
  --good: #1a7f37; --bad: #c0301c; --accent: #2563c9 }
@media (prefers-color-scheme: dark) { :root { --line: #333a44; --soft: #9aa4b1; --card: #1b1f25; --page: #111418;
  --text: #e7eaee; --good: #4cc26b; --bad: #ff7a66; --accent: #7fb0ff } }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere }
h1, h2, p, dd { margin: 0 } h1 { font-size: 1.3rem } h2 { font-size: 1.05rem } .soft, dt { color: var(--soft) }
.good { color: var(--good) } .bad { color: var(--bad); white-space: pre-line } a, svg { color: var(--accent) }
main { display: grid; grid-template-columns: minmax(0, 1fr); gap: .8rem; margin-top: .8rem }
article { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .5rem 1rem; margin: .6rem 0 }
svg { width: 100%; height: 3.2rem } polyline { fill: none; stroke: currentColor; vector-effect: non-scaling-stroke }
.wide { overflow-x: auto } table { border-collapse: collapse } .soft, dt, table { font-size: .87rem }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); overflow-wrap: normal }
</style></head>
"""
_CHART_POINTS = 120
_SHOWN_UNITS = 200
_LONGEST_TEXT = 500


def lake_page(report: LakeReport) -> bytes:
    """The page of a report, in UTF-8."""
    body = Element("body")
    _add(body, "h1", "Delta tables")
    for text, style in _totals(report):
        _add(body, "p", text, style)
    main = SubElement(body, "main")
    for table in report.tables:
        _add_table(SubElement(main, "article"), table, report)
    return f"{_HEAD}{tostring(body, encoding='unicode', method='html')}</html>\n".encode()


def _totals(report: LakeReport) -> list[tuple[str, str]]:
    healths = [table.health for table in report.tables if table.health is not None]
    size, files = sum(health.size_bytes for health in healths), sum(health.num_files for health in healths)
    unreadable = ", ".join(table.path for table in report.tables if table.error is not None)
    due = ", ".join(table.path for table in report.tables if table.due)
    made = f"{text_of_time(report.timestamp_ms)[:16]} UTC. Units and growth of the last {_count(report.days, 'day')}."
    return [
        (f"{_count(len(report.tables), 'table')}, {text_of_bytes(size)} in {_count(files, 'file')}", ""),
        *([(f"Cannot be read: {unreadable}", "bad")] if unreadable else ()),
        *([(f"Maintenance is due: {due}", "")] if due else ()),
        (made, "soft"),
    ]


def _add_table(article: Element, table: TableState, report: LakeReport) -> None:
    _add(article, "h2", table.path)
    _add(article, "p", table.uri if table.name is None else f"{table.name}: {table.uri}", "soft")
    health, write = table.health, table.last_write
    if table.error is not None or health is None:
        _add(article, "p", table.error or "", "bad")
        return
    facts = SubElement(article, "dl")
    _add_fact(facts, "size", f"{text_of_bytes(health.size_bytes)} in {_count(health.num_files, 'file')}")
    _add_fact(facts, "rows", "unknown" if table.num_rows is None else f"{table.num_rows:,}")
    _add_fact(facts, "version", f"{health.version:,}, {health.commits_since_checkpoint:,} after the last checkpoint")
    due = f"due: {', '.join(table.due)}" if table.due else "nothing is due"
    _add_fact(facts, "maintenance", due, "" if table.due else "good")
    if write is not None:
        words = filter(None, [write.operation, write.engine])
        _add_fact(facts, "last write", f"{text_of_time(write.timestamp_ms)[:16]} UTC: {', '.join(words)}")
        run = _add_fact(facts, "run", "" if write.link else write.run or "none named")
        if write.link:
            link = _add(run, "a", write.run or "its page")
            link.attrib |= {"href": one_line(write.link), "rel": "noopener noreferrer"}
        if write.orchestrator:
            _add(run, "span", f" ({write.orchestrator})", "soft")
    for lag in table.consumers:
        text, style = _text_of_lag(lag, report.timestamp_ms)
        _add_fact(facts, f"read by {lag.consumer}", text, style)
    sizes = [(one.timestamp_ms, one.size_bytes) for one in reversed(table.commits) if one.size_bytes is not None]
    if len(sizes) > 1:
        _add_chart(article, sizes)
    if table.units:
        _add_units(article, table)


def _text_of_lag(lag: ConsumerLag, now_ms: int) -> tuple[str, str]:
    if lag.versions_behind < 0:
        return f"its cursor {lag.cursor} is not in this table's log", "bad"
    if lag.commits_behind == 0:
        return "up to date", "good"
    if lag.commits_behind is None or lag.behind_since_ms is None:
        return f"{_count(lag.versions_behind, 'version')} behind, for longer than this report looks back", "bad"
    hours = max(now_ms - lag.behind_since_ms, 0) / 3_600_000
    age = f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
    return f"{_count(lag.commits_behind, 'commit')} behind, for {age}", "bad"


def _add_chart(article: Element, sizes: Sequence[tuple[int, int]]) -> None:
    """The size over time, from zero up, as steps: a size holds until the next commit."""
    start_ms, span_ms = sizes[0][0], max(sizes[-1][0] - sizes[0][0], 1)
    top, height, points = max(max(size for _, size in sizes), 1), None, []
    places = dict.fromkeys(place * (len(sizes) - 1) // _CHART_POINTS for place in range(_CHART_POINTS + 1))
    for time_ms, size in map(sizes.__getitem__, places):
        x, y = 300 * (time_ms - start_ms) / span_ms, 38 - 36 * size / top
        points += [f"{x:.1f},{y if height is None else height:.1f}", f"{x:.1f},{y:.1f}"]
        height = y
    words = f"Size from {text_of_bytes(sizes[0][1])} ({text_of_time(start_ms)[:10]}) to {text_of_bytes(sizes[-1][1])}"
    chart = SubElement(article, "svg", viewBox="0 0 300 40", preserveAspectRatio="none", role="img")
    chart.set("aria-label", words)
    SubElement(chart, "polyline", points=" ".join(points))
    _add(article, "p", words, "soft")


def _add_units(article: Element, table: TableState) -> None:
    details = SubElement(article, "details")
    _add(details, "summary", f"{_count(len(table.units), 'unit')} written")
    rows = SubElement(SubElement(details, "div", {"class": "wide"}), "table")
    header = SubElement(rows, "tr")
    for title in ("unit", "committed", "run", "version", "commits", "rows", "rows removed"):
        _add(header, "th", title)
    for unit in table.units[:_SHOWN_UNITS]:
        row, when = SubElement(rows, "tr"), text_of_time(unit.timestamp_ms)[:16]
        for cell in (unit.unit, when, unit.run, unit.version, unit.commits, unit.rows, unit.rows_removed):
            _add(row, "td", "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell)
    if len(table.units) > _SHOWN_UNITS:
        _add(details, "p", f"and {len(table.units) - _SHOWN_UNITS:,} more (all of them with --json)", "soft")
    _add(details, "p", "A unit that failed has no commit, so it is not listed.", "soft")


def _add_fact(facts: Element, title: str, text: str, style: str = "") -> Element:
    fact = SubElement(facts, "div")
    _add(fact, "dt", title)
    return _add(fact, "dd", text, style)


def _add(parent: Element, tag: str, text: str, style: str = "") -> Element:
    element = SubElement(parent, tag, {"class": style} if style else {})
    element.text = _text(text)
    return element


def _text(text: str) -> str:
    """A text that may be shown: without secrets, without characters that steer, not longer than a page can bear."""
    shown = "\n".join(one_line(line) for line in str(kept(text)).split("\n"))
    return shown if len(shown) <= _LONGEST_TEXT else shown[: _LONGEST_TEXT - 1] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
