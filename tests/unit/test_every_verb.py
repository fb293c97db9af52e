"""A public method that commits is held against every fault and every other writer, and has its place in the pages. The
command line has every public method. A new one fails here for each place that was forgotten."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from delta_orch import DeltaTable
from delta_orch.delta_table import TableSnapshot

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


NO_VERSION = {
    "add_files": "it reads files, not rows of a version",
    "alter": "a version that is not the newest is refused",
    "clone": "it makes another table: `DeltaTable.clone` takes a version",
    "convert": "there is no version yet",
    "create": "there is no version yet",
    "create_or_replace": "it takes nothing from the table",
    "optimize": "it changes no rows",
    "purge": "it changes no rows",
    "remove_domain_metadata": "it changes no rows",
    "repair": "it is about files that are gone",
    "restore": "it takes a version itself",
    "set_domain_metadata": "it changes no rows",
    "undo": "it is about the newest rows of a unit",
}
"""Methods that `TableSnapshot` lacks, and why."""


def calls(file: str) -> set[str]:
    """The names of the methods that the tables of a module call, themselves or by functions of the module."""
    module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    left: list[ast.AST] = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    found: set[str] = set()
    seen: set[str] = set()
    while left:
        for node in ast.walk(left.pop()):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and node.id not in functions:
                found.add(node.id)
            elif isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                left.append(functions[node.id])
    return found


def ensure_one(verb: str, has_it: bool, reasons: dict[str, str], place: str) -> None:
    assert has_it or verb in reasons, f"{place} lacks {verb!r}. Add it there, or say why not in {__name__}"
    assert not (has_it and verb in reasons), f"{place} has {verb!r}, and the reason why it has not is still here"


def test_there_are_verbs() -> None:
    assert {"append", "merge", "alter", "undo", "optimize", "convert"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_fault_matrix_has_it(verb: str) -> None:
    file = "tests/harness/fault_matrix/verbs.py"
    ensure_one(verb, verb in calls(file), FAULTS_ELSEWHERE, f"VERBS of {file}")


@pytest.mark.parametrize("verb", VERBS)
def test_the_conflict_matrix_has_it(verb: str) -> None:
    file = "tests/concurrency/conflict_matrix.py"
    ensure_one(verb, verb in calls(file), NO_PAIR, f"A table of {file}")


@pytest.mark.parametrize("verb", VERBS)
def test_a_snapshot_has_it(verb: str) -> None:
    ensure_one(verb, hasattr(TableSnapshot, verb), NO_VERSION, "TableSnapshot (by _RowWrites)")


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_has_it(verb: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    ensure_one(verb, re.search(rf"[.`]{verb}[(`]", pages) is not None, {}, "docs/")


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
    ensure_one(method, method in commands_call(), NO_COMMAND, "delta_orch/cli")


def test_the_methods_without_a_command_exist() -> None:
    assert NO_COMMAND.keys() <= set(METHODS)
