"""Each project of `examples/`, copied alone into an empty directory, does what its README says.

The lines of a README that begin with `$` are run, in one shell. The other lines are what the command above them
prints; `…` stands for any text. `pip install` is not run: the tests have an environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
ON_SPARK = {"airflow-spark"}
END = "command-ended-here"


def steps(readme: str) -> list[tuple[str, list[str]]]:
    """Commands, and the lines that each prints."""
    (block,) = re.findall(r"```\n(\$ .*?)```", readme, re.DOTALL)
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def printed(line: str) -> re.Pattern[str]:
    """Matches a line, where `…` is any text."""
    return re.compile(".*?".join(re.escape(part.strip()) for part in line.split("…")))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """As of a new user, whose `PATH` has the commands that the README installs."""
    home = tmp_path / "home"
    home.mkdir()
    names = ("LANG", "JAVA_HOME", "JDK_JAVA_OPTIONS", "TMPDIR")
    return {
        **{name: os.environ[name] for name in names if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONWARNINGS": "ignore",
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "HOME": str(home),
    }


@pytest.mark.timeout(1_200)
@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if name in ON_SPARK else ()) for name in NAMES]
)
def test_it_does_what_its_readme_says(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns("__pycache__", "lake"))
    commands = steps((project / "README.md").read_text())
    # Another server may listen at the port of the README.
    port = str(free_port())
    script = ["exec 2>&1"]
    for command, _ in commands:
        command = command.replace("15002", port).replace(
            "connect.grpc.binding.address=127.0.0.1",
            f"connect.grpc.binding.address=127.0.0.1 --conf spark.connect.grpc.binding.port={port}",
        )
        script += [command, f'echo "{END} $?"']
    script += ["exit 0"]
    # A group of its own, with the server that a README starts: it ends with the test, however that ends.
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, _ = shell.communicate(timeout=1_140)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    outputs = re.split(rf"^{END} ", stdout, flags=re.MULTILINE)
    assert len(outputs) == len(commands) + 1, stdout
    for (command, lines), output, following in zip(commands, outputs, outputs[1:], strict=False):
        status = following.partition("\n")[0]
        assert status == "0", f"{command}\n{output}"
        for line in lines:
            assert printed(line).search(output), f"{command}\nprints no line {line!r}:\n{output}"


@pytest.mark.parametrize("name", NAMES)
def test_it_names_what_it_needs(name: str) -> None:
    """Its own file of requirements, an extra that exists, and a short README."""
    folder = EXAMPLES / name
    if (folder / "pyproject.toml").exists():
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        needed = project["project"]["dependencies"]
        module = project["tool"]["dagster"]["module_name"]
        assert (folder / f"{module.replace('.', '/')}.py").exists()
        assert project["tool"]["dg"]["project"]["root_module"] == module.partition(".")[0]
    else:
        needed = (folder / "requirements.txt").read_text().split()
    (extras,) = re.findall(r"delta-orch\[(.+?)\]", " ".join(needed))
    offered = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(offered)
    prose = re.sub(r"```.*?```", "", (folder / "README.md").read_text(), flags=re.DOTALL)
    assert len(prose.strip().splitlines()) <= 10
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < 10_000


def test_the_index_lists_each_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert set(NAMES) == set(re.findall(r"^\| \[.+?\]\((.+?)\)", text, re.MULTILINE))
