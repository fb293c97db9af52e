"""The plots of docs/performance.md, drawn from the figures of the last run of each benchmark.

`python -m benchmarks --plots` measures, records in `benchmarks/figures.json`, and draws. Without a measurement:

    python -m benchmarks.plots
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "figures.json"
DIRECTORY = ROOT / "docs" / "plots"

Figures = Mapping[str, Mapping[str, Any]]
"""Contestant → its figures, as `benchmarks.runner.Figures`."""

# Narrow, so that a phone shows it in a size that can be read.
_WIDTH, _NAMES, _VALUES, _LINE, _BAR = 430, 148, 52, 17, 11
# Gray text can be read on white and on the site's dark background.
_TEXT, _OURS, _OTHERS, _FLOOR = "#7a7a7a", "#4f6bd8", "#a8a8a8", "#d08a2e"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"


class Plot(NamedTuple):
    """One picture: a group of bars for each benchmark, each group in a scale of its own.

    Attributes:
        unit: The figure that is drawn: `seconds` or `cpu_seconds`.
        rows: What a group is called → the benchmark.
        contestants: The name in the figures → the name in the picture. Others are left out.
    """

    title: str
    unit: str
    rows: Mapping[str, str]
    contestants: Mapping[str, str]


_SCANS = {
    "delta_orch, to_duckdb": "delta_orch",
    "delta_orch": "delta_orch",
    "deltalake, DataFusion": "deltalake",
    "deltalake": "deltalake",
    "duckdb, delta extension": "DuckDB",
    "polars": "Polars",
    "floor: duckdb on the files": "floor",
    "floor: pyarrow on the files": "floor, pyarrow",
    "delta_orch, 1 % deleted by vectors": "delta_orch, 1 % deleted",
    "floor: spark.read.parquet": "floor",
}
_LOGS = {
    "delta_orch": "delta_orch",
    "deltalake": "deltalake",
    "duckdb, delta extension": "DuckDB",
    "polars, planning only": "Polars",
    "floor: pyarrow, two columns": "floor, pyarrow",
    "floor: scandir, orjson": "floor, orjson",
}
_CHANGES = {
    "delta_orch, deletion vectors": "delta_orch, vectors",
    "delta_orch, rewriting": "delta_orch, rewriting",
    "delta_orch": "delta_orch",
    "deltalake, rewriting": "deltalake, rewriting",
    "deltalake": "deltalake",
}
_SPARK = {"delta_orch": "delta_orch", "Delta on Spark": "Delta on Spark"}
BESIDE_SPARK, FAR_STORE = "beside_delta_on_spark: ", "far_store: "

PLOTS = {
    "reading": Plot(
        "Reading 20,000,000 rows: seconds",
        "seconds",
        {
            "five aggregates": "scan_full",
            "the same under column mapping": "scan_mapped",
            "two fields of a mapped struct, 5,000,000 rows": "scan_mapped_nested",
            "100,001 rows by id": "scan_selective",
            "the same under column mapping, by id": "scan_mapped_selective",
            "1 % deleted, scattered": "scan_deletion_vectors",
            "change feed of 1,500,000 rows": "change_feed",
            "on Spark: five aggregates": "scan_spark",
        },
        _SCANS,
    ),
    "log": Plot(
        "The log: processor seconds",
        "cpu_seconds",
        {
            "open 1,000,000 files, list their paths": "open_large_checkpoint",
            "open them, prune by date and id": "prune_large_checkpoint",
            "replay 5,000 commits, list paths": "replay_many_commits",
        },
        _LOGS,
    ),
    "changing": Plot(
        "Changing 20,000,000 rows in 20 files: processor seconds",
        "cpu_seconds",
        {
            "delete 1 % of all rows, in all files": "delete_scattered",
            "update 100,000 rows of one file": "update_range",
            "merge 200,000 rows, matches in all files": "merge_scattered",
            "merge 200,000 rows, matches in two files": "merge_two_files",
            "upsert 1,000 rows, a tenth of them new": "upsert_1000",
            "Z-order 5 of the files by two columns": "zorder",
        },
        _CHANGES,
    ),
}
"""By the name of the file. Those of `BESIDE_SPARK` and `FAR_STORE` are made of whatever was recorded."""


def recorded() -> dict[str, Figures]:
    """The figures of the last run of each benchmark."""
    found: dict[str, Figures] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def record(figures: Mapping[str, Figures]) -> None:
    """Put the figures of a run in the place of those before, and draw all plots."""
    kept = {
        name: {
            contestant: {key: value for key, value in measured.items() if value not in (None, "")}
            for contestant, measured in contestants.items()
        }
        for name, contestants in figures.items()
    }
    merged = recorded() | kept
    lines = (f"  {json.dumps(name)}: {json.dumps(merged[name])}" for name in sorted(merged))
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    draw()


def plots() -> dict[str, Plot]:
    """All plots, by the name of the file."""
    names = sorted(recorded())

    def of(prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}

    far = {"delta_orch": "delta_orch", "deltalake": "deltalake"}
    return {
        **PLOTS,
        "beside-spark": Plot("Beside Delta on Spark: seconds", "seconds", of(BESIDE_SPARK), _SPARK),
        "far-store": Plot("A store whose answers take 50 ms: seconds", "seconds", of(FAR_STORE), far),
    }


def bars(plot: Plot, figures: Mapping[str, Figures]) -> Iterator[tuple[str, list[tuple[str, float, int]]]]:
    """The groups of a plot: its heading, and name, value and peak bytes of each bar."""
    for heading, benchmark in plot.rows.items():
        measured = figures.get(benchmark, {})
        yield (
            heading,
            [
                (shown, measured[name][plot.unit], measured[name].get("peak_bytes", 0))
                for name, shown in plot.contestants.items()
                if name in measured and "error" not in measured[name]
            ],
        )


def svg(plot: Plot, figures: Mapping[str, Figures]) -> str:
    """The picture."""
    shapes: list[str] = []
    y = 2 * _LINE
    for heading, group in bars(plot, figures):
        shapes.append(f"<text x='0' y='{y}' font-weight='600'>{escape(heading)}</text>")
        longest = max((value for _, value, _ in group), default=1.0)
        for name, value, _ in group:
            y += _LINE
            length = max(1.0, value / longest * (_WIDTH - _NAMES - _VALUES))
            color = _OURS if name.startswith("delta_orch") else _FLOOR if name.startswith("floor") else _OTHERS
            shapes.append(f"<text x='{_NAMES - 8}' y='{y}' text-anchor='end'>{escape(name)}</text>")
            shapes.append(
                f"<rect x='{_NAMES}' y='{y - _BAR + 1}' width='{length:.0f}' height='{_BAR}' fill='{color}'/>"
            )
            shapes.append(f"<text x='{_NAMES + length + 6:.0f}' y='{y}'>{value:.3g}</text>")
        y += 2 * _LINE
    height = y - _LINE
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' {_FONT} "
        f"fill='{_TEXT}' role='img'>\n<title>{escape(plot.title)}</title>\n"
        f"<text x='0' y='12' font-size='13'>{escape(plot.title)}</text>\n" + "\n".join(shapes) + "\n</svg>\n"
    )


def draw() -> None:
    """Write all plots."""
    figures = recorded()
    DIRECTORY.mkdir(exist_ok=True)
    for name, plot in plots().items():
        (DIRECTORY / f"{name}.svg").write_text(svg(plot, figures), encoding="utf-8")


if __name__ == "__main__":
    draw()
