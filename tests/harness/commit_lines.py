"""The lines of a commit as they are on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson


def adds(table: Path, version: int) -> list[Any]:
    """The `add` actions of a commit, as parsed JSON."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_bytes().splitlines()
    return [action["add"] for line in lines if "add" in (action := orjson.loads(line))]
