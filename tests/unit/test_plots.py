"""docs/performance.md shows the plots that are drawn from the recorded figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.runner import find_benchmarks

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()


def test_the_page_shows_every_plot() -> None:
    assert set(re.findall(r"plots/([\w-]+)\.svg", PAGE)) == set(plots.plots())
    assert set(re.findall(r"^::: figures ([\w-]+)$", PAGE, re.MULTILINE)) == set(plots.plots())


@pytest.mark.parametrize("name", plots.plots())
def test_a_plot_is_drawn_from_the_record(name: str) -> None:
    plot = plots.plots()[name]
    assert (plots.DIRECTORY / f"{name}.svg").read_text() == plots.svg(plot, plots.recorded())
    for heading, group in plots.bars(plot, plots.recorded()):
        assert len(group) > 1, heading


def test_plots_name_benchmarks_and_contestants_that_exist() -> None:
    benchmarks = find_benchmarks()
    for plot in plots.PLOTS.values():
        contestants = {name for benchmark in plot.rows.values() for name in benchmarks[benchmark].CONTESTANTS}
        assert set(plot.contestants) <= contestants


def test_a_run_replaces_the_figures_of_its_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "RECORD", tmp_path / "figures.json")
    monkeypatch.setattr(plots, "DIRECTORY", tmp_path / "plots")
    (tmp_path / "figures.json").write_text('{"kept": {"a": {"seconds": 1}}, "zorder": {"delta_orch": {}}}')
    plots.record({"zorder": {"delta_orch": {"cpu_seconds": 2.5, "peak_bytes": 3, "error": None}}})
    assert plots.recorded() == {
        "kept": {"a": {"seconds": 1}},
        "zorder": {"delta_orch": {"cpu_seconds": 2.5, "peak_bytes": 3}},
    }
    assert "2.5" in (tmp_path / "plots" / "changing.svg").read_text()
