"""How much a run of the tests does. `make test` takes about 20 minutes on two cores, `make test-slow` has the slow
tests too, and `make test-all` runs everything.

`@pytest.mark.slow` is for a test that takes seconds, and whose rule a quicker test holds in another way. It runs where
its file is named, too. The other two runs leave out a part of what is large.

Two kinds of tests are large: families of like cases (`@pytest.mark.sampled`, see `conftest.py`), and tests that try
many generated examples (`examples`). A share is the same in every run, so that a failure comes again.

The share of a family is a fifth of its cases, or what its marker says: `sampled(6)` is a sixth. Each value of each
parameter comes up, as far as so many cases can have them all. `sampled(6, kinds=…)` says what must come up instead: a
function of the case's parameters, by their names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import TypeVar

IS_ALL = os.environ.get("DELTA_ORCH_TESTS") == "all"
"""Whether this run does everything."""

HAS_SLOW = IS_ALL or os.environ.get("DELTA_ORCH_TESTS") == "slow"
"""Whether it has the slow tests."""

ONE_OF = 5
"""A share has one case of so many."""

ONE_OF_EXAMPLES = 8
"""And of what is generated one example of so many."""

LONGEST = (
    "e2e/test_e2e_demo.py",
    "spark/test_spark_cluster.py",
    "airflow/test_airflow_spark.py",
    "property/test_local_expressions_spark_differential.py",
    "dagster/test_dagster_cdc.py",
    "conformance/test_conformance_golden.py",
    "property/test_property_spark_reading.py",
    "spark/test_spark_format_writes.py",
)
"""The files that take longest. They come first, and files without Spark last: two processes end together then."""

_T = TypeVar("_T")


def place(file: str, *, is_on_spark: bool) -> int:
    """When a file's turn is, the least first."""
    listed = (number for number, name in enumerate(LONGEST) if file.endswith(name))
    return next(listed, len(LONGEST) + (not is_on_spark))


def examples(count: int, *, least: int = 3) -> int:
    """How many of `count` generated examples this run tries, `least` at least."""
    return count if IS_ALL else min(count, max(count // ONE_OF_EXAMPLES, least))


def sample(
    cases: Sequence[_T], one_of: int = ONE_OF, kinds: Callable[[_T], Iterable[object]] = lambda _: ()
) -> Sequence[_T]:
    """The cases of a family that this run tries, in their order: one of so many, spread over the whole family.

    Args:
        kinds: What a case is a case of. The next case is always the one whose kinds have had the fewest cases so far,
            so that a share has a case of each kind if it is large enough.
    """
    if IS_ALL:
        return cases
    left = sorted(range(len(cases)), key=lambda number: number % one_of)
    kinds_of = {number: frozenset(kinds(cases[number])) for number in left}
    seen: Counter[object] = Counter()
    kept: list[int] = []
    while len(kept) * one_of < len(cases):
        found = max(left, key=lambda number: fsum(1 / (1 + seen[kind]) ** 2 for kind in kinds_of[number]))
        left.remove(found)
        seen.update(kinds_of[found])
        kept.append(found)
    return [cases[number] for number in sorted(kept)]
