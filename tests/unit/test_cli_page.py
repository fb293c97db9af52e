"""docs/cli.md, as the site has it, and the README show the commands and options there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import delta_orch.cli.main  # noqa: F401 (it adds the commands)
from delta_orch.cli.app import app
from scripts.site_reference import expanded

ROOT = Path(__file__).parents[2]
PAGE = expanded((ROOT / "docs/cli.md").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMON = {"--json", "--storage-option", "-o"}
COMMANDS = app.commands
OPTION = re.compile(r"--[a-z0-9-]+")


def options_of(command: click.Command) -> set[str]:
    """The options of a command, `--no-…` of switches included."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {name for option in options for name in [*option.opts, *option.secondary_opts]} - COMMON


def test_every_command_is_on_the_page_and_no_other() -> None:
    assert sorted(re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_shown_with_all_its_options(name: str) -> None:
    text = PAGE.partition(f"### `{name}`\n")[2].partition("\n###")[0]
    expected = {option for option in options_of(COMMANDS[name]) if len(option) > 2 and not option.startswith("--no-")}
    listed = {option for line in text.splitlines() if line.startswith("| `") for option in OPTION.findall(line)}
    assert expected <= listed
    assert f"delta-orch {name} " in text
    assert all(option.help for option in COMMANDS[name].params if isinstance(option, click.Option))
    assert COMMANDS[name].help


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_whatever_a_page_shows_exists(page: Path) -> None:
    shown = re.findall(r"(?:`|^|  )delta-orch ([a-z].*?)(?:`|$| {2,})", page.read_text(), re.MULTILINE)
    for text in shown:
        name, *_ = text.split()
        assert name in COMMANDS, text
        options = set(re.findall(r"(?<!\S|\w)\[?(--?[a-z][a-z0-9-]*)", text)) - COMMON - {"--help"}
        assert options <= options_of(COMMANDS[name]), text
