"""The command `delta-orch`.

Every command takes `--json`: then stdout holds one JSON value and nothing else. An error ends with exit code 1 and one
line `error[CODE]: message` on stderr; with `--json` it is the object `{"error": {"code", "message", "context"}}` on
stdout, so that a program reads the answer, good or bad, from one place. A command line that cannot be understood has
the code `USAGE` and ends with 2; whatever else goes wrong is a defect of this package, has the code `INTERNAL` and ends
with 70. The variable DELTA_ORCH_TRACEBACK shows where.

Starting must stay fast: a command's module is imported when the command is chosen, and whatever touches tables inside
the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from delta_orch.cli.arguments import PROGRAM, UsageError
from delta_orch.cli.output import print_error, print_line
from delta_orch.errors import DeltaError, MissingDependencyError

if TYPE_CHECKING:
    from delta_orch.cli.arguments import Command, Commands

_PAGES = {
    "Look at a table": ("snapshot", "schema", "files", "history", "txn", "fsck"),
    "Read rows": ("show", "read", "explain", "changes"),
    "Change a table": ("alter", "domain"),
    "Look after a table": ("optimize", "vacuum", "checkpoint", "compact-log", "checksum", "cleanup-log"),
    "See it work": ("demo",),
}
"""The commands as `--help` shows them."""

_MODULES = {"Look at a table": "table", "Read rows": "row", "Look after a table": "upkeep"}
_GROUPS = {
    "txn": ("table", "TXN_COMMANDS", "Transaction identifiers: what makes writes happen once."),
    "alter": ("alter", "COMMANDS", "Change a table's properties, features, constraints, columns or clustering."),
    "domain": (
        "domain",
        "COMMANDS",
        "Metadata domains: named texts that travel with a table. Those called delta.… belong to table features.",
    ),
}
_DEMO = "Run the demonstration pipeline of real flights. Options are passed on; see `demo --help`."


def _commands(module: str, name: str = "COMMANDS") -> Commands:
    found: Commands = getattr(import_module(f"delta_orch.cli.{module}_commands"), name)
    return found


def all_commands() -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command by its words, but `demo`, which has a command line of its own."""
    for page, names in _PAGES.items():
        for name in names:
            if name in _GROUPS:
                yield from (((name, inner), command) for inner, command in _commands(*_GROUPS[name][:2]).items())
            elif name != "demo":
                yield (name,), _commands(_MODULES[page])[name]


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run one command and exit."""
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): leave quietly, and keep the interpreter from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    import logging

    logging.getLogger("delta_orch").addHandler(logging.NullHandler())
    as_json = "--json" in arguments
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except DeltaError as e:
        print_error(e.code, str(e), e.context, as_json=as_json)
        return 1
    except UsageError as e:
        print_error("USAGE", str(e), {}, as_json=as_json)
        return 2
    except KeyboardInterrupt:
        print_error("ABORTED", "Interrupted", {}, as_json=as_json)
        return 130
    except SystemExit as e:
        # A command that found something wrong, or `--help`.
        sys.stdout.flush()
        return e.code if isinstance(e.code, int) else 0
    except BrokenPipeError:
        raise
    except Exception as e:
        # A program that asked for JSON must not be answered by a traceback.
        if os.environ.get("DELTA_ORCH_TRACEBACK"):
            raise
        remedy = "This is a defect of delta-orch; with DELTA_ORCH_TRACEBACK=1 it says where."
        print_error("INTERNAL", f"{type(e).__name__}: {e}. {remedy}", {}, as_json=as_json)
        return 70


def _dispatch(arguments: list[str]) -> int:
    """Find the command, and run it."""
    if not arguments:
        _print_help()
        return 2
    name, *rest = arguments
    if name in ("--help", "-h"):
        _print_help()
        return 0
    if name == "--version":
        from delta_orch import __version__

        print_line(f"{PROGRAM} {__version__}")
        return 0
    if name == "demo":
        return _demo(rest)
    if name in _GROUPS:
        return _dispatch_in_group(name, rest)
    page = next((page for page, names in _PAGES.items() if name in names), None)
    if page is None:
        raise _unknown(name, [name for names in _PAGES.values() for name in names])
    _commands(_MODULES[page])[name].run(name, rest)
    return 0


def _demo(arguments: list[str]) -> int:
    try:
        from delta_orch.demo.runner import main
    except ImportError as e:
        raise MissingDependencyError(
            "The demo needs packages that are not installed",
            cause=str(e),
            remedy='Run pip install "delta-orch[demo]"',
            extra="demo",
        ) from e
    return main(arguments)


def _dispatch_in_group(group: str, arguments: list[str]) -> int:
    *place, help = _GROUPS[group]
    commands = _commands(*place)
    if not arguments or arguments[0] in ("--help", "-h"):
        print_line(f"usage: {PROGRAM} {group} COMMAND URI …\n\n{help}\n")
        _print_commands("Commands", {name: command.help for name, command in commands.items()})
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in commands:
        raise _unknown(name, list(commands))
    commands[name].run(f"{group} {name}", rest)
    return 0


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    from difflib import get_close_matches

    if name.startswith("-"):
        return UsageError(f"There is no option {name} here; see --help")
    close = get_close_matches(name, known)
    return UsageError(
        f"There is no command {name!r}. " + (f"Did you mean {', '.join(close)}?" if close else "See --help")
    )


def _print_help() -> None:
    print_line(f"usage: {PROGRAM} [--version] [--help] COMMAND …\n\nLook at and look after Delta Lake tables.\n")
    for page, names in _PAGES.items():
        told = {}
        for name in names:
            if name in _GROUPS:
                told[name] = _GROUPS[name][2]
            else:
                told[name] = _DEMO if name == "demo" else _commands(_MODULES[page])[name].help
        _print_commands(page, told)
    print_line(f"`{PROGRAM} COMMAND --help` shows what a command takes.")
    print_line("Ends with 0; with 1 after an error (error[CODE] on stderr); with 2 after a wrong command line.")


def _print_commands(title: str, helps: dict[str, str]) -> None:
    print_line(f"{title}:")
    width = max(map(len, helps))
    for name, help in helps.items():
        print_line(f"  {name.ljust(width)}  {' '.join(help.split())}")
    print_line("")


if __name__ == "__main__":
    run()
