"""The same verbs on both engines: tests take `rows`, which turns Arrow into the engine's values and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.delta_table import TableSnapshot
from delta_orch.engines.select import spark_engine
from delta_orch.expressions.nodes import Expression


@dataclass(frozen=True)
class EngineRows:
    """Rows on one engine."""

    engine: str
    spark: Any = None

    def data(self, table: pa.Table) -> Any:
        """A value whose type selects the engine."""
        return table if self.spark is None else self.spark.createDataFrame(table)

    def read(
        self,
        source: DeltaTable | TableSnapshot,
        columns: Sequence[str] | None = None,
        where: str | Expression | None = None,
    ) -> pa.Table:
        """The rows of a table or snapshot, sorted by all columns."""
        snapshot = source.snapshot() if isinstance(source, DeltaTable) else source
        scan = snapshot.scan(columns, where)
        read = scan.to_arrow() if self.spark is None else self.collect(scan.to_spark(self.spark))
        return read.sort_by([(name, "ascending") for name in read.column_names])

    def collect(self, frame: Any) -> pa.Table:
        """A DataFrame's rows; what goes wrong becomes our own error only inside an engine."""
        return spark_engine(self.spark).to_arrow(frame)

    def pylist(self, source: DeltaTable | TableSnapshot, **scan: Any) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.read(source, **scan).to_pylist()
        return answer


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def rows(request: pytest.FixtureRequest) -> EngineRows:
    if request.param == "local":
        return EngineRows("local")
    return EngineRows("spark", request.getfixturevalue("spark"))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """A table that does not exist yet."""
    return DeltaTable(tmp_path / "table")


def days(*days_and_ids: tuple[str | None, int]) -> pa.Table:
    """Rows (day string, id long, value double), the value derived from the id."""
    return pa.table(
        {
            "day": pa.array([d for d, _ in days_and_ids], pa.string()),
            "id": pa.array([i for _, i in days_and_ids], pa.int64()),
            "value": pa.array([i / 2 for _, i in days_and_ids], pa.float64()),
        }
    )


@pytest.fixture(name="days")
def _days() -> Any:
    return days


@pytest.fixture
def ids(rows: EngineRows) -> Any:
    """The ids in a table, by day."""

    def read(source: DeltaTable | TableSnapshot) -> dict[str | None, list[int]]:
        found: dict[str | None, list[int]] = {}
        for row in sorted(rows.pylist(source), key=lambda r: r["id"]):
            found.setdefault(row["day"], []).append(row["id"])
        return found

    return read
