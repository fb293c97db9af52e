"""Dry runs: everything a write does, but into a directory that is gone when it returns."""

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
    """An engine whose writes leave no file: rows are cast, checked, encoded and measured in a temporary directory of
    this machine, and what the log would say of the files is all that stays. All but writes is the engine's own.

    Rows of an engine that runs elsewhere come here for it, as a stream; the files are then those the local engine
    would write, which may be fewer or more.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        """See `Engine.write`; the files named do not exist any more."""
        if _runs_here(self._engine):
            return _in_scratch(spec, lambda scratch: self._engine.write(relation, scratch))
        local = LocalEngine()
        rows = local.relation(self._engine.to_reader(relation))
        return _in_scratch(spec, lambda scratch: local.write(rows, scratch))

    def rewrite(self, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
        """See `Engine.rewrite`; the files named do not exist any more."""
        engine = self._engine if _runs_here(self._engine) else LocalEngine()
        return _in_scratch(spec, lambda scratch: engine.rewrite(plans, scratch))


def _runs_here(engine: Engine) -> bool:
    """Whether what the engine writes into a directory of this machine can be found there afterwards."""
    return engine.name == "local" or bool(getattr(engine, "runs_on_this_machine", False))


def _in_scratch(spec: WriteSpec, write: Callable[[WriteSpec], pa.Table]) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="delta-orch-dry-run-") as directory:
        return write(replace(spec, store=open_store(directory)))
