"""Processes that upsert different keys into the same files: uniting deletion vectors is enough for all of them.

The full form is `python -m tests.harness.upserts DIRECTORY` (eight processes, fifty upserts each).
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.upserts import run


def test_no_statement_is_run_again(tmp_path: Path) -> None:
    found = run(str(tmp_path / "t"), processes=3, upserts=6)
    assert found.statements == 18
