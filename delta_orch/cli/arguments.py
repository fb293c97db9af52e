"""Commands and what they take: how a command line becomes the call of a function.

A command is a function whose first argument is the `Target` that every command has; its other arguments are named by
the options and positional arguments it was registered with. Only `argparse` is needed for it, because a command line is
a fresh process each time.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, HelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeVar

from delta_orch.errors import InvalidRequestError, MissingDependencyError
from delta_orch.redaction import kept, redacted

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.base import Engine

PROGRAM = "delta-orch"


class UsageError(Exception):
    """The command line cannot be understood."""


class Argument(NamedTuple):
    """An option, or a positional argument where `names` are no flags, as `ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, object]


def argument(names: str, metavar: str | None = None, help: str | None = None, **settings: object) -> Argument:
    """What a command takes, for example `argument("--limit -n", "N", "At most that many.", type=int)`.

    Args:
        names: An option and its abbreviation, or the name of a positional argument.
        settings: As `ArgumentParser.add_argument` takes them.
    """
    return Argument(tuple(names.split()), {"metavar": metavar, "help": help, **settings})


def flag(name: str, help: str) -> Argument:
    """An option without a value."""
    return Argument((name,), {"action": "store_true", "help": help})


def count(text: str) -> int:
    """A number of things, as the type of an option."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


@dataclass(frozen=True, slots=True)
class Target:
    """The arguments of every command: a table, for some commands a version of it, and the form of the answer."""

    uri: str
    storage_option: Sequence[str]
    json: bool
    version: int | None = None
    timestamp: str | None = None

    def table(self) -> DeltaTable:
        """The table.

        Raises:
            InvalidRequestError: A storage option is not KEY=VALUE.
        """
        from delta_orch.delta_table import DeltaTable

        return DeltaTable(self.uri, self.options())

    def options(self) -> dict[str, str] | None:
        """The options of the store, None where there are none. Raises as `table`."""
        options = {}
        for text in self.storage_option:
            key, separator, value = text.partition("=")
            if not (key and separator):
                # The value may be a secret: it is not repeated.
                raise InvalidRequestError(
                    "A --storage-option is not KEY=VALUE", remedy="Write --storage-option key=value"
                )
            options[key] = value
        return options or None

    def snapshot(self) -> TableSnapshot:
        """The version of the table that the command line names, by default the newest."""
        return self.table().snapshot(version=self.version, timestamp=self.timestamp)


TARGET = (
    argument("uri", "URI", "The table's location: a path or a URI."),
    argument("--storage-option -o", "KEY=VALUE", "An option of the store, repeatable.", action="append", default=[]),
    flag("--json", "Print one JSON value instead of tables."),
)
VERSION = (
    argument("--version", "N", "The version to read. Default: the newest.", type=int),
    argument("--timestamp", "TIME", "Read the version that was current at this time (ISO 8601)."),
)
LIMIT = argument("--limit -n", "N", "Only the first N.", type=count)
WHERE = argument("--where", "SQL", "The rows to read, in Spark SQL.")
_NAMES = "Columns or fields of structs to read. Default: all. Put names with commas or dots in `backticks`."
COLUMNS = argument("--columns", "A,B.C", _NAMES)
ENGINE = argument("--engine", "local|spark", "spark starts a session to read the rows.", default="local")
DRY_RUN = flag("--dry-run", "Check everything and show what would be committed. Change nothing.")
_LEVELS = "WriteSerializable, Serializable or SnapshotIsolation. Default: the table's level."
COMMIT = (argument("--isolation", "LEVEL", _LEVELS, dest="isolation_level"), DRY_RUN)
"""What a command takes that commits, under the names of `CommitOptions`."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(kept(redacted(message)))


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and what it takes after its target.

    Attributes:
        first: What stands in the place of the target's location.
    """

    function: Callable[..., None]
    arguments: tuple[Argument, ...]
    first: Argument = TARGET[0]

    @property
    def help(self) -> str:
        return self.function.__doc__ or ""

    def parser(self, words: str) -> ArgumentParser:
        parser = _Parser(
            f"{PROGRAM} {words}",
            description=self.help,
            allow_abbrev=False,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=32),
        )
        for taken in (self.first, *self.arguments, *TARGET[1:]):
            parser.add_argument(*taken.names, **taken.settings)  # type: ignore[arg-type]
        return parser

    def run(self, words: str, arguments: Sequence[str]) -> None:
        """Parse `arguments` and call the function.

        Raises:
            UsageError: They cannot be understood.
        """
        values = vars(self.parser(words).parse_intermixed_args(arguments))
        target = Target(**{name: values.pop(name) for name in Target.__slots__ if name in values})
        self.function(target, **values)


def pairs(
    given: Sequence[str], form: Literal["KEY=VALUE", "NAME=URI", "NAME:TYPE"], option: str = ""
) -> dict[str, str]:
    """Texts of a form, taken apart. A VALUE may be empty.

    Raises:
        UsageError: One has another form.
    """
    found = {}
    for text in given:
        key, separator, value = text.rpartition(":") if form == "NAME:TYPE" else text.partition("=")
        if not (key and separator and (value or form == "KEY=VALUE")):
            raise UsageError(f"{option} {text!r} is not {form}".lstrip())
        found[key] = value
    return found


F = TypeVar("F", bound=Callable[..., None])


class Commands(dict[str, Command]):
    """Commands by name, in the order of their definition."""

    def add(self, *arguments: Argument, name: str | None = None, first: Argument = TARGET[0]) -> Callable[[F], F]:
        """Register a function as a command, which is called as the function is unless `name` says otherwise."""

        def register(function: F) -> F:
            self[name or function.__name__.replace("_", "-")] = Command(function, arguments, first)
            return function

        return register


_QUOTED = r"`(?:[^`]|``)+`"
_PART = rf"(?:{_QUOTED}|[^`,.]+)"
_NAME = rf"\s*(?:({_QUOTED})|({_PART}(?:\.{_PART})+)|([^`,][^,]*?))\s*(?:,|$)"


def parse_columns(text: str | None) -> list[str] | None:
    """The names in `--columns`; the empty text is no column at all. A path into structs stays as it is written.

    Raises:
        InvalidRequestError: An empty name, or a backtick that is not closed.
    """
    if text is None:
        return None
    names, position, pattern = [], 0, re.compile(_NAME)
    while position < len(text):
        found = pattern.match(text, position)
        if found is None:
            raise InvalidRequestError(
                f"--columns {text!r} is not a list of names", remedy="Write names with commas between: a,`b,c`,d"
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
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.engines.select import spark_engine

    if name == "local":
        return LocalEngine()
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
    # An error is one line of ours; Spark would write its traces beside it. A session of Connect has no context.
    if (context := getattr(session, "sparkContext", None)) is not None:
        context.setLogLevel("OFF")
    return spark_engine(session)
