"""Scaffolds every component with the `dg` command in an empty project, and checks what it wrote.

    python scripts/components.py

`dg` is installed in an environment of its own, `.venv/dg`, in the release of Dagster that `constraints.txt` names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv" / "dg"
COMPONENTS = {
    "DeltaTablesComponent": "tables",
    "DeltaIncrementalComponent": "daily",
    "DeltaMaintenanceComponent": "upkeep",
}
PROJECT = """
[project]
name = "lake"
version = "0.1.0"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "lake"
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def install() -> Path:
    """The folder of the environment's commands."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    release = re.search(r"^dagster==(\S+)", constraints, re.MULTILINE)
    assert release is not None
    wanted = f"dagster-dg-cli=={release[1]}"
    stamp = HOME / ".installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        pip = [HOME / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, *pinned, wanted, "--editable", f"{ROOT}[local,dagster]"], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return HOME / "bin"


def main() -> None:
    commands = install()
    with tempfile.TemporaryDirectory() as folder:
        project, package = Path(folder), Path(folder) / "src" / "lake"
        (package / "defs").mkdir(parents=True)
        for name, text in {
            project / "pyproject.toml": PROJECT,
            package / "definitions.py": DEFINITIONS,
            package / "__init__.py": "",
            package / "defs" / "__init__.py": "",
        }.items():
            name.write_text(text, encoding="utf-8")
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(project / "src"), "DAGSTER_DISABLE_TELEMETRY": "1"}
        environment.pop("VIRTUAL_ENV", None)
        scaffolds = [["scaffold", "defs", f"delta_orch.dagster.{name}", to] for name, to in COMPONENTS.items()]
        for command in [*scaffolds, ["check", "yaml"], ["check", "defs"]]:
            subprocess.run([commands / "dg", *command], cwd=project, env=environment, check=True)


if __name__ == "__main__":
    main()
