"""What the commands print: tables for people, one JSON value for programs, errors for both."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

Branch = tuple[str, "list[Branch]"]
"""A label and what hangs from it."""

_JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS


def print_json(value: Any) -> None:
    """One JSON value on stdout; values JSON does not know become text."""
    sys.stdout.write(orjson.dumps(value, default=str, option=_JSON_OPTIONS).decode() + "\n")


def print_error(code: str, message: str, context: Mapping[str, Any], *, as_json: bool) -> None:
    """One error: a line on stderr, or the JSON object on stdout."""
    if as_json:
        print_json({"error": {"code": code, "message": message, "context": dict(context)}})
    else:
        sys.stderr.write(f"error[{code}]: {' '.join(message.split())}\n")


def print_line(text: str) -> None:
    """One line on stdout, as it stands."""
    sys.stdout.write(text + "\n")


def print_fields(title: str, fields: Mapping[str, Any]) -> None:
    """Names and values, one a line; those without a value are left out."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None and value != "" and value != {} and value != []:
            table.add_row(name, _cell(value))
    # A title of the table would be folded to the table's width.
    _console().print(_cell(title), style="bold")
    _console().print(table)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table with a header."""
    from rich.table import Table

    table = Table(title=title, box=None, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    _console().print(table)


def print_tree(root: Branch) -> None:
    """A tree, its labels as they stand."""
    from rich.text import Text
    from rich.tree import Tree

    def grown(branch: Branch) -> Tree:
        label, children = branch
        tree = Tree(Text(label))
        tree.children = [grown(child) for child in children]
        return tree

    _console().print(grown(root))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something is under way, and for how long."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield


def text_of_time(ms: int | None) -> str:
    """A time as people read it, UTC; one that no calendar has, as its number."""
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since the epoch"


def text_of_bytes(count: int) -> str:
    """A size as people read it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _cell(value: Any) -> Any:
    from rich.text import Text

    # Values of the user may hold what rich would read as markup.
    if isinstance(value, Mapping):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return Text("" if value is None else str(value))


def _console() -> Any:
    from rich.console import Console

    # Into a file or a pipe nothing is folded or cut: lines are as long as they must be.
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 10_000)
