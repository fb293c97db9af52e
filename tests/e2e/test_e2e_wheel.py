"""The wheel: what is in it, and that it works alone, without extras, in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_INDEX = re.compile(r"No matching distribution|Could not find a version|Connection|Temporary failure|Max retries")
FIRST_STEPS = """
import sys, pyarrow as pa
from delta_orch import DeltaTable

table = DeltaTable(sys.argv[1])
table.append(pa.table({"id": [1, 2], "day": ["mon", "tue"]}), partition_by=["day"])
table.append(pa.table({"id": [3], "day": ["tue"]}), txn=("step", 1))
rows = DeltaTable(sys.argv[1]).snapshot().scan(["id"], where="day = 'tue' AND id > 2").to_arrow()
assert rows.to_pylist() == [{"id": 3}]
table.alter().add_constraint("positive", "id > 0").commit()
from delta_orch.testing import build_table
assert build_table("memory://built", pa.table({"id": [1]})).version() == 1
import delta_orch
print(delta_orch.__file__)
"""


def pip(*arguments: object) -> None:
    """pip with the index that is configured; a test skips where none can be reached.

    Without `PYTHONPATH`: the checkout on it holds the metadata of an editable install, which pip takes for installed.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files git knows, as in a fresh clone."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--wheel-dir", built, source)
    (path,) = built.glob("*.whl")
    return path


def test_it_holds_the_package_and_nothing_of_the_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"delta_orch", "pyspark_delta_orch"}
    harness = re.compile(
        r"harness|demo|flights|fuzz|torture|fault_|golden|conformance|emulator|(^|/)tests?(_|/)|conftest"
    )
    assert not [name for name in names if harness.search(name)]
    assert "delta_orch/py.typed" in names
    assert "delta_orch/testing/failing_store.py" in names
    tracked = subprocess.run(["git", "ls-files", "delta_orch"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(tracked.stdout.split()) - set(names) <= {n for n in tracked.stdout.split() if not (ROOT / n).exists()}


@pytest.mark.timeout(900)
def test_it_works_alone_without_extras(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pip("--python", python, "install", "--constraint", ROOT / "constraints.txt", wheel)
    done = subprocess.run(
        [python, "-I", "-c", FIRST_STEPS, str(tmp_path / "table")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    installed = {path.name for path in (tmp_path / "venv").glob("lib/python*/site-packages/*")}
    assert not installed & {"duckdb", "pyspark", "dagster", "airflow", "pandas", "rich", "pydantic"}
    command = [str(tmp_path / "venv/bin/delta-orch"), "snapshot", str(tmp_path / "table"), "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert '"version": 2' in shown.stdout
