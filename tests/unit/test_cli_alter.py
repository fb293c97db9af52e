"""`delta-orch alter …`: one change a command."""

from __future__ import annotations


def test_every_command_takes_what_all_of_them_take() -> None:
    for command in alter_app.registered_commands:
        own = signature(command.callback).parameters
        assert {"uri", "isolation", "dry_run", "storage_option", "json"} <= set(own), command.callback
        moves_rows = command.callback.__name__ in {"set_not_null", "add_constraint", "drop_feature"}
        assert ("engine" in own) == moves_rows
        assert command.callback.__doc__
