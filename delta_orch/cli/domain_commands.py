"""The commands below `delta-orch domain`: named texts that travel with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from delta_orch.cli.arguments import COMMIT, VERSION, Commands, Target, argument
from delta_orch.cli.output import print_json, print_rows, report_commit

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitOptions

COMMANDS = Commands()

_DOMAIN = argument("domain", "DOMAIN", "Its name, such as com.example.lineage.")


@COMMANDS.add(*VERSION, name="list")
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
    name="set",
)
def set_domain(at: Target, domain: str, configuration: str, **commit: Unpack[CommitOptions]) -> None:
    """Set a metadata domain of your own, whatever it held before."""
    result = at.table().set_domain_metadata(domain, configuration, **commit)
    report_commit(result, done=f"Version {result.version} committed", nothing="Nothing to change", as_json=at.json)


@COMMANDS.add(_DOMAIN, *COMMIT, name="remove")
def remove_domain(at: Target, domain: str, **commit: Unpack[CommitOptions]) -> None:
    """Remove a metadata domain of your own."""
    result = at.table().remove_domain_metadata(domain, **commit)
    nothing = f"Nothing to remove: version {result.version} has no domain {domain}"
    report_commit(result, done=f"Version {result.version} committed", nothing=nothing, as_json=at.json)
