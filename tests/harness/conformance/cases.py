"""The cases to run: tables that the suite makes, and the golden tables where this machine has them.

The golden tables were written by other implementations and are not part of the repository. The suite looks for them
beside the checkout, and tests the same rules without them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from delta_orch.table.registry import FEATURES
from tests.harness.conformance.made_tables import made_cases
from tests.harness.golden import TABLE_KINDS, GoldenCase, load_cases

GOLDEN = Path(__file__).parents[3] / ".." / "shared" / "golden"
needs_golden = pytest.mark.skipif(
    not (GOLDEN / "index.json").is_file(), reason="needs the golden tables, which are not part of the repository"
)


def conformance_cases(kinds: Collection[str] = TABLE_KINDS) -> list[GoldenCase]:
    """All cases of these kinds, those that the suite makes first."""
    return [*made_cases(kinds), *load_cases(GOLDEN, kinds)]


def reader_labels(case: GoldenCase) -> set[str]:
    """What a case asks of a reader: its labels without the features that only writers must know."""
    return set(case.features) - {f"table-feature:{feature.name}" for feature in FEATURES if not feature.reader}
