"""The command `delta-orch` of click, and the options that its commands share.

A command line is a fresh process each time: commands import what touches tables when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delta_orch._version import VERSION as RELEASE
from delta_orch.errors import MissingDependencyError

if TYPE_CHECKING:
    from delta_orch.cli.output import Answer
    from delta_orch.engines.base import Engine

PROGRAM = "delta-orch"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@click.group(PROGRAM, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(RELEASE, prog_name=PROGRAM, message="%(prog)s %(version)s")
def app() -> None:
    """Look at and look after Delta Lake tables.

    A command ends with 0. After an error it ends with 1 and prints error[CODE] on stderr. After a wrong command line it
    ends with 2.
    """


def parse_pairs(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Texts of the form in the option's help, such as KEY=VALUE, as a dictionary."""
    form = str(option.metavar)
    separator = "=" if "=" in form else ":"
    pairs = [text.partition("=") if separator == "=" else text.rpartition(":") for text in texts]
    if not all(name and sign and value for name, sign, value in pairs):
        # The value may be a secret, so it is not repeated.
        raise click.BadParameter(f"It is not {form}")
    return {name: value for name, _, value in pairs}


def parse_columns(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    """The names in a list such as ``a,s.b,`c,d` ``; the empty text is no column at all."""
    from delta_orch.protocol.schema_edit import quote_path
    from delta_orch.protocol.table_properties import parse_column_list

    try:
        return None if text is None else [quote_path(path) for path in parse_column_list(text)]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of names. Write a,s.b,`c d`") from None


def value(name: str, metavar: str, meaning: str, kind: Any = None, **settings: Any) -> Decorator:
    """An option with a value."""
    return click.option(*name.split(), type=kind, metavar=metavar, help=meaning, **settings)


def switch(name: str, meaning: str, **settings: Any) -> Decorator:
    """An option without a value."""
    return click.option(*name.split(), is_flag=True, help=meaning, **settings)


def choice(name: str, choices: Sequence[str], meaning: str) -> Decorator:
    """An option with one of some values. The first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], help=f"{meaning} Default: {choices[0]}.")


def pairs(name: str, metavar: str, meaning: str) -> Decorator:
    """A repeatable option; the function gets a dictionary."""
    return value(name, metavar, f"{meaning} Repeatable.", multiple=True, callback=parse_pairs)


def columns(name: str, metavar: str, meaning: str) -> Decorator:
    """An option with a list of columns."""
    return value(name, metavar, meaning, callback=parse_columns)


_FILE = click.Path(path_type=Path)
URI = click.argument("uri")
STORAGE_OPTION = pairs("-o --storage-option storage_options", "KEY=VALUE", "An option of the store.")
JSON = switch("--json as_json", "Print one JSON value instead of text.")
VERSION = value("--version", "N", "The version to read. Default: the newest.", int)
TIMESTAMP = value("--timestamp", "TIME", "Read the version of this time (ISO 8601).")
WHERE = value("--where", "SQL", "A predicate in Spark SQL. Only matching rows are read.")
PARTITIONS = value("--where", "SQL", "A predicate in Spark SQL over partition columns.")
COLUMNS = columns(
    "--columns", "A,B.C", "Columns, or fields of structs. Default: all. Put other names than words in `backticks`."
)
LIMIT = value("-n --limit", "N", "Show the first N.", click.IntRange(min=0))
ENGINE = choice("--engine", ("local", "spark"), "spark starts a Spark session.")
OUTPUT = value("--output", "FILE", "The Parquet file to write.", _FILE, required=True)
PAGE = value("--output", "FILE", "The HTML file to write.", _FILE)
FORCE = switch("--force", "Replace the output file if it exists.")
DRY_RUN = switch("--dry-run", "Check everything and show the result. Change nothing.")
ISOLATION = value(
    "--isolation isolation_level",
    "LEVEL",
    "WriteSerializable, Serializable or SnapshotIsolation. Default: the table's level.",
)


def command(*options: Decorator, first: Decorator | None = None) -> Decorator:
    """Make a function that returns an `Answer` a command.

    Args:
        options: The options of the command, beside those of the store and `--json`.
        first: The argument of the command. By default it is the location of a table, and the function gets a
            `DeltaTable` instead of the location and the options of the store.
    """

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        @wraps(function)
        def call(as_json: bool, storage_options: dict[str, str], **arguments: Any) -> None:
            if first is None:
                from delta_orch.delta_table import DeltaTable

                answer = function(DeltaTable(arguments.pop("uri"), storage_options or None), **arguments)
            else:
                answer = function(storage_options=storage_options or None, **arguments)
            answer.show(as_json=as_json)
            if answer.failed:
                raise click.exceptions.Exit(1)

        decorated: Callable[..., Any] = call
        for option in reversed((first or URI, *options, STORAGE_OPTION, JSON)):
            decorated = option(decorated)
        app.command(function.__name__.replace("_", "-"))(decorated)
        return function

    return register


def open_engine(name: str) -> Engine:
    """The engine that reads and writes rows.

    Raises:
        MissingDependencyError: Its packages are not installed.
    """
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.engines.select import spark_engine

    if name == "local":
        return LocalEngine()
    try:
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise MissingDependencyError(
            "Spark is not installed", cause=str(e), remedy='Run pip install "delta-orch[spark]"', extra="spark"
        ) from e
    # The user's spark-defaults.conf says where the session runs and how large it is.
    builder = SparkSession.builder.appName(PROGRAM).config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    # An error is one line of ours; Spark would write its traces beside it. A session of Connect has no context.
    if (context := getattr(session, "sparkContext", None)) is not None:
        context.setLogLevel("OFF")
    return spark_engine(session)
