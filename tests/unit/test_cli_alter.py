"""`delta-orch alter …`: one change a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli import alter_commands
from delta_orch.cli.main import run
from delta_orch.protocol import types as t
from delta_orch.verbs.alter.builder import Alteration
from tests.certain import some

START = "alter "
COMMANDS = {
    words.removeprefix(START): command for words, command in alter_commands.COMMANDS.items() if words.startswith(START)
}

Alter = Callable[..., dict[str, Any]]
"""Runs `delta-orch alter`, gives what it prints as JSON."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", None]}))
    return str(tmp_path / "t")


@pytest.fixture
def alter(capsys: pytest.CaptureFixture[str], uri: str) -> Alter:
    def call(command: str, *arguments: object, code: int = 0) -> dict[str, Any]:
        with pytest.raises(SystemExit) as exit:
            run(["alter", command, uri, *map(str, arguments), "--json"])
        told = json.loads(capsys.readouterr().out)
        assert (exit.value.code or 0) == code, told
        answer: dict[str, Any] = told
        return answer

    return call


def test_every_change_has_a_command(alter: Alter, uri: str) -> None:
    mapped = ("delta.columnMapping.mode=name", "delta.enableTypeWidening=true", "note=a=b")
    told = alter("set-properties", *mapped)
    assert (told.pop("operation_metrics"), told) == ({}, {"version": 1, "skipped": False, "dry_run": False})
    assert alter("unset-properties", "note", "nothing", "--if-exists")["version"] == 2
    assert alter("add-column", "s", "struct<a:int>", "--first", "--comment", "why")["version"] == 3
    alter("add-column", "s.b", "string", "--after", "a")
    alter("rename-column", "s.b", "c d")
    alter("move-column", "name", "--first")
    alter("change-type", "id", "bigint")
    alter("set-not-null", "id")
    alter("drop-not-null", "id")
    alter("set-default", "name", "'x'")
    alter("drop-default", "name")
    alter("set-comment", "id", "the key")
    alter("add-constraint", "c", "id > 0")
    alter("drop-constraint", "c")
    assert alter("drop-constraint", "c", "--if-exists")["skipped"]
    alter("drop-feature", "allowColumnDefaults")
    alter("add-feature", "vacuumProtocolCheck")
    alter("upgrade-protocol", "--writer", 2)
    alter("set-description", "d")
    alter("set-name", "n")
    alter("cluster-by", "id")
    alter("cluster-by")
    alter("drop-columns", "s")
    assert alter("drop-columns", "s", "--if-exists")["skipped"]
    assert alter("sync-identity", "id", code=1)["error"]["code"] == "INVALID_REQUEST"
    snapshot = DeltaTable(uri).snapshot()
    assert snapshot.schema.names == ("name", "id")
    assert some(snapshot.schema.find("id")).data_type == t.LONG
    assert (snapshot.metadata.name, snapshot.metadata.description) == ("n", "d")


def test_a_dry_run_tells_the_actions_and_changes_nothing(
    alter: Alter, capsys: pytest.CaptureFixture[str], uri: str
) -> None:
    told = alter("set-not-null", "id", "--dry-run", "--isolation", "Serializable")
    assert (told["version"], told["skipped"], told["dry_run"]) == (1, False, True)
    (info,) = (action["commitInfo"] for action in told["actions"] if "commitInfo" in action)
    assert info["isolationLevel"] == "Serializable"
    assert sum("metaData" in action for action in told["actions"]) == 1
    with pytest.raises(SystemExit):
        run(["alter", "set-not-null", uri, "id", "--dry-run"])
    assert "Version 1 would be committed: 1 commitInfo, 1 metaData" in capsys.readouterr().out
    assert alter("set-not-null", "name", "--dry-run", code=1)["error"]["code"] == "CONSTRAINT_VIOLATION"
    assert alter("set-not-null", "id", "--isolation", "None", code=1)["error"]["code"] == "INVALID_REQUEST"
    assert DeltaTable(uri).version() == 0


def test_every_change_of_the_builder_has_its_command() -> None:
    changes = {name for name in vars(Alteration) if not name.startswith("_")} - {"commit", "preview", "add_columns"}
    named = {name.replace("-", "_") for name in COMMANDS}
    assert changes == {"set_column_comment" if name == "set_comment" else name for name in named}


def test_every_command_takes_what_all_of_them_take() -> None:
    for name, command in COMMANDS.items():
        own = {action.dest for action in command.parser(name)._actions}
        assert {"uri", "isolation_level", "dry_run", "storage_option", "json"} <= own, name
        assert ("engine" in own) == (name in {"set-not-null", "add-constraint", "drop-feature", "sync-identity"})
        assert command.help


def test_what_cannot_be_is_told(alter: Alter, uri: str) -> None:
    assert alter("add-constraint", "c", "name IS NOT NULL", code=1)["error"]["code"] == "CONSTRAINT_VIOLATION"
    assert alter("set-properties", "delta.nope=1", code=1)["error"]["code"] == "INVALID_PROPERTY"
    assert alter("set-properties", "nope", code=2)["error"]["code"] == "USAGE"
    assert alter("drop-columns", "name", code=1)["error"]["code"] == "INVALID_REQUEST"
    assert DeltaTable(uri).version() == 0


def test_people_are_told_in_words(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    for told in ("Version 1 committed", "Nothing to change: version 1 is that way already"):
        with pytest.raises(SystemExit):
            run(["alter", "set-properties", uri, "a=1"])
        assert told in capsys.readouterr().out
