"""What a merge takes its rows from, as a relation that gives the same rows however often it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from delta_orch.change_feed.change_feed import ChangeFeed, LatestChanges
from delta_orch.engines.base import Engine, Relation
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.scan.scan import Scan

_SETTLED = {"pandas.DataFrame", "polars.DataFrame"}


@contextmanager
def settled(engine: Engine, source: object, rows: Relation) -> Iterator[Relation]:
    """The source's rows, evaluated once where they might not be the same a second time: a stream, a query of DuckDB, a
    lazy frame, a DataFrame of Spark, which may read files that change or hold `rand()`."""
    if _is_settled(source):
        yield rows
        return
    with engine.evaluated(rows) as evaluated:
        yield evaluated


def _is_settled(source: object) -> bool:
    if isinstance(getattr(source, "log", None), TableLog):
        return True
    if isinstance(source, pa.Table | pa.RecordBatch | Snapshot | Scan | ChangeFeed | LatestChanges):
        return True
    names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    return not names.isdisjoint(_SETTLED)
