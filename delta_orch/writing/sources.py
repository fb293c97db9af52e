"""What a write takes its rows from beside data: tables, versions of them, scans, change feeds."""

from __future__ import annotations

from delta_orch.change_feed.change_feed import ChangeFeed, LatestChanges
from delta_orch.engines.base import Engine, Relation
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.scan.scan import Scan


def open_source(engine: Engine, source: object) -> Relation:
    """The source's rows, lazily: data as an append takes it, a table, a version of one, a scan, or a change feed.

    Raises:
        InvalidRequestError: Another value.
    """
    log = getattr(source, "log", None)
    if isinstance(log, TableLog):
        source = log.snapshot()
    if isinstance(source, Snapshot):
        source = Scan(source, None, None)
    if isinstance(source, Scan | ChangeFeed | LatestChanges):
        return source.to_relation(engine)
    return engine.relation(source)
