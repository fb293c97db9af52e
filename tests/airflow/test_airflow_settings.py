"""The operators that write rows have the settings of `pipeline.write_settings`, with the same defaults."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature

import pytest

from delta_orch.airflow import DeltaIncrementalOperator, DeltaWriteOperator
from delta_orch.airflow.table_operator import DeltaUnitOperator
from delta_orch.airflow.write_operator import DeltaStepOperator
from delta_orch.pipeline.write_settings import SETTINGS, WriteSettings
from scripts.site_reference import described

OF_DAGSTER = ("audit",)
"""Airflow checks a staged write by a task (`delta_write_audit_publish`)."""
DEFAULTS = {one.name: one.default for one in fields(WriteSettings)}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in OF_DAGSTER])
def test_a_setting_is_an_argument_with_the_same_default(name: str) -> None:
    arguments = {**signature(DeltaUnitOperator.__init__).parameters, **signature(DeltaStepOperator.__init__).parameters}
    assert name == "write" or arguments[name].default == DEFAULTS[name]
    for operator in (DeltaWriteOperator, DeltaIncrementalOperator):
        assert name in {part.strip() for names in described(operator) for part in names.split(",")}


def test_an_operator_hands_over_its_settings() -> None:
    task = DeltaWriteOperator(
        task_id="t", table_uri="/t", python_callable=lambda: None, write="cdc", merge_keys=["id"], sequence_by="at",
        scd=2, partition_by=["day"], unit_column=None, on_redo="keep",
    )  # fmt: skip
    expected = WriteSettings(
        write="cdc", merge_keys=["id"], sequence_by="at", scd=2, partition_by=["day"], on_redo="keep"
    )
    assert task.settings == expected
