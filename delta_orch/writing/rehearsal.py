"""Dry runs: do the whole write, but into a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delta_orch.engines.base import Engine, Relation, WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.storage.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa


class RehearsalEngine:
    """An engine whose writes leave no file. Rows are cast, checked, encoded and measured in a temporary directory of
    this machine. Only the log entries of the files remain. All other methods are those of the engine.

    If the engine runs elsewhere, its rows are streamed to this machine. The local engine then writes the files, so
    their number may differ.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """Write rows. See `Engine.write`. The returned files no longer exist."""
        if _runs_here(self._engine):
            return _in_scratch(spec, lambda scratch: self._engine.write(relation, scratch))
        local = LocalEngine()
        rows = local.relation(self._engine.to_reader(relation))
        return _in_scratch(spec, lambda scratch: local.write(rows, scratch))

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """Rewrite files. See `Engine.rewrite`. The returned files no longer exist."""
        engine = self._engine if _runs_here(self._engine) else LocalEngine()
        return _in_scratch(spec, lambda scratch: engine.rewrite(plans, scratch))


def _runs_here(engine: Engine) -> bool:
    """Whether the engine writes to directories of this machine."""
    return engine.name == "local" or bool(getattr(engine, "runs_on_this_machine", False))


def _in_scratch(spec: WriteSpec, write: Callable[[WriteSpec], pa.Table]) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="delta-orch-dry-run-") as directory:
        return write(replace(spec, store=open_store(directory)))
