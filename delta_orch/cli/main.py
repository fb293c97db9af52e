"""The command `delta-orch`.

Every command takes `--json`: then stdout holds one JSON value and nothing else. An error ends with exit code 1 and one
line `error[CODE]: message` on stderr; with `--json` it is the object `{"error": {"code", "message", "context"}}` on
stdout, so that a program reads the answer, good or bad, from one place. A command line that cannot be understood has
the code `USAGE` and ends with 2; whatever else goes wrong is a defect of this package, has the code `INTERNAL` and ends
with 70. The variable DELTA_ORCH_TRACEBACK shows where.

Starting must stay fast (`--help`, completion): whatever touches tables is imported inside the commands.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from delta_orch.cli.alter_commands import alter_app
from delta_orch.cli.describe_commands import files, schema
from delta_orch.cli.domain_commands import domain_app
from delta_orch.cli.fsck_command import fsck
from delta_orch.cli.log_commands import checkpoint, checksum, cleanup_log, compact_log
from delta_orch.cli.maintenance_commands import optimize, vacuum
from delta_orch.cli.output import print_error
from delta_orch.cli.row_commands import changes, explain, read, show
from delta_orch.cli.table_commands import history, snapshot, txn_list
from delta_orch.errors import DeltaError

app = typer.Typer(
    name="delta-orch",
    help="Look at and look after Delta Lake tables.",
    epilog="Ends with 0; with 1 after an error (error[CODE] on stderr); with 2 where the command line makes no sense.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
txn_app = typer.Typer(help="Transaction identifiers: what makes writes happen once.", no_args_is_help=True)
# The order, and the groups, of the help text.
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Look at a table": (snapshot, schema, files, history, fsck),
    "Read rows": (show, read, explain, changes),
    "Look after a table": (optimize, vacuum, checkpoint, compact_log, checksum, cleanup_log),
}
for _group, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_group)(_command)
app.add_typer(txn_app, name="txn", rich_help_panel="Look at a table")
txn_app.command("list")(txn_list)
app.add_typer(alter_app, name="alter", rich_help_panel="Change a table")
app.add_typer(domain_app, name="domain", rich_help_panel="Change a table")

# The base of what typer raises for a command line it cannot understand; typer exports only its children.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        from delta_orch import __version__

        typer.echo(f"delta-orch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    rich_help_panel="See it work",
)
def demo(context: typer.Context) -> None:
    """Run the demonstration pipeline of real flights. Options are passed on; see `demo --help`."""
    from delta_orch.demo.runner import main

    raise typer.Exit(main(list(context.args)))


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
    logging.getLogger("delta_orch").addHandler(logging.NullHandler())
    as_json = "--json" in arguments
    try:
        status = app(arguments, prog_name="delta-orch", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except DeltaError as e:
        print_error(e.code, str(e), e.context, as_json=as_json)
        return 1
    except _UsageError as e:
        if not str(e):  # the help text was shown instead
            return 2
        print_error("USAGE", e.format_message(), {}, as_json=as_json)  # type: ignore[attr-defined]
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print_error("ABORTED", "Interrupted", {}, as_json=as_json)
        return 130
    except BrokenPipeError:
        raise
    except SystemExit as e:
        # typer and rich end the process themselves, with 1, where they meet a closed pipe.
        if isinstance(e.__context__, BrokenPipeError):
            raise e.__context__ from None
        raise
    except Exception as e:
        # A program that asked for JSON must not be answered by a traceback.
        if os.environ.get("DELTA_ORCH_TRACEBACK"):
            raise
        remedy = "This is a defect of delta-orch; with DELTA_ORCH_TRACEBACK=1 it says where."
        print_error("INTERNAL", f"{type(e).__name__}: {e}. {remedy}", {}, as_json=as_json)
        return 70


if __name__ == "__main__":
    run()
