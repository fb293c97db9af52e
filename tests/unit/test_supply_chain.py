"""Dependencies are known, pinned and listed; nothing of a table or a log becomes an object or code."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
_MAKES_OBJECTS = {
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "dill": {"load", "loads"},
    "cloudpickle": {"load", "loads"},
    "joblib": {"load"},
    "yaml": {"load", "unsafe_load", "full_load"},
    "builtins": {"eval", "exec", "compile", "__import__"},
}
# What the driver and its own tasks send each other through Spark.
_UNPICKLES = {
    "delta_orch/engines/spark/in_tasks.py",
    "delta_orch/spark_source/on_workers.py",
    "delta_orch/spark_source/writer.py",
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply_chain", ROOT / "scripts" / "supply_chain.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _makes_objects(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in node.keywords):
        return True
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in _MAKES_OBJECTS["builtins"]
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Name) and function.attr in _MAKES_OBJECTS.get(owner.id, ())  # type: ignore[attr-defined]


def test_nothing_is_unpickled_or_evaluated() -> None:
    found = set()
    for path in (ROOT / "delta_orch").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
        assert not any(f"{module}.{name}" in names for module, all_ in _MAKES_OBJECTS.items() for name in all_), path
        if any(_makes_objects(node) for node in ast.walk(tree)):
            found.add(str(path.relative_to(ROOT)))
    assert found == _UNPICKLES


def test_the_bill_of_materials(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.main(["sbom", str(tmp_path / "a" / "sbom.json")]) == 0
    bill = json.loads((tmp_path / "a" / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = {tool.canonicalize_name(component["name"]) for component in bill["components"]}
    # Those of extras, too, and what an extra of a dependency brings.
    assert {*tool.direct(), "grpcio"} <= names and "pytest" not in names
    assert all(component["licenses"][0]["license"]["name"] for component in bill["components"])


def test_what_is_installed_is_what_is_pinned(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.audit() == 0, capsys.readouterr().out
    assert "SKIPPED: known vulnerabilities" in capsys.readouterr().out
    monkeypatch.setattr(tool, "pins", lambda: {"pyarrow": "1.0"})
    assert tool.audit() == 1


def test_the_page_lists_every_direct_dependency(tool: ModuleType) -> None:
    rows = re.findall(r"^\| ([\w-]+) \| (\w+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    listed = {name: (extra, said) for name, extra, said in rows if name != "dependency"}
    expected = {name: extra or "always" for name, extra in tool.direct().items()}
    assert {name: extra for name, (extra, _) in listed.items()} == expected
    for name, (_, said) in listed.items():
        assert said == tool.license_of(sys.modules["importlib.metadata"].distribution(name)), name


def test_the_page_of_releases_tells_every_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    lines = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    bounds = {re.sub(r"\[.*?\]|,.*", "", line) for line in lines}
    page = (ROOT / "docs/releases.md").read_text()
    assert set(re.findall(r"`([\w-]+>=[\d.]+)`", page)) == bounds
    oldest, end = re.findall(r"3\.\d+", project["requires-python"])
    assert f"Python {oldest} to 3.{int(end.partition('.')[2]) - 1}." in page
    assert [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.", c)] == [
        f"3.{minor}" for minor in range(int(oldest.partition(".")[2]), int(end.partition(".")[2]))
    ]
