"""Each benchmark says what the runner asks of it, as `benchmarks/__init__.py` has it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest

from benchmarks.runner import find_benchmarks

BENCHMARKS = find_benchmarks()


@pytest.mark.parametrize("module", BENCHMARKS.values(), ids=BENCHMARKS)
def test_a_benchmark_says_what_the_runner_asks_of_it(module: ModuleType) -> None:
    assert isinstance(module.TITLE, str)
    assert callable(module.prepare)
    assert all(callable(contestant) for contestant in module.CONTESTANTS.values())
    rounds = getattr(module, "ROUNDS", {})
    assert isinstance(rounds, Mapping)
    assert rounds.keys() <= module.CONTESTANTS.keys()
    assert getattr(module, "MOST_ROUNDS", 1) >= 1
