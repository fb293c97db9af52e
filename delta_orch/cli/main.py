"""The command `delta-orch`.

Every command takes `--json`: then stdout holds one JSON value and nothing else. An error ends with exit code 1 and
`error[CODE]: message` on stderr; with `--json` it is the object `{"error": {"code", "message", "context"}}` on stdout,
so that a program reads the answer, good or bad, from one place. A command line that cannot be understood has
the code `USAGE` and ends with 2; whatever else goes wrong is a defect of this package, has the code `INTERNAL` and ends
with 70. The variable DELTA_ORCH_TRACEBACK shows where.

Starting must stay fast: a command's module is imported when the command is chosen, and whatever touches tables inside
the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from delta_orch.cli.arguments import PROGRAM, UsageError
from delta_orch.cli.output import print_error, print_line
from delta_orch.errors import DeltaError, MissingDependencyError
from delta_orch.redaction import hide, kept, redacted

if TYPE_CHECKING:
    from delta_orch.cli.arguments import Command, Commands

_MODULES = {
    "Look at a table": ("table", "snapshot schema files history txn units fsck"),
    "Read rows": ("row", "show read explain changes"),
    "Change rows": ("row", "delete update merge sql"),
    "Change a table": ("alter", "alter domain"),
    "Look after a table": ("upkeep", "optimize vacuum repair checkpoint compact-log checksum cleanup-log"),
    "Go back, copy, convert": ("upkeep", "undo restore clone convert purge"),
    "See it work": ("", "demo"),
}
"""The commands in the order of `--help`, and the modules that have them."""

_GROUPS = {
    "txn": "Transaction identifiers: what makes writes happen once.",
    "alter": "Change a table's properties, features, constraints, columns or clustering.",
    "domain": "Metadata domains: named texts that travel with a table. Those called delta.… belong to table features.",
}
_DEMO = "Run the demonstration pipeline of real flights. Options are passed on; see `demo --help`."
_HELP = ("--help", "-h")


def _commands(module: str) -> Commands:
    """The commands of a module by their words: `fsck`, `alter add-column`."""
    found: Commands = import_module(f"delta_orch.cli.{module}_commands").COMMANDS
    return found


def all_commands() -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command by its words, but `demo`, which has a command line of its own."""
    for module in dict.fromkeys(module for module, _ in _MODULES.values() if module):
        yield from ((tuple(words.split()), command) for words, command in _commands(module).items())


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


def _hide_options(arguments: list[str]) -> None:
    """What is given as a storage option is not repeated by any message, also where the command line is wrong."""
    for before, text in zip(["", *arguments], arguments, strict=False):
        is_option = before in ("-o", "--storage-option") or text.startswith(("-o", "--storage-option="))
        if is_option:
            # A shape that is wrong is as secret as one that is right.
            hide(text.removeprefix("--storage-option=").removeprefix("-o").partition("=")[2] or text)


def _run(arguments: list[str]) -> int:
    import logging

    logging.getLogger("delta_orch").addHandler(logging.NullHandler())
    _hide_options(arguments)
    as_json = "--json" in arguments
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except DeltaError as e:
        print_error(e.code, str(e), e.context, as_json=as_json)
        return 1
    except UsageError as e:
        print_error("USAGE", _in_one_line(kept(redacted(str(e)))), {}, as_json=as_json)
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
        print_error("INTERNAL", f"{type(e).__name__}: {_in_one_line(str(e))}.\n{remedy}", {}, as_json=as_json)
        return 70


def _in_one_line(message: str) -> str:
    return " ".join(message.split())


def _dispatch(arguments: list[str]) -> int:
    """Find the command, and run it."""
    if not arguments or arguments[0] in _HELP:
        _print_help()
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        from delta_orch import __version__

        print_line(f"{PROGRAM} {__version__}")
    elif name == "demo":
        return _demo(rest)
    else:
        known = {known: module for module, names in _MODULES.values() for known in names.split()}
        _ensure_known(name, known)
        commands = _commands(known[name])
        if name in _GROUPS:
            return _dispatch_in_group(name, commands, rest)
        commands[name].run(name, rest)
    return 0


def _dispatch_in_group(group: str, of_module: Commands, arguments: list[str]) -> int:
    start = f"{group} "
    commands = {words.removeprefix(start): command for words, command in of_module.items() if words.startswith(start)}
    if not arguments or arguments[0] in _HELP:
        print_line(f"usage: {PROGRAM} {group} COMMAND URI …\n\n{_GROUPS[group]}\n")
        _print_commands("Commands", {name: command.help for name, command in commands.items()})
        return 0 if arguments else 2
    name, *rest = arguments
    _ensure_known(name, commands)
    commands[name].run(f"{group} {name}", rest)
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


def _ensure_known(name: str, known: Iterable[str]) -> None:
    if name in known:
        return
    from difflib import get_close_matches

    close = get_close_matches(name, list(known))
    advice = f"Did you mean {' or '.join(close)}?" if close else "See --help"
    raise UsageError(f"There is no {'option' if name.startswith('-') else 'command'} {name!r}. {advice}")


def _print_help() -> None:
    print_line(f"usage: {PROGRAM} [--version] [--help] COMMAND …\n\nLook at and look after Delta Lake tables.\n")
    for page, (module, names) in _MODULES.items():
        own = _commands(module) if module else {}
        told = {**_GROUPS, "demo": _DEMO}
        _print_commands(page, {name: told.get(name) or own[name].help for name in names.split()})
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
