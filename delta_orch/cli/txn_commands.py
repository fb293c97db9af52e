"""The command `delta-orch txn list`."""

from __future__ import annotations

from delta_orch.cli import arguments as take
from delta_orch.cli.arguments import Commands, Target
from delta_orch.cli.output import print_json, print_rows, text_of_time

COMMANDS = Commands()


@COMMANDS.add(*take.VERSION, name="list")
def txn_list(at: Target) -> None:
    """List the application ids the table has recorded, with their last version."""
    state = at.snapshot()
    actions = [action for _, action in sorted(state.txn_actions.items())]
    if at.json:
        print_json([{"app_id": t.app_id, "version": t.version, "last_updated_ms": t.last_updated} for t in actions])
        return
    print_rows(
        ("application id", "version", "last updated"),
        [(t.app_id, t.version, text_of_time(t.last_updated)) for t in actions],
    )
