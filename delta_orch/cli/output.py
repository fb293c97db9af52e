"""The answers of commands: text for people, one JSON value for programs, errors for both, and files."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from delta_orch.errors import DeltaError, InvalidRequestError, StorageError
from delta_orch.redaction import public, redacted

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.verbs.vacuum import VacuumResult

_NARROWEST_COLUMN = 8


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    Attributes:
        value: The JSON value, or a function that makes it. Dataclasses become objects, and values that JSON does not
            know become text.
        text: The text for people, or a function that makes it.
        of_table: The value holds rows of a table. Secrets are cut out of all other values.
        failed: The command ends with 1.
    """

    value: object
    text: str | Callable[[], str]
    of_table: bool = False
    failed: bool = False

    def show(self, *, as_json: bool) -> None:
        """Print the answer in one of the two forms."""
        if as_json:
            print_json(self.value() if callable(self.value) else self.value, of_table=self.of_table)
        else:
            _write(_printable(self.text() if callable(self.text) else self.text))


def print_json(value: object, *, of_table: bool = False) -> None:
    """Print one JSON value. See `Answer`."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    text = orjson.dumps(value, default=_plain, option=options)
    if not of_table:
        text = orjson.dumps(public(orjson.loads(text)), option=options)
    _write(text.decode())


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def attributes(value: object, names: str) -> dict[str, object]:
    """Some attributes of a value by their names, for JSON."""
    return {name: getattr(value, name) for name in names.split()}


def print_error(code: str, message: str, context: Mapping[str, object], *, as_json: bool) -> None:
    """Print one error: its lines on stderr, or the JSON object on stdout."""
    if as_json:
        print_json({"error": {"code": code, "message": message, "context": dict(context)}})
    else:
        sys.stderr.write(_printable(f"error[{code}]: {message}") + "\n")


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


def one_line(text: str) -> str:
    """A text without line breaks and other characters that could steer the terminal."""
    return _printable(text, keeps_lines=False)


def _printable(text: str, *, keeps_lines: bool = True) -> str:
    if text.isprintable():
        return text
    steering = {c for c in set(text) if not c.isprintable()} - ({"\n"} if keeps_lines else set())
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in steering})


def text_of_names(names: Iterable[str], *lines: str) -> str:
    """Names that come from a table, one a line, and lines behind them."""
    return "\n".join([*(one_line(redacted(name)) for name in names), *lines])


def text_of_fields(title: str, fields: Mapping[str, object]) -> str:
    """Names and values, one pair a line. Pairs without a value are left out."""
    rows = [(name, _cell(public(value))) for name, value in fields.items() if value not in (None, "", {}, [], ())]
    return "\n".join([_cell(public(title)), *_lines_of_table(rows)])


def text_of_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *lines: str, of_table: bool = False) -> str:
    """A table with a header, which may have lines, and lines behind it. Secrets are cut out of all cells that are not
    of a table's rows."""
    shown = rows if of_table else (map(public, row) for row in rows)
    return "\n".join([*_lines_of_table([columns, *(tuple(map(_cell, row)) for row in shown)]), *lines])


def _lines_of_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns two spaces apart. On a terminal long cells are folded; elsewhere lines are as long as they must be."""
    if not rows:
        return
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        excess = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        while excess > 0 and max(widths) > _NARROWEST_COLUMN:
            widths[widths.index(max(widths))] -= 1
            excess -= 1
    for row in rows:
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            yield "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def _fold(cell: str, width: int) -> list[str]:
    return [line[at : at + width] for line in cell.split("\n") for at in range(0, max(len(line), 1), max(width, 1))]


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return "" if value is None else one_line(str(value))


def text_of_time(ms: int | None) -> str:
    """A time in UTC as people read it. A time outside the calendar stays a number."""
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


def answer_of_commit(result: CommitResult, done: str, nothing: str, measured: str = "") -> Answer:
    """The answer of a command that commits, or that would commit without `--dry-run`.

    Args:
        done: The text for people if there is a commit.
        nothing: The text for people if there was nothing to do.
        measured: A second line for a preview.
    """
    import orjson

    preview = result.preview
    report = {**attributes(result, "version skipped operation_metrics"), "dry_run": preview is not None}
    if result.measured:
        report["measured"] = dict(result.measured)
    if preview is None:
        return Answer(report, nothing if result.skipped else done)
    actions = preview.content.splitlines()
    kinds = Counter(next(iter(orjson.loads(line))) for line in actions)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    text = f"Version {preview.version} would be committed: {counts} (--json shows them)"
    report |= {"version": preview.version, "actions": [orjson.Fragment(line) for line in actions]}
    return Answer(report, "\n".join(filter(None, [text, measured])))


def answer_of_vacuum(result: VacuumResult) -> Answer:
    """Which files were deleted, or would be deleted."""
    verb = "would be deleted" if result.dry_run else "deleted"
    end = f"{result.num_files:,} files ({text_of_bytes(result.size_bytes)}) {verb}"
    report = attributes(result, "dry_run num_files size_bytes retention_ms paths")
    return Answer(report, lambda: text_of_names(result.paths if result.dry_run else (), end))


@contextmanager
def output_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    """A file to write to. It becomes `path` at the end of the block: complete or not at all.

    Args:
        force: Replace a file that is there.

    Raises:
        InvalidRequestError: There is a file, and `force` is not set; or `path` lies in a table's directory.
        StorageError: The file cannot be written, for example because the disk is full.
        In all cases `path` is as before.
    """
    from delta_orch.storage.base import storage_error

    ensure_free(path, force)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as sink:
            yield sink
        ensure_free(path, force)
        temporary.replace(path)
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", str(path)) from e
    finally:
        temporary.unlink(missing_ok=True)


def ensure_free(path: Path, force: bool) -> None:
    """Raises as `output_file`."""
    from delta_orch.protocol.paths import LOG_DIRECTORY, parse_log_path

    if not path.parent.is_dir() or path.is_dir():
        raise StorageError(
            f"Cannot write {path}",
            cause="It is a directory" if path.is_dir() else f"There is no directory {path.parent}",
            remedy="Name a file in a directory that exists",
            path=str(path),
        )
    # Through links and `..`. A log may be a link itself: its files are recognized by their names.
    directory = path.parent.resolve()
    tables = [above for above in (directory, *directory.parents) if (above / LOG_DIRECTORY).exists()]
    if tables or parse_log_path(path.name) is not None:
        raise InvalidRequestError(
            f"The output {path} would lie in a table",
            cause=f"{tables[0]} is a table" if tables else "Its name is that of a file of a log",
            remedy="Write to a file outside of tables",
            path=str(path),
        )
    if not force and os.path.lexists(path):
        raise InvalidRequestError(
            f"The output {path} exists",
            cause="Only --force replaces a file",
            remedy="Add --force, or write to another file",
            path=str(path),
        )
