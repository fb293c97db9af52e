"""Leaving out files for predicates that become known after a scan was planned."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from delta_orch.expressions.nodes import Expression
from delta_orch.log.read.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_REMEMBERED = 4
"""A query asks once for each of its parts, and a user runs the same query again."""


class SnapshotPruning:
    """`ScanPlan.prune` of a snapshot's scans. In another process it is None: the log is not sent along."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._answers: dict[Expression, pa.Table] = {}

    def __call__(self, where: Expression) -> pa.Table:
        """The `path` of each file that may hold rows for which `where` is true. Raises as `Snapshot.files`."""
        with self._lock:
            answer = self._answers.pop(where, None)
            if answer is None:
                answer = self._snapshot.files(["path"], where)
            self._answers[where] = answer
            while len(self._answers) > _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            return answer

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


def _nothing() -> None:
    return None
