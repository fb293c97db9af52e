"""The entry point of `delta-orch`: how a command ends.

With `--json` stdout holds one JSON value and nothing else. An error ends with exit code 1 and
`error[CODE]: message` on stderr. With `--json` it is the object `{"error": {"code", "message", "context"}}` on stdout,
so a program reads every answer from one place. A wrong command line has the code `USAGE` and ends with 2. Any other
error is a defect of this package: it has the code `INTERNAL` and ends with 70. The variable DELTA_ORCH_TRACEBACK shows
where.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

import click

from delta_orch.cli import row_commands, table_commands
from delta_orch.cli.app import PROGRAM, app
from delta_orch.cli.output import print_error
from delta_orch.errors import DeltaError
from delta_orch.redaction import hide, kept, redacted

_MODULES = (table_commands, row_commands)
"""The modules that add their commands to `app`."""


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
    _hide_storage_options(arguments)

    def fail(status: int, code: str, message: str, context: Mapping[str, object] | None = None) -> int:
        print_error(code, message, context or {}, as_json="--json" in arguments)
        return status

    try:
        with app.make_context(PROGRAM, arguments.copy() or ["--help"]) as context:
            app.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        return fail(2, "USAGE", " ".join(kept(redacted(e.format_message())).split()))
    except DeltaError as e:
        return fail(1, e.code, str(e), e.context)
    except (KeyboardInterrupt, click.Abort):
        return fail(130, "ABORTED", "Interrupted")
    except BrokenPipeError:
        raise
    except Exception as e:
        # A program that asked for JSON must not be answered by a traceback.
        if os.environ.get("DELTA_ORCH_TRACEBACK"):
            raise
        remedy = "This is a defect of delta-orch. With DELTA_ORCH_TRACEBACK=1 it shows where"
        return fail(70, "INTERNAL", f"{type(e).__name__}: {' '.join(str(e).split())}.\n{remedy}")


def _hide_storage_options(arguments: Sequence[str]) -> None:
    """Keep the values of storage options out of every message, even if the command line is wrong."""
    names = ("--storage-option", row_commands.SOURCE_STORAGE_OPTION)
    starts = ("-o", *(f"{name}=" for name in names))
    for option, text in zip(["", *arguments], arguments, strict=False):
        if option in ("-o", *names) or text.startswith(starts):
            # A text that is not KEY=VALUE is as secret as one that is.
            own = next((text.removeprefix(start) for start in starts if text.startswith(start)), text)
            hide(own.partition("=")[2] or text)


if __name__ == "__main__":
    run()
