"""docs/features.md speaks of every feature, and its examples are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from delta_orch.table.protocol_upgrade import REMOVALS
from delta_orch.table.registry import FEATURES, find_feature
from tests.certain import some

PAGE = (Path(__file__).parents[2] / "docs" / "features.md").read_text()


def test_one_section_a_feature_in_the_registry() -> None:
    assert set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == {f.name for f in FEATURES}


def test_the_properties_that_switch_features_on_are_named_in_their_sections() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    for feature in FEATURES:
        if feature.enabled_by is not None and feature.writes:
            assert feature.enabled_by in sections[feature.name], feature.name


def test_the_features_whose_history_is_protected_are_named() -> None:
    (named,) = re.findall(r"what only readers of the feature understand \((.*?)\)", PAGE, re.DOTALL)
    protected = {name for name, removal in REMOVALS.items() if removal.history_needs_it}
    assert set(re.findall(r"`(\w+)`", named)) == protected
    assert all(some(find_feature(name)).reader for name in protected)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/features.md", "exec"), names)
    assert names["table"].snapshot().schema.names == ("key", "amount", "order day")
