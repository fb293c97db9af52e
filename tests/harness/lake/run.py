"""Run the statements of a seed, and hold every table against its model after each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from delta_orch.errors import UnsupportedExpressionError
from delta_orch.verbs import compaction
from tests.harness.lake.checks import check_table
from tests.harness.lake.model import Wrong, bag, ensure_same
from tests.harness.lake.upkeep import WholeLake
from tests.harness.row_multiset import ensure_same_rows

STEPS = 14
Referee = Callable[[Path], pa.Table | None]
"""The rows of a table as another client reads them, None where it refuses the table."""


def check_lake(seed: int, folder: Path, engine: Any = "local", referees: Any = (), steps: int = STEPS) -> list[str]:
    """Returns what became of each statement. Raises Wrong, with the statements so far."""
    with patch.object(compaction, "MIN_FILES", 3):
        return _checked(seed, folder, engine, referees, steps)


def _checked(seed: int, folder: Path, engine: Any, referees: Any, steps: int) -> list[str]:
    lake, told = WholeLake(seed, folder, engine), []
    try:
        for _ in range(steps):
            try:
                found, table = lake.step()
            except UnsupportedExpressionError as error:
                told.append(f"not evaluated: {error}")
                continue
            told.append(found)
            if found == "not here":
                lake.log.pop()
                continue
            check_table(table, lake.rng)
        for table in lake.tables:
            if problems := [p for p in table.table.fsck(deep=True).problems if p.severity == "error"]:
                raise Wrong(f"fsck of {table.path.name}: {problems}")
            if not isinstance(engine, str):
                scan = table.table.snapshot().scan()
                rows = engine.to_arrow(engine.scan(scan.plan())).cast(table.state.schema)
                ensure_same(f"rows of {table.path.name} by the engine", bag(rows), table.state.bag(table.state.rows))
            scan = table.table.snapshot().scan()
            rows = scan.to_arrow()
            ensure_same_rows(scan.to_duckdb().to_arrow_table(), rows)
            if pieces := [task.to_arrow() for task in scan.tasks(1)]:
                ensure_same_rows(pa.concat_tables(pieces), rows)
            for name, referee in dict(referees).items():
                if (theirs := referee(table.path)) is not None:
                    mapped = name == "duckdb" and "delta.columnMapping.mode" in table.properties
                    names = [n for n in rows.column_names if not mapped or n not in table.state.partition_by]
                    try:
                        ensure_same_rows(rows.select(names), theirs.select(names))
                    except AssertionError as error:
                        raise Wrong(f"{table.path.name} by {name}: {error}") from error
    except Exception as error:
        log = "\n".join(f"{i}: {text}" for i, text in enumerate(lake.log))
        raise Wrong(f"{type(error).__name__}: {error}\n{log}") from error
    return told
