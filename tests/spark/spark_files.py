"""A table directory without a log: files in, files out."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.protocol.types import StructType
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store

SPARK_RELEASE = tuple(map(int, version("pyspark").split(".")[:2]))
on_every_session = pytest.mark.parametrize("engine", ["classic", "connect", "portable"], indirect=True)
needs_streams = pytest.mark.skipif(SPARK_RELEASE < (4, 2), reason="Python sources of streams need Spark 4.2")


class Files:
    """A directory in which an engine writes and scans."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: LogStore = open_store(str(root))

    def write(
        self, engine: SparkEngine, value: Any, *, partition_by: tuple[str, ...] = (), **spec: Any
    ) -> tuple[pa.Table, StructType]:
        """Write a value; its adds and its schema."""
        relation = engine.relation(value)
        schema = spec.pop("schema", None) or engine.schema(relation)
        return engine.write(relation, WriteSpec(self.store, schema, partition_by, **spec)), schema

    def scan(
        self, engine: SparkEngine, adds: pa.Table, schema: StructType, partition_by: tuple[str, ...] = (), **plan: Any
    ) -> Any:
        return engine.scan(ScanPlan(self.store, schema, partition_by, adds, **plan))


def rows_of(table: pa.Table, *sort_by: str) -> list[dict[str, Any]]:
    """Rows as dicts, sorted by the columns given."""
    ordered = table.sort_by([(name, "ascending") for name in sort_by]) if sort_by else table
    rows: list[dict[str, Any]] = ordered.to_pylist()
    return rows
