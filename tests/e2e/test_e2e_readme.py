"""The examples of the README and of docs/python.md run as they stand there, each in a process of its own."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run as cli

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    code
    for page in ("README.md", "docs/python.md")
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
]

COMMANDS = (
    "snapshot URI --version 1",
    "history URI",
    "txns URI",
    "units URI",
    "show URI --limit 20 --where 'id > 1'",
    "files URI",
    "checksum URI",
    "read URI --output rows.parquet",
    "optimize URI",
    "checkpoint URI",
    "changes URI --from 1 --output c.parquet",
    "vacuum URI --dry-run",
    "explain URI --where \"day = 'tue'\"",
    "fsck URI --check",
    "compact-log URI",
    "cleanup-log URI --dry-run",
    "restore URI --version 0 --dry-run",
)
"""Commands that need no other table and no run."""

MATERIALIZE_TWICE = """
for _ in range(2):
    assert dg.materialize([visits], resources=defs.resources, partition_key="2026-01-02").success
assert dg.materialize([visits], resources=defs.resources, partition_key="2026-01-03").success
"""


def run(code: str, cwd: Path, **environment: str) -> None:
    path = cwd / "example.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def example(marker: str) -> str:
    found = [code for code in EXAMPLES if marker in code]
    assert len(found) == 1, f"one example with {marker!r} was expected, found {len(found)}"
    answer: str = found[0]
    return answer


def lines_of_code(code: str) -> int:
    return sum(1 for line in code.splitlines() if line.strip())


def test_the_dagster_example(tmp_path: Path) -> None:
    code = example("DeltaLakeIOManager")
    assert lines_of_code(code) <= 10
    run(code + MATERIALIZE_TWICE, tmp_path)
    rows = DeltaTable(tmp_path / "build/readme/visits").snapshot().scan().to_arrow()
    assert sorted(rows["day"].to_pylist()) == ["2026-01-02", "2026-01-03"]


def test_the_airflow_example(tmp_path: Path) -> None:
    code = example("task.delta")
    assert lines_of_code(code) <= 10
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "visits.py").write_text(code.replace("/tmp/visits", str(tmp_path / "visits")))
    environment = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    twice = [["dags", "test", "visits", "2026-01-02"]] * 2
    commands = [["db", "migrate"], ["dags", "reserialize"], *twice]
    run(
        "import subprocess\n" + "".join(f"subprocess.run(['airflow', *{c}], check=True)\n" for c in commands),
        tmp_path,
        **environment,
    )
    assert DeltaTable(tmp_path / "visits").snapshot().scan().to_arrow()["day"].to_pylist() == ["2026-01-02"]


def test_the_table_example(tmp_path: Path) -> None:
    check = 'assert rows["id"].to_pylist() == [9] and changed_days["day"].to_pylist() == ["tue"]\n'
    run(example("import DeltaTable") + check, tmp_path)
    assert DeltaTable(tmp_path / "build/readme/events").snapshot().num_files == 2


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    table = DeltaTable("table")
    table.append(pa.table({"id": [1, 2], "day": ["mon", "tue"]}), partition_by=["day"], txn=("loader", 1))
    table.append(pa.table({"id": [3], "day": ["mon"]}))
    for command in COMMANDS:
        arguments = shlex.split(command.replace("URI", "table"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli([*arguments, "--json"])
        assert not ended.value.code, command
        assert json.loads(capsys.readouterr().out) is not None
