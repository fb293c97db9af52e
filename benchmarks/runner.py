"""Finding benchmarks, running each contestant in fresh processes, and the table at the end."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import benchmarks

_PREFIX = "bench_"
_FLOOR = "floor"
_RESULT_WIDTH = 48
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
_Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Over the rounds. `error` instead of figures where a contestant failed.

    Attributes:
        seconds, cpu_seconds, peak_bytes: Medians.
        least_seconds: Of the quickest round.
        times_floor: The median of its seconds divided by the floor's in the same round, None without a floor.
    """

    seconds: float = 0.0
    least_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    times_floor: float | None = None
    result: str = ""
    error: str | None = None


def find_benchmarks() -> dict[str, ModuleType]:
    """All benchmarks by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name.startswith(_PREFIX))
    return {name.removeprefix(_PREFIX): import_module(f"benchmarks.{name}") for name in names}


def run_benchmark(name: str, module: ModuleType, directory: Path, rounds: int, console: Console) -> dict[str, Any]:
    """Prepare the input, measure every contestant, print the table.

    Raises:
        SystemExit: Contestants came to different results.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{name}: preparing")
        directory.mkdir(parents=True, exist_ok=True)
        path = module.prepare(directory.resolve())
        runs: dict[str, list[_Run]] = {contestant: [] for contestant in module.CONTESTANTS}
        most = getattr(module, "ROUNDS", {})  # of contestants that take long
        for number in range(min(rounds, getattr(module, "MOST_ROUNDS", rounds))):
            # Round after round, so that what disturbs the machine for a while disturbs all of them.
            for contestant, done in runs.items():
                progress.update(task, description=f"{name}: {contestant}, round {number + 1}")
                if number < most.get(contestant, rounds) and not any("error" in run for run in done):
                    done.append(_measure(module.__name__, contestant, path))
    floor = next((done for contestant, done in runs.items() if contestant.startswith(_FLOOR)), None)
    figures = {contestant: _figures(done, floor) for contestant, done in runs.items()}
    console.print(_table(module.TITLE, figures))
    differing = _FLOOR if getattr(module, "FLOOR_MAY_DIFFER", False) else None
    results = {f.result for name, f in figures.items() if f.error is None and not name.startswith(differing or "\0")}
    if len(results) > 1 and not getattr(module, "RESULTS_MAY_DIFFER", False):
        raise SystemExit(f"{name}: the contestants disagree: { {c: f.result for c, f in figures.items()} }")
    return {contestant: asdict(f) for contestant, f in figures.items()}


def _measure(module_name: str, contestant: str, path: Path) -> _Run:
    command = [sys.executable, "-m", "benchmarks.measure", module_name, contestant, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if _ERROR.match(line)]
        return {"error": (lines or done.stderr.strip().splitlines() or ["no message"])[-1]}
    figures: _Run = json.loads(done.stdout)
    return figures


@cache
def _environment() -> dict[str, str]:
    """Without the variable that keeps Python from caching bytecode: an installed package has its own, and so has ours
    then, before the first run."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    package = str(Path(__file__).parent.parent / "delta_orch")
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True, env=found)
    return found


def _figures(runs: list[_Run], floor: list[_Run] | None) -> Figures:
    for run in runs:
        if "error" in run:
            return Figures(error=run["error"])
    pairs = zip(runs, floor or (), strict=False)
    times_floor = [run["seconds"] / least["seconds"] for run, least in pairs if "error" not in least]
    return Figures(
        seconds=median(run["seconds"] for run in runs),
        least_seconds=min(run["seconds"] for run in runs),
        cpu_seconds=median(run["cpu_seconds"] for run in runs),
        peak_bytes=int(median(run["peak_bytes"] for run in runs)),
        times_floor=median(times_floor) if times_floor else None,
        result=runs[0]["result"],
    )


def _table(title: str, figures: dict[str, Figures]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("seconds", "least", "cpu", "× floor", "peak MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("result", overflow="ellipsis", no_wrap=True, max_width=_RESULT_WIDTH)
    for contestant, f in figures.items():
        if f.error is None:
            times = "" if f.times_floor is None else f"{f.times_floor:.2f}"
            seconds = (f"{value:.3f}" for value in (f.seconds, f.least_seconds, f.cpu_seconds))
            table.add_row(contestant, *seconds, times, f"{f.peak_bytes / 1e6:.0f}", f.result)
        else:
            table.add_row(contestant, "failed", "", "", "", "", f.error)
    return table
