"""Every case on both engines: what it expects is read, and only what it says must be refused is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import spark_engine
from delta_orch.table.registry import FEATURES, find_feature
from tests.harness.conformance.cases import conformance_cases, reader_labels
from tests.harness.golden import GoldenCase, check_case

CASES = conformance_cases()
ON_SPARK = [
    case
    for number, case in enumerate(CASES)
    if reader_labels(case) - {label for earlier in CASES[:number] for label in reader_labels(earlier)}
]
"""The first case with each reader feature. Spark takes a second for a case, so the others are long."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_process(case: GoldenCase, tmp_path: Path) -> None:
    check_case(case, tmp_path, LocalEngine())


@pytest.mark.spark
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "case",
    [case if case in ON_SPARK else pytest.param(case, marks=pytest.mark.long) for case in CASES],
    ids=lambda case: case.name,
)
def test_on_spark(case: GoldenCase, tmp_path: Path, spark: Any) -> None:
    check_case(case, tmp_path, spark_engine(spark))


def test_spark_reads_each_reader_feature() -> None:
    """By one of its names."""
    labels = {label for case in ON_SPARK for label in case.features}
    known = {find_feature(label.removeprefix("table-feature:")) for label in labels}
    assert {feature for feature in FEATURES if feature.reader and feature.reads} <= known
