"""docs/cli.md and the README show the commands and options there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import delta_orch.cli.main  # noqa: F401 (it adds the commands)
from delta_orch.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cli.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMON = {"--json", "--storage-option", "-o"}
COMMANDS = app.commands


def options_of(command: click.Command) -> set[str]:
    """The options of a command, `--no-…` of switches included."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {name for option in options for name in [*option.opts, *option.secondary_opts]} - COMMON


def rows() -> list[str]:
    return [text.replace("\\|", "|") for text in re.findall(r"^\| `delta-orch (.+?)` \|", PAGE, re.MULTILINE)]


def test_every_command_is_on_the_page_and_no_other() -> None:
    assert sorted(row.split()[0] for row in rows()) == sorted(COMMANDS)


@pytest.mark.parametrize("row", rows())
def test_a_command_is_shown_with_all_its_options(row: str) -> None:
    command = COMMANDS[row.split()[0]]
    expected = {name for name in options_of(command) if len(name) > 2 and not name.startswith("--no-")}
    assert set(re.findall(r"--[a-z0-9-]+", row)) == expected
    arguments = [argument for argument in command.params if isinstance(argument, click.Argument)]
    assert len(re.sub(r"\[.*?\]|--output FILE|--format \S+", "", row).split()) - 1 == len(arguments)
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert command.help


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_whatever_a_page_shows_exists(page: Path) -> None:
    shown = re.findall(r"(?:`|^|  )delta-orch ([a-z].*?)(?:`|$| {2,})", page.read_text(), re.MULTILINE)
    for text in shown:
        name, *_ = text.split()
        assert name in COMMANDS, text
        options = set(re.findall(r"(?<!\S|\w)\[?(--?[a-z][a-z0-9-]*)", text)) - COMMON - {"--help"}
        assert options <= options_of(COMMANDS[name]), text
