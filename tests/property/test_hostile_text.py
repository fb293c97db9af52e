"""Text that a stranger chose stays text: in a terminal, in a log, in Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import DeltaError
from delta_orch.table.column_definitions import column

FORGED = "2026-01-01 INFO forged"
NASTY = f"x\x1b[2J\x1b]8;;http://h.invalid\x07\x9b31m\u202e\r\n{FORGED}\u2028{FORGED}[red]|<b>&"
"""Clears the screen, makes a link, turns the direction of text, and begins a line of its own."""

PIECES = [*"ab |\\`*_[]()<>!#&;:/.~-=\n\r\t\x1b\u2028\u202e\0", "www.", "http://x.y", "&lt;", "&#60;"]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


def is_plain(shown: str) -> bool:
    """Whether nothing steers the terminal, and no line is forged."""
    return all(c.isprintable() or c == "\n" for c in shown) and not re.search(f"^{FORGED}", shown, re.MULTILINE)


@pytest.mark.long
@given(TEXTS, TEXTS, TEXTS)
def test_each_part_of_a_message_is_one_line(problem: str, cause: str, remedy: str) -> None:
    lines = str(DeltaError(problem, cause=cause, remedy=remedy)).split("\n")
    assert len(lines) <= 3
    # A tab is all that is left.
    assert all(line.replace("\t", "").isprintable() for line in lines)


@given(TEXTS)
def test_a_value_in_markdown_is_text(value: str) -> None:
    """By a parser of what Dagster's pages render: GitHub's Markdown."""
    pytest.importorskip("dagster", reason="Dagster is not installed")
    parser = pytest.importorskip("markdown_it", reason="no parser of Markdown").MarkdownIt("gfm-like")
    from delta_orch.dagster.metadata import markdown_text

    page = parser.render(f"| a | b |\n|---|---|\n| {markdown_text(value)} | end |")
    cells = re.findall("<td>(.*?)</td>", page)
    assert len(cells) == 2, page
    wanted = "".join(c if c.isprintable() else " " for c in value)
    assert html.unescape(cells[0]).strip() == wanted.strip()
    assert "<" not in cells[0]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table in which a stranger chose every text."""
    root = tmp_path_factory.mktemp("hostile") / "t"
    table = DeltaTable(root)
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.feature.domainMetadata": "supported",
        f"mine{NASTY}": NASTY,
    }
    columns = [column("id", "long"), column(NASTY, "string", comment=NASTY), column("day", "string")]
    table.create(columns, partition_by=["day"], properties=properties, name=NASTY, description=NASTY)
    rows = pa.table({"id": [1, 2], NASTY: [NASTY, "y"], "day": [NASTY, "b"]})
    table.append(
        rows, user_metadata=NASTY, commit_info={"notebook": {"notebookId": NASTY}, "mine": NASTY}, txn=(NASTY, 1)
    )
    table.set_domain_metadata(NASTY, NASTY)
    table.overwrite(rows)
    (root / f"{NASTY.replace('/', '')}.parquet").write_bytes(b"PAR1")
    (root / "_delta_log" / f"{2:020d}.{3:020d}.compacted.json").write_text(NASTY)
    return str(root)


READS: list[Callable[[str], list[str]]] = [
    lambda t: ["snapshot", t],
    lambda t: ["history", t],
    lambda t: ["files", t],
    lambda t: ["show", t],
    lambda t: ["show", t, "--where", f"day = '{NASTY}'"],
    lambda t: ["show", t, "--where", NASTY],
    lambda t: ["show", t, "--columns", NASTY],
    lambda t: ["txns", t],
    lambda t: ["fsck", t],
    lambda t: ["changes", t],
    lambda t: ["explain", t, "--where", "id > 0"],
    lambda t: ["vacuum", t, "--dry-run", "--retention-hours", "0", "--force"],
    lambda t: [NASTY, t],
    lambda t: ["snapshot", f"{t}{NASTY}"],
]


@pytest.mark.parametrize("command", READS)
def test_nothing_of_a_table_steers_the_terminal(
    hostile: str, command: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(command(hostile))
    shown = capsys.readouterr()
    assert shown.out or shown.err
    assert is_plain(shown.out), shown.out
    assert is_plain(shown.err), shown.err
