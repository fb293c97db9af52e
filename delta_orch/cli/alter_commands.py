"""The commands below `delta-orch alter`: each is one change, committed as one version."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delta_orch.cli.arguments import EngineName, Json, StorageOption, Uri, open_engine, open_table
from delta_orch.cli.commits import DryRun, Isolation, report_commit

if TYPE_CHECKING:
    from delta_orch.verbs.alter.builder import Alteration

alter_app = typer.Typer(
    help="Change a table's properties, features, constraints, columns or clustering.", no_args_is_help=True
)

Column = Annotated[
    str, typer.Argument(metavar="COLUMN", help="A column; s.a for a field, names with dots in `backticks`.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="No error where there is none.")]
First = Annotated[bool, typer.Option("--first", help="Before all its siblings.")]
After = Annotated[str | None, typer.Option("--after", metavar="COLUMN", help="Behind this sibling.")]


def _change(*, reads_rows: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that adds one change to an alteration.

    Args:
        reads_rows: The change is proven on rows, or writes them anew: the command lets one choose the engine that does.
    """

    def register(add_change: Callable[..., None]) -> Callable[..., None]:
        def command(
            uri: Uri,
            *,
            engine: EngineName = "local",
            isolation: Isolation = None,
            dry_run: DryRun = False,
            storage_option: StorageOption = None,
            json: Json = False,
            **arguments: Any,
        ) -> None:
            alteration = open_table(uri, storage_option).alter()
            add_change(alteration, **arguments)
            result = alteration.commit(engine=open_engine(engine), isolation_level=isolation, dry_run=dry_run)
            done = f"Version {result.version} committed"
            nothing = f"Nothing to change: version {result.version} is that way already"
            report_commit(result, done=done, nothing=nothing, as_json=json)

        # What typer shows: the location, what the change needs, and what all of these commands take.
        _, *own = signature(add_change, locals={"Alteration": object}, eval_str=True).parameters.values()
        at, *shared, _ = signature(command, eval_str=True).parameters.values()
        shown = [at, *own, *(p for p in shared if reads_rows or p.name != "engine")]
        command.__signature__ = Signature([p.replace(kind=Parameter.KEYWORD_ONLY) for p in shown])  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = add_change.__name__, add_change.__doc__
        alter_app.command()(command)
        return add_change

    return register


@_change()
def set_properties(
    alteration: Alteration,
    properties: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")],
) -> None:
    """Set table properties, and what they ask for."""
    parsed = {}
    for text in properties:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE")
        parsed[key] = value
    alteration.set_properties(parsed)


@_change()
def unset_properties(
    alteration: Alteration,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…")],
    if_exists: IfExists = False,
) -> None:
    """Remove table properties, so that their defaults hold."""
    alteration.unset_properties(*keys, if_exists=if_exists)


@_change()
def set_name(alteration: Alteration, name: Annotated[str, typer.Argument(help="The empty text removes it.")]) -> None:
    """Set the table's name."""
    alteration.set_name(name)


@_change()
def set_description(
    alteration: Alteration,
    description: Annotated[str, typer.Argument(help="The empty text removes it.")],
) -> None:
    """Set the table's description."""
    alteration.set_description(description)


@_change()
def add_feature(
    alteration: Alteration,
    names: Annotated[list[str], typer.Argument(metavar="FEATURE…")],
) -> None:
    """Support table features, and those they need."""
    alteration.add_feature(*names)


@_change(reads_rows=True)
def drop_feature(
    alteration: Alteration,
    name: Annotated[str, typer.Argument(metavar="FEATURE")],
    truncate_history: Annotated[
        bool, typer.Option("--truncate-history", help="Clean up the versions that need it, do not protect them.")
    ] = False,
) -> None:
    """Remove a table feature, and what there is of it in files."""
    alteration.drop_feature(name, truncate_history=truncate_history)


@_change()
def upgrade_protocol(
    alteration: Alteration,
    reader: Annotated[int | None, typer.Option("--reader", metavar="N", help="At least this reader version.")] = None,
    writer: Annotated[int | None, typer.Option("--writer", metavar="N", help="At least this writer version.")] = None,
) -> None:
    """Raise the protocol's versions."""
    alteration.upgrade_protocol(min_reader_version=reader, min_writer_version=writer)


@_change(reads_rows=True)
def add_constraint(
    alteration: Alteration,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    expression: Annotated[str, typer.Argument(metavar="SQL", help="True for every row.")],
) -> None:
    """Add a CHECK constraint, once every row has been seen to satisfy it."""
    alteration.add_constraint(name, expression)


@_change()
def drop_constraint(
    alteration: Alteration,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    if_exists: IfExists = False,
) -> None:
    """Remove a CHECK constraint."""
    alteration.drop_constraint(name, if_exists=if_exists)


@_change()
def add_column(
    alteration: Alteration,
    column: Column,
    data_type: Annotated[str, typer.Argument(metavar="TYPE", help="As in Spark SQL: bigint, array<string>, …")],
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT")] = None,
    first: First = False,
    after: After = None,
) -> None:
    """Add a column, or a field of a struct."""
    alteration.add_column(column, data_type, comment=comment, first=first, after=after)


@_change()
def rename_column(
    alteration: Alteration,
    column: Column,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME")],
) -> None:
    """Rename a column. Needs column mapping."""
    alteration.rename_column(column, new_name)


@_change()
def drop_columns(
    alteration: Alteration,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN…")],
) -> None:
    """Remove columns. Needs column mapping."""
    alteration.drop_columns(*columns)


@_change()
def move_column(
    alteration: Alteration,
    column: Column,
    first: First = False,
    after: After = None,
) -> None:
    """Put a column first or behind another."""
    alteration.move_column(column, first=first, after=after)


@_change()
def change_type(
    alteration: Alteration,
    column: Column,
    data_type: Annotated[str, typer.Argument(metavar="TYPE", help="A wider type, as in Spark SQL.")],
) -> None:
    """Widen a column's type. Needs delta.enableTypeWidening."""
    alteration.change_type(column, data_type)


@_change(reads_rows=True)
def set_not_null(alteration: Alteration, column: Column) -> None:
    """Refuse nulls in a column, once every row has been seen to have none."""
    alteration.set_not_null(column)


@_change()
def drop_not_null(alteration: Alteration, column: Column) -> None:
    """Let a column be null."""
    alteration.drop_not_null(column)


@_change()
def set_default(
    alteration: Alteration,
    column: Column,
    expression: Annotated[str, typer.Argument(metavar="SQL", help="One expression of constants.")],
) -> None:
    """Set what rows get that do not bring the column."""
    alteration.set_default(column, expression)


@_change()
def drop_default(alteration: Alteration, column: Column) -> None:
    """Remove a column's default."""
    alteration.drop_default(column)


@_change()
def set_comment(
    alteration: Alteration,
    column: Column,
    comment: Annotated[str, typer.Argument(help="The empty text removes it.")],
) -> None:
    """Set a column's comment."""
    alteration.set_column_comment(column, comment)


@_change()
def cluster_by(
    alteration: Alteration,
    columns: Annotated[list[str] | None, typer.Argument(metavar="[COLUMN…]", help="None at all ends it.")] = None,
) -> None:
    """Cluster the table by up to four columns, or by none any more."""
    alteration.cluster_by(*columns or ())
