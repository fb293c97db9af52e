"""The shape of the package: no import circles, private names stay private, public names are listed, and the map in
CONTRIBUTING.md is that of the tree. The layers are in pyproject.toml, `lint-imports` checks them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "delta_orch").rglob("*.py"))
}
MOST_LINES = 900
WHOLE_CLASSES = {"delta_orch.delta_table": 1_200}
"""Files that hold all of a class that users know, most of it documentation."""
PUBLIC_PACKAGES = ("delta_orch", "delta_orch.airflow", "delta_orch.dagster", "delta_orch.testing")
"""What users import from packages."""
PUBLIC_MODULES = ("delta_orch.delta_table", "delta_orch.variant")
"""What users import from single modules; `delta_orch.errors` is held by tests/unit/test_errors_page.py."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def run_time_nodes(module: str) -> Iterator[ast.AST]:
    """All but what stands below `if TYPE_CHECKING`."""
    left: list[ast.AST] = [tree(module)]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
        else:
            left += ast.iter_child_nodes(node)


def imports_from(module: str, *, typing: bool = False) -> Iterator[tuple[str, str, str]]:
    """What a module imports of the package, in functions, too: the module, the name in it (or nothing), and what it is
    called here."""
    for node in ast.walk(tree(module)) if typing else run_time_nodes(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or "") for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                called = alias.asname or alias.name
                yield (whole, "", called) if whole in MODULES else (node.module, alias.name, called)


def package_of(module: str) -> str:
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: {target for target, _, _ in imports_from(module)} - {module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(" → ".join(reversed(e.args[1])))


def test_no_module_is_long() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {
        module: length for module, length in lengths.items() if length > WHOLE_CLASSES.get(module, MOST_LINES)
    } == {}


def test_what_texts_refer_to_exists() -> None:
    """A module, or a name in it, such as `verbs.delete.delete`."""
    reference = re.compile(r"`((?:change_feed|engines|expressions|log|pipeline|scan|verbs|writing)(?:\.\w+)+)`")
    missing = []
    for module, path in MODULES.items():
        for text in reference.findall(path.read_text()):
            names = f"delta_orch.{text}".split(".")
            home = next(home for end in range(len(names), 0, -1) if (home := ".".join(names[:end])) in MODULES)
            rest = names[home.count(".") + 1 :]
            if len(rest) and not re.search(rf"\b{rest[0]}\b", MODULES[home].read_text()):
                missing.append(f"{module} refers to {text}")
    assert not missing


def test_private_names_are_not_imported_from_other_packages() -> None:
    found = []
    for module in MODULES:
        siblings: dict[str, str] = {}
        for target, name, called in imports_from(module, typing=True):
            is_other = package_of(target) != package_of(module)
            if is_other and (re.match(r"_(?!_)", name) or re.search(r"\._(?!_|version\b)", target)):
                found.append(f"{module}: {target}.{name}")
            if is_other and not name:
                siblings[called] = target
        for node in ast.walk(tree(module)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in siblings
                and re.match(r"_(?!_)", node.attr)
            ):
                found.append(f"{module}: {siblings[node.value.id]}.{node.attr}")
    assert not found


def listed_in(module: str) -> list[str]:
    names = import_module(module).__all__
    assert isinstance(names, list)
    return names


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_public_packages_list_what_they_bring_in(package: str) -> None:
    if package == "delta_orch.airflow":
        pytest.importorskip("airflow", reason="Airflow is not installed")
    if package == "delta_orch.dagster":
        pytest.importorskip("dagster", reason="Dagster is not installed")
    brought = {called for _, name, called in imports_from(package, typing=True) if name}
    listed = listed_in(package)
    assert sorted(listed) == sorted(brought - {"VERSION"})
    for name in listed:
        assert getattr(import_module(package), name) is not None


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_public_modules_list_what_they_define(module: str) -> None:
    defined = {
        node.name
        for node in tree(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }
    assert defined <= set(listed_in(module))


def examples() -> Iterator[tuple[str, str, str]]:
    """Page, module and name of each import of ours on a page for users."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delta_orch"):
                    yield from ((page.name, node.module or "", alias.name) for alias in node.names)


INNER = {
    ("dagster", "checks"): "the rules of asset checks, a module of functions",
    ("spark_source.source", "DeltaOrchSource"): "where Spark does not find it by itself",
    ("spark_source.batches", "write_batches"): "foreachBatch, beside the sink",
    ("spark_source.errors", "explained"): "for errors of Spark's own actions",
    ("spark_source.options", "REDACTION"): "the value of a setting of Spark",
    ("storage.base", "FileMeta"): "for who writes a store",
    ("storage.base", "StagedFile"): "for who writes a store",
    ("storage.local", "LocalStore"): "for who writes a store",
}
"""What the pages import from elsewhere, and why."""


def test_pages_import_public_names_only() -> None:
    public: Mapping[str, set[str]] = {
        **{module: set(listed_in(module)) for module in (*PUBLIC_PACKAGES, *PUBLIC_MODULES)},
        "delta_orch.errors": {n.name for n in tree("delta_orch.errors").body if isinstance(n, ast.ClassDef)},
    }
    named = {(module, name) for _, module, name in examples()}
    inner = {(module.removeprefix("delta_orch."), name) for module, name in named if name not in public.get(module, ())}
    assert inner <= set(INNER)


def test_the_map_is_that_of_the_tree() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## The map")[2].partition("\n## ")[0]
    rooms = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "delta_orch").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or (path.suffix == ".py" and path.name[0] != "_")
    }
    assert sorted(rooms) == sorted(there)
    # Every path the page names, wherever it stands in it, is there.
    (log,) = re.findall(r"^\| `log/` \| (.+) \|$", page, re.MULTILINE)
    for name in re.findall(r"`(\w+/)`", log):
        assert (ROOT / "delta_orch/log" / name).is_dir(), name
    for name in re.findall(r"`([\w/]+/|tests/[\w/.]+)`", page.rpartition("\n| ")[2]):
        assert any((ROOT / place / name).exists() for place in ("", "delta_orch")), name
