"""The commands below `delta-orch alter`, each of which is one change, committed as one version; and those below
`delta-orch domain`: named texts that travel with a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from delta_orch.cli.arguments import (
    COMMIT,
    ENGINE,
    VERSION,
    Argument,
    Commands,
    Target,
    argument,
    flag,
    open_engine,
    pairs,
)
from delta_orch.cli.output import print_json, print_rows, report_commit

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitOptions

COMMANDS = Commands()

_COLUMN = argument("column", "COLUMN", "A column; s.a for a field. Put names with dots in `backticks`.")
_NAME = argument("name", "NAME")
_IF_EXISTS = flag("--if-exists", "Do nothing where it does not exist.")
_PLACE = (
    flag("--first", "Before all its siblings."),
    argument("--after", "COLUMN", "Behind this sibling."),
)


def _change(
    name: str,
    help: str,
    *arguments: Argument,
    call: Callable[..., object] | None = None,
    reads_rows: bool = False,
) -> None:
    """Make a command of a method of `Alteration`. It takes the command's positional arguments in their order, and its
    options by their names.

    Args:
        call: The method, by default the one of the same name.
        reads_rows: The change is proven on rows, or writes them anew: the command takes the engine that does.
    """
    positional = [taken.names[0] for taken in arguments if not taken.names[0].startswith("-")]

    def command(at: Target, isolation_level: str | None, dry_run: bool, engine: str = "local", **own: Any) -> None:
        given = [own.pop(taken) for taken in positional]
        listed = [one for value in given for one in (value if isinstance(value, list) else [value])]
        alteration = at.table().alter()
        if call is None:
            getattr(alteration, name.replace("-", "_"))(*listed, **own)
        else:
            call(alteration, *listed, **own)
        result = alteration.commit(engine=open_engine(engine), isolation_level=isolation_level, dry_run=dry_run)
        done = f"Version {result.version} committed"
        nothing = f"Nothing to change: version {result.version} is that way already"
        report_commit(result, done=done, nothing=nothing, as_json=at.json)

    command.__doc__ = help
    COMMANDS.add(*arguments, *([ENGINE] if reads_rows else []), *COMMIT, name=f"alter {name}")(command)


_change(
    "set-properties",
    "Set table properties, and what they ask for.",
    argument("properties", "KEY=VALUE", nargs="+"),
    call=lambda alteration, *texts: alteration.set_properties(pairs(texts, "KEY=VALUE")),
)
_change(
    "unset-properties",
    "Remove table properties, so that their defaults hold.",
    argument("keys", "KEY", nargs="+"),
    _IF_EXISTS,
)
_change("set-name", "Set the table's name.", argument("name", "NAME", "The empty text removes it."))
_change(
    "set-description", "Set the table's description.", argument("description", "TEXT", "The empty text removes it.")
)
_change("add-feature", "Support table features, and those they need.", argument("names", "FEATURE", nargs="+"))
_change(
    "drop-feature",
    "Remove a table feature, and what there is of it in files.",
    argument("name", "FEATURE"),
    flag("--truncate-history", "Clean up the versions that need it, do not protect them."),
    reads_rows=True,
)
_change(
    "upgrade-protocol",
    "Raise the protocol's versions.",
    argument("--reader", "N", "At least this reader version.", type=int, dest="min_reader_version"),
    argument("--writer", "N", "At least this writer version.", type=int, dest="min_writer_version"),
)
_change(
    "add-constraint",
    "Add a CHECK constraint, once every row has been seen to satisfy it.",
    _NAME,
    argument("expression", "SQL", "True for every row."),
    reads_rows=True,
)
_change("drop-constraint", "Remove a CHECK constraint.", _NAME, _IF_EXISTS)
_change(
    "add-column",
    "Add a column, or a field of a struct.",
    _COLUMN,
    argument("data_type", "TYPE", "As in Spark SQL: bigint, array<string>, …"),
    argument("--comment", "TEXT", "The column's comment."),
    *_PLACE,
)
_change("rename-column", "Rename a column. Needs column mapping.", _COLUMN, argument("new_name", "NEW_NAME"))
_change("drop-columns", "Remove columns. Needs column mapping.", argument("columns", "COLUMN", nargs="+"), _IF_EXISTS)
_change("move-column", "Put a column first or behind another.", _COLUMN, *_PLACE)
_change(
    "change-type",
    "Widen a column's type. Needs delta.enableTypeWidening.",
    _COLUMN,
    argument("data_type", "TYPE", "A wider type, as in Spark SQL."),
)
_change(
    "sync-identity",
    "Let an identity column go on behind the values that rows have brought.",
    _COLUMN,
    reads_rows=True,
)
_change(
    "set-not-null",
    "Refuse nulls in a column, once every row has been seen to have none.",
    _COLUMN,
    reads_rows=True,
)
_change("drop-not-null", "Let a column be null.", _COLUMN)
_change(
    "set-default",
    "Set the value of the column in rows that come without it.",
    _COLUMN,
    argument("expression", "SQL", "One expression of constants."),
)
_change("drop-default", "Remove a column's default.", _COLUMN)
_change(
    "set-comment",
    "Set a column's comment.",
    _COLUMN,
    argument("comment", "TEXT", "The empty text removes it."),
    call=lambda alteration, column, comment: alteration.set_column_comment(column, comment),
)
_change(
    "cluster-by",
    "Cluster the table by up to four columns, or by none any more.",
    argument("columns", "COLUMN", "None at all ends clustering.", nargs="*"),
)


_DOMAIN = argument("domain", "DOMAIN", "Its name, such as com.example.lineage.")


@COMMANDS.add(*VERSION, name="domain list")
def list_domains(at: Target) -> None:
    """List the metadata domains of a table, those of table features included."""
    domains = at.snapshot().domain_metadata
    if at.json:
        print_json([{"domain": name, "configuration": domains[name]} for name in sorted(domains)])
    else:
        print_rows(("domain", "configuration"), sorted(domains.items()))


@COMMANDS.add(
    _DOMAIN,
    argument("configuration", "TEXT", "Its text, for example JSON."),
    *COMMIT,
    name="domain set",
)
def set_domain(at: Target, domain: str, configuration: str, **commit: Unpack[CommitOptions]) -> None:
    """Set a metadata domain of your own, whatever it held before."""
    result = at.table().set_domain_metadata(domain, configuration, **commit)
    report_commit(result, done=f"Version {result.version} committed", nothing="Nothing to change", as_json=at.json)


@COMMANDS.add(_DOMAIN, *COMMIT, name="domain remove")
def remove_domain(at: Target, domain: str, **commit: Unpack[CommitOptions]) -> None:
    """Remove a metadata domain of your own."""
    result = at.table().remove_domain_metadata(domain, **commit)
    nothing = f"Nothing to remove: version {result.version} has no domain {domain}"
    report_commit(result, done=f"Version {result.version} committed", nothing=nothing, as_json=at.json)
