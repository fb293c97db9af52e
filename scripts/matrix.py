"""Runs the tests with the versions that `pyproject.toml` admits: the oldest, the newest and some between.

    python scripts/matrix.py                     # every cell
    python scripts/matrix.py oldest spark-4.0    # the cells whose names begin so
    python scripts/matrix.py --list

Each cell has an environment of its own, `.venv/matrix/<cell>`, which later runs use again. A cell whose Python or Java
this machine does not have is skipped, and the table at the end says so. The exit status is 1 if a cell failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv" / "matrix"
CORE = ("tests/unit", "tests/protocol", "tests/verbs", "tests/property", "tests/conformance")
"""Tests that need no orchestrator. Those that need Spark skip where it is not installed."""

SPARK = ("tests/spark",)
DAGSTER = ("tests/dagster",)
AIRFLOW = ("tests/airflow",)
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
FRAMES = ("pandas", "polars", "deltalake")
_OWN_TREE = ("test_benchmarks.py", "test_house.py", "test_import_budget.py", "test_supply_chain.py")
"""What these say depends on the pinned versions, or on tools that only they need."""


@dataclass(frozen=True)
class Cell:
    """A Python, the versions that are asked for beside the newest, and what is run with them."""

    name: str
    python: str
    extras: str
    tests: tuple[str, ...]
    versions: tuple[str, ...] = ()
    oldest: tuple[str, ...] = ()
    """Packages that are installed in the oldest version that `pyproject.toml` admits."""
    java: str = ""


_BELOW_AIRFLOW_3_0 = (
    "cadwyn==5.4.*", "fastapi==0.117.*", "pydantic==2.11.*", "svcs==25.*", "universal-pathlib==0.2.*"
)  # fmt: skip
_BELOW_AIRFLOW_3_2 = ("cadwyn==7.0.*", "fastapi==0.136.*", "pydantic==2.12.*", "svcs==25.*")
_OLD_CORE = ("click", "fsspec", "numpy", "orjson", "pyarrow", "pyroaring", "duckdb")

CELLS = (
    Cell("oldest", "3.11", "local", CORE, oldest=(*_OLD_CORE, "pandas", "polars")),
    Cell("python-3.12", "3.12", "local", CORE),
    Cell("python-3.13", "3.13", "local", CORE),
    Cell("python-3.14", "3.14", "local", CORE),
    Cell("spark-4.0", "3.11", "local,spark,s3,gcs,azure", SPARK, oldest=("pyspark", "pandas")),
    Cell("spark-4.1", "3.12", "local,spark,s3,gcs,azure", SPARK, versions=("pyspark==4.1.*",)),
    Cell("spark-4.2", "3.12", "local,spark,s3,gcs,azure", SPARK, versions=("pyspark==4.2.*",)),
    Cell("spark-newest", "3.13", "local,spark,s3,gcs,azure", SPARK),
    Cell("java-21", "3.11", "local,spark,s3,gcs,azure", SPARK, java="21"),
    Cell("dagster-oldest", "3.11", "local,dagster,s3", DAGSTER, oldest=("dagster",)),
    Cell("dagster-1.13", "3.12", "local,dagster,s3", DAGSTER, ("dagster==1.13.10", "dagster-webserver==1.13.10")),
    Cell("dagster-newest", "3.13", "local,dagster,s3", DAGSTER),
    # Airflow before 3.3 does not run with the newest releases of the libraries below it.
    Cell("airflow-oldest", "3.11", "local,airflow", AIRFLOW, _BELOW_AIRFLOW_3_0, oldest=("apache-airflow", "sqlglot")),
    Cell("airflow-3.1", "3.11", "local,airflow", AIRFLOW, ("apache-airflow==3.1.*", "pydantic==2.12.*", "svcs==25.*")),
    Cell("airflow-3.2", "3.11", "local,airflow", AIRFLOW, ("apache-airflow==3.2.*", *_BELOW_AIRFLOW_3_2)),
    Cell("airflow-newest", "3.13", "local,airflow", AIRFLOW),
)


def lower_bounds() -> dict[str, str]:
    """The oldest version of each package that `pyproject.toml` admits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    found = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", line) for line in lines)
    return {bound[1]: bound[2] for bound in found if bound is not None}


def python_of(version: str) -> Path | None:
    """The interpreter of a version: from the search path, or from pyenv. None if there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    for candidate in [*sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True), *([Path(named)] if named else [])]:
        answer = subprocess.run([candidate, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"],
                                capture_output=True, text=True, check=False)  # fmt: skip
        if answer.stdout.strip() == version:
            return candidate
    return None


def java_of(version: str) -> Path | None:
    """The home of a Java of that release or a newer one, the nearest first."""
    releases = {}
    for home in Path("/usr/lib/jvm").glob("*"):
        number = re.search(r"(?:java-1\.|jdk-|java-|openjdk-)(\d+)", home.name)
        if number and int(number[1]) >= int(version) and (home / "bin" / "java").exists():
            releases[int(number[1])] = home
    return releases[min(releases)] if releases else None


def install(cell: Cell, python: Path) -> Path:
    """The cell's environment, made where it is missing or another one is asked for."""
    home = HOME / cell.name
    bounds = lower_bounds()
    packages = [*TOOLS, *FRAMES]
    if cell.tests == SPARK:
        packages.append("pyspark[connect]")
    if cell.tests == AIRFLOW:
        packages.append("apache-airflow-providers-openlineage")  # Without it the tests of its facets skip.
    wanted = [*cell.versions, *(f"{name}=={bounds[name]}" for name in cell.oldest)]
    stamp = home / ".installed"
    told = "\n".join([str(python), (ROOT / "pyproject.toml").read_text(encoding="utf-8"), *packages, *wanted])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == told:
        return home / "bin" / "python"
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", home], check=True)
    # A constraint binds what the frames bring in, too.
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(wanted), encoding="utf-8")
    subprocess.run(
        [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--constraint", constraints, "--editable", f".[{cell.extras}]", *packages],
        cwd=ROOT, check=True,
    )  # fmt: skip
    stamp.write_text(told, encoding="utf-8")
    return home / "bin" / "python"


def run(cell: Cell, arguments: Sequence[str]) -> str:
    """What became of a cell, in a few words. The words of a failure begin with FAILED."""
    python = python_of(cell.python)
    if python is None:
        return f"skipped: there is no Python {cell.python}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cell.java:
        java = java_of(cell.java)
        if java is None:
            return f"skipped: there is no Java {cell.java} or newer"
        environment |= {"JAVA_HOME": str(java), "PATH": f"{java / 'bin'}{os.pathsep}{environment['PATH']}"}
    try:
        interpreter = install(cell, python)
    except subprocess.CalledProcessError:
        return "FAILED: its packages cannot be installed together"
    ignored = [f"--ignore=tests/unit/{name}" for name in _OWN_TREE]
    # Releases warn of different things. The pinned ones must not warn at all: `make test` sees to it.
    options = ["-q", "-p", "no:cacheprovider", "-W", "default"]
    done = subprocess.run(
        [interpreter, "-m", "pytest", *options, *cell.tests, *ignored, *arguments],
        cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    (HOME / f"{cell.name}.log").write_text(done.stdout, encoding="utf-8")
    last = done.stdout.strip().splitlines()[-1].strip("= ") if done.stdout.strip() else "no output"
    return last if done.returncode == 0 else f"FAILED: {last} (.venv/matrix/{cell.name}.log)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help="beginnings of names of cells")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--pytest", default="", help="further arguments of pytest, in one text")
    told = parser.parse_args()
    chosen = [cell for cell in CELLS if not told.cells or cell.name.startswith(tuple(told.cells))]
    if told.list:
        for cell in chosen:
            oldest = ", ".join(f"oldest {name}" for name in cell.oldest)
            print(
                f"{cell.name:16} Python {cell.python}  {', '.join(filter(None, [*cell.versions, oldest])) or 'newest'}"
            )
        return 0
    HOME.mkdir(parents=True, exist_ok=True)
    results = {}
    for cell in chosen:
        began = time.monotonic()
        results[cell.name] = run(cell, told.pytest.split())
        print(f"{cell.name:16} {time.monotonic() - began:6.0f} s  {results[cell.name]}", flush=True)
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
