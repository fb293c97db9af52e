"""docs/trust.md names tests that exist; what DuckDB spills is for its user alone."""

from __future__ import annotations

import os
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


SPILLING = """
import os, sys
from pathlib import Path
from delta_orch.engines.local.duckdb_session import connect

os.umask(0)

def spilling():
    connection = connect()
    connection.execute("SET memory_limit = '25MB'; SET threads = 1")
    query = "SELECT * FROM (SELECT hash(i)::VARCHAR AS s FROM range(700_000) t(i)) ORDER BY s"
    return connection, connection.execute(query)

def spilled():
    return sorted(str(path) for path in Path(os.environ["TMPDIR"]).glob("*/*"))

if sys.argv[1] == "closes":
    connection, rows = spilling()
    directory, = spilled()
    held = Path(directory) / "held"  # DuckDB 1.5 itself may have nothing there any more
    held.touch()
    assert directory == connection.execute("SELECT current_setting('temp_directory')").fetchone()[0]
    assert oct(os.stat(Path(directory).parent).st_mode & 0o777) == "0o700"
    other, _ = spilling()
    assert len(spilled()) == 2 and directory in spilled()
    other.close()
    child = os.fork()
    if child == 0:
        spilling()[0].close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # Neither another connection nor a child that ends takes away what is in use.
    assert spilled() == [directory]
    held.unlink()
    connection.close()
else:
    child = os.fork()
    if child == 0:
        kept = connect()
        spilling()[0].close()
        kept.execute("SELECT 1")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kept = connect()
    kept.execute("SELECT 1")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "taken"),
    [("closes", None), ("is killed", None), ("closes", "by all"), ("closes", "by a link"), ("closes", "by a file")],
)
def test_spilling_is_private_and_leaves_nothing(tmp_path: Path, end: str, taken: str | None) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    temporary, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    temporary.mkdir()
    elsewhere.mkdir(mode=0o700)
    home = temporary / f"delta-orch-duckdb-{os.getuid()}"
    if taken == "by all":
        home.mkdir()
        home.chmod(0o777)
    elif taken == "by a link":
        home.symlink_to(elsewhere)
    elif taken == "by a file":
        home.touch()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", SPILLING, end], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == (0 if end == "closes" else -9), done.stderr
    assert list(elsewhere.iterdir()) == []
    # What one process makes where the user's own place is taken stays, and is empty.
    assert [path for path in temporary.iterdir() if path != home and taken is None] == []
    assert list(temporary.glob("*/*")) == []
