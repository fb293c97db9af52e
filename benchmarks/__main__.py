"""`python -m benchmarks [name...]`: run benchmarks and print one table each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks.plots import record
from benchmarks.runner import find_benchmarks, run_benchmark

_LEAST_WIDTH = 140


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure delta_orch beside its peers.")
    parser.add_argument("names", nargs="*", metavar="name", help="benchmarks to run; all without a name")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes per contestant; the median counts")
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where inputs are kept")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plots", action="store_true", help="record the figures, and draw docs/plots anew")
    parser.add_argument("--list", action="store_true", help="only name the benchmarks")
    arguments = parser.parse_args()
    benchmarks = find_benchmarks()
    console = Console()
    # Rather lines that are too long than figures that are cut off.
    console.width = max(console.width, _LEAST_WIDTH)
    if arguments.list:
        for name, module in benchmarks.items():
            console.print(f"{name}: {module.TITLE}")
        return
    unknown = sorted(set(arguments.names) - set(benchmarks))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (choose from {', '.join(benchmarks)})")
    figures = {}
    for name in arguments.names or benchmarks:
        figures[name] = run_benchmark(name, benchmarks[name], arguments.directory, arguments.rounds, console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2))
    if arguments.plots:
        record(figures)


if __name__ == "__main__":
    main()
