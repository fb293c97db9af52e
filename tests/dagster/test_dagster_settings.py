"""Every way to say how rows are written has the settings of `pipeline.write_settings`, with the same defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import Parameter, signature
from typing import Any

import pytest

from delta_orch.dagster import DeltaIncrementalComponent, DeltaLakeIOManager, DeltaOut, delta_asset
from delta_orch.dagster.settings import DEFINED_KEYS, MEANINGS, parse_settings
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.write_settings import SETTINGS, WriteSettings, refuse_old_names
from scripts.site_reference import described

DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(WriteSettings)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_an_argument_of_every_way_to_write(name: str) -> None:
    parameter = signature(delta_asset).parameters[name]
    assert parameter.kind is Parameter.KEYWORD_ONLY
    assert parameter.default == DEFAULTS[name]
    assert {one.name: one.default for one in fields(DeltaOut)}[name] == DEFAULTS[name]
    component = DeltaIncrementalComponent.model_fields[name]
    default = component.get_default(call_default_factory=True)
    assert default == DEFAULTS[name] or (default == {} and not DEFAULTS[name])
    assert name in DEFINED_KEYS
    assert DEFAULTS[name] is not MISSING


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_described_wherever_it_is_one(name: str) -> None:
    for entry in (delta_asset, DeltaOut, DeltaIncrementalComponent):
        assert name in {part.strip() for names in described(entry) for part in names.split(",")}
    assert MEANINGS[name].endswith(".")
    if name in DeltaLakeIOManager.model_fields:
        assert DeltaLakeIOManager.model_fields[name].description


def test_no_setting_has_an_old_name() -> None:
    refuse_old_names(SETTINGS)


def test_a_limit_of_no_rows_in_metadata_is_a_limit() -> None:
    rules = {"positive": {"rule": "n > 0", "action": "quarantine"}}
    for limit in (0, 0.0, 2, None):
        settings = parse_settings({"expect": rules, "max_quarantined": limit}, {}, "append")
        assert settings.rules is not None
        assert settings.rules.max_quarantined == limit
    with pytest.raises(InvalidRequestError, match="max_quarantined"):
        parse_settings({"max_quarantined": 0}, {}, "append")
