from pathlib import Path

import pytest

from tests.dagster.scenarios import run_scenario


@pytest.mark.parametrize("seed", [1, 2])
def test_scenarios(tmp_path: Path, seed: int) -> None:
    """The short form of `make scenarios`."""
    run_scenario(tmp_path, seed, steps=12)
