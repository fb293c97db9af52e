"""The commands below `delta-orch alter`: each is one change, committed as one version."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from delta_orch.cli.arguments import (
    DRY_RUN,
    ENGINE,
    ISOLATION,
    Argument,
    Commands,
    Target,
    UsageError,
    argument,
    flag,
    open_engine,
)
from delta_orch.cli.output import report_commit

if TYPE_CHECKING:
    from delta_orch.verbs.alter.builder import Alteration

COMMANDS = Commands()

P = ParamSpec("P")

_COLUMN = argument("column", "COLUMN", "A column; s.a for a field. Put names with dots in `backticks`.")
_TYPE = argument("data_type", "TYPE", "As in Spark SQL: bigint, array<string>, …")
_NAME = argument("name", "NAME")
_IF_EXISTS = flag("--if-exists", "Do nothing where it does not exist.")
_PLACE = (
    flag("--first", "Before all its siblings."),
    argument("--after", "COLUMN", "Behind this sibling."),
)


def _change(
    *arguments: Argument, reads_rows: bool = False
) -> Callable[[Callable[Concatenate[Alteration, P], None]], Callable[Concatenate[Alteration, P], None]]:
    """Make a command of a function that adds one change to an alteration.

    Args:
        reads_rows: The change is proven on rows, or writes them anew: the command takes the engine that does.
    """

    def register(
        add_change: Callable[Concatenate[Alteration, P], None],
    ) -> Callable[Concatenate[Alteration, P], None]:
        @COMMANDS.add(*arguments, *([ENGINE] if reads_rows else []), ISOLATION, DRY_RUN)
        @wraps(add_change)
        def command(
            at: Target, isolation: str | None, dry_run: bool, engine: str = "local", *args: P.args, **own: P.kwargs
        ) -> None:
            alteration = at.table().alter()
            add_change(alteration, *args, **own)
            result = alteration.commit(engine=open_engine(engine), isolation_level=isolation, dry_run=dry_run)
            done = f"Version {result.version} committed"
            nothing = f"Nothing to change: version {result.version} is that way already"
            report_commit(result, done=done, nothing=nothing, as_json=at.json)

        return add_change

    return register


@_change(argument("properties", "KEY=VALUE", nargs="+"))
def set_properties(alteration: Alteration, properties: list[str]) -> None:
    """Set table properties, and what they ask for."""
    parsed = {}
    for text in properties:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise UsageError(f"{text!r} is not KEY=VALUE")
        parsed[key] = value
    alteration.set_properties(parsed)


@_change(argument("keys", "KEY", nargs="+"), _IF_EXISTS)
def unset_properties(alteration: Alteration, keys: list[str], if_exists: bool) -> None:
    """Remove table properties, so that their defaults hold."""
    alteration.unset_properties(*keys, if_exists=if_exists)


@_change(argument("name", "NAME", "The empty text removes it."))
def set_name(alteration: Alteration, name: str) -> None:
    """Set the table's name."""
    alteration.set_name(name)


@_change(argument("description", "TEXT", "The empty text removes it."))
def set_description(alteration: Alteration, description: str) -> None:
    """Set the table's description."""
    alteration.set_description(description)


@_change(argument("names", "FEATURE", nargs="+"))
def add_feature(alteration: Alteration, names: list[str]) -> None:
    """Support table features, and those they need."""
    alteration.add_feature(*names)


@_change(
    argument("name", "FEATURE"),
    flag("--truncate-history", "Clean up the versions that need it, do not protect them."),
    reads_rows=True,
)
def drop_feature(alteration: Alteration, name: str, truncate_history: bool) -> None:
    """Remove a table feature, and what there is of it in files."""
    alteration.drop_feature(name, truncate_history=truncate_history)


@_change(
    argument("--reader", "N", "At least this reader version.", type=int),
    argument("--writer", "N", "At least this writer version.", type=int),
)
def upgrade_protocol(alteration: Alteration, reader: int | None, writer: int | None) -> None:
    """Raise the protocol's versions."""
    alteration.upgrade_protocol(min_reader_version=reader, min_writer_version=writer)


@_change(_NAME, argument("expression", "SQL", "True for every row."), reads_rows=True)
def add_constraint(alteration: Alteration, name: str, expression: str) -> None:
    """Add a CHECK constraint, once every row has been seen to satisfy it."""
    alteration.add_constraint(name, expression)


@_change(_NAME, _IF_EXISTS)
def drop_constraint(alteration: Alteration, name: str, if_exists: bool) -> None:
    """Remove a CHECK constraint."""
    alteration.drop_constraint(name, if_exists=if_exists)


@_change(_COLUMN, _TYPE, argument("--comment", "TEXT", "The column's comment."), *_PLACE)
def add_column(
    alteration: Alteration, column: str, data_type: str, comment: str | None, first: bool, after: str | None
) -> None:
    """Add a column, or a field of a struct."""
    alteration.add_column(column, data_type, comment=comment, first=first, after=after)


@_change(_COLUMN, argument("new_name", "NEW_NAME"))
def rename_column(alteration: Alteration, column: str, new_name: str) -> None:
    """Rename a column. Needs column mapping."""
    alteration.rename_column(column, new_name)


@_change(argument("columns", "COLUMN", nargs="+"))
def drop_columns(alteration: Alteration, columns: list[str]) -> None:
    """Remove columns. Needs column mapping."""
    alteration.drop_columns(*columns)


@_change(_COLUMN, *_PLACE)
def move_column(alteration: Alteration, column: str, first: bool, after: str | None) -> None:
    """Put a column first or behind another."""
    alteration.move_column(column, first=first, after=after)


@_change(_COLUMN, argument("data_type", "TYPE", "A wider type, as in Spark SQL."))
def change_type(alteration: Alteration, column: str, data_type: str) -> None:
    """Widen a column's type. Needs delta.enableTypeWidening."""
    alteration.change_type(column, data_type)


@_change(_COLUMN, reads_rows=True)
def set_not_null(alteration: Alteration, column: str) -> None:
    """Refuse nulls in a column, once every row has been seen to have none."""
    alteration.set_not_null(column)


@_change(_COLUMN)
def drop_not_null(alteration: Alteration, column: str) -> None:
    """Let a column be null."""
    alteration.drop_not_null(column)


@_change(_COLUMN, argument("expression", "SQL", "One expression of constants."))
def set_default(alteration: Alteration, column: str, expression: str) -> None:
    """Set the value of the column in rows that come without it."""
    alteration.set_default(column, expression)


@_change(_COLUMN)
def drop_default(alteration: Alteration, column: str) -> None:
    """Remove a column's default."""
    alteration.drop_default(column)


@_change(_COLUMN, argument("comment", "TEXT", "The empty text removes it."))
def set_comment(alteration: Alteration, column: str, comment: str) -> None:
    """Set a column's comment."""
    alteration.set_column_comment(column, comment)


@_change(argument("columns", "COLUMN", "None at all ends clustering.", nargs="*"))
def cluster_by(alteration: Alteration, columns: list[str]) -> None:
    """Cluster the table by up to four columns, or by none any more."""
    alteration.cluster_by(*columns)
