"""Sources of a write that are not data: tables, snapshots, scans, change feeds."""

from __future__ import annotations

import sys
from typing import Any

from delta_orch.change_feed.change_feed import ChangeFeed, LatestChanges
from delta_orch.engines.base import Engine, Relation
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import Scan

_INTEGERS = {"byte": ("Int8", 7), "short": ("Int16", 15), "integer": ("Int32", 31), "long": ("Int64", 53)}
"""The name of the type in pandas, and the number of bits of its values. A double holds every integer below 2^53, but
2^53 itself may be a rounded value."""


def open_source(engine: Engine, source: object, target: StructType | None = None) -> Relation:
    """Return the source's rows, lazily: data, a table, a snapshot, a scan, or a change feed.

    Args:
        target: The columns that the rows must fit (`with_integers`).

    Raises:
        InvalidRequestError: The value is not a source.
    """
    log = getattr(source, "log", None)
    if isinstance(log, TableLog):
        source = log.snapshot()
    if isinstance(source, Snapshot):
        source = Scan(source, None, None)
    if isinstance(source, Scan | ChangeFeed | LatestChanges):
        relation: Relation = source.to_relation(engine)
        return relation
    return engine.relation(source if target is None else with_integers(source, target))


def with_integers(data: object, target: StructType) -> object:
    """Return a pandas frame with integers as integers. Return other values unchanged.

    pandas stores integers with a null as floats. If the target's column has integers, and all values are whole and in
    its range, they become integers again. Other floats stay, and the table refuses them.
    """
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return data
    frame: Any = data
    integers = {}
    for name in frame.columns if frame.columns.is_unique else ():
        field = target.find(name) if isinstance(name, str) else None
        kind, bits = _INTEGERS.get("" if field is None else str(field.data_type), ("", 0))
        if kind and frame[name].dtype.kind == "f":
            present_values = frame[name].dropna()
            if len(present_values) < len(frame) and bool(
                ((present_values % 1 == 0) & (present_values.abs() < 2**bits)).all()
            ):
                integers[name] = kind
    return frame.astype(integers) if integers else frame
