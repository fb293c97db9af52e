"""A short torture of a table of a catalog. `python -m tests.concurrency.catalog_torture 600` runs longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.concurrency.catalog_torture import torture


@pytest.mark.long
def test_nothing_is_lost_doubled_or_seen_too_early(tmp_path: Path) -> None:
    seen = torture(tmp_path, 20)
    assert seen["kills"] > 0
    assert seen["commits"] > 0
    assert seen["looks"] > 0
