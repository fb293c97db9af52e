"""Options that several commands share, and how they become a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from delta_orch.errors import InvalidRequestError, MissingDependencyError

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.base import Engine

Uri = Annotated[str, typer.Argument(metavar="URI", help="The table's location: a path or a URI.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", "-o", metavar="KEY=VALUE", help="An option of the store; may be repeated."),
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", help="The version to read; by default the newest.")
]
AsOf = Annotated[
    str | None, typer.Option("--timestamp", metavar="TIME", help="Read the version current at this time (ISO 8601).")
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B.C",
        help="Columns, or fields of structs, to read, by default all; names with commas or dots in `backticks`.",
    ),
]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Rows to read, as in Spark SQL.")]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="local|spark", help="What reads the rows; spark starts a session.")
]

_QUOTED = r"`(?:[^`]|``)+`"
_PART = rf"(?:{_QUOTED}|[^`,.]+)"
_NAME = re.compile(rf"\s*(?:({_QUOTED})|({_PART}(?:\.{_PART})+)|([^`,][^,]*?))\s*(?:,|$)")


def parse_columns(text: str | None) -> list[str] | None:
    """The names in `--columns`; the empty text is no column at all. A path into structs stays as it is written.

    Raises:
        InvalidRequestError: An empty name, or a backtick that is not closed.
    """
    if text is None:
        return None
    names, position = [], 0
    while position < len(text):
        found = _NAME.match(text, position)
        if found is None:
            raise InvalidRequestError(
                f"--columns {text!r} is no list of names", remedy="Write names with commas between: a,`b,c`,d"
            )
        quoted, path, name = found.groups()
        names.append((path or name).strip() if quoted is None else quoted[1:-1].replace("``", "`"))
        position = found.end()
    return names


def open_engine(name: str) -> Engine:
    """The engine of the command line.

    Raises:
        InvalidRequestError: There is no such engine.
        MissingDependencyError: Its packages are not installed.
    """
    from delta_orch.engines.select import local_engine, spark_engine

    if name == "local":
        return local_engine()
    if name != "spark":
        raise InvalidRequestError(f"There is no engine {name!r}", remedy="Use local or spark")
    try:
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise MissingDependencyError(
            "Spark is not installed", cause=str(e), remedy='Run pip install "delta-orch[spark]"', extra="spark"
        ) from e
    # Where and how big is for spark-defaults.conf to say.
    builder = SparkSession.builder.appName("delta-orch").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    # What fails is one line of ours; Spark would write its traces beside it. A session of Connect has no context.
    if (context := getattr(session, "sparkContext", None)) is not None:
        context.setLogLevel("OFF")
    return spark_engine(session)


def open_table(uri: str, storage_option: list[str] | None) -> DeltaTable:
    """The table of the command line.

    Raises:
        InvalidRequestError: A storage option is no KEY=VALUE.
    """
    from delta_orch.delta_table import DeltaTable

    options = {}
    for text in storage_option or ():
        key, separator, value = text.partition("=")
        if not (key and separator):
            # The value may be a secret: it is not repeated.
            raise InvalidRequestError("A --storage-option is no KEY=VALUE", remedy="Write --storage-option key=value")
        options[key] = value
    return DeltaTable(uri, options or None)


def open_snapshot(
    uri: str, storage_option: list[str] | None, version: int | None = None, timestamp: str | None = None
) -> TableSnapshot:
    """The snapshot of the command line."""
    return open_table(uri, storage_option).snapshot(version=version, timestamp=timestamp)
