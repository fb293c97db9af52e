"""The commands below `delta-orch domain`: named texts that travel with a table."""

from __future__ import annotations

from typing import Annotated

import typer

from delta_orch.cli.arguments import AsOf, Json, StorageOption, Uri, Version, open_snapshot, open_table
from delta_orch.cli.commits import DryRun, Isolation, report_commit
from delta_orch.cli.output import print_json, print_rows

domain_app = typer.Typer(
    help="Metadata domains: named texts that travel with a table. Those called delta.… belong to table features.",
    no_args_is_help=True,
)

Domain = Annotated[
    str, typer.Argument(metavar="DOMAIN", help="Its name, such as com.example.lineage.", show_default=False)
]


@domain_app.command("list")
def list_domains(
    uri: Uri, version: Version = None, timestamp: AsOf = None, storage_option: StorageOption = None, json: Json = False
) -> None:
    """List the metadata domains of a table, those of table features included."""
    domains = open_snapshot(uri, storage_option, version, timestamp).domain_metadata
    if json:
        print_json([{"domain": name, "configuration": domains[name]} for name in sorted(domains)])
    else:
        print_rows(("domain", "configuration"), sorted(domains.items()))


@domain_app.command("set")
def set_domain(
    uri: Uri,
    domain: Domain,
    configuration: Annotated[
        str, typer.Argument(metavar="TEXT", help="What it is to hold, for example JSON.", show_default=False)
    ],
    isolation: Isolation = None,
    dry_run: DryRun = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Set a metadata domain of your own, whatever it held before."""
    table = open_table(uri, storage_option)
    result = table.set_domain_metadata(domain, configuration, isolation_level=isolation, dry_run=dry_run)
    report_commit(result, done=f"Version {result.version} committed", nothing="Nothing to change", as_json=json)


@domain_app.command("remove")
def remove_domain(
    uri: Uri,
    domain: Domain,
    isolation: Isolation = None,
    dry_run: DryRun = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove a metadata domain of your own."""
    table = open_table(uri, storage_option)
    result = table.remove_domain_metadata(domain, isolation_level=isolation, dry_run=dry_run)
    nothing = f"Nothing to remove: version {result.version} has no domain {domain}"
    report_commit(result, done=f"Version {result.version} committed", nothing=nothing, as_json=json)
