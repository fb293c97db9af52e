"""The recipes of docs/files-in.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import dagster as dg
import pytest

from delta_orch import DeltaTable
from tests.arrival.landing import Landing, ids_of

PAGE = (Path(__file__).parents[2] / "docs/files-in.md").read_text()


def test_the_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    landing = Landing(tmp_path / "landing/orders")
    landing.put("a.json", 1)
    recipe, plugins = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(recipe, "docs/files-in.md", "exec"), names)
    assert ids_of(DeltaTable("lake/orders")) == [1]
    dagster, airflow = plugins.split("\n\n")
    landing.put("b.json", 2)
    exec(compile(f"from delta_orch.dagster import *\n{dagster}", "docs/files-in.md", "exec"), names)
    dg.materialize([cast(dg.AssetsDefinition, names["orders"])])
    assert ids_of(DeltaTable("lake/orders")) == [1, 2]
    compile(airflow, "docs/files-in.md", "exec")  # tests/airflow/test_airflow_files.py runs such a task.


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 900
