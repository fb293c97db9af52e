"""docs/cli.md and the README show the commands and options there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delta_orch.cli.arguments import Command
from delta_orch.cli.main import all_commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cli.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMON = {"--json", "--storage-option", "-o"}
OF_ALL_CHANGES = {"--isolation", "--dry-run"}


COMMANDS = dict(all_commands())


def options_of(command: Command) -> set[str]:
    """The options of a command as its own parser has them, `--no-…` of switches included."""
    parser = command.parser("it")
    return {name for action in parser._actions for name in action.option_strings} - COMMON - {"-h", "--help"}


def rows() -> list[str]:
    return [text.replace("\\|", "|") for text in re.findall(r"^\| `delta-orch (.+?)` \|", PAGE, re.MULTILINE)]


def words_before_uri(row: str) -> tuple[str, ...]:
    return tuple(re.split(" URI| STATEMENT", row)[0].split())


def test_every_command_is_on_the_page_and_no_other() -> None:
    shown = [words_before_uri(row) for row in rows()]
    assert sorted(shown) == sorted([*COMMANDS, ("alter", "CHANGE")])


@pytest.mark.parametrize("row", rows())
def test_a_command_is_shown_with_all_its_options(row: str) -> None:
    words = words_before_uri(row)
    if words == ("alter", "CHANGE"):
        return
    command = COMMANDS[words]
    expected = {name for name in options_of(command) if len(name) > 2 and not name.startswith("--no-")}
    if words[0] == "alter":
        expected -= OF_ALL_CHANGES
    assert set(re.findall(r"--[a-z0-9-]+", row)) == expected
    required = [p for p in (command.first, *command.arguments) if not p.names[0].startswith("-")]
    assert len(re.sub(r"\[.*?\]|--output FILE|--set COLUMN=SQL", "", row).split()) - len(words) == len(required)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_whatever_a_page_shows_exists(page: Path) -> None:
    shown = re.findall(r"(?:`|^|  )delta-orch ([a-z].*?)(?:`|$| {2,})", page.read_text(), re.MULTILINE)
    for text in shown:
        words = tuple(text.split())
        found = next((COMMANDS[words[:n]] for n in (2, 1) if words[:n] in COMMANDS), None)
        if found is None:
            assert any(known[:1] == words[:1] for known in [*COMMANDS, ("demo",)]), text
            continue
        options = set(re.findall(r"(?<!\S|\w)\[?(--?[a-z][a-z0-9-]*)", text)) - COMMON - {"--help"}
        assert options <= options_of(found), text
