"""What the commands print: tables for people, one JSON value for programs, errors for both."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING

from delta_orch.redaction import public, redacted

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitPreview, CommitResult
    from delta_orch.verbs.vacuum import VacuumResult

Branch = tuple[str, "list[Branch]"]
"""A label and what hangs from it."""

_NARROWEST_COLUMN = 8


def print_json(value: object, *, of_table: bool = False) -> None:
    """One JSON value on stdout. Dataclasses become objects; values JSON does not know become text. Secrets are cut out,
    but not of rows of a table."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    text = orjson.dumps(value, default=_plain, option=options)
    if not of_table:
        text = orjson.dumps(public(orjson.loads(text)), option=options)
    sys.stdout.write(text.decode() + "\n")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def attributes(value: object, names: str) -> dict[str, object]:
    """Some attributes of a value by their names, for JSON."""
    return {name: getattr(value, name) for name in names.split()}


def print_error(code: str, message: str, context: Mapping[str, object], *, as_json: bool) -> None:
    """One error: its lines on stderr, or the JSON object on stdout."""
    if as_json:
        print_json({"error": {"code": code, "message": message, "context": dict(context)}})
    else:
        sys.stderr.write(_shown(f"error[{code}]: {message}") + "\n")


def print_line(text: str) -> None:
    """A line on stdout, or some. What could steer the terminal is escaped."""
    _write(_shown(text))


def print_name(text: str) -> None:
    """What a table calls something, as a line of its own on stdout: a line break in it is escaped, too."""
    _write(one_line(redacted(text)))


def one_line(text: str) -> str:
    """A text without line breaks, or anything else that could steer the terminal."""
    return _shown(text, keeps_lines=False)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")


def _shown(text: str, *, keeps_lines: bool = True) -> str:
    if text.isprintable():
        return text
    steering = {c for c in set(text) if not c.isprintable()} - ({"\n"} if keeps_lines else set())
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in steering})


def print_fields(title: str, fields: Mapping[str, object]) -> None:
    """Names and values, one a line; those without a value are left out."""
    _write(_emphasized(_cell(title)))
    _print_table([(name, _cell(public(value))) for name, value in fields.items() if value not in (None, "", {}, [])])


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, of_table: bool = False) -> None:
    """A table with a header, whose cells may have lines: `one_line` is for names in them. Secrets are cut out, but not
    of rows of a table."""
    shown = rows if of_table else (map(public, row) for row in rows)
    _print_table([tuple(map(_shown, columns)), *(tuple(map(_cell, row)) for row in shown)], has_header=True)


def print_tree(root: Branch) -> None:
    """A tree, each label on a line."""
    label, children = root
    print_name(label)
    _print_branches(children, "")


def _print_branches(branches: Sequence[Branch], indent: str) -> None:
    for place, (label, children) in enumerate(branches, start=1):
        is_last = place == len(branches)
        print_name(f"{indent}{'└── ' if is_last else '├── '}{label}")
        _print_branches(children, indent + ("    " if is_last else "│   "))


def _print_table(rows: Sequence[Sequence[str]], *, has_header: bool = False) -> None:
    """Columns two spaces apart. On a terminal long cells are folded; elsewhere lines are as long as they must be."""
    if not rows:
        return
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        excess = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        while excess > 0 and max(widths) > _NARROWEST_COLUMN:
            widths[widths.index(max(widths))] -= 1
            excess -= 1
    for number, row in enumerate(rows):
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            line = "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
            _write(_emphasized(line) if has_header and number == 0 else line)


def _fold(cell: str, width: int) -> list[str]:
    lines = cell.split("\n")
    return [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), max(width, 1))]


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return "" if value is None else one_line(str(value))


def _emphasized(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what is under way."""
    try:
        show_progress(f"{what} …")
        yield
    finally:
        show_progress("")


def show_progress(text: str) -> None:
    """A line on a terminal's stderr that replaces the one before; nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def text_of_time(ms: int | None) -> str:
    """A time as people read it, UTC; one that no calendar has, as its number."""
    from datetime import UTC, datetime

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


def report_commit(result: CommitResult, *, done: str, nothing: str, as_json: bool) -> None:
    """Tell how a commit ended, or how it would have.

    Args:
        done: What people are told where it was committed.
        nothing: What people are told where there was nothing left to do.
    """
    import orjson

    preview = result.preview
    if as_json:
        told = {**attributes(result, "version skipped operation_metrics"), "dry_run": preview is not None}
        if result.measured:
            told["measured"] = dict(result.measured)
        if preview is not None:
            told["version"] = preview.version
            told["actions"] = [orjson.Fragment(line) for line in preview.content.splitlines()]
        print_json(told)
    elif preview is not None:
        print_line(f"Version {preview.version} would be committed: {_kinds_of_actions(preview)} (--json shows them)")
    else:
        print_line(nothing if result.skipped else done)


def report_vacuum(result: VacuumResult, *, as_json: bool) -> None:
    """Tell which files were deleted, or would have been."""
    if as_json:
        print_json(attributes(result, "dry_run num_files size_bytes retention_ms paths"))
        return
    if result.dry_run:
        for path in result.paths:
            print_name(path)
    verb = "would be deleted" if result.dry_run else "deleted"
    print_line(f"{result.num_files:,} files ({text_of_bytes(result.size_bytes)}) {verb}")


def _kinds_of_actions(preview: CommitPreview) -> str:
    from collections import Counter

    import orjson

    kinds = Counter(next(iter(orjson.loads(line))) for line in preview.content.splitlines())
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
