from pathlib import Path

import pytest

from tests.dagster.definition_scenarios import run_definition
from tests.dagster.graph_scenarios import run_graphs
from tests.dagster.incremental_scenarios import run_incremental
from tests.dagster.scenarios import run_scenario


@pytest.mark.parametrize("seed", [1, 2])
def test_scenarios(tmp_path: Path, seed: int) -> None:
    """The short form of `make scenarios`."""
    run_scenario(tmp_path, seed, steps=12)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Class `MultiToSingleDimensionPartitionMapping` is currently in beta")
@pytest.mark.parametrize("seed", [2, 7, 100])
def test_definitions(tmp_path: Path, seed: int) -> None:
    """Hours over a change of clocks, two dimensions, a mapping: the short form of `make scenarios`, too."""
    run_definition(tmp_path, seed, steps=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_incremental_assets(tmp_path: Path, seed: int) -> None:
    """Sources that change in any way, modes and partitions of any kind: the short form of `make scenarios`, too."""
    run_incremental(tmp_path, seed, steps=2)


@pytest.mark.long
def test_graphs(tmp_path: Path) -> None:
    """Nested graphs, lists, failures on either side of a commit and re-executions."""
    run_graphs(tmp_path, 29)
