"""Runs every case of a collection on every engine; each pair ends passed, failed, or skipped for a stated reason."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from delta_orch.engines.base import Engine
from delta_orch.errors import DeltaError
from tests.harness.golden import GoldenCase, GoldenMismatch, check_case
from tests.harness.golden_variant import check_variant_case


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case on one engine. `why` is the mismatch, or the reason for skipping."""

    case: GoldenCase
    engine: str
    outcome: Outcome
    why: str = ""
    seconds: float = 0.0


def skip_reason(case: GoldenCase, engine: str) -> str | None:
    """Why a case cannot mean anything on an engine; None where it must run. No case is named here, only kinds are."""
    if case.kind == "variant" and engine == "spark":
        return "a bare column of variants is not a table; Spark reads the variants of the tables"
    return None


def run_cases(cases: Iterable[GoldenCase], engines: Mapping[str, Engine]) -> Iterator[CaseResult]:
    """Run all cases on all engines, one result for each pair, as they end."""
    with tempfile.TemporaryDirectory(prefix="delta-orch-conformance-") as workspace:
        for name, engine in engines.items():
            directory = Path(workspace) / name
            directory.mkdir()
            for case in cases:
                yield _run(case, name, engine, directory)


def _run(case: GoldenCase, engine_name: str, engine: Engine, directory: Path) -> CaseResult:
    reason = skip_reason(case, engine_name)
    if reason is not None:
        return CaseResult(case, engine_name, Outcome.SKIPPED, reason)
    started = time.monotonic()
    outcome, why = Outcome.PASSED, ""
    try:
        if case.kind == "variant":
            check_variant_case(case)
        else:
            check_case(case, directory, engine)
    except (GoldenMismatch, DeltaError) as e:
        outcome, why = Outcome.FAILED, f"{type(e).__name__}: {e}"
    except Exception as e:  # noqa: BLE001 - a foreign exception is a finding like any other, and the others still run
        outcome, why = Outcome.FAILED, f"foreign {type(e).__name__}: {e}"
    return CaseResult(case, engine_name, outcome, why, time.monotonic() - started)
