"""Random stories of attempts, clears and recreated runs: `unit_model` says which rows may be there."""

from __future__ import annotations

import pytest

from tests.airflow.unit_model import WAYS, tell


@pytest.mark.parametrize("way", WAYS)
def test_a_short_story(way: str) -> None:
    tell(0, way, 8)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(1, 31))
def test_stories(way: str, seed: int) -> None:
    tell(seed, way)
