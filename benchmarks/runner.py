"""Finding benchmarks, running each contestant in fresh processes, and the table at the end."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds. `error` instead of figures where a contestant failed."""

    seconds: float = 0.0
    peak_bytes: int = 0
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
        figures: dict[str, Figures] = {}
        for contestant in module.CONTESTANTS:
            progress.update(task, description=f"{name}: {contestant}")
            figures[contestant] = _measure(module.__name__, contestant, path, rounds)
    console.print(_table(module.TITLE, figures))
    results = {f.result for f in figures.values() if f.error is None}
    if len(results) > 1 and not getattr(module, "RESULTS_MAY_DIFFER", False):
        raise SystemExit(f"{name}: the contestants disagree: { {c: f.result for c, f in figures.items()} }")
    return {contestant: asdict(f) for contestant, f in figures.items()}


def _measure(module_name: str, contestant: str, path: Path, rounds: int) -> Figures:
    runs = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "benchmarks.measure", module_name, contestant, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return Figures(error=(done.stderr.strip().splitlines() or ["no message"])[-1])
        runs.append(json.loads(done.stdout))
    return Figures(
        seconds=median(r["seconds"] for r in runs),
        peak_bytes=int(median(r["peak_bytes"] for r in runs)),
        result=runs[0]["result"],
    )


def _table(title: str, figures: dict[str, Figures]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("seconds", "peak MB", "result"):
        table.add_column(heading, justify="right")
    for contestant, f in figures.items():
        if f.error is None:
            table.add_row(contestant, f"{f.seconds:.3f}", f"{f.peak_bytes / 1e6:.0f}", f.result)
        else:
            table.add_row(contestant, "failed", "", f.error[:80])
    return table
