"""The commands below `delta-orch alter`: each is one change, committed as one version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delta_orch.cli.arguments import EngineName, Json, StorageOption, Uri, open_engine, open_table
from delta_orch.cli.output import print_json, print_line

if TYPE_CHECKING:
    from delta_orch.operations.alter.builder import Alteration

alter_app = typer.Typer(
    help="Change a table's properties, features, constraints, columns or clustering.", no_args_is_help=True
)

Column = Annotated[
    str, typer.Argument(metavar="COLUMN", help="A column; s.a for a field, names with dots in `backticks`.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="No error where there is none.")]
First = Annotated[bool, typer.Option("--first", help="Before all its siblings.")]
After = Annotated[str | None, typer.Option("--after", metavar="COLUMN", help="Behind this sibling.")]


class _Command:
    """One invocation: the table, and what is told at the end."""

    def __init__(self, uri: str, storage_option: list[str] | None, as_json: bool) -> None:
        self.alteration: Alteration = open_table(uri, storage_option).alter()
        self._as_json = as_json

    def commit(self, engine: str = "local") -> None:
        result = self.alteration.commit(engine=open_engine(engine))
        if self._as_json:
            print_json({"version": result.version, "skipped": result.skipped})
        elif result.skipped:
            print_line(f"Nothing to change: version {result.version} is that way already")
        else:
            print_line(f"Version {result.version} committed")


@alter_app.command()
def set_properties(
    uri: Uri,
    properties: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Set table properties, and what they ask for."""
    parsed = {}
    for text in properties:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE")
        parsed[key] = value
    command = _Command(uri, storage_option, json)
    command.alteration.set_properties(parsed)
    command.commit()


@alter_app.command()
def unset_properties(
    uri: Uri,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…")],
    if_exists: IfExists = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove table properties, so that their defaults hold."""
    command = _Command(uri, storage_option, json)
    command.alteration.unset_properties(*keys, if_exists=if_exists)
    command.commit()


@alter_app.command()
def set_description(
    uri: Uri,
    description: Annotated[str, typer.Argument(help="The empty text removes it.")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Set the table's description."""
    command = _Command(uri, storage_option, json)
    command.alteration.set_description(description)
    command.commit()


@alter_app.command()
def add_feature(
    uri: Uri,
    names: Annotated[list[str], typer.Argument(metavar="FEATURE…")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Support table features, and those they need."""
    command = _Command(uri, storage_option, json)
    command.alteration.add_feature(*names)
    command.commit()


@alter_app.command()
def drop_feature(
    uri: Uri,
    name: Annotated[str, typer.Argument(metavar="FEATURE")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove a table feature that nothing uses any more."""
    command = _Command(uri, storage_option, json)
    command.alteration.drop_feature(name)
    command.commit()


@alter_app.command()
def upgrade_protocol(
    uri: Uri,
    reader: Annotated[int | None, typer.Option("--reader", metavar="N", help="At least this reader version.")] = None,
    writer: Annotated[int | None, typer.Option("--writer", metavar="N", help="At least this writer version.")] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Raise the protocol's versions."""
    command = _Command(uri, storage_option, json)
    command.alteration.upgrade_protocol(min_reader_version=reader, min_writer_version=writer)
    command.commit()


@alter_app.command()
def add_constraint(
    uri: Uri,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    expression: Annotated[str, typer.Argument(metavar="SQL", help="True for every row.")],
    engine: EngineName = "local",
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Add a CHECK constraint, once every row has been seen to satisfy it."""
    command = _Command(uri, storage_option, json)
    command.alteration.add_constraint(name, expression)
    command.commit(engine)


@alter_app.command()
def drop_constraint(
    uri: Uri,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    if_exists: IfExists = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove a CHECK constraint."""
    command = _Command(uri, storage_option, json)
    command.alteration.drop_constraint(name, if_exists=if_exists)
    command.commit()


@alter_app.command()
def add_column(
    uri: Uri,
    column: Column,
    data_type: Annotated[str, typer.Argument(metavar="TYPE", help="As in Spark SQL: bigint, array<string>, …")],
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT")] = None,
    first: First = False,
    after: After = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Add a column, or a field of a struct."""
    command = _Command(uri, storage_option, json)
    command.alteration.add_column(column, data_type, comment=comment, first=first, after=after)
    command.commit()


@alter_app.command()
def rename_column(
    uri: Uri,
    column: Column,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Rename a column. Needs column mapping."""
    command = _Command(uri, storage_option, json)
    command.alteration.rename_column(column, new_name)
    command.commit()


@alter_app.command()
def drop_columns(
    uri: Uri,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN…")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove columns. Needs column mapping."""
    command = _Command(uri, storage_option, json)
    command.alteration.drop_columns(*columns)
    command.commit()


@alter_app.command()
def move_column(
    uri: Uri,
    column: Column,
    first: First = False,
    after: After = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Put a column first or behind another."""
    command = _Command(uri, storage_option, json)
    command.alteration.move_column(column, first=first, after=after)
    command.commit()


@alter_app.command()
def change_type(
    uri: Uri,
    column: Column,
    data_type: Annotated[str, typer.Argument(metavar="TYPE", help="A wider type, as in Spark SQL.")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Widen a column's type. Needs delta.enableTypeWidening."""
    command = _Command(uri, storage_option, json)
    command.alteration.change_type(column, data_type)
    command.commit()


@alter_app.command()
def set_not_null(
    uri: Uri, column: Column, engine: EngineName = "local", storage_option: StorageOption = None, json: Json = False
) -> None:
    """Refuse nulls in a column, once every row has been seen to have none."""
    command = _Command(uri, storage_option, json)
    command.alteration.set_not_null(column)
    command.commit(engine)


@alter_app.command()
def drop_not_null(uri: Uri, column: Column, storage_option: StorageOption = None, json: Json = False) -> None:
    """Let a column be null."""
    command = _Command(uri, storage_option, json)
    command.alteration.drop_not_null(column)
    command.commit()


@alter_app.command()
def set_default(
    uri: Uri,
    column: Column,
    expression: Annotated[str, typer.Argument(metavar="SQL", help="One expression of constants.")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Set what rows get that do not bring the column."""
    command = _Command(uri, storage_option, json)
    command.alteration.set_default(column, expression)
    command.commit()


@alter_app.command()
def drop_default(uri: Uri, column: Column, storage_option: StorageOption = None, json: Json = False) -> None:
    """Remove a column's default."""
    command = _Command(uri, storage_option, json)
    command.alteration.drop_default(column)
    command.commit()


@alter_app.command()
def set_comment(
    uri: Uri,
    column: Column,
    comment: Annotated[str, typer.Argument(help="The empty text removes it.")],
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Set a column's comment."""
    command = _Command(uri, storage_option, json)
    command.alteration.set_column_comment(column, comment)
    command.commit()


@alter_app.command()
def cluster_by(
    uri: Uri,
    columns: Annotated[list[str] | None, typer.Argument(metavar="[COLUMN…]", help="None at all ends it.")] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Cluster the table by up to four columns, or by none any more."""
    command = _Command(uri, storage_option, json)
    command.alteration.cluster_by(*columns or ())
    command.commit()
