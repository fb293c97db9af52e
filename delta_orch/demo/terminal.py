"""What the user sees: progress bars, one line for what is done, and a closing table. All else goes to a log file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from delta_orch.demo.results import BreakStep, Results


@contextmanager
def quiet_terminal(log_file: Path) -> Iterator[Console]:
    """A console on the real terminal, while whatever else is written goes to `log_file`.

    The redirection is one of file descriptors: the JVM that Spark starts writes to them, too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    saved = {stream.fileno(): os.dup(stream.fileno()) for stream in (sys.stdout, sys.stderr)}
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for descriptor in saved:
            os.dup2(log, descriptor)
        yield Console(file=terminal, highlight=False)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(log)
        terminal.close()


class Stages:
    """Runs the demo's stages one after the other, with a progress bar each, and takes their time."""

    def __init__(self, console: Console, results: Results) -> None:
        self._console = console
        self._results = results

    @contextmanager
    def stage(
        self, name: str, steps: int | None = None, *, label: str | None = None, is_reported: bool = True
    ) -> Iterator[Callable[[], None]]:
        """Show a stage while it runs, as `label` or its name; what it yields moves the bar on by one of `steps`."""
        started = time.monotonic()
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *((BarColumn(), MofNCompleteColumn()) if steps else ()),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with progress:
            task = progress.add_task(label or name, total=steps)
            yield lambda: progress.advance(task)
        seconds = time.monotonic() - started
        self._results.seconds[name] = seconds
        if is_reported:
            self._console.print(f"  [green]✔[/] {name} [dim]{seconds:.1f} s[/]")

    def show_attempt(self, step: BreakStep) -> None:
        """One line; where something is wrong, what it is."""
        sign = "[green]✔[/]" if step.passed else "[red]✘[/]"
        seconds = (step.ended_ms - step.started_ms) / 1000
        self._console.print(f"  {sign} [bold]{step.title}[/] [dim]{seconds:.1f} s\n    {step.outcome}[/]")
        for check in step.checks:
            if not check.passed:
                self._console.print(f"    [red]not true:[/] {check.what}")


def show_closing_table(console: Console, results: Results, report: Path, summary: Path) -> None:
    """The numbers that matter, and whether all is well."""
    content = results.summary()
    table = Table(title="Exactly once?", title_justify="left", show_header=False, title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right")
    for label, value in _rows(results, content):
        table.add_row(label, value)
    console.print()
    console.print(table)
    failures: Sequence[str] = content["failures"]
    for failure in failures:
        console.print(f"[red]✘[/] {failure}")
    if not failures:
        console.print("[green]✔[/] [bold]Every flight exactly once, everywhere.[/]")
    console.print(f"  report   {report}\n  summary  {summary}", style="dim", soft_wrap=True)


def _rows(results: Results, content: dict[str, object]) -> list[tuple[str, str]]:
    def number(key: str) -> str:
        value = content[key]
        return f"{value:,}" if isinstance(value, int | float) else str(value)

    confirmed = ", ".join(results.readers_confirmed()) or "none"
    return [
        ("flights: source = bronze = silver",
         " = ".join(number(key) for key in ("rows_in_source", "rows_in_bronze", "rows_in_silver"))),
        ("duplicates", number("duplicates")),
        ("lost rows", number("lost_rows")),
        ("crashed steps recovered", number("steps_recovered")),
        ("units replaced", number("units_replaced")),
        ("late runs fenced", number("runs_fenced")),
        ("rows undone", number("rows_undone")),
        ("conflicts rebased", number("conflicts_rebased")),
        ("files before → after compaction",
         f"{number('files_before_compaction')} → {number('files_after_compaction')}"),
        ("files vacuumed", number("files_vacuumed")),
        ("confirmed by", confirmed),
        *(("not available", f"{name}: {reason}") for name, reason in results.readers_unavailable.items()),
        ("seconds", number("seconds")),
    ]  # fmt: skip
