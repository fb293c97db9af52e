"""A public method that commits is held against every fault and every other writer, and has its place in the pages. The
command line has every public method. A new one fails here for each place that was forgotten."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from delta_orch import DeltaTable

ROOT = Path(__file__).parents[2]
COMMITTING = ("CommitResult", "UndoResult", "Merge", "Alteration")

VERBS = sorted(
    name
    for name, method in inspect.getmembers(DeltaTable, callable)
    if not name.startswith("_") and getattr(method, "__annotations__", {}).get("return") in COMMITTING
)

FAULTS_ELSEWHERE: dict[str, str] = {}
"""Methods that the fault matrix leaves out, and why."""

NO_PAIR = {
    "remove_domain_metadata": "it writes the same action as set_domain_metadata, whose pairs are there",
    "undo": "a unit that another operation has changed is refused, which test_pipeline_units holds",
    "convert": "it makes version 0, as create does, whose pairs are there",
    "apply_changes": "it is a merge by keys, whose pairs are there; tests/arrival has two at a time",
    "repair": "the other operations cannot read a table that it has something to repair in",
}
"""Methods that the conflict matrix leaves out, and why."""

METHODS = sorted(name for name, _ in inspect.getmembers(DeltaTable, callable) if not name.startswith("_"))

NO_COMMAND = {
    "add_files": "its arguments are a list of files with the partition values of each",
    "apply_changes": "what brings change events is a program",
    "domain_metadata": "`delta-orch snapshot` shows it",
    "exists": "`delta-orch snapshot` says so",
    "last_txn": "`delta-orch txns` lists all of them",
    "quarantine": "it is a table, and the command line has every method for it",
    "remove_domain_metadata": "programs keep their own metadata there",
    "set_domain_metadata": "programs keep their own metadata there",
    "staged": "a program that stages also publishes",
    "staged_writes": "a program that stages also publishes",
    "txns": "`delta-orch txns` reads them from a snapshot",
    "upsert": "MERGE says the same in SQL",
    "version": "`delta-orch snapshot` shows it",
    "wait_for_upkeep": "a command waits for it before it ends",
}
"""Methods that the command line lacks, and why."""


def calls(*files: str) -> set[str]:
    """The names of the methods that a module calls."""
    trees = [ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in files]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)
    }


def test_there_are_verbs() -> None:
    assert {"append", "merge", "alter", "undo", "optimize", "convert"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_fault_matrix_has_it(verb: str) -> None:
    assert (verb in calls("tests/harness/fault_matrix/verbs.py")) != (verb in FAULTS_ELSEWHERE)


@pytest.mark.parametrize("verb", VERBS)
def test_the_conflict_matrix_has_it(verb: str) -> None:
    assert (verb in calls("tests/concurrency/conflict_matrix.py")) != (verb in NO_PAIR)


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_has_it(verb: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert re.search(rf"[.`]{verb}[(`]", pages)


def commands_call() -> set[str]:
    """The methods that a command calls, and those that a statement of `delta-orch sql` stands for."""
    files = (ROOT / "delta_orch" / "cli").glob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    called = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("table", "DeltaTable")
    }
    page = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8").partition("## Other statements")[2]
    methods = re.findall(r"^\| .* \| ([^|]*) \|$", page, re.MULTILINE)
    return called | {name for cell in methods for name in re.findall(r"`(?:DeltaTable\.)?(\w+)(?:\(\))?`", cell)}


@pytest.mark.parametrize("method", METHODS)
def test_the_command_line_has_it(method: str) -> None:
    assert (method in commands_call()) != (method in NO_COMMAND)


def test_the_methods_without_a_command_exist() -> None:
    assert NO_COMMAND.keys() <= set(METHODS)
