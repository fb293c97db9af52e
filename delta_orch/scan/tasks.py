"""Scans in pieces, for readers in several processes or machines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.select import local_engine
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import int64_range

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.base import Engine, Relation


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Some files of a scan, with all it takes to read them: no log is needed, and none is looked at.

    Can be pickled. Credentials of the store travel along where they were given as `storage_options`. A table in
    `memory:` is only there in its own process.
    """

    plan: ScanPlan

    @property
    def num_files(self) -> int:
        return int(self.plan.files.num_rows)

    @property
    def size_bytes(self) -> int:
        """What the files occupy in storage."""
        return sum(_sizes(self.plan.files))

    def to_arrow(self) -> pa.Table:
        """The task's rows in memory; as `Scan.to_arrow`, and raises as it does."""
        engine = local_engine()
        return engine.to_arrow(engine.scan(self.plan))

    def to_reader(self) -> pa.RecordBatchReader:
        """The task's rows as a stream in bounded memory."""
        engine = local_engine()
        return engine.to_reader(engine.scan(self.plan))

    def to_relation(self, engine: Engine) -> Relation:
        """The task's rows as a relation of any engine."""
        return engine.scan(self.plan)


def split_scan(plan: ScanPlan, max_bytes: int) -> list[ScanTask]:
    """The plan in pieces, its files in their order. See `Scan.tasks`.

    Raises:
        InvalidRequestError: `max_bytes` is not an integer of at least 1.
    """
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
        raise InvalidRequestError(f"max_bytes must be an integer of at least 1, not {max_bytes!r}")
    return [ScanTask(replace(plan, files=_part(plan.files, *part))) for part in _parts(_sizes(plan.files), max_bytes)]


def _parts(sizes: list[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(sizes))
    start, before = 0, 0
    while start < len(ends):
        stop = max(bisect_right(ends, before + max_bytes, start), start + 1)
        yield start, stop
        start, before = stop, ends[stop - 1]


def _part(files: pa.Table, start: int, stop: int) -> pa.Table:
    # `take` copies: a slice would be pickled with all it was cut from.
    return pc.take(files, int64_range(start, stop))


def _sizes(files: pa.Table) -> list[int]:
    return [size or 0 for size in FileTable(files).size.to_pylist()]
