"""A directory that files arrive in, and what a table has of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delta_orch import DeltaTable, FileSource
from delta_orch.errors import TableNotFoundError


class Landing:
    """JSON lines with the columns `id` and `file`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, *ids: int) -> None:
        """A file appears, or is replaced."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"id": n, "file": name}) + "\n" for n in ids))

    def source(self, **how: Any) -> FileSource:
        return FileSource(self.root, **{"format": "json", **how})


def ids_of(where: Path | DeltaTable) -> list[int]:
    """The ids in a table, sorted, as a new reader sees them; none where there is no table."""
    table = DeltaTable(where.uri if isinstance(where, DeltaTable) else where)
    try:
        found: Sequence[int] = table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()
    except TableNotFoundError:
        return []
    return sorted(found)
