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


URI = click.argument("uri")
STORAGE_OPTION = click.option(
    "-o", "--storage-option", "storage_options", multiple=True, metavar="KEY=VALUE", callback=parse_pairs,
    help="An option of the store. Repeatable.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of text.")
VERSION = click.option("--version", type=int, metavar="N", help="The version to read. Default: the newest.")
TIMESTAMP = click.option("--timestamp", metavar="TIME", help="Read the version of this time (ISO 8601).")
WHERE = click.option("--where", metavar="SQL", help="Read the rows for which this is true, in Spark SQL.")
PARTITIONS = click.option("--where", metavar="SQL", help="Only the partitions for which this is true.")
COLUMNS = click.option(
    "--columns", metavar="A,B.C", callback=parse_columns,
    help="Columns, or fields of structs. Default: all. Put other names than words in `backticks`.",
)  # fmt: skip
LIMIT = click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="Show the first N.")
ENGINE = click.option(
    "--engine", type=click.Choice(["local", "spark"]), default="local", help="spark starts a Spark session."
)
OUTPUT = click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The Parquet file to write."
)
FORCE = click.option("--force", is_flag=True, help="Replace the output file if it exists.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Check everything and show the result. Change nothing.")
ISOLATION = click.option(
    "--isolation", "isolation_level", metavar="LEVEL",
    help="WriteSerializable, Serializable or SnapshotIsolation. Default: the table's level.",
)  # fmt: skip


def command(*options: Decorator, first: Decorator = URI) -> Decorator:
    """Make a function a command: it takes `first`, `options`, the store's options and `--json`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((first, *options, STORAGE_OPTION, JSON)):
            function = option(function)
        app.command(function.__name__.replace("_", "-"))(function)
        return function

    return register


def table_command(*options: Decorator) -> Decorator:
    """Make a function a command that takes a table; see `command`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(uri: str, storage_options: dict[str, str], **arguments: object) -> object:
            from delta_orch.delta_table import DeltaTable

            return function(DeltaTable(uri, storage_options or None), **arguments)

        return command(*options)(call)

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
