"""Every golden table: read right, or refused by the name of what is missing.

Which of the two holds is decided by the feature registry for each version of each table; no case is named here. A
feature that becomes readable turns its refusals into comparisons; a table that is refused although the registry reads
it fails, as does one that is read although the registry refuses it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.select import local_engine, spark_engine
from delta_orch.features.registry import find_feature
from delta_orch.testing.golden import GoldenCase, check_case, load_cases, refused_features

ROOT = Path(__file__).parents[2] / ".." / "shared" / "golden"
CASES = load_cases(ROOT) if (ROOT / "index.json").is_file() else []
NEEDS_GOLDEN = pytest.mark.skipif(not CASES, reason=f"the golden tables are not at {ROOT}")

# The features of this slice. The registry may grow beyond it; it must not shrink.
SLICE = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "domainMetadata", "timestampNtz",
     "vacuumProtocolCheck", "v2Checkpoint", "generatedColumns", "identityColumns", "rowTracking"}
)  # fmt: skip


@NEEDS_GOLDEN
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: GoldenCase, tmp_path: Path) -> None:
    check_case(case, tmp_path, local_engine())


@NEEDS_GOLDEN
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_on_spark(case: GoldenCase, tmp_path: Path, spark: Any) -> None:
    check_case(case, tmp_path, spark_engine(spark))


@NEEDS_GOLDEN
def test_what_is_refused_lies_outside_the_slice() -> None:
    refused = Counter()
    for case in CASES:
        if case.kind != "error":
            names = refused_features(case.expect) or []
            refused.update(names)
            known_reader_features = {n for n in names if (f := find_feature(n)) is not None and f.reader}
            assert known_reader_features == set(names), f"{case.name} is refused for {names}"
    assert not SLICE & set(refused)


@NEEDS_GOLDEN
def test_most_cases_are_really_read() -> None:
    readable = [case for case in CASES if case.kind != "error" and refused_features(case.expect) is None]
    # 151 cases are tables to be read; without deletion vectors, column mapping, V2 checkpoints, variants and type
    # widening this many remain.
    assert len(readable) >= 110, Counter(tuple(refused_features(c.expect) or ()) for c in CASES if c.kind != "error")
