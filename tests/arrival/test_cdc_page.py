"""docs/late-rows.md: every recipe runs, in the order of the page, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "late-rows.md"


def test_the_recipes_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    recipes = re.findall(r"^```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(recipes) == 4
    for recipe in recipes[:3]:
        exec(compile(recipe, str(PAGE), "exec"), names)
    assert names["there"].to_pylist() == [{"id": 1, "city": "Bern"}]
    assert sorted(names["at_20"]["city"].to_pylist()) == ["Oslo", "Rome"]
    history = names["history"].snapshot().scan(["id", "city", "valid_from", "valid_to"], "NOT is_deleted").to_arrow()
    assert sorted(zip(*history.to_pydict().values(), strict=True)) == [
        (1, "Bern", 50, None),
        (1, "Lima", 30, 50),
        (1, "Oslo", 10, 30),
        (2, "Nara", 30, 50),
        (2, "Rome", 10, 30),
    ]
    pytest.importorskip("airflow", reason="Airflow is not installed")
    exec(compile(recipes[3], str(PAGE), "exec"), names)


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) <= 900
