"""docs/trust.md names tests that exist; what DuckDB spills is for its user alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_test_named_exists() -> None:
    named = re.findall(r"`(tests/[\w./]+\.py)`", (ROOT / "docs" / "trust.md").read_text())
    assert len(named) > 15
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_spilling_is_private_and_ends_with_the_process() -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    code = (
        "from delta_orch.engines.local.duckdb_session import connect\n"
        "c = connect(); assert connect() is not c\n"
        "print(c.execute(\"select current_setting('temp_directory')\").fetchone()[0])\n"
        "import os, sys\n"
        "d = c.execute(\"select current_setting('temp_directory')\").fetchone()[0]\n"
        "assert oct(os.stat(d).st_mode & 0o777) == '0o700', oct(os.stat(d).st_mode)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    connect(); sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert os.path.isdir(d)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    directory = done.stdout.split()[0]
    assert not Path(directory).exists()
