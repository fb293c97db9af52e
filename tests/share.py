"""How much a run of the tests does. `make test` runs a share of what is large, `make test-all` runs everything.

Two kinds of tests are large: families of like cases (`@pytest.mark.sampled`, see `conftest.py`), and tests that try
many generated examples (`examples`). A share is the same in every run, so that a failure comes again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

IS_ALL = os.environ.get("DELTA_ORCH_TESTS") == "all"
"""Whether this run does everything."""

ONE_OF = 3
"""A share has one case of so many."""

_T = TypeVar("_T")


def examples(count: int, *, least: int = 3) -> int:
    """How many of `count` generated examples this run tries, `least` at least."""
    return count if IS_ALL else min(count, max(count // ONE_OF, least))


def sample(cases: Sequence[_T]) -> Sequence[_T]:
    """The cases of a family that this run tries: the first of each `ONE_OF`, spread over the whole family."""
    return cases if IS_ALL else cases[::ONE_OF]
